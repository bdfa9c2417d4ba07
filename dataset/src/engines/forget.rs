//! Forgets an id: deletes its rows and unsets all its flags, while holding the lock of the id's
//! stripe.
//!
//! The flags are unset first, so a reader that finds no row does not find a set flag.

use crate::dirty_keys::Mark;
use crate::engines::action::Action;
use crate::engines::error::WriteError;
use crate::engines::registry::Engines;
use crate::engines::spaces::{CounterSpace, ExistenceSpace, RelatedSpaces};
use crate::engines::view::View;
use store::WriteGuard;

/// Returns the related spaces of each counter space. Spaces are related if a view shows both for
/// one id, or an action changes both for one id.
pub(super) fn related_spaces(
    counters: usize,
    views: &[View],
    actions: &[Action],
) -> Vec<RelatedSpaces> {
    let of_views = views.iter().map(|view| RelatedSpaces {
        counters: view.sources.clone(),
        existences: view.flags.clone(),
    });
    let of_actions = actions.iter().map(|action| {
        let also = action.beside.iter().filter(|beside| !beside.of_member);
        let also = also.map(|beside| beside.counter);
        RelatedSpaces {
            counters: also.chain([action.counter]).collect(),
            existences: vec![action.flag],
        }
    });
    let alone =
        (0..counters).map(|counter| RelatedSpaces { counters: vec![counter], existences: vec![] });
    let mut groups: Vec<RelatedSpaces> = Vec::new();
    for mut next in of_views.chain(of_actions).chain(alone) {
        let are_apart = |group: &RelatedSpaces, next: &RelatedSpaces| {
            let has = |list: &[usize], of: &[usize]| list.iter().any(|index| of.contains(index));
            !has(&group.counters, &next.counters) && !has(&group.existences, &next.existences)
        };
        groups.retain(|group| {
            let is_apart = are_apart(group, &next);
            if !is_apart {
                next.counters.extend(&group.counters);
                next.existences.extend(&group.existences);
            }
            is_apart
        });
        for list in [&mut next.counters, &mut next.existences] {
            list.sort_unstable();
            list.dedup();
        }
        groups.push(next);
    }
    let of = |counter| groups.iter().find(|group| group.counters.contains(&counter)).cloned();
    (0..counters).map(|counter| of(counter).unwrap_or_default()).collect()
}

impl Engines {
    /// Counter spaces whose ids denote the same entities as those of `space`, including `space`.
    pub fn related_counter_spaces<'a>(
        &'a self,
        space: &'a CounterSpace,
    ) -> impl Iterator<Item = &'a CounterSpace> + Clone {
        space.related.counters.iter().map(|&index| &self.counters[index])
    }

    /// Existence spaces whose ids denote the same entities as those of `space`.
    pub fn related_existence_spaces<'a>(
        &'a self,
        space: &'a CounterSpace,
    ) -> impl Iterator<Item = &'a ExistenceSpace> + Clone {
        space.related.existences.iter().map(|&index| &self.existences[index])
    }

    /// Deletes the rows of an id in all related counter spaces, and unsets its flags in all related
    /// existence spaces. Returns whether a row existed.
    pub fn forget(&self, space: &CounterSpace, id: u64) -> Result<bool, WriteError> {
        self.forget_in(self.related_counter_spaces(space), self.related_existence_spaces(space), id)
    }

    /// Unsets all flags of an id in one space. Returns false if the id is below the horizon.
    pub fn forget_flags(&self, space: &ExistenceSpace, id: u64) -> Result<bool, WriteError> {
        let mut turn = self.turn(id);
        space.space.may_forget(id)?;
        self.forget_pairs(&mut turn, space, id);
        Ok(id >= space.horizon())
    }

    /// Executes DEL of a row. Also unsets the id's flags if the space has `delete_forgets`. Returns
    /// whether the row existed.
    #[inline]
    pub fn delete(&self, space: &CounterSpace, id: u64) -> Result<bool, WriteError> {
        if space.made.delete_forgets {
            self.forget_in(std::iter::once(space), self.related_existence_spaces(space), id)
        } else {
            self.delete_row(space, id)
        }
    }

    fn forget_in<'a>(
        &'a self,
        rows: impl Iterator<Item = &'a CounterSpace>,
        flags: impl Iterator<Item = &'a ExistenceSpace> + Clone,
        id: u64,
    ) -> Result<bool, WriteError> {
        let mut turn = self.turn(id);
        flags.clone().try_for_each(|flags| flags.space.may_forget(id))?;
        flags.for_each(|flags| self.forget_pairs(&mut turn, flags, id));
        let mut deleted = false;
        for rows in rows {
            if rows.space.delete(id)? {
                self.changed_row(&mut turn, rows, id);
                deleted = true;
            }
        }
        Ok(deleted)
    }

    fn forget_pairs(&self, turn: &mut WriteGuard<'_, Mark>, space: &ExistenceSpace, id: u64) {
        let drop_exact = || {
            if let Some(ledger) = &space.ledger {
                ledger.ledger().drop_id(id);
            }
        };
        if space.space.forget_with(id, drop_exact) {
            self.changed(space.number, id);
            turn.mark_new(Mark::forgotten(space.number, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::commit::Durability;
    use crate::engines::{ChangeError, Current};
    use crate::options::{Action, Counter, Existence, Options, View};
    use phantom::{Answer, Change, Member};
    use std::sync::Arc;

    fn counter(name: &str, delete_forgets: bool) -> Counter {
        let fields = "like:12 follower:12 following:12".to_owned();
        Counter { name: name.to_owned(), fields, delete_forgets, ..Counter::default() }
    }

    fn engines() -> Engines {
        let text = str::to_owned;
        let existence = |name: &str| Existence { name: text(name), ..Existence::default() };
        let action = |name: &str, flag: &str, counter: &str| Action {
            name: text(name),
            flag: text(flag),
            counter: text(counter),
            ..Action::default()
        };
        let options = Options {
            counter: vec![counter("post", false), counter("user", true), counter("more", false)],
            existence: ["liked", "read", "follows", "alone"].map(existence).into(),
            view: vec![View {
                name: text("home"),
                counters: vec![text("post.like"), text("more")],
                flags: vec![text("read")],
                then: vec![],
            }],
            action: vec![
                action("like", "liked", "post.like"),
                Action {
                    member_counters: vec![text("user.following")],
                    ..action("follow", "follows", "user.follower")
                },
            ],
            ..Options::default()
        };
        let catalogue = Catalogue::default().completed(&options);
        Engines::new(&options, &catalogue, Arc::new(Durability::new(options.fsync))).unwrap()
    }

    #[test]
    fn an_id_is_forgotten_wherever_it_means_the_same() {
        let engines = engines();
        let names = |space: &str| {
            let space = engines.counter(space.as_bytes()).unwrap();
            let rows = engines.related_counter_spaces(space).map(|space| space.name().to_owned());
            let flags =
                engines.related_existence_spaces(space).map(|space| space.name().to_owned());
            rows.chain(flags).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("post"), "post more liked read");
        assert_eq!(names("more"), "post more liked read");
        assert_eq!(
            names("user"),
            "user follows",
            "spaces that the member's counter uses are not included"
        );
    }

    #[test]
    fn likes_count_again_after_their_post_was_forgotten() {
        let engines = engines();
        let (post, more) = (&engines.counters()[0], &engines.counters()[2]);
        let (liked, follows) = (&engines.existences()[0], &engines.existences()[2]);
        let like = engines.action(b"like").unwrap();
        let viewers = [Member::Number(1), Member::Number(2), Member::Bytes(b"ann")];
        let count = |space: &CounterSpace, id| {
            let mut row = [0; 3];
            space.get(id, &mut row).unwrap().then_some(row[0])
        };
        for id in 100..300 {
            for viewer in &viewers {
                assert_eq!(engines.act(like, viewer, id, &mut vec![]).unwrap(), Change::Changed);
            }
        }
        engines.set(more, 200, &[(0, 5)]).unwrap();
        // Set a flag without its counter, and flags of another entity with the same id.
        engines.flag(liked, 200, &Member::Number(9)).unwrap();
        for id in 150..250 {
            engines.flag(follows, id, &Member::Number(1)).unwrap();
        }
        assert!(engines.forget(post, 200).unwrap());
        assert_eq!((count(post, 200), count(more, 200)), (None, None));
        assert_eq!(liked.contains(200, &Member::Number(9)).unwrap(), Answer::No);
        assert_eq!(follows.contains(200, &Member::Number(1)).unwrap(), Answer::Yes);
        for (viewer, likes) in viewers.iter().zip(1..) {
            assert_eq!(liked.contains(200, viewer).unwrap(), Answer::No);
            assert_eq!(engines.act(like, viewer, 200, &mut vec![]).unwrap(), Change::Changed);
            assert_eq!(engines.act(like, viewer, 200, &mut vec![]).unwrap(), Change::Unchanged);
            assert_eq!(count(post, 200), Some(likes));
        }
        assert_eq!(count(post, 201), Some(3));
        assert!(!engines.forget(post, 1 << 40).unwrap());
        assert_eq!(liked.forgotten_ids(), 1);
        assert!(engines.forget_flags(follows, 200).unwrap());
        assert_eq!(follows.contains(200, &Member::Number(1)).unwrap(), Answer::No);
    }

    /// After DEL the members' flags are still set, and the members' rows still include the action.
    #[test]
    fn members_are_not_counted_again_after_a_delete() {
        let engines = engines();
        let (user, follows) = (&engines.counters()[1], &engines.existences()[2]);
        let follow = engines.action(b"follow").unwrap();
        let seven = Member::Number(7);
        let act = || engines.act(follow, &seven, 200, &mut vec![]).unwrap();
        let row = |id| {
            let mut row = [0; 3];
            user.get(id, &mut row).unwrap().then_some((row[1], row[2]))
        };
        for id in 100..300 {
            engines.act(follow, &seven, id, &mut vec![]).unwrap();
        }
        assert_eq!((row(200), row(7)), (Some((1, 0)), Some((0, 200))));
        assert!(engines.delete_row(user, 200).unwrap());
        assert_eq!(follows.contains(200, &seven).unwrap(), Answer::Yes);
        assert_eq!((act(), act()), (Change::Changed, Change::Unchanged));
        assert_eq!((row(200), row(7)), (Some((1, 0)), Some((0, 200))));
        assert_eq!(engines.undo(follow, &seven, 200, &mut vec![]).unwrap(), Change::Changed);
        assert_eq!((row(200), row(7)), (Some((0, 0)), Some((0, 199))));
        assert_eq!(act(), Change::Changed);
        assert_eq!((row(200), row(7)), (Some((1, 0)), Some((0, 200))));
        // `forget` unsets the flags, so the action counts again.
        assert!(engines.forget(user, 200).unwrap());
        assert_eq!(act(), Change::Changed);
        assert_eq!((row(200), row(7)), (Some((1, 0)), Some((0, 201))));
    }

    #[test]
    fn new_action_counts_where_a_flag_is_set_and_no_row_is_there() {
        let current = Current::new(engines());
        let engines = current.load();
        for id in 100..300 {
            engines.flag(&engines.existences()[0], id, &Member::Number(7)).unwrap();
        }
        drop(engines);
        let words = [("flag", "liked"), ("counter", "more.like")];
        let words = words.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let create = |now: &mut Catalogue| {
            now.drop_action("like")?;
            now.create_action("cheer", &words, false)
        };
        current.edit(|| Ok::<(), ChangeError>(()), create).unwrap();
        let engines = current.load();
        let cheer = engines.action(b"cheer").unwrap();
        for change in [Change::Changed, Change::Unchanged] {
            let done = engines.act(cheer, &Member::Number(7), 200, &mut vec![]).unwrap();
            assert_eq!(done, change);
        }
    }

    #[test]
    fn a_deleted_row_takes_its_flags_along_where_that_is_declared() {
        let engines = engines();
        let (post, user) = (&engines.counters()[0], &engines.counters()[1]);
        let (liked, follows) = (&engines.existences()[0], &engines.existences()[2]);
        for id in 100..300 {
            engines.flag(liked, id, &Member::Number(1)).unwrap();
            engines.flag(follows, id, &Member::Number(1)).unwrap();
            engines.set(post, id, &[(0, 1)]).unwrap();
            engines.set(user, id, &[(0, 1)]).unwrap();
        }
        assert!(engines.delete(post, 200).unwrap() && engines.delete(user, 200).unwrap());
        assert_eq!(liked.contains(200, &Member::Number(1)).unwrap(), Answer::Yes);
        assert_eq!(follows.contains(200, &Member::Number(1)).unwrap(), Answer::No);
        assert!(!engines.delete(user, 200).unwrap());
    }
}
