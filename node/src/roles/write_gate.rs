//! The gate: whether writes are taken is one atomic, and if they are not, why.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// Why writes are refused, if they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Shut {
    No,
    /// This is a replica, or becomes a master at this moment.
    Replica,
    /// It may have been replaced: it was a master of replicas, or has been one, was started again,
    /// and no order has confirmed it as the master since.
    Fenced,
    /// Too few replicas follow closely enough.
    FewReplicas,
    /// Sentinel has made another node the master.
    Deposed,
}

/// See the top of the file. Shut at first.
pub(crate) struct Gate(AtomicU8);

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate(AtomicU8::new(Shut::Replica as u8))
    }

    pub(crate) fn set(&self, shut: Shut) {
        self.0.store(shut as u8, SeqCst);
    }

    /// Why a write must be refused now, if it must.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        // The turn has begun before: either the gate is shut for it, or the thread that shut it
        // waits for its end.
        match self.0.load(SeqCst) {
            0 => None,
            _ => text(self.shut()),
        }
    }
}

impl Gate {
    /// Why writes are refused, if they are.
    pub(crate) fn shut(&self) -> Shut {
        match self.0.load(SeqCst) {
            0 => Shut::No,
            1 => Shut::Replica,
            2 => Shut::Fenced,
            3 => Shut::FewReplicas,
            _ => Shut::Deposed,
        }
    }
}

#[cold]
fn text(shut: Shut) -> Option<&'static str> {
    Some(match shut {
        Shut::No => return None,
        Shut::Replica => "READONLY You can't write against a read only replica.",
        Shut::Fenced => {
            "READONLY This master was started again, or told to follow a server that cannot be \
             followed, and is fenced until its role is known: until Sentinel names it, a replica \
             follows it where there is no Sentinel, or REPLICAOF NO ONE."
        }
        Shut::FewReplicas => "NOREPLICAS Not enough good replicas to write.",
        Shut::Deposed => {
            "READONLY Sentinel has made another node the master: this one is fenced until Sentinel \
             names it again, or makes it a replica, or REPLICAOF NO ONE."
        }
    })
}

const _: () = assert!(Shut::No as u8 == 0);
