//! Options of a data set. Each option is declared once, with its type, default and documentation.

pub mod check;
pub mod defaults;
pub mod units;
pub mod wide;
pub mod words;

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Declaration of one setting in a section of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name of the setting in the configuration file.
    pub name: &'static str,
    /// Documentation of the setting, line by line.
    pub doc: &'static [&'static str],
    /// Redis's names for this setting. CONFIG GET and CONFIG SET accept these names, too.
    pub redis: &'static [&'static str],
    /// Whether CONFIG SET may change the setting at run time. Code that uses it must read the
    /// current value every time.
    pub live: bool,
    /// Whether the value is a password, which CONFIG GET shows only to users with all permissions.
    pub secret: bool,
    /// How many operators change the setting: 1 for all, 2 for some, 3 for few; 0 if `tidemark
    /// config` does not print it.
    pub group: u8,
    /// Module that serializes the value; empty for the default serialization.
    pub with: &'static str,
}

impl Key {
    /// Returns the unit of the setting's number, if it has a unit.
    pub fn unit(&self) -> Option<units::Unit> {
        units::Unit::of(self.with)
    }
}

/// Returns the first name: the name given by `#[key]`, otherwise the name of the field.
pub const fn name(names: &[&'static str]) -> &'static str {
    names[0]
}

/// Declares a section of the configuration: the struct, its defaults and its documentation. The
/// attributes of a field set the fields of its [`Key`]: `#[redis = "..."]` is a Redis name of the
/// setting, with the same unit. `#[live = true]` allows changes at run time. `#[secret = true]`
/// marks a password. `#[group = 1]` sets [`Key::group`]. `#[key = "..."]` is the name in the file
/// if it differs from the field's name. `#[with = "..."]` is the module that serializes the value
/// (`units`, `wide`).
#[macro_export]
macro_rules! section {
    ($(#[doc = $about:literal])+ $name:ident { $(
        $(#[doc = $doc:literal])+ $(#[redis = $redis:literal])* $(#[live = $live:literal])?
        $(#[secret = $secret:literal])? $(#[group = $group:literal])? $(#[key = $key:literal])?
        $(#[with = $with:literal])?
        $field:ident: $type:ty = $default:expr,
    )* }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $(
            $(#[doc = $doc])+ $(#[serde(rename = $key)])? $(#[serde(with = $with)])?
            pub $field: $type,
        )* }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $default, )* }
            }
        }

        impl $name {
            /// Documentation of the section, line by line.
            pub const ABOUT: &'static [&'static str] = &[$($about),+];
            /// Settings of the section, in the order of the configuration file.
            pub const KEYS: &'static [$crate::options::Key] = &[$(
                $crate::options::Key {
                    name: $crate::options::name(&[$($key,)? stringify!($field)]),
                    doc: &[$($doc),+],
                    redis: &[$($redis),*],
                    live: false $(|| $live)?,
                    secret: false $(|| $secret)?,
                    group: 0 $(+ $group)?,
                    with: concat!("" $(, $with)?),
                },
            )*];
        }
    };
}

/// Policy for syncing writes to disk, relative to the reply to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fsync {
    /// The write is synced within a second after its reply.
    Everysec,
    /// The write is synced before its reply. Writers that arrive together share one sync.
    Always,
    /// The operating system decides when to write the data to disk.
    No,
}

/// Handling of commands that set an expiry. Tidemark does not support expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expire {
    /// The command is refused.
    Refuse,
    /// The command is executed without the expiry.
    Ignore,
}

/// Behaviour of an action on an id below the horizon, whose flags are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecycledIds {
    /// The action changes nothing and returns nil.
    Refuse,
    /// The action changes the counters. The flag remains unknown.
    Count,
}

/// Whether an existence space also stores every pair exactly, in a ledger on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LedgerMode {
    /// The space has no ledger, only filters.
    Off,
    /// The space has a ledger. Writes and exact checks verify each positive answer of a filter with
    /// the ledger.
    Exact,
}

impl Action {
    /// Returns the counters that the action changes, each with the option that contains it.
    pub fn moved(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let counter = std::iter::once(("counter", self.counter.as_str()));
        let also = self.also.iter().map(|counter| ("also", counter.as_str()));
        let of_member = self.member_counters.iter();
        counter.chain(also).chain(of_member.map(|text| ("member_counters", text.as_str())))
    }
}

impl Fsync {
    /// Returns the name of the policy in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Fsync::Everysec => "everysec",
            Fsync::Always => "always",
            Fsync::No => "no",
        }
    }
}

section! {
    /// Files with the old rows and flags of spaces that spill to disk.
    Spill {
        /// Size of the cache for rows read from disk; 0 means an eighth of server.memory. Raise it
        /// if INFO shows that most reads of old posts miss the cache.
        #[key = "cache"]
        #[with = "crate::options::units::bytes"]
        cache_bytes: u64 = 0,
        /// Number of threads that read from disk: the maximum number of concurrent reads.
        read_threads: usize = 16,
        /// Maximum disk space for rows and flags that moved to disk, without ledgers; 0 means no
        /// limit. At the limit tables stay in memory, and when memory is full, new rows and flags
        /// fail with OOM errors. A merge rewrites a table's file and temporarily needs space for
        /// both files. Set it if other programs use the same disk.
        #[live = true]
        #[group = 2]
        #[key = "max_disk"]
        #[with = "crate::options::units::bytes"]
        max_bytes: u64 = 0,
        /// Maximum bytes per second that merges write; 0 means no limit. Spills are exempt.
        #[live = true]
        #[key = "merge_rate"]
        #[with = "crate::options::units::bytes"]
        merge_bytes_per_s: u64 = 32 << 20,
        /// Read rate of the weekly checksum verification, in bytes per second; 0 disables the
        /// verification. The rate drops to a quarter while requests wait for the disk.
        #[live = true]
        #[key = "scrub_rate"]
        #[with = "crate::options::units::bytes"]
        scrub_bytes_per_s: u64 = 4 << 20,
    }
}

section! {
    /// Tokens make retries of an increment idempotent: CNT.INCRBY ... TOKEN.
    Tokens {
        /// Maximum number of stored tokens, at least 64; 0 disables TOKEN. A token takes 80 to 160
        /// bytes. All tokens together use at most an eighth of server.memory.
        #[live = true]
        max_tokens: usize = 1_000_000,
        /// Time for which the server remembers a token, at least 1s. A token is a string that the
        /// client chooses for a write (CNT.INCRBY ... TOKEN). A retry with the same token in this
        /// time has no effect; a later retry counts again. Raise it if clients retry for longer.
        /// INFO tokens_dropped_age_s shows whether tokens were evicted earlier.
        #[live = true]
        #[group = 3]
        #[key = "keep"]
        #[with = "crate::options::units::seconds"]
        keep_s: u64 = 3_600,
    }
}

section! {
    /// A counter space: each id has a row of several counters.
    Counter {
        /// Name in commands (CNT.GET post 17), views and actions.
        #[group = 2]
        name: String = String::new(),
        /// Counters of a row as NAME:BITS, with 1 to 64 bits each. Choose the width that most rows
        /// need. Larger and negative values are stored exactly, but take more memory. TM.ADVISE
        /// suggests widths for existing data. "stock:20{0..}" rejects writes that result in a value
        /// below 0; "level:8{0..100}sat" clamps values to the bounds instead.
        #[group = 2]
        fields: String = String::new(),
        /// Key patterns of rows for hash commands (HGETALL post:17), separated by spaces; empty for
        /// none. Change them to match your clients' keys. "post:{{id}}" matches post:{17}; the
        /// braces are a hash tag that keeps all keys of an id on one server. Replies use the first
        /// pattern.
        #[group = 2]
        rows: String = String::new(),
        /// Key patterns of single counters for string commands (INCR post:17:like); empty for
        /// none. A pattern without {field} names the first field.
        #[group = 2]
        cells: String = String::new(),
        /// Whether ids in keys may have leading zeros, so that post:0017 is the key post:17.
        padded_ids: bool = false,
        /// Whether GET on the key of a row returns the row as text ("like:20,repost:3"), as Weibo's
        /// service does. If false, GET returns an error.
        text_rows: bool = false,
        /// Handling of EXPIRE and SET ... EX, because rows do not expire: "refuse" returns an
        /// error, "ignore" executes the command without the expiry (EXPIRE returns 1 and the row
        /// stays). Use "ignore" with tools that copy keys from Redis.
        #[group = 3]
        expire: Expire = Expire::Refuse,
        /// Whether deleting a row also unsets all flags of its id. Set it if ids are reused:
        /// otherwise, a user with a like on the old post cannot like the new post.
        #[group = 3]
        delete_forgets: bool = false,
        /// Whether the oldest rows move to disk when memory is low, one table at a time. A table
        /// has up to 1,048,576 rows with adjacent ids. Reading a row on disk takes one disk read.
        /// Set false for ids that are not ordered by time, such as user ids, because every table
        /// contains active ids. With false, new rows fail with OOM errors when memory is full.
        #[group = 2]
        spill: bool = true,
        /// Rows per table; reduced if a table would exceed a quarter of the memory limit.
        rows_per_table: u64 = 1 << 20,
        /// Number of newest rows that the space keeps, in memory and on disk; 0 keeps all rows. The
        /// server deletes the oldest rows, one table at a time; later writes to their ids fail. For
        /// example, set it to the number of rows of one year if older counters may be deleted. Use
        /// it only if ids increase with time.
        #[group = 2]
        #[with = "crate::options::wide"]
        keep_newest: u64 = 0,
        /// Maximum memory of the space; 0 means only server.memory limits it. Set it to protect
        /// other spaces from this space. At the limit rows spill, or new rows fail with OOM errors.
        #[group = 2]
        #[key = "memory_limit"]
        #[with = "crate::options::units::bytes"]
        memory_limit_bytes: u64 = 0,
        /// Maximum distance of a new id from the highest id of the space; 0 means no limit. For
        /// example, with 1000 and a highest id of 5000, the id 6001 fails with "ERR key too big".
        /// An empty space accepts any id. Set it if clients may send corrupt ids.
        #[group = 3]
        #[with = "crate::options::wide"]
        max_ahead: u64 = 0,
    }
}

section! {
    /// An existence space: flags, each a pair of an id and a member.
    Existence {
        /// Name in commands (PH.EXISTS liked 7 17), views and actions.
        #[group = 2]
        name: String = String::new(),
        /// Key patterns of an id's pairs for set and Bloom commands (SISMEMBER liked:17 7),
        /// separated by spaces; empty for none. "liked:{{id}}" matches liked:{17}; the braces are a
        /// hash tag that keeps all keys of an id on one server.
        #[group = 2]
        pairs: String = String::new(),
        /// Whether ids in keys may have leading zeros, so that liked:0017 is the key liked:17.
        padded_ids: bool = false,
        /// Whether a flag belongs to an id and a member, such as a viewer. With false it belongs to
        /// the id alone: the space stores which ids were set (BFSET 17, BFGET 17), as Weibo's
        /// service does. Views and actions cannot use such a space. Fixed at creation.
        #[group = 3]
        members: bool = true,
        /// Handling of EXPIRE, because flags do not expire: "refuse" returns an error, "ignore"
        /// executes the command without the expiry (EXPIRE returns 1 and the flags stay). Use
        /// "ignore" with tools that copy keys from Redis.
        #[group = 3]
        expire: Expire = Expire::Refuse,
        /// Lowest id of a new space. Flags of lower ids are unknown (nil).
        #[with = "crate::options::wide"]
        first_id: u64 = 0,
        /// Probability that an unset flag is read as set. At 0.0001, 0.64 % of pages with 64 flags
        /// show a wrong flag. A rate ten times lower takes five more bits per pair. Lower it if
        /// users notice wrong flags. After creation, TM.SPACE ALTER can change it only in a space
        /// with a ledger.
        #[group = 2]
        false_positive_rate: f64 = 0.0001,
        /// Pairs per table, about 20 bits each. The first table has an eighth of this size.
        pairs_per_table: u64 = 8 << 20,
        /// Maximum number of tables in memory; 0 means no limit if spill is true, otherwise 32.
        max_tables: usize = 0,
        /// Effect of an action on an id whose flags were recycled: "refuse" returns nil and changes
        /// nothing, "count" changes the counters at every call. Use "count" if losing a like is
        /// worse than counting it twice. Flags are recycled only if spill is false or keep_newest
        /// is set.
        #[group = 2]
        recycled_ids: RecycledIds = RecycledIds::Refuse,
        /// Whether the oldest flags move to disk when memory is low, one table at a time. A table
        /// has up to 8 million pairs with adjacent ids. Reading a flag on disk takes one disk read.
        /// With false, the server recycles the oldest table: its flags become unknown (nil). Set
        /// false if old flags may be lost.
        #[group = 2]
        spill: bool = true,
        /// Number of newest pairs that the space keeps, in memory and on disk. Older flags become
        /// unknown, one table at a time. 0 keeps all pairs, or 32 tables if spill is false. Set it
        /// to limit memory or disk space. Not supported with a ledger.
        #[group = 2]
        #[with = "crate::options::wide"]
        keep_newest: u64 = 0,
        /// Whether a ledger on disk stores every pair: "exact" or "off" (the default, as for `read`
        /// below). With "exact", each like counts exactly once and SMEMBERS lists members, at 4 to
        /// 10 bytes of disk per pair. With "off", a false positive of the filter loses a user's
        /// first like. "exact" requires spill and members. Fixed at creation.
        #[group = 2]
        ledger: LedgerMode = LedgerMode::Off,
        /// Maximum memory of the space; 0 means only server.memory limits it. Set it to protect
        /// other spaces from this one.
        #[group = 2]
        #[key = "memory_limit"]
        #[with = "crate::options::units::bytes"]
        memory_limit_bytes: u64 = 0,
        /// Maximum number of unset pairs per table. An unset pair takes memory until a merge.
        max_unset: usize = 1 << 20,
        /// Maximum number of outliers: pairs whose ids are far above all other ids. An outlier
        /// takes more memory than other pairs.
        max_outliers: usize = 1 << 16,
        /// Maximum number of ids forgotten by TM.FORGET; each takes 32 to 64 bytes.
        max_forgotten: usize = 1 << 18,
        /// Maximum distance of a new id from the highest id of the space; 0 means no limit. Higher
        /// ids fail with "ERR key too big". An empty space accepts any id. Set it if clients may
        /// send corrupt ids.
        #[group = 3]
        #[with = "crate::options::wide"]
        max_ahead: u64 = 0,
        /// Secret seed of the hashes; 0 chooses a random seed when the space is created.
        #[with = "crate::options::wide"]
        seed: u64 = 0,
    }
}

section! {
    /// A view: what FEED.GET returns for each id. The default is the view `home`.
    View {
        /// Name in FEED.GET.
        #[group = 2]
        name: String = String::new(),
        /// Counters to return, in this order: "post.like" is one field, "post" all fields of the
        /// space. List the fields: with "post", adding a field to the space changes every page.
        #[group = 2]
        counters: Vec<String> = vec![],
        /// Existence spaces whose flags to return, in this order, after the counters.
        #[group = 2]
        flags: Vec<String> = vec![],
        /// Views for the further ids of an entry. If it lists a view of authors, FEED.GET home 7
        /// 1001/77 returns the row of post 1001, followed by the row of author 77. Set it to fetch
        /// posts and authors in one request.
        #[group = 2]
        then: Vec<String> = vec![],
    }
}

section! {
    /// An action: a flag and a counter that change together, so that a repeated like counts once.
    /// The default actions are like, repost and read.
    Action {
        /// Name in FEED.ACT.
        #[group = 2]
        name: String = String::new(),
        /// Existence space whose flag FEED.ACT sets and FEED.UNDO unsets.
        #[group = 2]
        flag: String = String::new(),
        /// Counter of the id, as "space.field". FEED.ACT adds 1 if the flag was unset. FEED.UNDO
        /// subtracts 1 if the flag was set, but not below 0.
        #[group = 2]
        counter: String = String::new(),
        /// Further counters of the id that change in the same way, each as "space.field". With
        /// ["post.total"], a like also adds 1 to post.total.
        #[group = 2]
        also: Vec<String> = Vec::new(),
        /// Counters of the member, each as "space.field". With counter = "user.follower" and
        /// "user.following" here, FEED.ACT follow 7 9 adds a follower to 9 and a following to 7.
        #[group = 2]
        member_counters: Vec<String> = Vec::new(),
    }
}

/// All options of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Data folder, which contains the log, snapshots and cold files.
    pub dir: PathBuf,
    /// Policy for syncing writes to disk.
    pub fsync: Fsync,
    /// Size of the log retained for disconnected replicas and for consumers of changes, in bytes.
    pub keep_log_bytes: u64,
    /// Memory budget of all spaces together, in bytes.
    pub memory_bytes: u64,
    /// Options of the cold tier.
    pub spill: Spill,
    /// Options of idempotency tokens.
    pub tokens: Tokens,
    /// Counter spaces.
    pub counter: Vec<Counter>,
    /// Existence spaces.
    pub existence: Vec<Existence>,
    /// Views.
    pub view: Vec<View>,
    /// Actions.
    pub action: Vec<Action>,
}

/// The row cache and the tokens may each use 1/`KEPT_PART` of the memory budget.
const KEPT_PART: u64 = 8;
/// Minimum memory use of a token in bytes.
const TOKEN_BYTES: u64 = 80;
/// Size of the row cache in bytes if the memory budget is unlimited, as in tests.
const UNBOUND_CACHE_BYTES: u64 = 64 << 20;

impl Options {
    /// Maximum size of the cache of cold rows, in bytes.
    pub(crate) fn cache_bytes(&self) -> u64 {
        match (self.spill.cache_bytes, self.memory_bytes) {
            (0, u64::MAX) => UNBOUND_CACHE_BYTES,
            (0, memory) => memory / KEPT_PART,
            (bytes, _) => bytes,
        }
    }

    /// Maximum number of tokens that the server remembers.
    pub(crate) fn max_tokens(&self) -> usize {
        let most = self.memory_bytes / KEPT_PART / TOKEN_BYTES;
        self.tokens.max_tokens.min(usize::try_from(most).unwrap_or(usize::MAX))
    }
}

impl Existence {
    /// Maximum number of tables in memory.
    pub fn tables(&self) -> usize {
        match self.max_tables {
            0 if self.spill => phantom::MAX_TABLES,
            0 if self.keep_newest > 0 => self.keep_tables(),
            0 => RECYCLED_TABLES,
            tables => tables,
        }
    }

    /// Returns `keep_newest` as a number of tables; 0 keeps all tables.
    pub(crate) fn keep_tables(&self) -> usize {
        let tables = self.keep_newest.div_ceil(self.pairs_per_table.max(1));
        match self.keep_newest {
            0 => 0,
            _ => usize::try_from(tables).unwrap_or(usize::MAX).max(2),
        }
    }
}

/// Default maximum number of tables in a space that recycles its tables.
const RECYCLED_TABLES: usize = 32;

impl Default for Options {
    fn default() -> Self {
        let text = str::to_owned;
        let existence = |name: &str| Existence {
            name: text(name),
            pairs: format!("{name}:{{id}} {name}:{{{{id}}}}"),
            ..Existence::default()
        };
        let action = |name: &str, flag: &str| Action {
            name: text(name),
            flag: text(flag),
            counter: format!("post.{name}"),
            ..Action::default()
        };
        Options {
            dir: PathBuf::from("data"),
            fsync: Fsync::Everysec,
            keep_log_bytes: 2 << 30,
            memory_bytes: u64::MAX,
            spill: Spill::default(),
            tokens: Tokens::default(),
            counter: vec![
                Counter {
                    name: text("post"),
                    fields: text("like:12 repost:8 comment:8 read:16"),
                    rows: text("post:{id} post:{{id}}"),
                    cells: text("post:{id}:{field} post:{{id}}:{field}"),
                    ..Counter::default()
                },
                Counter {
                    name: text("user"),
                    fields: text("follower:16 following:10 post:12"),
                    rows: text("user:{id} user:{{id}}"),
                    // User ids are written in random order, so no table is older than the others.
                    spill: false,
                    ..Counter::default()
                },
            ],
            // Likes are stored exactly and never discarded. Read marks are stored only in filters,
            // and old ones are recycled.
            existence: vec![
                Existence { ledger: LedgerMode::Exact, ..existence("liked") },
                Existence { ledger: LedgerMode::Exact, ..existence("reposted") },
                Existence { spill: false, ..existence("read") },
            ],
            view: vec![View {
                name: text("home"),
                // List the fields by name, so that a field added by ALTER does not change the pages
                // of existing clients.
                counters: ["like", "repost", "comment", "read"].map(|f| format!("post.{f}")).into(),
                flags: vec![text("liked"), text("read")],
                then: vec![],
            }],
            action: vec![
                action("like", "liked"),
                action("repost", "reposted"),
                action("read", "read"),
            ],
        }
    }
}
