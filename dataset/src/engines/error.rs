//! Errors of writes, schema changes and configurations.

use crate::key_patterns::PatternError;
use rolling::Unreadable;

/// Reason for refusing a write. A refused write has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Error of the counter engine.
    #[error(transparent)]
    Counter(#[from] counter::Error),
    /// Error of the existence engine.
    #[error(transparent)]
    Phantom(#[from] phantom::Error),
    /// The write needs a row or pair on disk that cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The token was used with other fields, deltas or bounds.
    #[error("token was used with a different increment")]
    OtherIncrement,
    /// Tokens are disabled.
    #[error("tokens are disabled (tokens.max_tokens is 0)")]
    NoTokens,
    /// The ledger's memory is full because flushes fail or are too slow.
    #[error("the ledger of '{0}' is out of memory until its disk accepts writes again")]
    LedgerFull(String),
    /// The member is too long for a ledger.
    #[error(
        "member too long: at most {max} bytes in a space with a ledger",
        max = ledger::MAX_MEMBER_BYTES
    )]
    MemberTooLong,
    /// The action changes counters of its member, but the member is not an id.
    #[error("the action updates counters of its member, so the member must be an integer id")]
    MemberIsNoId,
}

impl WriteError {
    /// Whether the memory limit of the space caused the error.
    pub(crate) fn is_want_of_memory(&self) -> bool {
        matches!(
            self,
            WriteError::Counter(
                counter::Error::Full { .. } | counter::Error::TooManyOutliers { .. }
            ) | WriteError::Phantom(phantom::Error::Full)
        )
    }
}

/// Reason for refusing a schema change.
#[derive(Debug, thiserror::Error)]
pub enum AlterError {
    /// Error of the counter engine: no such field, too many fields, and so on.
    #[error(transparent)]
    Counter(#[from] counter::Error),
    /// The field's name is an option of CNT.INCRBY.
    #[error("invalid field name '{0}': it is an option of CNT.INCRBY")]
    Reserved(String),
    /// A view or an action uses the field.
    #[error("the {what} '{name}' uses the field '{field}'")]
    InUse {
        /// "view" or "action".
        what: &'static str,
        /// Name of the view or action.
        name: String,
        /// Name of the field.
        field: String,
    },
    /// The space was dropped during the change.
    #[error("the space was dropped")]
    Gone,
}

/// Reason for refusing a configuration or catalogue.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A counter space's options were refused.
    #[error("counter space '{name}': {source}")]
    Counter {
        /// Name of the space.
        name: String,
        /// Error of the engine.
        source: counter::Error,
    },
    /// An existence space's options were refused.
    #[error("existence space '{name}': {source}")]
    Existence {
        /// Name of the space.
        name: String,
        /// Error of the engine.
        source: phantom::Error,
    },
    /// A key pattern was refused.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A view or an action refers to a space or field that does not exist.
    #[error("{what} '{name}': there is no {missing}")]
    Missing {
        /// "view" or "action".
        what: &'static str,
        /// Name of the view or action.
        name: String,
        /// The missing object.
        missing: String,
    },
    /// A field has the name of an option of CNT.INCRBY.
    #[error("counter space '{space}': invalid field name '{field}': it is an option of CNT.INCRBY")]
    Reserved {
        /// Name of the space.
        space: String,
        /// Name of the field.
        field: String,
    },
}
