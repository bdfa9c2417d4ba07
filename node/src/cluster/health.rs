//! Health of the other cluster nodes. This node polls each of them, and reports their health to
//! clients and operators. The health does not affect which node is a master.

use crate::cluster::Topology;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Health of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The node answers, or the timeout has not expired.
    #[default]
    Online,
    /// The node answers and is loading its data.
    Loading,
    /// The node has not answered for longer than `cluster.node_timeout`.
    Failed,
}

/// Poll state of a node. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollState {
    /// Time of the oldest unanswered poll; 0 if none.
    pub asked_ms: u64,
    /// Time of the last answer; 0 if none.
    pub heard_ms: u64,
    is_loading: bool,
}

impl PollState {
    /// Returns the node's health at this time.
    pub fn state(&self, now_ms: u64, timeout_ms: u64) -> State {
        let waited = if self.asked_ms == 0 { 0 } else { now_ms.saturating_sub(self.asked_ms) };
        if waited > timeout_ms {
            State::Failed
        } else if self.is_loading {
            State::Loading
        } else {
            State::Online
        }
    }
}

/// Poll states by node id.
#[derive(Default)]
pub struct Health(Mutex<HashMap<String, PollState>>);

impl Health {
    /// Records that a poll was sent. Keeps the time of an older unanswered poll.
    pub fn asked(&self, id: &str, now_ms: u64) {
        let mut all = self.0.lock();
        let pulse = all.entry(id.to_owned()).or_default();
        if pulse.asked_ms == 0 {
            pulse.asked_ms = now_ms;
        }
    }

    /// Records an answer to a poll.
    pub fn heard(&self, id: &str, now_ms: u64, is_loading: bool) {
        let pulse = PollState { asked_ms: 0, heard_ms: now_ms, is_loading };
        self.0.lock().insert(id.to_owned(), pulse);
    }

    /// Removes nodes that are not in this topology.
    pub fn follow(&self, topology: &Topology) {
        let members: std::collections::HashSet<&str> =
            topology.members().iter().map(|member| member.id.as_str()).collect();
        self.0.lock().retain(|id, _| members.contains(id.as_str()));
    }

    /// Returns the poll state of a node.
    pub fn of(&self, id: &str) -> PollState {
        self.0.lock().get(id).copied().unwrap_or_default()
    }

    /// Number of failed nodes.
    pub fn failed(&self, now_ms: u64, timeout_ms: u64) -> usize {
        let all = self.0.lock();
        all.values().filter(|pulse| pulse.state(now_ms, timeout_ms) == State::Failed).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::topology::tests::{id, two_shards};

    #[test]
    fn a_node_has_failed_when_a_question_is_open_for_too_long() {
        let health = Health::default();
        let state = |now| health.of("a").state(now, 100);
        assert_eq!(state(1_000), State::Online, "never asked");
        health.asked("a", 1_000);
        health.asked("a", 1_090);
        assert_eq!((state(1_100), state(1_101)), (State::Online, State::Failed));
        assert_eq!((health.failed(1_100, 100), health.failed(1_101, 100)), (0, 1));
        health.heard("a", 1_200, true);
        assert_eq!(state(9_999), State::Loading, "not polled since");
        health.asked("a", 2_000);
        assert_eq!(state(500), State::Loading, "the clock was set back");
        health.heard("a", 2_001, false);
        assert_eq!(state(9_999), State::Online);
        assert_eq!(health.of("a").heard_ms, 2_001);
    }

    #[test]
    fn nodes_that_have_left_are_forgotten() {
        let health = Health::default();
        for node in [&id('a'), "gone"] {
            health.asked(node, 1);
        }
        health.follow(&Topology::parse(&two_shards(), 1, &id('c')).unwrap());
        assert_eq!(health.failed(1_000, 1), 1);
        assert_eq!(health.of("gone"), PollState::default());
    }
}
