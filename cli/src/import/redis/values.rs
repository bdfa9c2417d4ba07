//! Converts the values of keys to rows and flags, according to the [`Layout`] of the keys.

use super::items::{Item, Read};
use super::layout::{Container, Layout, Packing, decimal, in_field, shown};
use super::packed::{self, Checked};
use client::Reply;
use dataset::key_patterns::KeyMatch;

/// A row that is being read. Values of several shards are summed.
struct Row<'r> {
    layout: &'r Layout,
    /// Values by index in [`Layout::fields`]. A value is `None` if a part of it was rejected.
    values: Vec<(usize, Option<i64>)>,
    read: &'r mut Read,
}

impl Row<'_> {
    fn add(&mut self, at: usize, value: Checked) {
        let before = self.values.iter().position(|(other, _)| *other == at);
        let number = before.unwrap_or_else(|| {
            self.values.push((at, Some(0)));
            self.values.len() - 1
        });
        let sum = &mut self.values[number].1;
        let added = match (*sum, value) {
            (Some(sum), Ok(value)) => sum
                .checked_add(value)
                .ok_or_else(|| "the sum of the shards is out of range".to_owned()),
            (None, Ok(_)) => return,
            (_, Err(why)) => Err(why),
        };
        *sum = added.as_ref().ok().copied();
        if let Err(why) = added {
            let name = self.layout.fields.get(at).map_or("", |(from, _)| from);
            self.read.reject(in_field(name.as_bytes(), &why));
        }
    }
}

impl Layout {
    pub(super) fn position(&self, name: &[u8]) -> Option<usize> {
        self.fields.iter().position(|(from, _)| from.as_bytes() == name)
    }

    /// Returns the counters of a value, each with its number or its reject reason.
    fn values(&self, value: &[u8]) -> Result<Vec<(usize, Checked)>, String> {
        let values: Vec<_> = match &self.packing {
            Packing::Decimal => vec![(0, decimal(value))],
            Packing::Struct(format) => format.unpack(value)?.into_iter().enumerate().collect(),
            Packing::Msgpack => match packed::msgpack(value)? {
                packed::Unpacked::List(values) => values.into_iter().enumerate().collect(),
                packed::Unpacked::Map(named) => named
                    .into_iter()
                    .filter_map(|(name, value)| Some((self.position(&name)?, value)))
                    .collect(),
            },
        };
        if values.len() > self.fields.len() {
            let (found, named) = (values.len(), self.fields.len());
            return Err(format!("found {found} packed values, but fields= has {named} names"));
        }
        Ok(values)
    }

    /// Returns whether each key holds a single counter of a row. Other keys may hold the other
    /// counters.
    pub(crate) fn is_cell(&self) -> bool {
        match self.container {
            Container::String | Container::Buckets(_) => self.names_field(),
            Container::Card | Container::Ones => true,
            _ => false,
        }
    }

    /// Returns the values of a hash. Adds 0 for each counter that is missing in the hash and cannot
    /// be in another key.
    pub(crate) fn with_zeros_for_lacking(
        &self,
        values: &[(usize, Option<i64>)],
        others_have: bool,
    ) -> Vec<(usize, i64)> {
        let has = |at| values.iter().any(|value| value.0 == at);
        let may_be_in_other_layout = |at| others_have || self.may_be_in_other_layout(at);
        let lacking = (0..self.fields.len()).filter(|at| !may_be_in_other_layout(*at) && !has(*at));
        let there = values.iter().filter_map(|&(at, value)| Some((at, value?)));
        there.chain(lacking.map(|at| (at, 0))).collect()
    }

    /// Reads the keys of one row, one reply per shard. `field` is the counter in the key's name.
    pub(crate) fn read_row(&self, id: u64, field: &[u8], parts: &[Reply], read: &mut Read) {
        let (parts, row) = parts.split_at(parts.len() - usize::from(self.row.is_some()));
        if let [Reply::Integer(1)] = row
            && parts.iter().any(|part| matches!(part, Reply::BulkString(_)))
        {
            let key = self.row_key(id, field).unwrap_or_default().0;
            return read
                .reject(format!("the hash {} also has a value for this counter", shown(&key)));
        }
        let mut row = Row { layout: self, values: Vec::new(), read };
        for (number, part) in parts.iter().enumerate() {
            if let Err(why) = self.read_part(field, part, &mut row) {
                let shard = self.shards.get(number);
                row.read.reject(match shard {
                    Some(shard) => format!("shard '{shard}': {why}"),
                    None => why,
                });
                // If one part is unknown, so is the sum.
                return;
            }
        }
        let Row { mut values, read, .. } = row;
        for (at, value) in &mut values {
            match value.map(|value| self.within_bounds(*at, value)) {
                Some(Ok(within)) => *value = Some(within),
                Some(Err(why)) => {
                    read.reject(why);
                    *value = None;
                }
                None => {}
            }
        }
        if values.iter().all(|(_, value)| value.is_none()) {
            return;
        }
        read.items.push(match self.container {
            Container::Hash => Item::Hash(id, values),
            _ => Item::Row(id, values.into_iter().filter_map(|(at, n)| Some((at, n?))).collect()),
        });
    }

    fn read_part(&self, field: &[u8], part: &Reply, row: &mut Row<'_>) -> Result<(), String> {
        match part {
            Reply::Error(reason) => return Err(reason.clone()),
            Reply::Integer(count) if *count > 0 => row.add(0, Ok(*count)),
            Reply::BulkString(value) if self.names_field() => {
                let at = self.position(field).ok_or_else(|| self.has_none(field))?;
                self.leaves(at)
                    .and_then(|()| decimal(value))
                    .map(|value| row.add(at, Ok(value)))?;
            }
            Reply::BulkString(value) if self.packing == Packing::Decimal => {
                row.add(0, Ok(decimal(value)?));
            }
            Reply::BulkString(value) => {
                self.values(value)?.into_iter().for_each(|(at, value)| row.add(at, value));
            }
            Reply::Array(all) => {
                for pair in all.chunks_exact(2) {
                    let [Reply::BulkString(name), Reply::BulkString(value)] = pair else {
                        continue;
                    };
                    match self.position(name) {
                        Some(at) => row.add(at, self.leaves(at).and_then(|()| decimal(value))),
                        None if self.all_fields => row.read.foreign.push(name.clone()),
                        None => {}
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Fails if another layout holds the counter.
    fn leaves(&self, at: usize) -> Result<(), String> {
        let mut others = self.others.iter().filter(|other| other.at == at);
        match others.find_map(|other| other.text.as_ref()) {
            None => Ok(()),
            Some(text) => Err(format!("its values are imported by {text}")),
        }
    }

    fn within_bounds(&self, at: usize, value: i64) -> Result<i64, String> {
        let Some(declared) = self.declared.get(at) else { return Ok(value) };
        declared.set(value).map_err(|error| error.to_string())
    }

    fn has_none(&self, field: &[u8]) -> String {
        in_field(field, &format!("the space '{}' has no such field", self.space))
    }

    pub(crate) fn read_bucket(&self, bucket: u64, field: &[u8], value: &[u8], read: &mut Read) {
        match self.id_in_bucket(bucket, field) {
            Err(why) => read.reject(in_field(field, &why)),
            Ok((_, name)) if self.names_field() && self.position(name).is_none() => {
                read.foreign.push(name.to_vec());
            }
            Ok((id, name)) => {
                let mut one = Read::of(Vec::new(), 0, Vec::new());
                let part = Reply::BulkString(value.to_vec());
                self.read_row(id, name, &[part], &mut one);
                read.items.append(&mut one.items);
                if let Some(why) = one.bad {
                    read.reject(in_field(field, &why));
                }
            }
        }
    }

    /// Parses a field of a bucket. Returns the id and the counter that the field stands for.
    fn id_in_bucket<'f>(&self, bucket: u64, field: &'f [u8]) -> Result<(u64, &'f [u8]), String> {
        let per = match self.container {
            Container::Buckets(per) => per,
            _ => 0,
        };
        if let Some((pattern, text)) = &self.entry {
            let KeyMatch::Yes(id, name) = pattern.read(field) else {
                return Err(format!("it does not match {text}"));
            };
            return match per > 0 && id / per != bucket {
                true => Err(format!("it belongs to another bucket (per={per})")),
                false => Ok((id, name)),
            };
        }
        let number =
            resp::natural(field).ok_or("it is not a number (use field= to give its pattern)")?;
        let id = match per {
            0 => Some(number),
            _ if number >= per => return Err(format!("per={per}")),
            _ => bucket.checked_mul(per).and_then(|low| low.checked_add(number)),
        };
        Ok((id.ok_or("the id is greater than 18446744073709551615")?, b""))
    }

    /// Returns the item for a deleted key if its former contents are known.
    pub(crate) fn gone(&self, id: u64, field: &[u8]) -> Option<Item> {
        let is_row =
            self.has_all && !(0..self.fields.len()).any(|at| self.may_be_in_other_layout(at));
        match self.container {
            Container::String if self.names_field() => {
                let at = self.position(field).filter(|at| self.leaves(*at).is_ok())?;
                Some(Item::Row(id, vec![(at, 0)]))
            }
            Container::Hash | Container::String if is_row => Some(Item::RowKeyDeleted(id)),
            Container::Hash | Container::String | Container::Card | Container::Ones => {
                Some(Item::Row(id, self.with_zeros_for_lacking(&[], false)))
            }
            // The former ids or members are unknown.
            Container::Set | Container::Bits | Container::Buckets(_) => None,
        }
    }

    /// Returns the required classes of keyspace notifications: the class of the type, generic,
    /// expired and evicted.
    pub(crate) fn classes(&self) -> &'static str {
        match self.container {
            Container::Hash | Container::Buckets(_) => "ghxe",
            Container::String | Container::Bits | Container::Ones => "g$xe",
            Container::Set | Container::Card => "gsxe",
        }
    }

    /// Returns whether an event may have removed members, fields of a hash, or the last key of a
    /// row.
    pub(crate) fn may_remove(&self, event: &[u8]) -> bool {
        match self.container {
            Container::Set => event != b"sadd",
            // The event does not indicate whether a bit was set or cleared.
            Container::Bits => true,
            Container::Hash | Container::Buckets(_) => !matches!(event, b"hset" | b"hincrby"),
            // The counters become 0, and the row may have no other key.
            Container::String | Container::Card | Container::Ones => {
                matches!(event, b"del" | b"expired" | b"evicted" | b"rename_from" | b"move_from")
            }
        }
    }
}
