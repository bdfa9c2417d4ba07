//! Timeouts and errors of a link, for both ends.

use store::Lineage;

/// Timeouts of a link, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Longest time between two progress messages of either end. Default 1,000.
    pub heartbeat_ms: u64,
    /// Silence after which a peer is given up. Default 60,000, as Redis's repl-timeout.
    pub timeout_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { heartbeat_ms: 1_000, timeout_ms: 60_000 }
    }
}

impl Timeouts {
    /// Fails if a peer, last heard at `heard_ms`, has been silent for too long.
    pub(crate) fn hears(&self, heard_ms: u64, now_ms: u64) -> Result<(), LinkError> {
        let silent_ms = now_ms.saturating_sub(heard_ms);
        if silent_ms < self.timeout_ms { Ok(()) } else { Err(LinkError::Timeout(silent_ms)) }
    }
}

/// Why a link is closed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer sent an invalid message.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer was silent for too long.
    #[error("nothing was heard for {0} ms")]
    Timeout(u64),
    /// The peer refused the link, and gave this reason.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// The peer is not a Tidemark server.
    #[error("{0}")]
    Foreign(String),
    /// This replica must not follow the master.
    #[error(transparent)]
    Unfit(Refusal),
    /// Error of the own disk or log.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A file arrived damaged, or a crash tore the part that an earlier link fetched. The next link
    /// fetches it again.
    #[error("a file does not match its checksum: it is fetched anew")]
    Damaged,
    /// This node cannot apply the master's next data, and has not taken them.
    #[error("{0}")]
    Unready(String),
    /// A record cannot be applied.
    #[error("a record cannot be applied: {0}")]
    Apply(String),
}

/// Why a replica does not follow a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another data set.
    #[error(
        "the master has another data set (lineage {theirs}, ours is {ours}); REPLICAOF host port \
         FORCE (in a cluster CLUSTERX SETNODES ... FORCE) gives ours up for it"
    )]
    Foreign {
        /// Ours.
        ours: Lineage,
        /// The master's.
        theirs: Lineage,
    },
    /// It has fewer promotions, or lost something.
    #[error(
        "the master's history ends or parts before ours does, and it was not promoted since (its \
         end {theirs}, ours {ours}); REPLICAOF host port FORCE (in a cluster CLUSTERX SETNODES ... \
         FORCE) gives ours up for it"
    )]
    Behind {
        /// Our offset.
        ours: u64,
        /// The master's.
        theirs: u64,
    },
}
