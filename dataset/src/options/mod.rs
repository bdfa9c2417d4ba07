//! Options: what a data set is made of, each declared once with its unit, its default and its
//! documentation.

pub mod check;
pub mod defaults;
pub mod wide;
pub mod words;

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As in the file.
    pub name: &'static str,
    /// The lines of its documentation.
    pub doc: &'static [&'static str],
    /// What Redis calls it: CONFIG GET and SET know it by both names.
    pub redis: &'static [&'static str],
    /// Whether CONFIG SET may change it: its users look each time.
    pub live: bool,
    /// A password: CONFIG GET shows it only to users with all rights.
    pub secret: bool,
}

/// Declares a section: the struct, its defaults and its documentation, from one text. `#[redis =
/// "..."]` gives Redis's name of a key, with the same unit; `#[live = true]` says that it may be
/// changed while the server runs, `#[secret = true]` that it is a password, `#[wide = "..."]` how a
/// number is written that may need all 64 bits (`wide`).
#[macro_export]
macro_rules! section {
    ($(#[doc = $about:literal])+ $name:ident { $(
        $(#[doc = $doc:literal])+ $(#[redis = $redis:literal])* $(#[live = $live:literal])?
        $(#[secret = $secret:literal])? $(#[wide = $wide:literal])?
        $field:ident: $type:ty = $default:expr,
    )* }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $( $(#[doc = $doc])+ $(#[serde(with = $wide)])? pub $field: $type, )* }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $default, )* }
            }
        }

        impl $name {
            /// What the section is about, in lines.
            pub const ABOUT: &'static [&'static str] = &[$($about),+];
            /// Its keys, in the order of the file.
            pub const KEYS: &'static [$crate::options::Key] = &[$(
                $crate::options::Key {
                    name: stringify!($field),
                    doc: &[$($doc),+],
                    redis: &[$($redis),*],
                    live: false $(|| $live)?,
                    secret: false $(|| $secret)?,
                },
            )*];
        }
    };
}

/// When a write is safe on the disk, seen from the client that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fsync {
    /// At most a second after its reply.
    Everysec,
    /// Before its reply: writers that arrive together share one sync of the disk.
    Always,
    /// When the operating system sees fit.
    No,
}

/// What becomes of an expiry that a command asks for: nothing expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expire {
    /// The command is refused.
    Refuse,
    /// The command does the rest of its work.
    Ignore,
}

/// What an action does with an id below the horizon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BelowHorizon {
    /// Nothing: it answers nil.
    Refuse,
    /// It moves the counters; the flag stays unknown.
    Count,
}

/// Whether every pair of an existence space is kept on the disk, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LedgerMode {
    /// The filters are all that there is.
    Off,
    /// What a filter says yes to is asked there before it counts.
    Exact,
}

impl Action {
    /// The counters that it moves, each with the key that names it.
    pub fn moved(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let counter = std::iter::once(("counter", self.counter.as_str()));
        let also = self.also.iter().map(|counter| ("also", counter.as_str()));
        let of_member = self.member_counters.iter();
        counter.chain(also).chain(of_member.map(|text| ("member_counters", text.as_str())))
    }
}

impl Fsync {
    /// As it is written in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Fsync::Everysec => "everysec",
            Fsync::Always => "always",
            Fsync::No => "no",
        }
    }
}

section! {
    /// Rows of old posts on the disk: tables of a counter space that reaches its memory limit. What
    /// that takes beside the spaces' limits: cache_bytes; about 6 bytes per 4 KiB of files (their
    /// index, INFO cold_index_bytes); 40 bytes per row that was deleted on the disk and not merged
    /// yet, which count in the space's memory, whatever its limit; while a table is written one
    /// byte per row of it, at least 1 MiB, and 1 MiB of buffers; while many rows are written at
    /// all, 16 MiB of log that is not synced yet, and 32 bytes per change that waits to be logged,
    /// at most 24 MiB (INFO log_queue_bytes).
    Spill {
        /// Most bytes of memory for rows that were read from the disk; 0: an eighth of
        /// server.memory_bytes.
        cache_bytes: u64 = 0,
        /// Threads that read from the disk: as many reads as the disk serves well at a time.
        read_threads: usize = 16,
        /// Most bytes that cold files may take on the disk; 0 means as many as it has. At the
        /// limit, as on a full disk, tables stay in memory: then new rows are refused with an OOM
        /// error, and it goes on by itself when there is room. A merge needs room for what it
        /// writes anew on top. The files of ledgers are not counted.
        #[live = true]
        max_bytes: u64 = 0,
        /// Most bytes per second that merging writes to the disk; 0 means as fast as it goes.
        /// Spilling when memory runs short is never slowed down.
        #[live = true]
        merge_bytes_per_s: u64 = 32 << 20,
        /// Once a week all cold files are read in the background, and their checksums compared: so
        /// many bytes per second at most, and a quarter of that while requests wait for the disk.
        /// At 4 MiB/s a week is enough for 2.4 TB; more takes longer. 0: never. Set to another
        /// value again, it begins at once. INFO cold_damaged names what was found.
        #[live = true]
        scrub_bytes_per_s: u64 = 4 << 20,
    }
}

section! {
    /// Tokens: increments that a client may send again, and that count once (CNT.INCRBY ... TOKEN).
    /// The window in which a repetition is known ends by time or by number, whatever is first; INFO
    /// (tokens_dropped_age_s) says whether the number has cut it
    /// short.
    Tokens {
        /// Most tokens that are kept, at least 64; 0: TOKEN is refused. They are kept in 64 equal
        /// parts by their hashes, and in a full part the token used longest ago goes first. They
        /// take memory when they are used: about 80 bytes each, at most 160, and 8 more for each
        /// counter of one increment if there are more than two. Never more are kept than take an
        /// eighth of server.memory_bytes at 80 bytes each.
        #[live = true]
        max_tokens: usize = 1_000_000,
        /// A token is known for so many seconds, at least 1, by the clock of the master.
        #[live = true]
        keep_s: u64 = 3_600,
    }
}

section! {
    /// A counter space: one 64-bit id -> several counters, packed to the bit.
    Counter {
        /// Its name in commands (`CNT.GET post 17`) and in views and actions.
        name: String = String::new(),
        /// The counters of a row, in order, each with its width in bits (1 to 64). A value that
        /// needs more bits is still held exactly, in the aux dictionary: pick the width that most
        /// rows need, not the largest. `TM.ADVISE` will compute it. At most 64 in the space's life,
        /// with those that were dropped. `stock:20{0..}` declares bounds that every write keeps:
        /// one beyond them is refused; with `sat` behind (`level:8{0..100}sat`) it stops there.
        fields: String = String::new(),
        /// Keys of rows, for the hash commands (`HGETALL post:17`). Empty: rows have no keys.
        /// Braces around {id} are text: "post:{{id}}" has keys like post:{17}, a hash tag, by which
        /// proxies and clients of several servers send all keys of an id to one of them (`tidemark
        /// config --hash-tags` prints that form alone). Several patterns, divided by blanks, name
        /// the same rows, so that clients may use either and move from one to the other; replies
        /// that list keys show the first.
        rows: String = String::new(),
        /// Keys of single counters, for the string commands (`INCR post:17:like`). Empty: cells
        /// have no keys. Without `{field}` a key names the first field of its row: cells =
        /// "views:{id}" of a space of one field gives the keys `views:17`. Several patterns are
        /// divided by blanks.
        cells: String = String::new(),
        /// Whether ids in keys may begin with zeros, which change nothing: `post:000000000017` is
        /// then `post:17`, as `redis-benchmark -r` writes it. Replies (SCAN, KEYS) show ids without
        /// zeros.
        padded_ids: bool = false,
        /// Whether GET and MGET on a row's key answer the row as one text,
        /// `repost:20,like:20,comment:20`, empty if there is no row, as the clients of Weibo's
        /// service expect (with rows = "{id}", cells = "{id}.{field}"). Otherwise a row is a hash,
        /// and GET refuses it.
        text_rows: bool = false,
        /// What becomes of an expiry (EXPIRE, SET ... EX, RESTORE with a ttl), as nothing expires:
        /// "refuse" (the command is refused), "ignore" (the key stays for ever, and the command
        /// answers as if it would not; a time that has passed deletes it at once). Ignoring lets
        /// tools copy keys of a Redis that expire.
        expire: Expire = Expire::Refuse,
        /// Whether DEL, UNLINK and CNT.DEL of a row unset all flags of its id, too, as TM.FORGET
        /// does. Otherwise the flags stay set: an id that is used again has likers whose likes
        /// do not count.
        delete_forgets: bool = false,
        /// Whether the oldest tables move to the disk when memory is short: of server.memory_bytes,
        /// or of the space's own limit. A space that does not spill stays in memory.
        spill: bool = true,
        /// Rows that a table is made for. A table is allocated when its range begins to be used,
        /// not before. A row takes its bits plus about 3.5 bytes for its id and empty slots. With
        /// spill = true fewer, if the memory limit has no room for four such tables.
        rows_per_table: u64 = 1 << 20,
        /// How many tables' worth of rows (of rows_per_table each) are kept, in memory and on the
        /// disk together. Older tables are retired: reads find no row there, writes are refused,
        /// and their memory and files are free. 0: all are kept. For ids that rise with time only.
        #[wide = "crate::options::wide"]
        keep_tables: u64 = 0,
        /// Most bytes of memory for this space's tables; 0 means as many as server.memory_bytes has
        /// for it, which all spaces share. Beyond it, when nothing can be spilled, writes of new
        /// rows are refused with an OOM error. While a table that deletions have emptied is
        /// replaced by a smaller one there may be more, by that one.
        memory_limit_bytes: u64 = 0,
        /// An id further than this above the highest one is refused ("ERR key too big"); 0 means
        /// never. The first id of a space may be any: where a first row with a low id (a test's)
        /// keeps the real ids out, delete it.
        #[wide = "crate::options::wide"]
        max_ahead: u64 = 0,
    }
}

section! {
    /// An existence space: (id, member) -> yes or no, in Bloom filters.
    Existence {
        /// Its name in commands (`PH.EXISTS liked 7 17`) and in views and actions.
        name: String = String::new(),
        /// Keys of an id's pairs, for the set and Bloom commands (`SISMEMBER liked:17 7`, `BF.ADD
        /// liked:17 7`). Empty: pairs have no keys. Several patterns are divided by blanks.
        pairs: String = String::new(),
        /// Whether ids in keys may begin with zeros, which change nothing: `liked:000000000017` is
        /// then `liked:17`.
        padded_ids: bool = false,
        /// Whether a pair has a member. If not, an id alone is set or not, as the clients of
        /// Weibo's service have it (with pairs = "{id}"): BFSET, BFGET, EXISTS, DEL; commands that
        /// name a member are refused, and no view or action can show or move it. Such keys may also
        /// be those of a counter space (rows = "{id}"): then BFSET, BFGET, BFMSET and BFMGET mean
        /// the flag, and all other commands the counters.
        members: bool = true,
        /// What becomes of an expiry (EXPIRE, RESTORE with a ttl), as nothing expires: "refuse"
        /// (the command is refused), "ignore" (the pairs stay, and the command answers as if they
        /// would not).
        expire: Expire = Expire::Refuse,
        /// The lowest id of a new space: ids below it are answered as ids below the horizon are
        /// (nil, and -1 by BFSET and BFGET), and take no pairs. Kept with the space's data: what a
        /// space was made with holds.
        #[wide = "crate::options::wide"]
        first_id: u64 = 0,
        /// Share of pairs that were never set and are still answered yes. A page of 32 posts with
        /// two flags shows a wrong one on 0.64 % of pages at 0.0001, on 47 % at 0.01. Ten times
        /// fewer errors cost about five more bits per pair. INFO shows the measured rate; alert
        /// when measured_at_least is above this setting.
        /// Kept with the space's data; TM.SPACE ALTER changes it where there is a ledger.
        false_positive_rate: f64 = 0.0001,
        /// Pairs that a table is made for; about 20 bits each at 0.0001. The first table of a space
        /// is an eighth of that, then each is twice the one before.
        pairs_per_table: u64 = 8 << 20,
        /// Most tables in memory; 0: as many as there is memory for where tables move to the disk
        /// (spill), else 32. When one more would be needed, the oldest moves there. With
        /// spill = false it is recycled: its ids lie below the horizon then, and answer "unknown"
        /// (nil). What an action on such an id does, below_horizon says.
        max_tables: usize = 0,
        /// What an action does with an id below the horizon, where it is not known any more whether
        /// the member did it before: "refuse" (it answers nil and moves no counter: an old post
        /// cannot be liked any more) or "count" (it moves the counters and answers 1; the flag
        /// stays unknown, so a repeated like counts again, and so does a repeated unlike).
        below_horizon: BelowHorizon = BelowHorizon::Refuse,
        /// Whether the oldest table moves to the disk when memory is short, instead of being
        /// recycled: one 4 KiB read per flag of an old post then, and the horizon stays where it
        /// is. Take false for what may be forgotten, as read marks. What is set late of
        /// tables on the disk is held exactly until it is merged, in at most a sixteenth of the
        /// memory that the tables may take; beyond that it is refused with an OOM error. While
        /// there is no room on the disk the newest table goes on, up to the memory limit.
        spill: bool = true,
        /// Of a space that spills: how many tables' worth of pairs (of pairs_per_table each) are
        /// kept, in memory and on the disk together. When there are more the oldest table is
        /// recycled, and its file is removed: see max_tables. At least 2; 0: all are kept.
        keep_tables: usize = 0,
        /// Whether every pair is also kept on the disk, sorted, in about 4 to 10 bytes: "off" or
        /// "exact". With "exact" each like counts exactly once: where the filter says that a pair
        /// is set, a write reads one 4 KiB block to be sure; a first like reads nothing. Pages are
        /// answered from the filters as before; EXACT on FEED.GET and PH.EXISTS asks the ledger.
        /// SMEMBERS, SSCAN, SCARD and PH.MEMBERS list the members. These are numbers, or strings
        /// of at most 512 bytes. Needs spill = true and members; what a space was made with holds.
        ledger: LedgerMode = LedgerMode::Off,
        /// Most bytes of memory for this space, within server.memory_bytes, which all spaces share;
        /// 0 means twice what `max_tables` full tables take, if tables are recycled.
        /// At the limit a table that gets more late pairs than it has room for refuses them with an
        /// OOM error; the newest one goes on.
        memory_limit_bytes: u64 = 0,
        /// Most unset ("unliked") pairs per table, held exactly.
        max_revoked: usize = 1 << 20,
        /// Pairs of ids far ahead of all others, at least 1, that are held exactly and wait for
        /// others that lie close to them. A sixteenth of so many, or 4,096, get tables of their
        /// own if their ids lie together; more than this, or than an eighth of the space's memory,
        /// if they do not. All take memory, and are refused at the space's memory limit only.
        max_aside: usize = 1 << 16,
        /// Ids whose flags were all unset at once (TM.FORGET): 32 to 64 bytes each, until their
        /// table is recycled. At the limit TM.FORGET is refused.
        max_forgotten: usize = 1 << 18,
        /// An id further than this above the highest one is refused ("ERR key too big"); 0 means
        /// never. The first id of a space may be any: where a first row with a low id (a test's)
        /// keeps the real ids out, delete it.
        #[wide = "crate::options::wide"]
        max_ahead: u64 = 0,
        /// Seed of the hashes. Keep it secret: with it a client could choose ids or members that
        /// fill a filter; 0 means that the server picks one at random when the space is made.
        #[wide = "crate::options::wide"]
        seed: u64 = 0,
    }
}

section! {
    /// A view: what FEED.GET answers for each id. Without any in the file there is `home`, with
    /// what the spaces have of the counters and flags below.
    View {
        /// Its name (`FEED.GET home ...`).
        name: String = String::new(),
        /// Counters, in order: "post.like" for a field, "post" for all fields that the space has.
        /// Name the fields: with "post" every page has one value more, for all clients at once,
        /// when TM.SPACE ALTER adds a field.
        counters: Vec<String> = vec![],
        /// Flags, in order: existence spaces.
        flags: Vec<String> = vec![],
        /// Views of the further ids of an entry: with an author's view here `FEED.GET home 7
        /// 1001/77 1002/78` shows behind what this view shows of a post what that one shows of its
        /// author. Such a view has no further ones itself.
        then: Vec<String> = vec![],
    }
}

section! {
    /// An action: a flag and a counter that move together, so that a repeated like counts once.
    /// Without any in the file there are those of the actions below whose flag and counter the
    /// spaces have.
    Action {
        /// Its name (`FEED.ACT like ...`).
        name: String = String::new(),
        /// The existence space that remembers which members did it.
        flag: String = String::new(),
        /// The counter of the id that it moves, as "space.field".
        counter: String = String::new(),
        /// Counters of the id that it moves beside, each as "space.field".
        also: Vec<String> = Vec::new(),
        /// Counters of the member that it moves beside. With the flag "follows", the counter
        /// "user.follower" and "user.following" here `FEED.ACT follow 7 9` counts a follower for 9
        /// and a following for 7. A member must be an id then. All of them move with the flag or
        /// none does, in one batch of the log.
        member_counters: Vec<String> = Vec::new(),
    }
}

/// All that a data set is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The folder for the log, the snapshots and the cold files.
    pub dir: PathBuf,
    /// When a write is safe.
    pub fsync: Fsync,
    /// Bytes of the log that are kept for replicas that are away.
    pub keep_log_bytes: u64,
    /// Bytes of memory that all spaces share.
    pub memory_bytes: u64,
    /// The cold tier.
    pub spill: Spill,
    /// Increments that count once.
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

/// What may be kept for later takes one part in so many of the memory.
const KEPT_PART: u64 = 8;
/// What a token takes.
const TOKEN_BYTES: u64 = 80;
/// The cache of a data set whose memory has no bound: that of a test.
const UNBOUND_CACHE_BYTES: u64 = 64 << 20;

impl Options {
    /// Most bytes of the rows that were read from the disk.
    pub(crate) fn cache_bytes(&self) -> u64 {
        match (self.spill.cache_bytes, self.memory_bytes) {
            (0, u64::MAX) => UNBOUND_CACHE_BYTES,
            (0, memory) => memory / KEPT_PART,
            (bytes, _) => bytes,
        }
    }

    /// Most tokens that are kept.
    pub(crate) fn most_tokens(&self) -> usize {
        let most = self.memory_bytes / KEPT_PART / TOKEN_BYTES;
        self.tokens.max_tokens.min(usize::try_from(most).unwrap_or(usize::MAX))
    }
}

impl Existence {
    /// `max_tables`, or what 0 means.
    pub fn tables(&self) -> usize {
        match self.max_tables {
            0 if self.spill => phantom::MOST_TABLES,
            0 => RECYCLED_TABLES,
            tables => tables,
        }
    }
}

/// Tables of a space that recycles them, unless it says how many.
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
                    // Users come without order: no table of them is old.
                    spill: false,
                    ..Counter::default()
                },
            ],
            // Likes are kept for ever and exactly, read marks for a while in filters alone.
            existence: vec![
                Existence { ledger: LedgerMode::Exact, ..existence("liked") },
                Existence { ledger: LedgerMode::Exact, ..existence("reposted") },
                Existence { spill: false, max_tables: RECYCLED_TABLES, ..existence("read") },
            ],
            view: vec![View {
                name: text("home"),
                // By name: a field that ALTER adds must not change the pages of clients that are
                // there.
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
