//! Options of `tidemark import`, and the shapes of input lines.

use clap::{Args, ValueEnum};
use client::ConnectArgs;
use std::path::PathBuf;

/// Loads counters, flags or events from files or from a Redis.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark import posts.csv                   rows: id,like,repost,comment,read
                                              (the header names the fields)
  tidemark import --space liked likes.csv     flags: id,member (one per line)
  tidemark import reposts.csv.gz              events: created_at,post_id,
                                              origin_post_id,user_id
  tidemark import posts.jsonl                 JSON: {\"id\": 17, \"like\": 5},
                                              {\"id\": 17, \"member\": 7} or
                                              {\"user\": 7, \"id\": 17}
  zcat old.csv.gz | tidemark import -         reads standard input
  tidemark import --kind rows --fields like,read counts.csv
                                              a file with no header
  tidemark import --fields 'post_id>id,likes>like' posts.csv
                                              loads only two columns
  export REDISCLI_AUTH=secret
  tidemark import --host db1 --user loader --tls --cacert ca.pem posts.csv
                                              with a login, encrypted
  tidemark import --from redis://:secret@old:6379 --verify
                                              all keys of a Redis that match
                                              a pattern of a space, followed
                                              by a comparison
  tidemark import --from redis://old --follow also its changes, until Ctrl-C
  tidemark import --from redis://old --delete-missing
                                              also deletes rows that are not
                                              in the Redis
  tidemark import --from redis://old \\
    --layout 'string key=like:{id} space=post fields=like' \\
    --layout 'set key=likers:{id} space=liked'
                                              keys with other names

Layouts of --from; key= contains {id}, fields= can rename (old>new):
  hash    key=post:{id} space=post            one hash per row
  string  key=like:{id} space=post fields=like
                                              one key per counter
  string  key=post:{id}:{field} space=post    same, for all counters
  string  key=c:{id} space=post fields=like,read pack=struct:<I4I4
                                              packed by Lua's struct.pack, or
                                              pack=msgpack: cmsgpack.pack
  buckets key=likes:{id} space=post fields=like per=1000
                                              hash = id / 1000,
                                              field = id % 1000
  buckets key=likes space=post fields=like    one hash, field = id
  buckets key=b:{id} space=post fields=like field=user.{id}
                                              each field is a former key
  string  key=view:{id}:{shard} space=post fields=read sum=0..15
                                              sums the shards of a counter
  set     key=liked:{id} space=liked          one set of members per post
  bits    key=likers:{id} space=liked         one bitmap per post: bit = member
                      ... count=post.like     also sets a counter to the sum

To resume an interrupted import from a Redis, run the same command again.

Bad lines are counted and skipped, the first few are printed with line number and reason, and the \
exit status is 1. With --strict, the import stops at the first bad line; earlier lines stay \
loaded. It is safe to import a file twice.

In a cluster, name any node. The import sends each row to the master of its slot and opens \
--connections connections to each master. All nodes need the same spaces and the same login.")]
pub struct ImportArgs {
    /// Files to load, plain or gzip. `-` reads standard input.
    #[arg(required_unless_present = "from", conflicts_with = "from")]
    pub files: Vec<PathBuf>,
    /// Server address and login.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Number of connections, per master in a cluster.
    #[arg(
        long,
        default_value_t = 4,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pub connections: u16,
    /// What the lines contain. Default: derived from the header and the space.
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Space to write to: a counter space for rows, an existence space for flags.
    #[arg(long, default_value = "post")]
    pub space: String,
    /// Columns to load as counters. Write old>new to rename a column to a field or to `id`. Other
    /// columns are ignored. Without a header: the names of the columns after the id, in order.
    #[arg(long, value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Action to run for each event.
    #[arg(long, default_value = "repost")]
    pub action: String,
    /// Stop at the first bad line.
    #[arg(long)]
    pub strict: bool,
    /// Redis or Valkey to copy from: redis://user:password@host:port/db, or rediss:// for TLS. Only
    /// the host is required. Repeat the option for each master of a cluster.
    #[arg(long, value_name = "URL")]
    pub from: Vec<String>,
    /// CA certificates (PEM) to verify the TLS certificate of --from.
    #[arg(long, value_name = "FILE", requires = "from", conflicts_with = "files")]
    pub from_cacert: Option<String>,
    /// Layout of one kind of key in --from (see below). Repeatable. Default: the key patterns of
    /// the server's spaces.
    #[arg(long, value_name = "LAYOUT", requires = "from", conflicts_with = "files")]
    pub layout: Vec<String>,
    /// Maximum number of keys to read per second from --from.
    #[arg(
        long,
        value_name = "KEYS",
        requires = "from",
        conflicts_with = "files",
        value_parser = positive
    )]
    pub rate: Option<f64>,
    /// After the copy, apply changes of --from until Ctrl-C. Requires keyspace notifications.
    #[arg(long, requires = "from", conflicts_with = "files")]
    pub follow: bool,
    /// End --follow after this many seconds without a change.
    #[arg(long, value_name = "SECONDS", requires = "follow")]
    pub until_idle: Option<u64>,
    /// Compare all data after the copy. The exit status is 1 if something differs.
    #[arg(long, requires = "from", conflicts_with = "files")]
    pub verify: bool,
    /// Compare all data without copying.
    #[arg(long, requires = "from", conflicts_with_all = ["follow", "files"])]
    pub only_verify: bool,
    /// Delete rows that have no key in --from. With --follow, also remove members that are removed
    /// from sets in --from. To do so, the import unsets all members of such a set and sets the
    /// remaining members again. Without this option, only --verify reports extra rows.
    #[arg(long, requires = "from", conflicts_with_all = ["only_verify", "files"])]
    pub delete_missing: bool,
    /// With --delete-missing: continue even if a source has lost all keys, or nine of ten keys
    /// since an earlier scan.
    #[arg(long, requires = "delete_missing", conflicts_with = "files")]
    pub allow_loss: bool,
    /// Copy even if --from lacks masters of the cluster.
    #[arg(long, requires = "from", conflicts_with = "files")]
    pub allow_part: bool,
    /// Unset all members of each set before setting its current members. This removes members that
    /// were deleted from the set while no import was running. Needs 32 to 64 bytes per set
    /// (max_forgotten).
    #[arg(long, requires = "from", conflicts_with_all = ["only_verify", "files"])]
    pub renew_sets: bool,
    /// Do not count rows that exist only in the server as differences.
    #[arg(long, requires = "from", conflicts_with = "files")]
    pub allow_extra: bool,
    /// File for all rejected keys and all differences.
    #[arg(long, value_name = "FILE", requires = "from", conflicts_with = "files")]
    pub report: Option<PathBuf>,
    /// File that stores the progress of the copy.
    #[arg(
        long,
        value_name = "FILE",
        default_value = STATE,
        requires = "from",
        conflicts_with = "files"
    )]
    pub state: PathBuf,
    /// How long to retry when either side is unreachable.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = RETRY_S,
        requires = "from",
        conflicts_with = "files"
    )]
    pub retry: u64,
}

/// Default of `--state`.
const STATE: &str = "tidemark-import.state";
/// Default of `--retry`.
const RETRY_S: u64 = 60;

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "must be a number greater than 0".to_owned())
}

impl Default for ImportArgs {
    fn default() -> Self {
        ImportArgs {
            files: Vec::new(),
            connect: ConnectArgs::default(),
            connections: 4,
            kind: None,
            space: "post".to_owned(),
            fields: Vec::new(),
            action: "repost".to_owned(),
            strict: false,
            from: Vec::new(),
            from_cacert: None,
            layout: Vec::new(),
            rate: None,
            follow: false,
            until_idle: None,
            verify: false,
            only_verify: false,
            delete_missing: false,
            allow_loss: false,
            allow_part: false,
            renew_sets: false,
            allow_extra: false,
            report: None,
            state: STATE.into(),
            retry: RETRY_S,
        }
    }
}

/// What the lines of a file contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `id,field,field,...`: the counters of an id.
    Rows,
    /// `id,member`: sets the flag of a member for an id.
    Flags,
    /// `created_at,post_id,origin_post_id,user_id`: a user reposts a post.
    Events,
}

/// Interpretation of the columns of a file.
pub(super) enum LineShape {
    Rows {
        fields: Vec<String>,
        /// Column indexes of the id, then of the fields.
        column_indexes: Vec<usize>,
        /// Number of columns of a line.
        width: usize,
    },
    Flags,
    Events,
}

impl LineShape {
    /// Returns the shape of lines with the id first, then `fields` in order.
    pub(super) fn rows(fields: Vec<String>) -> LineShape {
        let width = fields.len() + 1;
        LineShape::Rows { fields, column_indexes: (0..width).collect(), width }
    }
}

/// Splits `old>new`. Without `>`, the old and the new name are the same.
pub(super) fn renamed(name: &str) -> (&str, &str) {
    name.split_once('>').unwrap_or((name, name))
}
