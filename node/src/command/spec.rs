//! What a command is: one row of the table.

use crate::command::error::Refusal;
use resp::Args;

/// What a command is, as COMMAND tells clients. Bits of `Spec::flags`.
pub mod flag {
    /// Changes data.
    pub const WRITE: u32 = 1;
    /// Reads data.
    pub const READONLY: u32 = 1 << 1;
    /// May need more memory.
    pub const DENYOOM: u32 = 1 << 2;
    /// For operators.
    pub const ADMIN: u32 = 1 << 3;
    /// Takes constant time, or a little per argument.
    pub const FAST: u32 = 1 << 4;
    /// Also while data are being loaded.
    pub const LOADING: u32 = 1 << 5;
    /// Also on a replica that has lost its master.
    pub const STALE: u32 = 1 << 6;
    /// Also before a client has logged in.
    pub const NO_AUTH: u32 = 1 << 7;
    /// Not from scripts.
    pub const NOSCRIPT: u32 = 1 << 8;
    /// About channels.
    pub const PUBSUB: u32 = 1 << 9;
    /// Not between MULTI and EXEC: its reply comes later.
    pub const NO_MULTI: u32 = 1 << 10;
    /// Changes no data here, but something that others get.
    pub const MAY_REPLICATE: u32 = 1 << 11;
    /// MONITOR does not show it.
    pub const SKIP_MONITOR: u32 = 1 << 12;
    /// SLOWLOG does not show it: what it executes is shown.
    pub const SKIP_SLOWLOG: u32 = 1 << 13;
    /// Names in the order of the bits.
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

    // For this server only:
    /// Executed also between MULTI and EXEC.
    pub const AT_ONCE: u32 = 1 << 24;
    /// A RESP2 client that listens to channels may send it.
    pub const LISTENER: u32 = 1 << 25;
    /// An option makes it change data (FEED.GET ... MARK).
    pub const MAY_WRITE: u32 = 1 << 26;
    /// Its first argument (behind the name of a subcommand, or a key) names a space, view or
    /// action.
    pub const NAMED: u32 = 1 << 27;
    /// It writes, and also tells what was stored.
    pub const READS: u32 = 1 << 28;
    /// Its reply has one element for each id: a node of a cluster joins it from those of others.
    pub const PER_ID: u32 = 1 << 29;
}

/// Which arguments of a command say what it touches. What they name is worked out in `footprint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyArgs {
    /// None: it touches no data, or whatever there is.
    None,
    /// Keys: the position of the first and of the last one (negative: counted from the end), and
    /// the step.
    Keys(i32, i32, i32),
    /// Keys of streams, behind the word STREAMS, which stands at this position or later; as many
    /// ids follow them.
    Streams(u8),
    /// The key of a row; behind it stand a view, which shows what else there is of that id, and a
    /// viewer.
    Shown,
    /// Ids of what the first argument names: the position of the first one, and the step. Behind
    /// them may be options.
    Ids(Of, usize, usize),
}

/// What ids are ids of. In front of all but those of rows, and of what is forgotten, stands a
/// member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A counter space.
    Rows,
    /// An existence space.
    Pairs,
    /// An action.
    Action,
    /// A view.
    View,
    /// A counter space with all spaces in which its ids mean the same, or an existence space.
    Kin,
}

/// No keys.
pub const NO_KEYS: KeyArgs = KeyArgs::None;
/// One key, the first argument.
pub const ONE_KEY: KeyArgs = KeyArgs::Keys(1, 1, 1);
/// Two keys, the first arguments.
pub const TWO_KEYS: KeyArgs = KeyArgs::Keys(1, 2, 1);
/// One key, behind the name of a subcommand or a number of keys.
pub const SECOND_KEY: KeyArgs = KeyArgs::Keys(2, 2, 1);
/// All arguments are keys.
pub const ALL_KEYS: KeyArgs = KeyArgs::Keys(1, -1, 1);
/// The position of the member in front of ids.
pub const MEMBER: usize = 2;

impl KeyArgs {
    /// Ids behind a name and a member.
    pub const fn ids_of(of: Of) -> KeyArgs {
        KeyArgs::Ids(of, MEMBER + 1, 1)
    }

    /// As COMMAND INFO says it: all 0 where no argument is a key.
    pub fn positions(self) -> (i32, i32, i32) {
        match self {
            KeyArgs::Keys(first, last, step) => (first, last, step),
            KeyArgs::Shown => (1, 1, 1),
            KeyArgs::None | KeyArgs::Streams(_) | KeyArgs::Ids(..) => (0, 0, 0),
        }
    }

    /// Whether there are keys.
    pub fn are_keys(self) -> bool {
        matches!(self, KeyArgs::Keys(..) | KeyArgs::Shown | KeyArgs::Streams(_))
    }
}

/// Why a command did nothing.
pub type Outcome = Result<(), Refusal>;

/// What a command costs, as COMMAND DOCS says it.
#[derive(Clone, Copy)]
pub enum Cost {
    /// Constant time.
    Constant,
    /// Time that is linear in the number of these.
    Linear(&'static str),
    /// As it is said here.
    Other(&'static str),
}

/// One command. See the top of the file.
#[derive(Clone, Copy)]
pub struct Spec {
    /// In lower case; of a subcommand `command|subcommand`.
    pub name: &'static str,
    /// How many arguments, the name included; negative: at least so many.
    pub arity: i32,
    /// Bits of [`flag`].
    pub flags: u32,
    /// Where its keys are.
    pub keys: KeyArgs,
    /// The family: Redis's group, and the ACL category of the same name.
    pub group: &'static str,
    /// The Redis version that brought it, or ours.
    pub since: &'static str,
    /// What follows the name.
    pub usage: &'static str,
    /// What it does, in a sentence or a few.
    pub summary: &'static str,
    /// What it costs.
    pub cost: Cost,
    /// What it does with its first key and with the others, in the words of
    /// [`KeySpec::uses`](crate::command::keyspec::KeySpec::uses); empty where the flags say it.
    pub uses: (&'static str, &'static str),
    /// For clients of clusters: how to send it to several servers, how to join the replies, and
    /// whether these are the same each time.
    pub tips: &'static [&'static str],
    /// If not empty, the first argument chooses one of these; without it the command answers.
    pub subcommands: &'static [Spec],
}

impl Spec {
    /// Whether it has any of these [`flag`]s.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether this request may change data, or what others get.
    pub fn may_write(&self, args: Args<'_>) -> bool {
        self.has(flag::WRITE | flag::MAY_REPLICATE) || self.mark(args).is_some()
    }

    /// The position of the action that a request of this command does beside: `FEED.GET ... MARK`.
    pub fn mark(&self, args: Args<'_>) -> Option<usize> {
        if !self.has(flag::MAY_WRITE) {
            return None;
        }
        // A view and a viewer may have that name.
        let mut words = MEMBER + 1..args.len().saturating_sub(1);
        words.find(|at| args.at(*at).eq_ignore_ascii_case(b"MARK")).map(|at| at + 1)
    }

    /// Whether its keys are those of pairs only: BFSET and its kin, which share their keys with
    /// counters.
    pub(crate) fn is_about_pairs(&self) -> bool {
        self.group == "weibo" && self.name.starts_with("bf")
    }

    /// Whether its keys may be sets with a ledger, each of which may take a read of the disk.
    /// Strings are counters.
    pub fn may_read_sets(&self) -> bool {
        self.keys.are_keys() && self.group != "string"
    }

    /// Whether it takes so many arguments, its name included.
    #[inline]
    pub fn fits(&self, args: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { args >= arity } else { args == arity }
    }

    /// Its own name, without its command's.
    pub fn own_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, own)| own)
    }

    /// Whether it has this subcommand.
    pub fn knows(&self, name: &[u8]) -> bool {
        self.subcommands.iter().any(|sub| sub.own_name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// Upper-case name and arguments, as the reference shows them.
    pub fn synopsis(&self) -> String {
        let name = self.name.to_ascii_uppercase().replace('|', " ");
        if self.usage.is_empty() { name } else { format!("{name} {}", self.usage) }
    }
}

/// Flags of a command that is allowed while loading and on a stale replica, not in scripts.
pub const ALWAYS: u32 = flag::LOADING | flag::STALE | flag::NOSCRIPT;
/// Flags of a read that takes constant time.
pub const READ: u32 = flag::READONLY | flag::FAST;
