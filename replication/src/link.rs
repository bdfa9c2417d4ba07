//! Timeouts and errors of a link, for both ends.

use store::Lineage;

/// Timeouts of a link, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Maximum time between two progress messages of either end. Default 1,000.
    pub heartbeat_ms: u64,
    /// Time without a message after which a peer is considered dead. Default 60,000, like Redis's
    /// repl-timeout.
    pub timeout_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { heartbeat_ms: 1_000, timeout_ms: 60_000 }
    }
}

impl Timeouts {
    /// Returns an error if the last message of a peer, at `heard_ms`, is older than the timeout.
    pub(crate) fn check_timeout(&self, heard_ms: u64, now_ms: u64) -> Result<(), LinkError> {
        let silent_ms = now_ms.saturating_sub(heard_ms);
        if silent_ms < self.timeout_ms { Ok(()) } else { Err(LinkError::Timeout(silent_ms)) }
    }
}

/// Reason why a link is closed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer sent an invalid message.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The peer has sent nothing for too long.
    #[error("received nothing for {0} ms")]
    Timeout(u64),
    /// The peer refused the link, and gave this reason.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// The peer is not a Tidemark server.
    #[error("{0}")]
    Foreign(String),
    /// The rules of R3 do not allow this replica to follow the master.
    #[error(transparent)]
    CannotFollow(Refusal),
    /// Error of the local disk or log.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A file arrived damaged, or a crash damaged the part that an earlier link fetched. The next
    /// link fetches the file again.
    #[error("checksum mismatch in a received file, fetching it again")]
    Damaged,
    /// This node cannot apply the next batch or data set of the master, and did not accept it.
    #[error("{0}")]
    CannotApply(String),
    /// A record cannot be applied.
    #[error("cannot apply a record: {0}")]
    Apply(String),
}

/// Reason why a replica does not follow a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The master has another data set.
    #[error(
        "the master has a different data set (lineage {theirs}, ours is {ours}). Use REPLICAOF \
         host port FORCE (in a cluster CLUSTERX SETNODES ... FORCE) to discard ours"
    )]
    Foreign {
        /// Lineage of the replica.
        ours: Lineage,
        /// Lineage of the master.
        theirs: Lineage,
    },
    /// The master has fewer promotions, or lost data.
    #[error(
        "the master's history ends or diverges before ours, without a later promotion (its end \
         {theirs}, ours {ours}). Use REPLICAOF host port FORCE (in a cluster CLUSTERX SETNODES ... \
         FORCE) to discard ours"
    )]
    Behind {
        /// Offset of the replica.
        ours: u64,
        /// Offset of the master.
        theirs: u64,
    },
}
