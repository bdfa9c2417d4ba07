//! Write gate: an atomic that contains the reason why writes are refused, if any.
//!
//! With a lease (CLUSTERX HEARTBEAT) the gate is open until a deadline, and each write reads the
//! clock. A timer could fire late, for example after the process was frozen.
//!
//! A renewal may also be stale, because it may have waited in the socket of a frozen process or in
//! a partitioned network. Once a lease has expired, a new election grants another lease. A
//! HEARTBEAT of the same election grants a lease only if it arrives at least one lease duration
//! after the first late message. All stale messages have been read by that time.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::time::elapsed_ms;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum WriteBlock {
    No,
    /// The node is a replica, or is becoming a master.
    Replica,
    /// The node has restarted and other nodes exist, so it may have been replaced. The node has not
    /// been confirmed as the master yet.
    Fenced,
    /// Fewer than `min_replicas_to_write` replicas have a small enough lag.
    FewReplicas,
    /// Sentinel has chosen another master.
    Deposed,
    /// Like `Fenced`, for a cluster node.
    FencedInCluster,
    /// Writes are refused once the lease has expired.
    Leased,
}

pub(crate) struct Gate {
    shut: AtomicU8,
    began: Instant,
    /// Deadline of the lease, in milliseconds since `began`.
    lease_end_ms: AtomicU64,
    /// Time of the first message after the lease expired, in milliseconds since `began`; 0 if none.
    late_ms: AtomicU64,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            shut: AtomicU8::new(WriteBlock::Replica as u8),
            began: Instant::now(),
            lease_end_ms: AtomicU64::new(0),
            late_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn set(&self, shut: WriteBlock) {
        self.shut.store(shut as u8, SeqCst);
    }

    pub(crate) fn lease(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.late_ms.store(0, SeqCst);
        self.lease_end_ms.store(elapsed_ms(self.began).saturating_add(ms), SeqCst);
    }

    /// Renews the lease, unless it has expired and the message may be stale. The caller serializes
    /// the calls.
    pub(crate) fn renew(&self, time: Duration) {
        let (now, late) = (elapsed_ms(self.began), self.late_ms.load(SeqCst));
        let is_over = now >= self.lease_end_ms.load(SeqCst);
        if is_over && late == 0 {
            self.late_ms.store(now.max(1), SeqCst);
        } else if !is_over || u128::from(now - late) >= time.as_millis() {
            self.lease(time);
        }
    }

    #[inline]
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        // No further synchronization is needed. A thread that closes the gate waits for the
        // event-loop iterations that began earlier.
        match self.shut.load(SeqCst) {
            0 => None,
            _ => self.text(),
        }
    }

    pub(crate) fn shut(&self) -> WriteBlock {
        match self.shut.load(SeqCst) {
            0 => WriteBlock::No,
            1 => WriteBlock::Replica,
            2 => WriteBlock::Fenced,
            3 => WriteBlock::FewReplicas,
            4 => WriteBlock::Deposed,
            5 => WriteBlock::FencedInCluster,
            _ => WriteBlock::Leased,
        }
    }

    #[cold]
    fn text(&self) -> Option<&'static str> {
        match self.shut() {
            WriteBlock::Leased if elapsed_ms(self.began) < self.lease_end_ms.load(SeqCst) => None,
            shut => text(shut),
        }
    }
}

fn text(shut: WriteBlock) -> Option<&'static str> {
    Some(match shut {
        WriteBlock::No => return None,
        // Cluster clients reload the topology and retry on this error.
        WriteBlock::FencedInCluster => {
            "CLUSTERDOWN This master was restarted and is fenced, since another node may be the \
             master. Writes resume when a replica of its topology follows it, Sentinel names it, \
             or CLUSTERX SETNODES sends a later version."
        }
        WriteBlock::Leased => {
            "CLUSTERDOWN master lease expired: another node may be the master. Writes resume after \
             a HEARTBEAT that names this node"
        }
        WriteBlock::Replica => "READONLY You can't write against a read only replica.",
        WriteBlock::Fenced => {
            "READONLY This master is fenced until its role is known: it was restarted, or could \
             not follow the server in REPLICAOF. Writes resume when Sentinel names it, a replica \
             follows it (without Sentinel), or after REPLICAOF NO ONE."
        }
        WriteBlock::FewReplicas => "NOREPLICAS Not enough good replicas to write.",
        WriteBlock::Deposed => {
            "READONLY Sentinel has made another node the master, so this one is fenced. Writes \
             resume when Sentinel names it again, or after REPLICAOF NO ONE."
        }
    })
}

const _: () = assert!(WriteBlock::No as u8 == 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leased_gate_shuts_by_itself() {
        let gate = Gate::new();
        gate.set(WriteBlock::Leased);
        assert!(gate.refusal().is_some_and(|text| text.contains("master lease expired")));
        gate.lease(Duration::from_millis(100));
        assert_eq!(gate.refusal(), None);
        std::thread::sleep(Duration::from_millis(110));
        assert!(gate.refusal().is_some(), "no lease is set");
        gate.lease(Duration::MAX);
        assert_eq!(gate.refusal(), None);
        gate.lease(Duration::ZERO);
        assert!(gate.refusal().is_some(), "the lease has expired");
    }

    /// After a freeze, a process reads all stale messages in one iteration.
    #[test]
    fn late_messages_renew_no_lease() {
        let gate = Gate::new();
        gate.set(WriteBlock::Leased);
        let lease = Duration::from_millis(100);
        gate.lease(lease);
        std::thread::sleep(Duration::from_millis(60));
        gate.renew(lease);
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(gate.refusal(), None, "renewed in time");
        std::thread::sleep(Duration::from_millis(60));
        for _ in 0..3 {
            gate.renew(lease);
            assert!(gate.refusal().is_some());
        }
        std::thread::sleep(Duration::from_millis(110));
        gate.renew(lease);
        assert_eq!(gate.refusal(), None, "sent after the freeze");
    }
}
