//! Locates a row, for diagnostic commands. Regular requests do not use this module.

use crate::space::Space;
use crate::table::{Row, Table};
use crate::{MAX_FIELDS, Read};
use rolling::Unreadable;

/// Location of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the outlier map: the id is far above all others.
    Outlier,
    /// In a table in memory.
    Table {
        /// Lowest id of the table's range.
        low: u64,
        /// Highest id of the range, inclusive.
        last: u64,
        /// Whether the row is in the extend dictionary, because its buckets were full.
        is_extended: bool,
        /// By field position: whether the aux dictionary holds the value, because it exceeds the
        /// field's width.
        in_aux: Vec<bool>,
    },
    /// In the cold backend, on disk.
    Below,
}

impl Space {
    /// Returns the current location of the row of `id`, or `None` if it does not exist. May read
    /// the disk, like [`Space::exists`].
    pub fn origin(&self, id: u64) -> Result<Option<Origin>, Unreadable> {
        Read::new(self).origin(id)
    }
}

impl Read<'_> {
    fn origin(&mut self, id: u64) -> Result<Option<Origin>, Unreadable> {
        if id < self.horizon {
            return Ok(None);
        }
        if self.space.outliers.read(id, |_| ()).is_some() {
            return Ok(Some(Origin::Outlier));
        }
        loop {
            let Some(entry) = self.tables.find(id) else { return Ok(None) };
            let (low, last) = (entry.slot().low(), entry.slot().last());
            let within = |table: &Table| table.read(id, |row| origin_of_row(row, low, last));
            let drained = entry.drains().and_then(|old| within(old.table()));
            if let Some(origin) = drained.or_else(|| within(entry.table())) {
                return Ok(Some(origin));
            }
            if !entry.slot().has_moved(id) {
                let is_below =
                    self.may_be_cold(id) && self.space.read_cold_row(id, |_| ())?.is_some();
                return Ok(is_below.then_some(Origin::Below));
            }
            self.tables = self.space.ring.load();
        }
    }
}

fn origin_of_row(row: Row<'_>, low: u64, last: u64) -> Origin {
    let in_aux = (0..MAX_FIELDS).map(|field| row.is_in_aux(field)).collect();
    Origin::Table { low, last, is_extended: row.is_extended(), in_aux }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Schema};

    #[test]
    fn origin_names_table_and_aux_dictionary_of_a_row() {
        let schema = Schema::parse("like:4 read:8").unwrap();
        let space =
            Space::new(Options { rows_per_table: 1 << 12, ..Options::new(schema) }).unwrap();
        for id in 1..=1000 {
            space.set(id, &[(0, if id == 7 { 1000 } else { 3 })]).unwrap();
        }
        assert_eq!(space.origin(5000).unwrap(), None);
        let Some(Origin::Table { low, last, is_extended, in_aux }) = space.origin(7).unwrap()
        else {
            panic!("{:?}", space.origin(7).unwrap());
        };
        assert!(low <= 7 && 7 <= last && !is_extended);
        assert_eq!(in_aux[..3], [true, false, false]);
        let Some(Origin::Table { in_aux, .. }) = space.origin(8).unwrap() else {
            panic!("the row exists")
        };
        assert!(!in_aux.contains(&true));
        space.set(u64::MAX / 2, &[(0, 1)]).unwrap();
        assert_eq!(space.origin(u64::MAX / 2).unwrap(), Some(Origin::Outlier));
    }
}
