//! Writes: atomic test-and-set of a pair (P3).

use crate::Error;
use crate::hash::{Member, Pair};
use crate::options::Change;
use crate::space::{OutlierPairs, Space};
use crate::table::{State, Table};
use rolling::{Frontier, Refused, WriteDestination};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Number of outliers (pairs of ids far above all tables) up to which a writer itself moves the
/// outliers into ranges. [`Space::maintain`] moves larger numbers.
const MAX_MOVED_BY_WRITER: usize = 8192;
/// Divisor: outliers may always use 1/8 of the memory limit of filters. When outliers exceed this
/// share, even scattered ids get tables.
pub(crate) const OUTLIER_PART: u64 = 8;

impl Space {
    /// Sets the pair.
    pub fn add(&self, id: u64, member: &Member) -> Result<Change, Error> {
        self.add_with(id, member, || Ok::<(), Error>(()))
    }

    /// Unsets the pair.
    pub fn remove(&self, id: u64, member: &Member) -> Result<Change, Error> {
        self.remove_with(id, member, || Ok::<(), Error>(()))
    }

    /// Sets the pair if it is not set and `first` succeeds. No other thread tests or changes the
    /// pair during the call (P3). All limits are checked before `first` runs, so the write cannot
    /// fail afterwards. `first` runs while a lock is held, so it must be short and must not write
    /// to this space.
    pub fn add_with<E: From<Error>>(
        &self,
        id: u64,
        member: &Member,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        self.change(&self.pair(id, member), true, false, first)
    }

    /// Deletes the pair if it is set and `first` succeeds. Otherwise behaves like
    /// [`Space::add_with`].
    pub fn remove_with<E: From<Error>>(
        &self,
        id: u64,
        member: &Member,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        self.change(&self.pair(id, member), false, false, first)
    }

    /// Checks whether [`Space::remove`] would refuse a set pair because its table has too many
    /// deleted pairs. The result is advisory: other writers may reach the limit before the removal.
    pub fn may_remove(&self, id: u64, member: &Member) -> Result<(), Error> {
        let pair = self.pair(id, member);
        let full = self
            .table_over(id)
            .is_some_and(|(_, table)| table.revoked.len() >= self.limits.max_unset.load(Relaxed));
        if full && !self.is_outlier(&pair) { Err(Error::RevokedFull) } else { Ok(()) }
    }

    /// Replays a write from the log. The call is idempotent and independent of the order of
    /// rollovers. Limits do not apply. The ring creates no table and the frontier does not move,
    /// because [`Space::put_layout`] and [`Space::put_frontier`] replay these changes.
    pub fn put(&self, pair: &Pair, set: bool) -> Result<(), Error> {
        self.change(pair, set, true, || Ok::<(), Error>(())).map(|_| ())
    }

    fn change<E: From<Error>>(
        &self,
        pair: &Pair,
        set: bool,
        replay: bool,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        // Ids below the space's first id are unknown. In a new space, such ids would otherwise
        // become outliers.
        if pair.id < self.options.first_id {
            return Ok(Change::Unknown);
        }
        let mut due = None;
        let write = |side: WriteDestination, held: &mut Option<Arc<OutlierPairs>>| match side {
            WriteDestination::Inside => {
                self.change_inside(held, pair, set, replay, &mut due, first)
            }
            WriteDestination::Ahead => self.change_ahead(held, pair, set, replay, first),
        };
        let result = match (set, replay) {
            (_, true) => {
                self.outliers.replay(&self.frontier, pair.id, write).map_err(Refused::Engine)
            }
            (false, false) => {
                self.outliers.write_removal(&self.frontier, pair.id, write).map_err(Refused::Engine)
            }
            (true, false) => self.outliers.write(&self.frontier, pair.id, write),
        };
        if let Some(low) = due {
            self.try_roll(low);
        }
        if !self.outliers.is_empty() && self.outlier_pairs.load(SeqCst) <= MAX_MOVED_BY_WRITER {
            self.admit_outliers();
        }
        result.map_err(|refused| match refused {
            Refused::TooFar => Error::KeyTooBig.into(),
            Refused::Engine(error) => error,
        })
    }

    /// Changes one pair in the tables. `held` contains pairs of the id that are still outliers.
    /// Sets `due` to the lowest id of a table that must close.
    fn change_inside<E: From<Error>>(
        &self,
        held: &mut Option<Arc<OutlierPairs>>,
        pair: &Pair,
        set: bool,
        replay: bool,
        due: &mut Option<u64>,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        // Moves only this pair. An id may have many outliers, and `drain` moves the rest.
        if let Some(early) = held
            && early.read().contains(&pair.hash())
        {
            self.settle(pair.id, early, [pair.hash()])?;
            held.take_if(|held| held.read().is_empty());
        }
        let done = self.ring.write(pair.id, pair.low, |entry| {
            let table = entry.table();
            let done = self.change_in(table, pair, set, replay, first);
            if !replay && table.is_open() && table.is_due() {
                *due = Some(entry.slot().low());
            }
            done
        });
        done.unwrap_or(Ok(Change::Unknown))
    }

    fn change_ahead<E: From<Error>>(
        &self,
        held: &mut Option<Arc<OutlierPairs>>,
        pair: &Pair,
        set: bool,
        replay: bool,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        let is_set = held.as_ref().is_some_and(|held| held.read().contains(&pair.hash()));
        if is_set == set {
            return Ok(Change::Unchanged);
        }
        if set && !replay && !self.may_hold_outliers() {
            return Err(Error::Full.into());
        }
        first()?;
        if set {
            held.get_or_insert_default().write().insert(pair.hash());
            self.outlier_pairs.fetch_add(1, SeqCst);
        } else if let Some(early) = held {
            early.write().remove(&pair.hash());
            self.outlier_pairs.fetch_sub(1, SeqCst);
            held.take_if(|held| held.read().is_empty());
        }
        Ok(Change::Changed)
    }

    /// Whether the space accepts another outlier. It accepts up to `max_outliers` pairs, up to a
    /// fixed share of the memory limit of filters, and any number while filters leave memory free.
    /// The fixed share reserves room for ids that jump ahead while filters use all memory.
    fn may_hold_outliers(&self) -> bool {
        let bytes = self.outlier_bytes();
        self.outlier_pairs() < self.limits.max_outliers.load(Relaxed)
            || bytes as u64 <= self.filter_bytes_limit() / OUTLIER_PART
            || self.may_grow(bytes)
    }

    /// Changes one pair in `table`. The caller holds the pair's stripe. `replay` disables the
    /// limits.
    #[inline]
    fn change_in<E: From<Error>>(
        &self,
        table: &Table,
        pair: &Pair,
        set: bool,
        replay: bool,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        if let Some(cold) = table.cold() {
            return self.change_cold(table, cold, pair, set, replay, first);
        }
        // A write needs both lines. Loading them together takes the time of one cache miss.
        let probe = table.first_filter().probe(pair);
        table.prefetch(pair, &probe);
        match (table.state_in_memory(pair, &probe), set) {
            (State::Unset | State::DeletedPairs, false) => return Ok(Change::Unchanged),
            (State::Set, true) => {
                table.pass_on(pair)?;
                return Ok(Change::Unchanged);
            }
            (State::Unset, true) => {
                let link = table.room(|bytes| replay || self.may_grow(bytes))?;
                table.pass_on(pair)?;
                first()?;
                // After a rebuild, a deleted pair may have no bits in the new filters.
                table.revoked.remove(pair.hash());
                Table::set(link, pair);
            }
            (State::DeletedPairs, true) => {
                table.pass_on(pair)?;
                first()?;
                table.revoked.remove(pair.hash());
                table.touch();
            }
            (State::Set, false) => self.revoke(table, pair.hash(), replay, first)?,
        }
        Ok(Change::Changed)
    }

    /// Adds a set pair to the table's deleted pairs, if `first` succeeds.
    pub(crate) fn revoke<E: From<Error>>(
        &self,
        table: &Table,
        hash: u128,
        replay: bool,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let most = if replay { usize::MAX } else { self.limits.max_unset.load(Relaxed) };
        if !table.revoked.reserve(most) {
            return Err(Error::RevokedFull.into());
        }
        first().inspect_err(|_| table.revoked.release())?;
        table.revoked.insert_reserved(hash);
        table.touch();
        Ok(())
    }

    /// Adds an outlier from a snapshot. The frontier does not count this outlier.
    pub(crate) fn put_outlier(&self, pair: &Pair) {
        let nothing_is_normal = Frontier::new(None, 0);
        let keep = |side, entry: &mut Option<Arc<OutlierPairs>>| {
            if side == WriteDestination::Ahead
                && entry.get_or_insert_default().write().insert(pair.hash())
            {
                self.outlier_pairs.fetch_add(1, SeqCst);
            }
            Ok::<(), Error>(())
        };
        let kept = self.outliers.replay(&nothing_is_normal, pair.id, keep);
        assert!(kept.is_ok(), "no write is refused");
    }

    /// Moves pairs of `id` from the outliers in `held` into tables. The caller holds the lock of
    /// the id's outliers.
    pub(crate) fn settle(
        &self,
        id: u64,
        held: &OutlierPairs,
        some: impl IntoIterator<Item = u128>,
    ) -> Result<(), Error> {
        // Set the flag before the moves. A log reader that finds a moved pair must also find the
        // flag set.
        self.news.store(true, SeqCst);
        for hash in some {
            let pair = Pair::from_hash(id, hash);
            let first = || Ok::<(), Error>(());
            self.ring
                .write(id, pair.low, |entry| {
                    self.change_in(entry.table(), &pair, true, true, first)
                })
                .transpose()?;
            held.write().remove(&hash);
            self.outlier_pairs.fetch_sub(1, SeqCst);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Options};

    /// After a rebuild, a deleted pair may have no bits in the filters until `forget_revoked` runs.
    #[test]
    fn a_pair_that_is_revoked_before_it_has_bits_can_be_set() {
        let space = Space::new(Options { seed: 1, ..Options::default() }).unwrap();
        (0..100).for_each(|id| _ = space.add(id, &Member::Number(0)).unwrap());
        let pair = space.pair(7, &Member::Number(1));
        let (_, table) = space.table_over(7).unwrap();
        assert!(table.revoked.insert(pair.hash()));
        assert_eq!(space.contains_pair(&pair).unwrap(), Answer::No);
        assert_eq!(space.add(7, &Member::Number(1)).unwrap(), Change::Changed);
        assert_eq!((space.contains_pair(&pair).unwrap(), table.revoked.len()), (Answer::Yes, 0));
    }
}
