//! Write fence: a node that may have been replaced as the master refuses writes.
//!
//! ```text
//!   restart as a master that has had replicas, or was one
//!       --> Unknown    until a Sentinel names this node, or REPLICAOF; without any Sentinel,
//!                      until a replica connects
//!   a Sentinel has named this node, and names another one with a higher epoch
//!       --> Deposed    until a Sentinel names this node with a later epoch, or REPLICAOF
//! ```
//!
//! Every two seconds each Sentinel publishes the master's address and its configuration epoch on
//! the channel `__sentinel__:hello`. Every failover increments the epoch, so a lower epoch marks a
//! stale hello. Sentinel demotes a restarted master only after about ten seconds, and the writes
//! accepted in between would be lost. A replica that restarts together with its old master is as
//! stale as that master. Therefore, after the first hello of a Sentinel, only Sentinels and
//! operators lift the fence. An epoch is on disk ([`crate::roles::role`]) before it lifts the
//! fence, so a restarted node never accepts an older epoch.
//!
//! Epochs are compared within a *group*: the Sentinels that watch a master under one name. Groups
//! have independent epochs. If two groups watch this node, either group can depose it, and only
//! that group can reinstate the node.
//!
//! A node that becomes the master again starts a later term than every master since its last term
//! ([`Fence::missed`]). Otherwise its replicas would consider their own history newer and refuse to
//! follow. Sentinel may promote a deposed master again before the node has become a replica.
//!
//! Two Sentinels may announce different masters in the same epoch. A Sentinel that is still
//! finishing a failover adopts a higher epoch from another Sentinel's hello, but continues to
//! announce its own choice. Therefore a deposed node becomes the master again only in a later
//! epoch. If this node's epoch rose without an explicit promotion, the announcement of another
//! master in the same epoch deposes it.
//!
//! An unknown address may also belong to this node, such as a host name or an address outside a
//! container. Therefore a group can depose this node only after it has announced the node under a
//! known address. If all Sentinels are gone, an operator lifts the fence with REPLICAOF NO ONE,
//! which discards all epochs.

use crate::roles::role::Epoch;
use parking_lot::Mutex;

/// Maximum number of groups; later groups are ignored. The limit bounds the memory that senders of
/// hellos can allocate.
pub(crate) const MAX_GROUPS: usize = 16;
/// Number of missed promotions to assume when the number is unknown.
const ASSUMED_MISSED_PROMOTIONS: u64 = 1000;
/// Maximum length of a group's name, in bytes.
pub(crate) const MAX_GROUP_NAME_BYTES: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fenced {
    No,
    /// Neither a Sentinel nor a replica has confirmed this node as the master since it started.
    Unknown,
    /// A Sentinel has announced another master.
    Deposed,
}

#[derive(Default)]
struct Group {
    name: String,
    /// Highest configuration epoch received; `kept` is the highest epoch on disk.
    epoch: Option<u64>,
    kept: Option<u64>,
    /// Whether the group has announced this node as the master, under a known address, since the
    /// last role change.
    named: bool,
    /// Whether the epoch rose without an explicit promotion.
    is_doubtful: bool,
    /// Last epoch in which this node is known to have been the master.
    last_master_epoch: Option<u64>,
    /// True if the Sentinel group has announced this node as the master in an epoch that is still
    /// to be written to disk. Writing the epoch to disk lifts the fence.
    lifts: bool,
    deposes: bool,
}

#[derive(Default)]
struct HeardState {
    groups: Vec<Group>,
    is_raised: bool,
    /// Number of topologies that this node has missed. Each missed topology may have had another
    /// master.
    skipped: u64,
}

/// Effect of a hello message from a Sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HelloEffect {
    /// New state of the fence, if it changed.
    pub(crate) change: Option<Fenced>,
    /// Whether an epoch must be written to disk and confirmed by [`Fence::kept`].
    pub(crate) is_news: bool,
}

#[derive(Default)]
pub(crate) struct Fence {
    heard: Mutex<HeardState>,
}

impl HeardState {
    fn now(&self) -> Fenced {
        if self.groups.iter().any(|group| group.deposes) {
            Fenced::Deposed
        } else if self.is_raised {
            Fenced::Unknown
        } else {
            Fenced::No
        }
    }

    /// Whether a replica can lift the fence. A replica cannot lift the fence after a hello of a
    /// Sentinel, or if topologies were missed. Missed topologies require an explicit role change,
    /// which starts a new term.
    fn lets_replica_lift_fence(&self) -> bool {
        self.is_raised && self.groups.is_empty() && self.skipped == 0
    }

    fn missed(&self) -> u64 {
        let missed =
            self.groups.iter().filter_map(|group| Some(group.epoch? - group.last_master_epoch?));
        let missed = missed.max().unwrap_or(0).max(self.skipped);
        if self.now() == Fenced::No { 0 } else { missed }
    }

    /// Applies pending confirmations whose epochs are on disk.
    fn apply_confirmations(&mut self) {
        for group in &mut self.groups {
            if group.lifts && group.kept >= group.epoch {
                (group.lifts, group.deposes) = (false, false);
                group.last_master_epoch = group.epoch;
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

    pub(crate) fn groups(&self) -> usize {
        self.heard.lock().groups.len()
    }

    /// Returns the highest epoch of each group.
    pub(crate) fn epochs(&self) -> Vec<Epoch> {
        let heard = self.heard.lock();
        let of = |group: &Group| Some(Epoch { name: group.name.clone(), epoch: group.epoch? });
        heard.groups.iter().filter_map(of).collect()
    }

    /// Restores the epochs at startup.
    pub(crate) fn recall(&self, epochs: &[Epoch]) {
        let of = |said: &Epoch| Group {
            name: said.name.clone(),
            epoch: Some(said.epoch),
            kept: Some(said.epoch),
            last_master_epoch: Some(said.epoch),
            ..Group::default()
        };
        self.heard.lock().groups = epochs.iter().take(MAX_GROUPS).map(of).collect();
    }

    /// Fences a master that may have been replaced.
    pub(crate) fn raise(&self) {
        self.heard.lock().is_raised = true;
    }

    /// Fences a master that has missed this number of topologies since the last topology it
    /// applied.
    pub(crate) fn skipped(&self, topologies: u64) {
        let mut heard = self.heard.lock();
        (heard.is_raised, heard.skipped) = (true, topologies);
    }

    /// Clears the fence after an explicit role change. The epochs remain.
    pub(crate) fn ordered(&self) {
        let mut heard = self.heard.lock();
        (heard.is_raised, heard.skipped) = (false, 0);
        for group in &mut heard.groups {
            (group.named, group.lifts, group.deposes) = (false, false, false);
            group.is_doubtful = false;
        }
    }

    /// Returns the number of promotions of other nodes that may have happened since this node was
    /// last the master. Each promotion has its own epoch, and the new term must exceed their terms.
    /// Returns 0 for an undisputed master, because a needless new term would reject another master
    /// of the same term. After a restart, or while an epoch is doubtful, a Sentinel may have
    /// promoted a master without announcing the epoch yet. The result is then
    /// `ASSUMED_MISSED_PROMOTIONS`.
    pub(crate) fn missed(&self) -> u64 {
        let heard = self.heard.lock();
        let missed = heard.missed();
        let is_deaf = heard.is_raised && !heard.groups.is_empty();
        let in_doubt = is_deaf || heard.groups.iter().any(|group| group.is_doubtful);
        if missed == 0 && in_doubt { ASSUMED_MISSED_PROMOTIONS } else { missed }
    }

    /// Returns `missed` if the fence will be lifted when the received epochs are on disk, otherwise
    /// 0.
    pub(crate) fn missed_when_lifted(&self) -> u64 {
        let heard = self.heard.lock();
        if heard.groups.iter().any(|group| group.lifts) { heard.missed() } else { 0 }
    }

    /// Discards all state after REPLICAOF NO ONE on a master.
    pub(crate) fn forget(&self) {
        *self.heard.lock() = HeardState::default();
    }

    /// Handles a replica that connected. Returns true if that lifts the fence.
    pub(crate) fn followed(&self) -> bool {
        let mut heard = self.heard.lock();
        heard.lets_replica_lift_fence() && std::mem::take(&mut heard.is_raised)
    }

    pub(crate) fn lets_replica_lift_fence(&self) -> bool {
        self.heard.lock().lets_replica_lift_fence()
    }

    /// Handles a hello of a group. `is_ours` is true if the hello reports this node as the master.
    pub(crate) fn named(
        &self,
        name: &str,
        is_ours: bool,
        epoch: u64,
        is_master: bool,
    ) -> HelloEffect {
        let nothing = HelloEffect { change: None, is_news: false };
        // The role file stores one name per line.
        if name.is_empty() || name.len() > MAX_GROUP_NAME_BYTES || name.contains(char::is_control) {
            return nothing;
        }
        let mut heard = self.heard.lock();
        let before = heard.now();
        let at = match heard.groups.iter().position(|group| group.name == name) {
            Some(at) => at,
            None if heard.groups.len() >= MAX_GROUPS => return nothing,
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
        heard.apply_confirmations();
        HelloEffect { change: heard.changed(before), is_news }
    }

    /// Records that `epochs` are on disk. Returns the new state of the fence if it changed.
    pub(crate) fn kept(&self, epochs: &[Epoch]) -> Option<Fenced> {
        let mut heard = self.heard.lock();
        let before = heard.now();
        for said in epochs {
            if let Some(group) = heard.groups.iter_mut().find(|group| group.name == said.name) {
                group.kept = group.kept.max(Some(said.epoch));
            }
        }
        heard.apply_confirmations();
        heard.changed(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers a hello of the default group and persists its epoch immediately.
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
        assert_eq!(named(&fence, false, 6, true), None, "possibly another name");
        assert_eq!(named(&fence, true, 5, true), None, "known before epoch 6");
        assert_eq!(fence.now(), Fenced::Unknown);
        assert_eq!(named(&fence, true, 6, true), Some(Fenced::No));
        assert_eq!(named(&fence, true, 6, true), None);
    }

    /// Regression test from the soak. One Sentinel promoted this node in epoch 6. Before that
    /// failover was complete, another Sentinel promoted a different node in epoch 7. The first
    /// Sentinel adopted epoch 7 and announced this node in that epoch.
    #[test]
    fn the_ordered_master_wins_within_one_epoch() {
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
        // The hello with the adopted epoch arrives first.
        let old = Fence::default();
        named(&old, true, 6, true);
        assert_eq!(named(&old, true, 7, true), None);
        assert_eq!(named(&old, false, 7, true), Some(Fenced::Deposed));
        assert_eq!(named(&old, true, 7, true), None);
        // The node believed that it was the master of epoch 7, so it starts a later term when
        // promoted.
        assert_eq!((old.now(), old.missed()), (Fenced::Deposed, ASSUMED_MISSED_PROMOTIONS));
        // After an explicit role change, no epoch is doubtful.
        old.ordered();
        named(&old, true, 8, true);
        assert_eq!((old.now(), old.missed()), (Fenced::No, 0));
    }

    #[test]
    fn a_master_that_was_replaced_is_told_so() {
        let fence = Fence::default();
        fence.raise();
        assert_eq!(
            named(&fence, true, 5, true),
            Some(Fenced::No),
            "a Sentinel that was away repeats old news"
        );
        assert_eq!(named(&fence, false, 5, true), None, "an equal epoch is not a failover");
        assert_eq!(named(&fence, false, 6, true), Some(Fenced::Deposed));
        assert!(!fence.followed(), "neither does an uninformed replica");
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

    /// An operator or FAILOVER promotes a replica, which still receives hellos that name the old
    /// master.
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

    /// A master and one of its replicas crash, and Sentinel promotes another replica. The crashed
    /// replica restarts and follows the old master again.
    #[test]
    fn replica_cannot_lift_fence_of_sentinel_managed_master() {
        let fence = Fence::default();
        fence.raise();
        assert!(fence.followed(), "no other node can confirm it");
        named(&fence, true, 5, true);
        let again = Fence::default();
        again.recall(&fence.epochs());
        again.raise();
        assert!(!again.followed());
        assert_eq!(named(&again, true, 4, true), None, "a Sentinel that was away");
        assert_eq!(again.now(), Fenced::Unknown);
        assert_eq!(named(&again, true, 5, true), Some(Fenced::No));
        // Replicas also cannot lift the fence while a Sentinel group reports another master.
        let late = Fence::default();
        late.raise();
        named(&late, false, 6, true);
        assert!(!late.followed());
        late.forget();
        late.raise();
        assert!(late.followed(), "the operator has removed the group");
    }

    /// Two groups watch this node under different names and have different epochs.
    #[test]
    fn groups_of_sentinels_do_not_speak_for_each_other() {
        let fence = Fence::default();
        fence.recall(&[Epoch { name: "old".to_owned(), epoch: 100 }]);
        fence.raise();
        assert_eq!(
            by(&fence, "new", true, 5, true),
            Some(Fenced::No),
            "the Sentinels of epoch 100 may be gone"
        );
        assert_eq!(
            by(&fence, "old", false, 101, true),
            None,
            "this group has never named this node"
        );
        assert_eq!(
            by(&fence, "new", false, 6, true),
            Some(Fenced::Deposed),
            "below 101, and above its own last one"
        );
        assert_eq!(by(&fence, "old", true, 102, true), None, "the other group has deposed it");
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
        for name in ["", "two\nlines", &"x".repeat(MAX_GROUP_NAME_BYTES + 1)] {
            assert_eq!(
                fence.named(name, true, 1, true),
                HelloEffect { change: None, is_news: false }
            );
        }
        for number in 0..1000 {
            fence.named(&format!("group {number}"), false, number, true);
        }
        assert_eq!((fence.epochs().len(), fence.groups()), (MAX_GROUPS, MAX_GROUPS));
        assert_eq!(by(&fence, "group 3", true, 9, true), Some(Fenced::No));
    }

    /// An epoch that lifts the fence waits for a slow or full disk. An epoch that raises the fence
    /// applies immediately.
    #[test]
    fn what_lifts_the_fence_is_on_the_disk_first() {
        let fence = Fence::default();
        fence.raise();
        assert_eq!(fence.named("m", true, 5, true), HelloEffect { change: None, is_news: true });
        assert_eq!(fence.now(), Fenced::Unknown);
        let written = fence.epochs();
        assert_eq!(fence.named("m", true, 6, true), HelloEffect { change: None, is_news: true });
        assert_eq!(fence.kept(&written), None, "it was 5");
        assert_eq!(fence.kept(&fence.epochs()), Some(Fenced::No));
        assert_eq!(
            fence.named("m", false, 7, true),
            HelloEffect { change: Some(Fenced::Deposed), is_news: true }
        );
        assert_eq!(fence.named("m", true, 8, true), HelloEffect { change: None, is_news: true });
        assert_eq!(fence.named("m", false, 9, true), HelloEffect { change: None, is_news: true });
        assert_eq!(fence.kept(&fence.epochs()), None, "deposed again in the meantime");
        assert_eq!(fence.now(), Fenced::Deposed);
    }
}
