//! Specification of a command: one row of the command table.

use crate::command::among;
use crate::command::error::Refusal;
use crate::command::unseen_options::{Options, UnseenOption};
use resp::Args;

/// Properties of a command: bits of `Spec::flags`. COMMAND INFO shows the first 14.
pub mod flag {
    /// The command changes data.
    pub const WRITE: u32 = 1;
    /// The command reads data.
    pub const READONLY: u32 = 1 << 1;
    /// The command may increase the memory use, and is refused at the memory limit.
    pub const DENYOOM: u32 = 1 << 2;
    /// The command is for operators.
    pub const ADMIN: u32 = 1 << 3;
    /// The command takes constant time, or time linear in its arguments.
    pub const FAST: u32 = 1 << 4;
    /// The command is allowed while data are loading.
    pub const LOADING: u32 = 1 << 5;
    /// The command is allowed on a replica without a link to its master.
    pub const STALE: u32 = 1 << 6;
    /// The command is allowed before authentication.
    pub const NO_AUTH: u32 = 1 << 7;
    /// The command is refused in scripts.
    pub const NOSCRIPT: u32 = 1 << 8;
    /// The command is related to channels.
    pub const PUBSUB: u32 = 1 << 9;
    /// The command is refused in a transaction, since its reply is asynchronous.
    pub const NO_MULTI: u32 = 1 << 10;
    /// The command changes no local data but has an effect on other nodes or clients.
    pub const MAY_REPLICATE: u32 = 1 << 11;
    /// The command is hidden from MONITOR.
    pub const SKIP_MONITOR: u32 = 1 << 12;
    /// The command is hidden from SLOWLOG, which shows the commands that it executes instead.
    pub const SKIP_SLOWLOG: u32 = 1 << 13;
    /// Names of the flags in the order of their bits.
    pub const NAMES: [&str; 14] = [
        "write",
        "readonly",
        "denyoom",
        "admin",
        "fast",
        "loading",
        "stale",
        "no_auth",
        "noscript",
        "pubsub",
        "no_multi",
        "may_replicate",
        "skip_monitor",
        "skip_slowlog",
    ];

    // Internal flags:
    /// Executed immediately inside a transaction instead of being queued.
    pub const AT_ONCE: u32 = 1 << 24;
    /// Allowed for a RESP2 client in subscriber mode.
    pub const LISTENER: u32 = 1 << 25;
    /// Changes data if an option says so (FEED.GET ... MARK, PH.UNSEEN ... MARK).
    pub const MAY_WRITE: u32 = 1 << 26;
    /// The first argument names a space, view or action. A subcommand's name or a key may precede
    /// this argument.
    pub const NAMED: u32 = 1 << 27;
    /// A write that also returns stored data.
    pub const READS: u32 = 1 << 28;
    /// Replies with one element for each id, so a cluster node can merge the replies of several
    /// nodes.
    pub const PER_ID: u32 = 1 << 29;
    /// Accepts its ids as one packed string (`id_list`).
    pub const PACKED: u32 = 1 << 30;
}

/// Positions of the arguments that identify the accessed data. `footprint` resolves these
/// positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyArgs {
    /// No positions: the command accesses no data, or the whole data set.
    None,
    /// Keys: position of the first key, position of the last key (negative: counted from the end),
    /// and the step.
    Keys(i32, i32, i32),
    /// Stream keys after the word STREAMS, which is at this position or later. An equal number of
    /// ids follows the keys.
    Streams(u8),
    /// The key of a row, a view and a viewer. The view may return other data of the row's id.
    Shown,
    /// Ids of the space, view or action in the first argument: position of the first id, and the
    /// step. Options may follow the ids.
    Ids(IdTarget, usize, usize),
}

/// Kind of object that the ids belong to. A member precedes the ids, except for rows and FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdTarget {
    /// Ids of a counter space.
    Rows,
    /// Ids of an existence space.
    Pairs,
    /// Ids of an action.
    Action,
    /// Ids of a view.
    View,
    /// Ids of an existence space, or of a counter space and all spaces that share its ids.
    RowsAndPairs,
}

/// The command has no keys.
pub const NO_KEYS: KeyArgs = KeyArgs::None;
/// The first argument is the only key.
pub const ONE_KEY: KeyArgs = KeyArgs::Keys(1, 1, 1);
/// The first two arguments are keys.
pub const TWO_KEYS: KeyArgs = KeyArgs::Keys(1, 2, 1);
/// The second argument is the only key. The key follows a subcommand's name or the number of keys.
pub const SECOND_KEY: KeyArgs = KeyArgs::Keys(2, 2, 1);
/// All arguments are keys.
pub const ALL_KEYS: KeyArgs = KeyArgs::Keys(1, -1, 1);
/// Index of the member argument in commands like `PH.ADD space member id ...`.
pub const MEMBER: usize = 2;

impl KeyArgs {
    /// Returns the key positions of a command whose ids follow the name of a space, view or action
    /// and a member.
    pub const fn ids_of(of: IdTarget) -> KeyArgs {
        KeyArgs::Ids(of, MEMBER + 1, 1)
    }

    /// Returns the positions that COMMAND INFO shows; all 0 if no argument is a key.
    pub fn positions(self) -> (i32, i32, i32) {
        match self {
            KeyArgs::Keys(first, last, step) => (first, last, step),
            KeyArgs::Shown => (1, 1, 1),
            KeyArgs::None | KeyArgs::Streams(_) | KeyArgs::Ids(..) => (0, 0, 0),
        }
    }

    /// Whether the arguments are keys.
    pub fn are_keys(self) -> bool {
        matches!(self, KeyArgs::Keys(..) | KeyArgs::Shown | KeyArgs::Streams(_))
    }
}

/// Result of a command; the error is its reply.
pub type Outcome = Result<(), Refusal>;

/// Complexity of a command, as shown by COMMAND DOCS.
#[derive(Clone, Copy)]
pub enum Cost {
    /// The command takes constant time.
    Constant,
    /// Time linear in the number of these items.
    Linear(&'static str),
    /// Any other complexity, as text.
    Other(&'static str),
}

/// Specification of a command.
#[derive(Clone, Copy)]
pub struct Spec {
    /// Lower-case name; `command|subcommand` for a subcommand.
    pub name: &'static str,
    /// Number of arguments including the name; negative for a minimum.
    pub arity: i32,
    /// Flags of the command: bits of [`flag`].
    pub flags: u32,
    /// Positions of the keys or ids.
    pub keys: KeyArgs,
    /// Redis's command group, which is also an ACL category.
    pub group: &'static str,
    /// First Redis or Tidemark version with this command.
    pub since: &'static str,
    /// Arguments after the name, in the notation of the command reference.
    pub usage: &'static str,
    /// Short description of the command.
    pub summary: &'static str,
    /// Time complexity of the command.
    pub cost: Cost,
    /// How the command uses its first key and its other keys, in terms of
    /// [`KeySpec::uses`](crate::command::keyspec::KeySpec::uses); empty if the flags imply the use.
    pub uses: (&'static str, &'static str),
    /// Hints for cluster clients: request and response policy, and whether replies are
    /// deterministic.
    pub tips: &'static [&'static str],
    /// Subcommands, chosen by the first argument. If empty, the command has no subcommands.
    pub subcommands: &'static [Spec],
}

impl Spec {
    /// Whether the command has any of these [`flag`]s.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether this request may change data or has an effect on other nodes or clients.
    pub fn may_write(&self, args: Args<'_>) -> bool {
        self.has(flag::WRITE | flag::MAY_REPLICATE)
            || self.mark(args).is_some()
            || self.sets_flags(args)
    }

    /// Whether a request that reads flags also sets them: `PH.UNSEEN ... MARK`.
    pub fn sets_flags(&self, args: Args<'_>) -> bool {
        self.has(flag::MAY_WRITE)
            && self.keys == KeyArgs::ids_of(IdTarget::Pairs)
            && Options::new(args, MEMBER + 1).any(|option| option == UnseenOption::Mark)
    }

    /// Returns the position of the action that the request performs in addition to reading:
    /// `FEED.GET ... MARK`.
    pub fn mark(&self, args: Args<'_>) -> Option<usize> {
        if !self.has(flag::MAY_WRITE) || self.keys == KeyArgs::ids_of(IdTarget::Pairs) {
            return None;
        }
        // Starts after the view and the viewer, since either may be named MARK.
        let mut words = MEMBER + 1..args.len().saturating_sub(1);
        let at = words.find(|at| args.at(*at).eq_ignore_ascii_case(b"MARK"))?;
        (!among::precedes(args, at)).then_some(at + 1)
    }

    /// Whether all keys of the command refer to pairs, as in BFSET, even if a counter space has the
    /// same key.
    pub(crate) fn is_about_pairs(&self) -> bool {
        self.group == "weibo" && self.name.starts_with("bf")
    }

    /// Whether the keys may be sets with a ledger, which may require disk reads. String commands
    /// access only counters.
    pub fn may_read_sets(&self) -> bool {
        self.keys.are_keys() && self.group != "string"
    }

    /// Whether the number of arguments, including the name, matches the arity.
    #[inline]
    pub fn fits(&self, args: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { args >= arity } else { args == arity }
    }

    /// Returns the name without the parent command.
    pub fn own_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, own)| own)
    }

    /// Whether the command has this subcommand. The comparison ignores case.
    pub fn knows(&self, name: &[u8]) -> bool {
        self.subcommands.iter().any(|sub| sub.own_name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns the upper-case name and the arguments, as in the command reference.
    pub fn synopsis(&self) -> String {
        let name = self.name.to_ascii_uppercase().replace('|', " ");
        if self.usage.is_empty() { name } else { format!("{name} {}", self.usage) }
    }
}

/// Flags of a command allowed while loading and on a stale replica, but not in scripts.
pub const ALWAYS: u32 = flag::LOADING | flag::STALE | flag::NOSCRIPT;
/// Flags of a constant-time read.
pub const READ: u32 = flag::READONLY | flag::FAST;
