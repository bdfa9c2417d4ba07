//! The fence: a node that was a master, and perhaps is none any more, takes no writes.
//!
//! ```text
//!   started again as a master that has had replicas, or has been one
//!       --> Unknown    until a Sentinel names this node, or REPLICAOF; where no Sentinel has ever
//!                      spoken, until a replica follows
//!   a Sentinel has named this node, and with a higher epoch it names another one
//!       --> Deposed    until a Sentinel names this node again, or REPLICAOF
//! ```
//!
//! Every two seconds each Sentinel says on the channel `__sentinel__:hello` whom it takes for the
//! master, and by which configuration epoch it does; each failover has a higher one. So one that
//! was away and says what was true once is told from one that knows: what it says has a lower
//! epoch. An old master that comes back is a replica only when Sentinel has made it one, ten
//! seconds later with default periods; what it took until then would be lost. Nor does a replica
//! know better that comes back together with it: so where Sentinels have spoken only they, or an
//! operator, say what a node is, and the epochs that they were at are kept on the disk
//! ([`crate::roles::role`]) before what they say counts for this node: after the next start it must
//! not be less.
//!
//! Epochs count for Sentinels that watch a master by the same name, a *group*, which agree on them.
//! Others, old ones that still ask for this node, say, are at epochs of their own: what one group
//! says is held against what the same group said before. Of two groups that both watch this node
//! each can depose it, and takes that back itself.
//!
//! A node that is the master again, after another one was, or may have been, begins a term that is
//! later than theirs ([`Fence::missed`]): else its replicas would take their own history for the
//! later one, and never follow it. Sentinel may choose it before it has made it a replica.
//!
//! Two Sentinels may name two masters in one epoch: one that has made this node the master and is
//! not done with its failover takes over the epoch of the next one that it hears of, and goes on
//! naming this node. So what deposes is taken back by a later epoch only; and where this node's
//! epoch has risen without an order to be a master, another one that is named in the same epoch
//! counts.
//!
//! An address that is not ours may be ours by another name (a host's name, an address outside of a
//! container). So another master is believed in only after a Sentinel of that group has named this
//! node by an address that we know as ours. Where that never happens the fence stays as it was.
//! When all Sentinels are gone an operator lifts it, by REPLICAOF NO ONE to a master: then what
//! they have said is forgotten.

use crate::roles::role::Epoch;
use parking_lot::Mutex;

/// Most groups that are remembered, the first ones to speak. A sender of hellos decides on the
/// fence anyway, but not on our memory.
pub(crate) const MOST_GROUPS: usize = 16;
/// Promotions that there may have been while it was away, of which it has not heard.
const UNHEARD: u64 = 1000;
/// The longest name of a group, in bytes.
pub(crate) const MOST_NAME: usize = 255;

/// Whether writes are kept out, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fenced {
    No,
    /// Not confirmed as the master since the start.
    Unknown,
    /// Another one is.
    Deposed,
}

/// What one group has said.
#[derive(Default)]
struct Group {
    name: String,
    /// The highest configuration epoch, and what of that is on the disk.
    epoch: Option<u64>,
    kept: Option<u64>,
    /// One named this node, in the role that it has, by an address that we know.
    named: bool,
    /// The epoch in which this node was named has risen without an order to be a master.
    is_doubtful: bool,
    /// The last epoch in which this node was the master, as far as is known.
    ruled: Option<u64>,
    /// The last that counts, and has no effect yet, is that this node is the master.
    lifts: bool,
    deposes: bool,
}

#[derive(Default)]
struct Heard {
    groups: Vec<Group>,
    is_raised: bool,
    /// A controller has given so many topologies meanwhile, each of which may have had another
    /// master.
    skipped: u64,
}

/// What came of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// What the fence is from now on, if that is new.
    pub(crate) change: Option<Fenced>,
    /// There is an epoch that the disk does not have: it is to be written, and [`Fence::kept`] to
    /// be told.
    pub(crate) is_news: bool,
}

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Fence {
    heard: Mutex<Heard>,
}

impl Heard {
    fn now(&self) -> Fenced {
        if self.groups.iter().any(|group| group.deposes) {
            Fenced::Deposed
        } else if self.is_raised {
            Fenced::Unknown
        } else {
            Fenced::No
        }
    }

    /// Sentinels know better; and behind topologies of which it has not heard an order is to begin
    /// another term.
    fn believes_replicas(&self) -> bool {
        self.is_raised && self.groups.is_empty() && self.skipped == 0
    }

    fn missed(&self) -> u64 {
        let missed = self.groups.iter().filter_map(|group| Some(group.epoch? - group.ruled?));
        let missed = missed.max().unwrap_or(0).max(self.skipped);
        if self.now() == Fenced::No { 0 } else { missed }
    }

    /// What was said counts, as far as the disk has it.
    fn settle(&mut self) {
        for group in &mut self.groups {
            if group.lifts && group.kept >= group.epoch {
                (group.lifts, group.deposes) = (false, false);
                group.ruled = group.epoch;
                self.is_raised = false;
            }
        }
    }

    fn changed(&self, before: Fenced) -> Option<Fenced> {
        Some(self.now()).filter(|now| *now != before)
    }
}

impl Fence {
    pub(crate) fn now(&self) -> Fenced {
        self.heard.lock().now()
    }

    /// How many groups have spoken.
    pub(crate) fn groups(&self) -> usize {
        self.heard.lock().groups.len()
    }

    /// The highest epochs of which Sentinels have spoken.
    pub(crate) fn epochs(&self) -> Vec<Epoch> {
        let heard = self.heard.lock();
        let of = |group: &Group| Some(Epoch { name: group.name.clone(), epoch: group.epoch? });
        heard.groups.iter().filter_map(of).collect()
    }

    /// At start: what Sentinels had said before.
    pub(crate) fn recall(&self, epochs: &[Epoch]) {
        let of = |said: &Epoch| Group {
            name: said.name.clone(),
            epoch: Some(said.epoch),
            kept: Some(said.epoch),
            ruled: Some(said.epoch),
            ..Group::default()
        };
        self.heard.lock().groups = epochs.iter().take(MOST_GROUPS).map(of).collect();
    }

    /// A start as a master that may have been replaced.
    pub(crate) fn raise(&self) {
        self.heard.lock().is_raised = true;
    }

    /// It is a master by a topology, as it was by the one before that it knows; it has not heard of
    /// so many between them.
    pub(crate) fn skipped(&self, topologies: u64) {
        let mut heard = self.heard.lock();
        (heard.is_raised, heard.skipped) = (true, topologies);
    }

    /// This node was given a role.
    pub(crate) fn ordered(&self) {
        let mut heard = self.heard.lock();
        (heard.is_raised, heard.skipped) = (false, 0);
        for group in &mut heard.groups {
            (group.named, group.lifts, group.deposes) = (false, false, false);
            group.is_doubtful = false;
        }
    }

    /// How many promotions of other nodes there may have been since this one was the master last,
    /// which is told now to be the master: each has an epoch. 0: none, or it still is. One that was
    /// started again, or whose epoch is doubtful, may have missed some of which it has not heard:
    /// the Sentinel that has chosen it need not have said yet what it knows. A term that is far
    /// later does no harm to the node that is chosen. Another one with it would never follow that:
    /// so a master without a doubt begins none.
    pub(crate) fn missed(&self) -> u64 {
        let heard = self.heard.lock();
        let missed = heard.missed();
        let is_deaf = heard.is_raised && !heard.groups.is_empty();
        let in_doubt = is_deaf || heard.groups.iter().any(|group| group.is_doubtful);
        if missed == 0 && in_doubt { UNHEARD } else { missed }
    }

    /// The same, if what Sentinels have said lifts the fence as soon as it is on the disk.
    pub(crate) fn missed_when_lifted(&self) -> u64 {
        let heard = self.heard.lock();
        if heard.groups.iter().any(|group| group.lifts) { heard.missed() } else { 0 }
    }

    /// This master has been told to be one: what Sentinels have said is over.
    pub(crate) fn forget(&self) {
        *self.heard.lock() = Heard::default();
    }

    /// A replica follows. It knows no better than we do where a Sentinel has spoken. True if that
    /// lifts the fence.
    pub(crate) fn followed(&self) -> bool {
        let mut heard = self.heard.lock();
        heard.believes_replicas() && std::mem::take(&mut heard.is_raised)
    }

    /// Whether a replica that follows lifts it.
    pub(crate) fn believes_replicas(&self) -> bool {
        self.heard.lock().believes_replicas()
    }

    /// A Sentinel of a group has named a master: this node, or another address.
    pub(crate) fn named(&self, name: &str, is_ours: bool, epoch: u64, is_master: bool) -> Effect {
        let nothing = Effect { change: None, is_news: false };
        // It is a line of a file, or a part of one.
        if name.is_empty() || name.len() > MOST_NAME || name.contains(char::is_control) {
            return nothing;
        }
        let mut heard = self.heard.lock();
        let before = heard.now();
        let at = match heard.groups.iter().position(|group| group.name == name) {
            Some(at) => at,
            None if heard.groups.len() >= MOST_GROUPS => return nothing,
            None => {
                heard.groups.push(Group { name: name.to_owned(), ..Group::default() });
                heard.groups.len() - 1
            }
        };
        let group = &mut heard.groups[at];
        let epoch = Some(epoch);
        let (is_later, is_same) = (epoch > group.epoch, epoch == group.epoch);
        if is_ours && (is_later || is_same && !group.deposes) {
            group.is_doubtful |= is_later && group.named;
            (group.named, group.lifts) = (true, true);
        } else if !is_ours && (is_later || is_same && group.is_doubtful) && group.named && is_master
        {
            (group.lifts, group.deposes) = (false, true);
        }
        group.epoch = group.epoch.max(epoch);
        let is_news = group.epoch > group.kept;
        heard.settle();
        Effect { change: heard.changed(before), is_news }
    }

    /// These epochs are on the disk. Gives what the fence is from now on, if that is new.
    pub(crate) fn kept(&self, epochs: &[Epoch]) -> Option<Fenced> {
        let mut heard = self.heard.lock();
        let before = heard.now();
        for said in epochs {
            if let Some(group) = heard.groups.iter_mut().find(|group| group.name == said.name) {
                group.kept = group.kept.max(Some(said.epoch));
            }
        }
        heard.settle();
        heard.changed(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hello of one group, with a disk that has everything at once.
    fn named(fence: &Fence, is_ours: bool, epoch: u64, is_master: bool) -> Option<Fenced> {
        by(fence, "mymaster", is_ours, epoch, is_master)
    }

    fn by(
        fence: &Fence,
        group: &str,
        is_ours: bool,
        epoch: u64,
        is_master: bool,
    ) -> Option<Fenced> {
        let before = fence.now();
        if fence.named(group, is_ours, epoch, is_master).is_news {
            fence.kept(&fence.epochs());
        }
        Some(fence.now()).filter(|now| *now != before)
    }

    #[test]
    fn a_sentinel_that_was_away_says_nothing_new() {
        let fence = Fence::default();
        fence.raise();
        assert_eq!(named(&fence, false, 6, true), None, "another name, for all that we know");
        assert_eq!(named(&fence, true, 5, true), None, "what was true before epoch 6");
        assert_eq!(fence.now(), Fenced::Unknown);
        assert_eq!(named(&fence, true, 6, true), Some(Fenced::No));
        assert_eq!(named(&fence, true, 6, true), None);
    }

    /// Found by the soak: the Sentinel that had made this node the master in epoch 6 was not done
    /// with that when another one made another node the master in epoch 7. It took over the epoch,
    /// and named this one.
    #[test]
    fn of_two_masters_of_one_epoch_the_one_that_was_ordered_is_it() {
        let (old, new) = (Fence::default(), Fence::default());
        for fence in [&old, &new] {
            fence.ordered();
        }
        named(&old, true, 6, true);
        named(&new, true, 7, true);
        assert_eq!(named(&old, false, 7, true), Some(Fenced::Deposed));
        assert_eq!(named(&old, true, 7, true), None);
        assert_eq!((old.now(), old.missed()), (Fenced::Deposed, 1));
        assert_eq!(named(&old, true, 8, true), Some(Fenced::No), "a later one");
        assert_eq!((named(&new, false, 7, true), new.now()), (None, Fenced::No));
        // The wrong one is heard first.
        let old = Fence::default();
        named(&old, true, 6, true);
        assert_eq!(named(&old, true, 7, true), None);
        assert_eq!(named(&old, false, 7, true), Some(Fenced::Deposed));
        assert_eq!(named(&old, true, 7, true), None);
        // Chosen again, it begins a later term, though it took itself for the master of epoch 7.
        assert_eq!((old.now(), old.missed()), (Fenced::Deposed, UNHEARD));
        // One that was ordered, and told so, is in no doubt.
        old.ordered();
        named(&old, true, 8, true);
        assert_eq!((old.now(), old.missed()), (Fenced::No, 0));
    }

    #[test]
    fn a_master_that_was_replaced_is_told_so() {
        let fence = Fence::default();
        fence.raise();
        assert_eq!(named(&fence, true, 5, true), Some(Fenced::No), "by the one that was away");
        assert_eq!(named(&fence, false, 5, true), None, "an equal epoch is no failover");
        assert_eq!(named(&fence, false, 6, true), Some(Fenced::Deposed));
        assert!(!fence.followed(), "a replica that was not told either");
        assert_eq!(named(&fence, true, 5, true), None);
        assert_eq!(fence.now(), Fenced::Deposed);
        assert_eq!(named(&fence, true, 7, true), Some(Fenced::No), "chosen again");
    }

    #[test]
    fn another_name_of_this_node_is_this_node() {
        let fence = Fence::default();
        for epoch in [0, 1, u64::MAX] {
            assert_eq!(named(&fence, false, epoch, true), None);
        }
        assert_eq!(fence.now(), Fenced::No);
    }

    /// A replica is told of its master, is promoted by hand or by FAILOVER, and goes on hearing of
    /// the old one.
    #[test]
    fn a_node_promoted_by_hand_is_believed() {
        let fence = Fence::default();
        named(&fence, true, 3, true);
        named(&fence, false, 4, false);
        assert_eq!(fence.now(), Fenced::No, "a replica has no fence");
        fence.ordered();
        assert_eq!(named(&fence, false, 4, true), None);
        assert_eq!(named(&fence, false, 9, true), None, "not named since");
        assert_eq!(fence.now(), Fenced::No);
    }

    /// M and a replica of it are killed, another replica is promoted, M and the first come back:
    /// that one follows M as before.
    #[test]
    fn where_sentinels_have_spoken_a_replica_that_follows_says_nothing() {
        let fence = Fence::default();
        fence.raise();
        assert!(fence.followed(), "no other node could say it");
        named(&fence, true, 5, true);
        let again = Fence::default();
        again.recall(&fence.epochs());
        again.raise();
        assert!(!again.followed());
        assert_eq!(named(&again, true, 4, true), None, "one that was away");
        assert_eq!(again.now(), Fenced::Unknown);
        assert_eq!(named(&again, true, 5, true), Some(Fenced::No));
        // Named another since the start, if not before.
        let late = Fence::default();
        late.raise();
        named(&late, false, 6, true);
        assert!(!late.followed());
        late.forget();
        late.raise();
        assert!(late.followed(), "an operator has said that they are gone");
    }

    /// Sentinels of two teams watch this node, each by a name of its own, and are at other epochs.
    #[test]
    fn groups_of_sentinels_do_not_speak_for_each_other() {
        let fence = Fence::default();
        fence.recall(&[Epoch { name: "old".to_owned(), epoch: 100 }]);
        fence.raise();
        assert_eq!(
            by(&fence, "new", true, 5, true),
            Some(Fenced::No),
            "those at epoch 100 may be gone"
        );
        assert_eq!(
            by(&fence, "old", false, 101, true),
            None,
            "has never named this node, though others have"
        );
        assert_eq!(
            by(&fence, "new", false, 6, true),
            Some(Fenced::Deposed),
            "less than 101, and its own next one"
        );
        assert_eq!(by(&fence, "old", true, 102, true), None, "the others have deposed it");
        assert_eq!(by(&fence, "new", true, 7, true), Some(Fenced::No));
        assert_eq!(by(&fence, "old", false, 103, true), Some(Fenced::Deposed));
        fence.ordered();
        assert_eq!(fence.now(), Fenced::No);
        let epochs: Vec<_> =
            fence.epochs().into_iter().map(|said| (said.name, said.epoch)).collect();
        assert_eq!(epochs, [("old".to_owned(), 103), ("new".to_owned(), 7)]);
    }

    #[test]
    fn groups_and_their_names_are_few_and_short() {
        let fence = Fence::default();
        fence.raise();
        for name in ["", "two\nlines", &"x".repeat(MOST_NAME + 1)] {
            assert_eq!(fence.named(name, true, 1, true), Effect { change: None, is_news: false });
        }
        for number in 0..1000 {
            fence.named(&format!("group {number}"), false, number, true);
        }
        assert_eq!((fence.epochs().len(), fence.groups()), (MOST_GROUPS, MOST_GROUPS));
        assert_eq!(by(&fence, "group 3", true, 9, true), Some(Fenced::No));
    }

    /// A disk that is slow, or full: the word that would open the gate counts when the next start
    /// will know it; the one that shuts it counts at once.
    #[test]
    fn what_lifts_the_fence_is_on_the_disk_first() {
        let fence = Fence::default();
        fence.raise();
        assert_eq!(fence.named("m", true, 5, true), Effect { change: None, is_news: true });
        assert_eq!(fence.now(), Fenced::Unknown);
        let written = fence.epochs();
        assert_eq!(fence.named("m", true, 6, true), Effect { change: None, is_news: true });
        assert_eq!(fence.kept(&written), None, "it was 5");
        assert_eq!(fence.kept(&fence.epochs()), Some(Fenced::No));
        assert_eq!(
            fence.named("m", false, 7, true),
            Effect { change: Some(Fenced::Deposed), is_news: true }
        );
        assert_eq!(fence.named("m", true, 8, true), Effect { change: None, is_news: true });
        assert_eq!(fence.named("m", false, 9, true), Effect { change: None, is_news: true });
        assert_eq!(fence.kept(&fence.epochs()), None, "deposed again meanwhile");
        assert_eq!(fence.now(), Fenced::Deposed);
    }
}
