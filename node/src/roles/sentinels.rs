//! The Sentinels that watch this node now, and how they learn of a switch that none of them has
//! ordered.
//!
//! Every two seconds each Sentinel publishes a hello on each node that it watches:
//! `ip,port,runid,current-epoch,group,master-ip,master-port,config-epoch`. A Sentinel accepts
//! another master only from a hello of a Sentinel that it knows, with a later config epoch than its
//! own. Without such a hello, it takes a promoted replica for a mistake and makes it a replica
//! again.
//!
//! So after FAILOVER the new master publishes that hello itself, to the Sentinels subscribed here,
//! in the name of one of them. A Sentinel ignores hellos in its own name: the new master publishes
//! a second one in the name of another. The epoch is one more than any Sentinel has used, so no
//! failover that a Sentinel has begun has it. A node that hands its role over counts that epoch,
//! too: it may be the master again before a Sentinel has published the next hello. If a Sentinel
//! names the old master all the same, the new one repeats the announcement with a later epoch.

use crate::roles::Master;
use crate::roles::fence::{MOST_GROUPS, MOST_NAME};
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use store::time::{now, since};

/// Where Sentinels publish their hellos.
pub const CHANNEL: &[u8] = b"__sentinel__:hello";

/// A Sentinel that was silent for longer is gone: it publishes every two seconds.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// Most Sentinels of one group that are remembered.
const MAX_SENTINELS: usize = 16;

/// A hello of a Sentinel, without the master that it names.
pub struct Sentinel<'a> {
    /// Its address and run id, as it gives them.
    pub identity: [&'a str; 3],
    /// The name under which it watches this node.
    pub group: &'a str,
    /// The highest epoch that it knows.
    pub epoch: u64,
    /// This node's address, as this Sentinel reaches it.
    pub own: (String, u16),
}

struct Heard {
    identity: String,
    group: String,
    own: (String, u16),
    at: Instant,
}

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Sentinels(Mutex<State>);

#[derive(Default)]
struct State {
    heard: Vec<Heard>,
    /// The highest epoch by group, also of Sentinels that are gone.
    epochs: Vec<(String, u64)>,
    /// One has named this node as the master since it was ordered to be one.
    has_named: bool,
    /// The master that this node has replaced, from its announcement until it is named.
    replaced: Option<Master>,
}

impl Sentinels {
    /// A Sentinel has published a hello here.
    pub(crate) fn hear(&self, said: Sentinel<'_>) {
        let identity = said.identity.join(",");
        let group = said.group;
        if identity.len() > MOST_NAME || group.len() > MOST_NAME {
            return;
        }
        let mut state = self.0.lock();
        state.heard.retain(|heard| since(heard.at) <= HEARD_WITHIN && heard.identity != identity);
        match state.epochs.iter().position(|(name, _)| name == group) {
            Some(at) => state.epochs[at].1 = said.epoch.max(state.epochs[at].1),
            None if state.epochs.len() >= MOST_GROUPS => return,
            None => state.epochs.push((group.to_owned(), said.epoch)),
        }
        let of_group = state.heard.iter().filter(|heard| heard.group == group).count();
        if of_group < MAX_SENTINELS {
            let heard = Heard { identity, group: group.to_owned(), own: said.own, at: now() };
            state.heard.push(heard);
        }
    }

    /// A Sentinel names this node as the master.
    pub(crate) fn name_as_master(&self) {
        let mut state = self.0.lock();
        (state.has_named, state.replaced) = (true, None);
    }

    /// This node has been ordered to be a master, or a replica. `hands_over`: its next master
    /// announces itself.
    pub(crate) fn ordered(&self, hands_over: bool) {
        let mut state = self.0.lock();
        (state.has_named, state.replaced) = (false, None);
        if hands_over {
            state.raise_epochs();
        }
    }

    /// Whether a Sentinel that names this address has not accepted the announcement.
    pub(crate) fn is_replaced(&self, address: &str) -> bool {
        let state = self.0.lock();
        state.replaced.as_ref().is_some_and(|master| master.to_string() == address)
    }

    /// Whether one has named this node as the master since its last order.
    pub(crate) fn have_named(&self) -> bool {
        self.0.lock().has_named
    }

    /// Number of those that watch this node now.
    pub(crate) fn count(&self) -> usize {
        let state = self.0.lock();
        state.heard.iter().filter(|heard| since(heard.at) <= HEARD_WITHIN).count()
    }

    /// Whether one watches this node now.
    pub(crate) fn watch(&self) -> bool {
        self.count() > 0
    }

    /// A group of which only one Sentinel is heard: it accepts no announcement.
    pub(crate) fn lonely(&self) -> Option<String> {
        let state = self.0.lock();
        let groups = state.live_groups();
        groups.into_iter().find(|(_, heard)| heard.len() == 1).map(|(group, _)| group.to_owned())
    }

    /// Hellos that make the Sentinels of all groups accept this node as the master, in the place of
    /// `replaced`.
    pub(crate) fn announcements(&self, replaced: Option<Master>) -> Vec<String> {
        let mut state = self.0.lock();
        state.replaced = replaced.or(state.replaced.take());
        let mut all = Vec::new();
        for (group, heard) in state.live_groups() {
            let of_group = state.epochs.iter().find(|(name, _)| name == group);
            let epoch = of_group.map_or(0, |(_, epoch)| *epoch).saturating_add(1);
            for Heard { identity, own: (ip, port), .. } in heard.into_iter().take(2) {
                all.push(format!("{identity},{epoch},{group},{ip},{port},{epoch}"));
            }
        }
        state.raise_epochs();
        all
    }
}

impl State {
    /// Another announcement is made, here or at another node.
    fn raise_epochs(&mut self) {
        self.epochs.iter_mut().for_each(|(_, epoch)| *epoch = epoch.saturating_add(1));
    }

    /// The groups whose Sentinels are heard, the last heard first.
    fn live_groups(&self) -> Vec<(&str, Vec<&Heard>)> {
        let mut groups: Vec<(&str, Vec<&Heard>)> = Vec::new();
        for heard in self.heard.iter().rev().filter(|heard| since(heard.at) <= HEARD_WITHIN) {
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
        assert_eq!(sentinels.lonely().as_deref(), Some("m"));
        for name in ["b", "c", "b"] {
            sentinels.hear(hello(name, "m", 6));
        }
        assert_eq!(sentinels.lonely(), None);
        let wanted = |name, epoch| format!("10.0.0.9,26379,{name},{epoch},m,10.0.0.1,6399,{epoch}");
        assert_eq!(sentinels.announcements(None), [wanted("b", 8), wanted("c", 8)]);
        assert_eq!(sentinels.announcements(None)[0], wanted("b", 9), "the last one may be lost");
        sentinels.ordered(true);
        assert_eq!(sentinels.announcements(None)[0], wanted("b", 11), "its successor's is 10");
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
        assert!(state.heard.len() <= MAX_SENTINELS * MOST_GROUPS, "{}", state.heard.len());
        assert_eq!(state.epochs.len(), MOST_GROUPS);
    }
}
