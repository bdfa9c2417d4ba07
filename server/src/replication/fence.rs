//! The fence: a node that was a master, and perhaps is none any more, takes no writes.
//!
//! ```text
//!   started again as a master that has had replicas,
//!   or has been one                                 --> Unknown    until a Sentinel names this node, or REPLICAOF; where no
//!                                                                  Sentinel has ever spoken, until a replica follows
//!   a Sentinel has named this node, and with a
//!   higher epoch it names another one               --> Deposed    until a Sentinel names this node again, or REPLICAOF
//! ```
//!
//! Every two seconds each Sentinel says on the channel `__sentinel__:hello` whom it takes for the master, and by which configuration epoch it does; each
//! failover has a higher one. So one that was away and says what was true once is told from one that knows: what it says has a lower epoch. An
//! old master that comes back is a replica only when Sentinel has made it one, ten seconds later with default periods; what it took
//! until then would be lost. Nor does a replica know better that comes back together with it: so where Sentinels have spoken only they, or an operator,
//! say what a node is, and the epoch that they were at is kept on the disk ([`super::role`]).
//!
//! An address that is not ours may be ours by another name (a host's name, an address outside of a container). So another master is believed in
//! only after a Sentinel has named this node by an address that we know as ours. Where that never happens the fence stays as it
//! was. When all Sentinels are gone an operator lifts it, by REPLICAOF NO ONE to a master: then what they have said is forgotten.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// Whether writes are kept out, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fenced {
    No,
    /// Nobody has said since the start that this node is the master.
    Unknown,
    /// Another one is.
    Deposed,
}

/// What Sentinels have said.
#[derive(Default)]
struct Heard {
    /// The highest configuration epoch, if any has spoken.
    epoch: Option<u64>,
    /// One named this node, in the role that it has, by an address that we know.
    named: bool,
}

/// See the top of the file.
pub(crate) struct Fence {
    fenced: AtomicU8,
    heard: Mutex<Heard>,
}

impl Fence {
    pub(crate) fn new() -> Fence {
        Fence { fenced: AtomicU8::new(Fenced::No as u8), heard: Mutex::default() }
    }

    pub(crate) fn now(&self) -> Fenced {
        match self.fenced.load(SeqCst) {
            0 => Fenced::No,
            1 => Fenced::Unknown,
            _ => Fenced::Deposed,
        }
    }

    /// The highest epoch of which a Sentinel has spoken.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.heard.lock().epoch
    }

    /// At start: what Sentinels had said before.
    pub(crate) fn recall(&self, epoch: Option<u64>) {
        self.heard.lock().epoch = epoch;
    }

    /// A start as a master that may have been replaced.
    pub(crate) fn raise(&self) {
        self.fenced.store(Fenced::Unknown as u8, SeqCst);
    }

    /// Somebody has given this node a role.
    pub(crate) fn ordered(&self) {
        self.heard.lock().named = false;
        self.fenced.store(Fenced::No as u8, SeqCst);
    }

    /// An operator has said that this master is one: what Sentinels have said is over.
    pub(crate) fn forget(&self) {
        *self.heard.lock() = Heard::default();
        self.fenced.store(Fenced::No as u8, SeqCst);
    }

    /// A replica follows. It knows no better than we do where a Sentinel has spoken. True if that lifts the fence.
    pub(crate) fn followed(&self) -> bool {
        let heard = self.heard.lock();
        heard.epoch.is_none()
            && self.fenced.compare_exchange(Fenced::Unknown as u8, Fenced::No as u8, SeqCst, SeqCst).is_ok()
    }

    /// A Sentinel has named a master: this node, or another address. Gives what the fence is from now on, if that is new.
    pub(crate) fn named(&self, is_ours: bool, epoch: u64, is_master: bool) -> Option<Fenced> {
        let mut heard = self.heard.lock();
        let epoch = Some(epoch);
        let now = if is_ours && epoch >= heard.epoch {
            heard.named = true;
            Fenced::No
        } else if !is_ours && epoch > heard.epoch && heard.named && is_master {
            Fenced::Deposed
        } else {
            self.now()
        };
        heard.epoch = heard.epoch.max(epoch);
        let was = self.fenced.swap(now as u8, SeqCst);
        (was != now as u8).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_that_was_away_says_nothing_new() {
        let fence = Fence::new();
        fence.raise();
        assert_eq!(fence.named(false, 6, true), None, "another name, for all that we know");
        assert_eq!(fence.named(true, 5, true), None, "what was true before epoch 6");
        assert_eq!(fence.now(), Fenced::Unknown);
        assert_eq!(fence.named(true, 6, true), Some(Fenced::No));
        assert_eq!(fence.named(true, 6, true), None);
    }

    #[test]
    fn a_master_that_was_replaced_is_told_so() {
        let fence = Fence::new();
        fence.raise();
        assert_eq!(fence.named(true, 5, true), Some(Fenced::No), "by the one that was away");
        assert_eq!(fence.named(false, 5, true), None, "an equal epoch is no failover");
        assert_eq!(fence.named(false, 6, true), Some(Fenced::Deposed));
        assert!(!fence.followed(), "a replica that was not told either");
        assert_eq!(fence.named(true, 5, true), None);
        assert_eq!(fence.now(), Fenced::Deposed);
        assert_eq!(fence.named(true, 7, true), Some(Fenced::No), "chosen again");
    }

    #[test]
    fn another_name_of_ours_is_nobody_else() {
        let fence = Fence::new();
        for epoch in [0, 1, u64::MAX] {
            assert_eq!(fence.named(false, epoch, true), None);
        }
        assert_eq!(fence.now(), Fenced::No);
    }

    /// A replica is told of its master, is promoted by hand or by FAILOVER, and goes on hearing of the old one.
    #[test]
    fn who_was_promoted_by_hand_is_believed() {
        let fence = Fence::new();
        fence.named(true, 3, true);
        fence.named(false, 4, false);
        assert_eq!(fence.now(), Fenced::No, "a replica has no fence");
        fence.ordered();
        assert_eq!(fence.named(false, 4, true), None);
        assert_eq!(fence.named(false, 9, true), None, "not named since");
        assert_eq!(fence.now(), Fenced::No);
    }

    /// M and a replica of it are killed, another replica is promoted, M and the first come back: that one follows M as before.
    #[test]
    fn where_sentinels_have_spoken_a_replica_that_follows_says_nothing() {
        let fence = Fence::new();
        fence.raise();
        assert!(fence.followed(), "nobody else could say it");
        fence.named(true, 5, true);
        let again = Fence::new();
        again.recall(fence.epoch());
        again.raise();
        assert!(!again.followed());
        assert_eq!(again.named(true, 4, true), None, "one that was away");
        assert_eq!(again.now(), Fenced::Unknown);
        assert_eq!(again.named(true, 5, true), Some(Fenced::No));
        // Named another since the start, if not before.
        let late = Fence::new();
        late.raise();
        late.named(false, 6, true);
        assert!(!late.followed());
        late.forget();
        late.raise();
        assert!(late.followed(), "an operator has said that they are gone");
    }
}
