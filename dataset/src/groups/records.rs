//! Records of the groups' cursors.
//!
//! Per group: the stream (0: all spaces, else the space's number), the length of the name, the
//! name, and a type byte. 0: the group was dropped. 1: delivery resumes after an entry. 2: delivery
//! resumes at an entry. For 1 and 2 the entry's term and sequence follow. Numbers are LEB128.

use super::{Cursor, Group, GroupState, Groups, Key};
use crate::changes::{Id, Scope};
use crate::log_records::{put_number, take_number};

/// Maximum length of a name in a valid record, in bytes.
const MAX_NAME_BYTES: u64 = 1 << 16;

fn put(out: &mut Vec<u8>, key: &Key, cursor: Option<Cursor>) {
    let space = match key.0 {
        Scope::All => 0,
        Scope::Space(number) => number,
    };
    put_number(out, space.into());
    put_number(out, key.1.len() as u64);
    out.extend_from_slice(&key.1);
    match cursor {
        None => out.push(0),
        Some(cursor) => {
            let (how, id) = match cursor {
                Cursor::After(id) => (1, id),
                Cursor::At(id) => (2, id),
            };
            out.push(how);
            put_number(out, id.term);
            put_number(out, id.seq);
        }
    }
}

fn take(bytes: &mut &[u8]) -> Result<(Key, Option<Cursor>), String> {
    let cut_off = || "truncated group".to_owned();
    let space = u32::try_from(take_number(bytes)?).map_err(|_| "space in a group name")?;
    let length = take_number(bytes)?;
    if length > MAX_NAME_BYTES {
        return Err(format!("group name of {length} bytes"));
    }
    let (name, rest) = bytes.split_at_checked(length as usize).ok_or_else(cut_off)?;
    let (how, rest) = rest.split_first().ok_or_else(cut_off)?;
    *bytes = rest;
    let scope = if space == 0 { Scope::All } else { Scope::Space(space) };
    let mut id = || Ok::<_, String>(Id { term: take_number(bytes)?, seq: take_number(bytes)? });
    let cursor = match how {
        0 => None,
        1 => Some(Cursor::After(id()?)),
        2 => Some(Cursor::At(id()?)),
        how => return Err(format!("unknown cursor kind {how} in a group")),
    };
    Ok(((scope, name.to_vec()), cursor))
}

impl Groups {
    /// Appends the cursors that have changed since the last call.
    pub(crate) fn encode_changed(&self, out: &mut Vec<u8>) {
        let GroupState { groups, changed, encoded } = &mut *self.state.lock();
        *encoded = std::mem::take(changed);
        for key in &*encoded {
            put(out, key, groups.get(key).map(Group::cursor));
        }
    }

    /// Marks the cursors of the last call as changed again. Called after a failed log batch.
    pub(crate) fn give_back(&self) {
        let GroupState { changed, encoded, .. } = &mut *self.state.lock();
        changed.append(encoded);
    }

    pub(crate) fn encode_all(&self, out: &mut Vec<u8>) {
        for (key, group) in &self.state.lock().groups {
            put(out, key, Some(group.cursor()));
        }
    }

    pub(crate) fn decode(&self, mut bytes: &[u8]) -> Result<(), String> {
        let groups = &mut self.state.lock().groups;
        while !bytes.is_empty() {
            let (key, cursor) = take(&mut bytes)?;
            match cursor {
                Some(cursor) => _ = groups.insert(key, Group::new(cursor)),
                None => _ = groups.remove(&key),
            }
        }
        Ok(())
    }
}

/// Fuzz target: checks that encoding decoded cursors and decoding them again changes nothing.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_decoder(input: &[u8]) {
    let groups = Groups::default();
    if groups.decode(input).is_ok() {
        let (mut out, again) = (Vec::new(), Groups::default());
        groups.encode_all(&mut out);
        again.decode(&out).expect("decoding returns the encoded group");
        let mut twice = Vec::new();
        again.encode_all(&mut twice);
        assert_eq!(out, twice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_told_when_they_move_and_again_if_that_was_lost() {
        let groups = Groups::default();
        let keys: Vec<Key> = [(Scope::All, "all"), (Scope::Space(7), "of one")]
            .map(|(scope, name)| (scope, name.as_bytes().to_vec()))
            .into();
        let (first, second) = (Id { term: 3, seq: u64::MAX }, Id { term: 3, seq: 0 });
        groups.change(&keys[0], |group| *group = Some(Group::new(Cursor::At(first))));
        groups.change(&keys[1], |group| *group = Some(Group::new(Cursor::After(second))));
        let (mut told, follower) = (Vec::new(), Groups::default());
        groups.encode_changed(&mut told);
        groups.give_back();
        let mut again = Vec::new();
        groups.encode_changed(&mut again);
        assert_eq!(told, again);
        follower.decode(&told).unwrap();
        groups.change(&keys[1], |group| *group = None);
        let (mut gone, mut rest, mut all) = (Vec::new(), Vec::new(), Vec::new());
        groups.encode_changed(&mut gone);
        groups.encode_changed(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
        follower.decode(&gone).unwrap();
        follower.encode_all(&mut all);
        let mut own = Vec::new();
        groups.encode_all(&mut own);
        assert_eq!(all, own);
        for cut in 1..told.len() {
            check_decoder(&told[..cut]);
        }
        assert!(Groups::default().decode(&told[..told.len() - 1]).is_err());
    }
}
