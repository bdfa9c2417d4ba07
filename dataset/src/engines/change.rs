//! Changes to the catalogue of a running server: creating, altering and dropping spaces, views and
//! actions.
//!
//! A change edits a copy of the catalogue, validates it like a configuration, and builds a new
//! [`Engines`] value from it. The new value replaces the current one atomically. The log thread
//! writes the new catalogue with its next batch. The catalogue thus precedes all records of a new
//! space, because writers can mark changes only after the replacement.
//!
//! A writer may still use the previous value. If it marks changes in a dropped space, they are not
//! logged.

use crate::catalogue::{Catalogue, EditError, ExistenceEntry};
use crate::dirty_keys::Mark;
use crate::engines::build::existence_options;
use crate::engines::current::Current;
use crate::engines::error::{AlterError, BuildError};
use crate::engines::registry::Engines;
use crate::groups::{Group, Key};
use counter::{Alteration, Schema};
use std::sync::Arc;

/// Reason for refusing a change. A refused change has no effect.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The edit is invalid, or it conflicts with the catalogue.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// A space could not be created.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl Current {
    /// Returns the catalogue with the current schemas.
    pub fn catalogue(&self) -> Catalogue {
        self.change().now().catalogue()
    }

    /// Edits the catalogue. If the edit fails, nothing changes.
    ///
    /// Calls `may` while other changes are excluded. If `may` returns an error, the edit fails with
    /// this error.
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

    /// Adopts the catalogue of a log record. If its version is not newer, adopts only its schemas.
    pub fn learn(&self, told: &Catalogue) -> Result<(), BuildError> {
        let changing = self.change();
        let engines = changing.now();
        // A master logs its catalogue again after a promotion, so the record often contains the
        // current catalogue.
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

    /// Changes the schema of a counter space. The log contains the catalogue before the first row
    /// that needs the new schema.
    pub fn alter(&self, number: u32, change: &Alteration) -> Result<Arc<Schema>, AlterError> {
        let engines = self.load();
        // Lock order, as in a transaction: the stripe before the change lock.
        let mut turn = engines.turn(0);
        turn.affects_all_ids();
        let changing = self.change();
        let now = changing.now();
        let space = now.counter_by_number(number).ok_or(AlterError::Gone)?;
        now.may_alter(space, change)?;
        let schema = space.space.alter(change)?;
        self.now().all_changed();
        turn.mark(Mark::CATALOGUE);
        Ok(schema)
    }

    /// Changes a consumer group, and marks it for the log if its cursor has changed. `may`: see
    /// [`Current::edit`].
    pub fn change_group<R, E>(
        &self,
        key: &Key,
        may: impl FnOnce() -> Result<(), E>,
        work: impl FnOnce(&mut Option<Group>) -> R,
    ) -> Result<R, E> {
        let engines = self.load();
        // Lock in the same order as `alter`.
        let mut turn = engines.turn(0);
        let _changing = self.change();
        may()?;
        let (done, has_moved) = engines.groups.change(key, work);
        if has_moved {
            turn.mark(Mark::GROUPS);
        }
        Ok(done)
    }

    /// Notifies WATCH and client tracking, and marks the catalogue for the log.
    fn changed(&self) {
        let engines = self.load();
        engines.all_changed();
        let mut turn = engines.turn(0);
        turn.affects_all_ids();
        turn.mark(Mark::CATALOGUE);
        if engines.groups.retain(|number| engines.has(number)) {
            turn.mark(Mark::GROUPS);
        }
    }
}

impl Engines {
    /// Checks that the first tables of new existence spaces fit into memory, so that a mistyped
    /// number of pairs cannot take the memory of other spaces. Counter spaces allocate on demand.
    fn check_room(&self, told: &Catalogue) -> Result<(), String> {
        let is_new = |known: &&ExistenceEntry| self.existence_by_number(known.number).is_none();
        let left = self.memory_budget().saturating_sub(self.kept_bytes());
        for known in told.existence.iter().filter(is_new) {
            // The engine reports invalid options later.
            let needed = existence_options(&known.made).first_table_bytes();
            let Ok(needed) = needed else { continue };
            let most = match known.made.memory_limit_bytes {
                0 => left,
                most => most.min(left),
            };
            if needed > most {
                return Err(format!(
                    "existence space '{}': its first table (an eighth of pairs_per_table) needs \
                     {needed} bytes, more than the other spaces leave (server.memory, \
                     memory_limit)",
                    known.made.name
                ));
            }
        }
        Ok(())
    }

    /// Builds new engines from a catalogue. The new engines share the data of existing spaces.
    fn changed_to(&self, told: &Catalogue) -> Result<Engines, BuildError> {
        let mut next = self.clone();
        next.adopt(told)?;
        next.counters.iter().for_each(|space| space.cold.attach_new(&space.space));
        Ok(next)
    }
}
