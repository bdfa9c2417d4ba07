//! Changes of what there is while it is served: spaces, views and actions come, change and go.
//!
//! A change is made of the catalogue, which is checked as a configuration is, and becomes other
//! engines; they take the place of the present ones in one step. The log thread finds the new
//! catalogue with its next batch, before any record that needs it: what is marked of a new space is
//! marked after that step.
//!
//! A writer may still be at work with the engines of before. What it marks of a space that was
//! dropped is not logged.

use crate::catalogue::{Catalogue, EditError, ExistenceEntry};
use crate::dirty_keys::Mark;
use crate::engines::build::existence_options;
use crate::engines::current::Current;
use crate::engines::error::{AlterError, BuildError};
use crate::engines::registry::Engines;
use crate::groups::{Group, Key};
use counter::{Alteration, Schema};
use std::sync::Arc;

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// What was asked for cannot be, or does not fit what there is.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// A space could not be made.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl Current {
    /// What the data folder is to know of the spaces, as they are now.
    pub fn catalogue(&self) -> Catalogue {
        self.change().now().catalogue()
    }

    /// Makes a change, or refuses it and changes nothing. `may`: whether changes are taken at all,
    /// asked when none is under way.
    pub fn edit<E: From<ChangeError>>(
        &self,
        may: impl FnOnce() -> Result<(), E>,
        change: impl FnOnce(&mut Catalogue) -> Result<(), EditError>,
    ) -> Result<(), E> {
        let changing = self.change();
        may()?;
        let engines = changing.now();
        let mut next = engines.catalogue();
        change(&mut next).map_err(|error| E::from(error.into()))?;
        next.check().map_err(|why| E::from(EditError::Invalid(why).into()))?;
        engines.check_room(&next).map_err(|why| E::from(EditError::Invalid(why).into()))?;
        next.version += 1;
        let made = engines.changed_to(&next).map_err(|error| E::from(error.into()))?;
        changing.publish(made);
        drop((engines, changing));
        self.changed();
        Ok(())
    }

    /// Adopts the catalogue of a log record.
    pub fn learn(&self, told: &Catalogue) -> Result<(), BuildError> {
        let changing = self.change();
        let engines = changing.now();
        // A master tells it again when it begins to lead.
        if engines.catalogue() == *told {
            return Ok(());
        }
        if told.version > 0 && told.version <= engines.version() {
            engines.adopt_schemas(told)?;
        } else {
            changing.publish(engines.changed_to(told)?);
        }
        engines.all_changed();
        Ok(())
    }

    /// Changes the schema of a counter space, at once: the engine has the rules. The log learns of
    /// it before the first row that needs it.
    pub fn alter(&self, number: u32, change: &Alteration) -> Result<Arc<Schema>, AlterError> {
        let engines = self.load();
        // In this order: a transaction has the stripes.
        let mut turn = engines.turn(0);
        turn.concerns_all();
        let changing = self.change();
        let now = changing.now();
        let space = now.counter_by_number(number).ok_or(AlterError::Gone)?;
        now.may_alter(space, change)?;
        let schema = space.space.alter(change)?;
        self.now().all_changed();
        turn.mark(Mark::CATALOGUE);
        Ok(schema)
    }

    /// Changes a consumer group; the log learns of it if its cursor moves. `may`: as in
    /// [`Current::edit`].
    pub fn change_group<R, E>(
        &self,
        key: &Key,
        may: impl FnOnce() -> Result<(), E>,
        work: impl FnOnce(&mut Option<Group>) -> R,
    ) -> Result<R, E> {
        let engines = self.load();
        // In this order: see `alter`.
        let mut turn = engines.turn(0);
        let _changing = self.change();
        may()?;
        let (done, has_moved) = engines.groups.change(key, work);
        if has_moved {
            turn.mark(Mark::GROUPS);
        }
        Ok(done)
    }

    /// Tells watchers and trackers, and has the catalogue logged.
    fn changed(&self) {
        let engines = self.load();
        engines.all_changed();
        let mut turn = engines.turn(0);
        turn.concerns_all();
        turn.mark(Mark::CATALOGUE);
        if engines.groups.retain(|number| engines.has(number)) {
            turn.mark(Mark::GROUPS);
        }
    }
}

impl Engines {
    /// Whether there is memory for the first tables of spaces that are not there yet: a mistyped
    /// number of pairs must not take it from all others. (Rows take theirs as they come.)
    fn check_room(&self, told: &Catalogue) -> Result<(), String> {
        let is_new = |known: &&ExistenceEntry| self.existence_by_number(known.number).is_none();
        let left = self.memory_budget().saturating_sub(self.kept_bytes());
        for known in told.existence.iter().filter(is_new) {
            // What the engine refuses it says itself.
            let needed = existence_options(&known.made).first_table_bytes();
            let Ok(needed) = needed else { continue };
            let most = match known.made.memory_limit_bytes {
                0 => left,
                most => most.min(left),
            };
            if needed > most {
                return Err(format!(
                    "existence space '{}': its first table, an eighth of pairs_per_table, takes \
                     {needed} bytes: more than there is for it beside what other spaces keep \
                     (server.memory_bytes, memory_limit_bytes)",
                    known.made.name
                ));
            }
        }
        Ok(())
    }

    /// Other engines, as this catalogue says, over the same data.
    fn changed_to(&self, told: &Catalogue) -> Result<Engines, BuildError> {
        let mut next = self.clone();
        next.adopt(told)?;
        // Of new ones nothing is on the disk.
        next.counters.iter().for_each(|space| space.cold.attach_new(&space.space));
        Ok(next)
    }
}
