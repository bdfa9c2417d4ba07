//! Sentinels that watch this node, and the announcement of a failover that no Sentinel started.
//!
//! Every two seconds each Sentinel publishes a hello on each node that it watches:
//! `ip,port,runid,current-epoch,group,master-ip,master-port,config-epoch`. A Sentinel accepts
//! another master only from a hello of a known Sentinel with a config epoch later than its own.
//! Without such a hello, a Sentinel demotes a replica that was promoted by FAILOVER.
//!
//! So after FAILOVER the new master publishes such a hello itself to the Sentinels subscribed here,
//! under the identity of one of them. A Sentinel ignores hellos with its own identity, so the
//! master publishes a second hello under another identity. The epoch is one more than the highest
//! epoch of any Sentinel, including failovers in progress. A node that hands its role over also
//! reserves that epoch, because it may become the master again before a Sentinel publishes the next
//! hello. If a Sentinel still reports the old master, the new master repeats the announcement with
//! a later epoch.

use crate::roles::Master;
use crate::roles::fence::{MAX_GROUP_NAME_BYTES, MAX_GROUPS};
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use store::time::{now, since};

/// Channel on which Sentinels publish hellos.
pub const CHANNEL: &[u8] = b"__sentinel__:hello";

/// Maximum silence of a live Sentinel. A Sentinel publishes a hello every two seconds.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of Sentinels remembered per group.
const MAX_SENTINELS: usize = 16;

/// A hello of a Sentinel, without the reported master.
pub struct Sentinel<'a> {
    /// Address and run id of the Sentinel, as published.
    pub identity: [&'a str; 3],
    /// Name under which the Sentinel watches this node.
    pub group: &'a str,
    /// Highest epoch that the Sentinel knows.
    pub epoch: u64,
    /// Address under which the Sentinel reaches this node.
    pub own: (String, u16),
}

struct HeardSentinel {
    identity: String,
    group: String,
    own: (String, u16),
    at: Instant,
}

#[derive(Default)]
pub(crate) struct Sentinels(Mutex<SentinelState>);

#[derive(Default)]
struct SentinelState {
    heard: Vec<HeardSentinel>,
    /// Highest epoch by group, including Sentinels that are gone.
    epochs: Vec<(String, u64)>,
    /// Whether a Sentinel has reported this node as the master since the last role change.
    has_named: bool,
    /// Master that this node replaced. Set from the announcement until a Sentinel reports this node
    /// as the master.
    replaced: Option<Master>,
}

impl Sentinels {
    pub(crate) fn hear(&self, said: Sentinel<'_>) {
        let identity = said.identity.join(",");
        let group = said.group;
        if identity.len() > MAX_GROUP_NAME_BYTES || group.len() > MAX_GROUP_NAME_BYTES {
            return;
        }
        let mut state = self.0.lock();
        state
            .heard
            .retain(|heard| since(heard.at) <= SENTINEL_TIMEOUT && heard.identity != identity);
        match state.epochs.iter().position(|(name, _)| name == group) {
            Some(at) => state.epochs[at].1 = said.epoch.max(state.epochs[at].1),
            None if state.epochs.len() >= MAX_GROUPS => return,
            None => state.epochs.push((group.to_owned(), said.epoch)),
        }
        let of_group = state.heard.iter().filter(|heard| heard.group == group).count();
        if of_group < MAX_SENTINELS {
            let heard =
                HeardSentinel { identity, group: group.to_owned(), own: said.own, at: now() };
            state.heard.push(heard);
        }
    }

    /// Records that a Sentinel reports this node as the master.
    pub(crate) fn name_as_master(&self) {
        let mut state = self.0.lock();
        (state.has_named, state.replaced) = (true, None);
    }

    /// Records a role change. `hands_over`: whether this node hands its role to a master that will
    /// announce itself.
    pub(crate) fn ordered(&self, hands_over: bool) {
        let mut state = self.0.lock();
        (state.has_named, state.replaced) = (false, None);
        if hands_over {
            state.raise_epochs();
        }
    }

    /// Whether `address` is the replaced master. A Sentinel that still reports this address has
    /// missed the announcement.
    pub(crate) fn is_replaced(&self, address: &str) -> bool {
        let state = self.0.lock();
        state.replaced.as_ref().is_some_and(|master| master.to_string() == address)
    }

    pub(crate) fn is_named_by_sentinel(&self) -> bool {
        self.0.lock().has_named
    }

    pub(crate) fn count(&self) -> usize {
        let state = self.0.lock();
        state.heard.iter().filter(|heard| since(heard.at) <= SENTINEL_TIMEOUT).count()
    }

    pub(crate) fn watch(&self) -> bool {
        self.count() > 0
    }

    /// Returns a group with only one live Sentinel, which would ignore the announcement.
    pub(crate) fn single_sentinel(&self) -> Option<String> {
        let state = self.0.lock();
        let groups = state.live_groups();
        groups.into_iter().find(|(_, heard)| heard.len() == 1).map(|(group, _)| group.to_owned())
    }

    /// Returns the hellos that make the Sentinels of all groups accept this node as the master in
    /// place of `replaced`.
    pub(crate) fn announcements(&self, replaced: Option<Master>) -> Vec<String> {
        let mut state = self.0.lock();
        state.replaced = replaced.or(state.replaced.take());
        let mut all = Vec::new();
        for (group, heard) in state.live_groups() {
            let of_group = state.epochs.iter().find(|(name, _)| name == group);
            let epoch = of_group.map_or(0, |(_, epoch)| *epoch).saturating_add(1);
            for HeardSentinel { identity, own: (ip, port), .. } in heard.into_iter().take(2) {
                all.push(format!("{identity},{epoch},{group},{ip},{port},{epoch}"));
            }
        }
        state.raise_epochs();
        all
    }
}

impl SentinelState {
    /// Reserves the epoch of an announcement, for this node or for the next master.
    fn raise_epochs(&mut self) {
        self.epochs.iter_mut().for_each(|(_, epoch)| *epoch = epoch.saturating_add(1));
    }

    /// Returns the groups that have live Sentinels, with these Sentinels, most recent hello first.
    fn live_groups(&self) -> Vec<(&str, Vec<&HeardSentinel>)> {
        let mut groups: Vec<(&str, Vec<&HeardSentinel>)> = Vec::new();
        for heard in self.heard.iter().rev().filter(|heard| since(heard.at) <= SENTINEL_TIMEOUT) {
            match groups.iter_mut().find(|(group, _)| *group == heard.group) {
                Some((_, all)) => all.push(heard),
                None => groups.push((&heard.group, vec![heard])),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(number: &str, group: &'static str, epoch: u64) -> Sentinel<'static> {
        let identity = ["10.0.0.9", "26379", Box::leak(number.to_owned().into_boxed_str())];
        Sentinel { identity, group, epoch, own: ("10.0.0.1".to_owned(), 6399) }
    }

    #[test]
    fn announcement_has_a_later_epoch_and_two_names() {
        let sentinels = Sentinels::default();
        assert!(sentinels.announcements(None).is_empty() && !sentinels.watch());
        sentinels.hear(hello("a", "m", 7));
        assert!(sentinels.watch());
        assert_eq!(sentinels.single_sentinel().as_deref(), Some("m"));
        for name in ["b", "c", "b"] {
            sentinels.hear(hello(name, "m", 6));
        }
        assert_eq!(sentinels.single_sentinel(), None);
        let wanted = |name, epoch| format!("10.0.0.9,26379,{name},{epoch},m,10.0.0.1,6399,{epoch}");
        assert_eq!(sentinels.announcements(None), [wanted("b", 8), wanted("c", 8)]);
        assert_eq!(sentinels.announcements(None)[0], wanted("b", 9), "the last one may be lost");
        sentinels.ordered(true);
        assert_eq!(sentinels.announcements(None)[0], wanted("b", 11), "its successor has 10");
    }

    #[test]
    fn sentinels_remembered_are_few() {
        let sentinels = Sentinels::default();
        for number in 0..1000 {
            sentinels.hear(hello(&number.to_string(), "m", 1));
            sentinels.hear(hello(&number.to_string(), Box::leak(format!("g{number}").into()), 1));
        }
        sentinels.hear(hello(&"x".repeat(1000), "m", 1));
        let state = sentinels.0.lock();
        assert!(state.heard.len() <= MAX_SENTINELS * MAX_GROUPS, "{}", state.heard.len());
        assert_eq!(state.epochs.len(), MAX_GROUPS);
    }
}
