//! `tidemark size`: computes the resources for a workload from formulas, and prints matching
//! settings.

use super::terminal::{Align, Paint, grouped, table};
use clap::Args;
use dataset::options::units::Unit;
use node::config::Durability;
use std::fmt::Write;

/// Bytes per outlier (an id far above all others): one word of the aux dictionary at its typical
/// load factor.
const OUTLIER_BYTES: f64 = 10.5;
/// Average load factor of a table of flags. Tables close early to leave room for late flags.
const FILL: f64 = 0.91;
/// Number of small tables at the beginning of a counter space.
const FIRST_TABLES: u64 = 2;
/// Ratio of server memory to table bytes. The margin covers tables that are being replaced, and
/// additional late flags.
const MARGIN: f64 = 1.25;
/// Overhead of a row in a cold file, in bytes, in addition to its packed bits.
const COLD_OVERHEAD_BYTES: f64 = 0.5;
/// Disk bytes per pair in a ledger, for members below 2^40, including runs that are not merged yet.
const LEDGER_PAIR_BYTES: f64 = 5.0;
/// Memory per pair in a ledger, in bits, for the indexes of the runs.
const LEDGER_PAIR_BITS: f64 = 0.5;
/// Log bytes of a like: one packed row and one packed pair.
const LOG_BYTES_PER_WRITE: f64 = 10.0;
/// Memory of the process in addition to its tables: buffers, cache, code.
const PROCESS_BYTES: f64 = 256e6;
/// CPU time in seconds for a page of 20 posts without pipelining. The next two constants: for a
/// write, and for a like in the ledger.
const PAGE_CORE_S: f64 = 10e-6;
const WRITE_CORE_S: f64 = 1.5e-6;
const LEDGER_CORE_S: f64 = 1.4e-6;
/// Maximum utilization of a core at the peak.
const CORE_USE: f64 = 0.5;

/// Computes memory, disk, network and replicas for a workload, with formulas.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark size --posts-per-day 500000000
  tidemark size --posts-per-day 1000000 --likes-per-post 5 --like-days 30
  tidemark size --posts-per-day 500000000 --toml > tidemark.toml
                                              prints only the settings

Units are decimal: 1 GB is 1,000,000,000 bytes.")]
pub struct SizeArgs {
    /// New posts per day.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 50))]
    pub posts_per_day: u64,
    /// Counters of a post, with their widths in bits.
    #[arg(long, value_name = "FIELDS", default_value = "like:12 repost:8 comment:8 read:16")]
    pub fields: String,
    /// Share of posts with a counter that exceeds its width.
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = share)]
    pub outliers: f64,
    /// Average distance between the ids of consecutive posts: 1 if dense, thousands for Snowflake
    /// ids.
    #[arg(long, value_name = "N", default_value_t = 4096.0, value_parser = positive)]
    pub ids_per_post: f64,
    /// Average number of likes per post.
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = amount)]
    pub likes_per_post: f64,
    /// Average number of read marks per post.
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = amount)]
    pub reads_per_post: f64,
    /// Days that counters are kept.
    #[arg(long, value_name = "DAYS", default_value_t = 365.0, value_parser = amount)]
    pub retention_days: f64,
    /// Days that counters stay in memory. Older counters are on disk.
    #[arg(long, value_name = "DAYS", default_value_t = 7.0, value_parser = amount)]
    pub memory_days: f64,
    /// Days that the filters of likes stay in memory. Older filters are on disk.
    #[arg(long, value_name = "DAYS", default_value_t = 7.0, value_parser = amount)]
    pub like_days: f64,
    /// Days that read marks are kept.
    #[arg(long, value_name = "DAYS", default_value_t = 2.0, value_parser = amount)]
    pub read_days: f64,
    /// False-positive rate of flags.
    #[arg(long, value_name = "RATE", default_value_t = 0.0001, value_parser = share)]
    pub false_positive_rate: f64,
    /// Pages per second at the peak.
    #[arg(long, value_name = "N", default_value_t = 10_000.0, value_parser = amount)]
    pub pages_per_second: f64,
    /// Posts per page.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub page_posts: u64,
    /// Ratio of the peak write rate to the average.
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = positive)]
    pub peak: f64,
    /// Cores per server.
    #[arg(long, value_name = "N", default_value_t = 8.0, value_parser = positive)]
    pub cores: f64,
    /// Print only the configuration.
    #[arg(long)]
    pub toml: bool,
}

/// Parses a number from 0 to 10^12.
fn amount(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1e12).contains(&number) {
        Ok(number)
    } else {
        Err("must be between 0 and 1e12".to_owned())
    }
}

/// Parses a number above 0, up to 10^12.
fn positive(text: &str) -> Result<f64, String> {
    amount(text)
        .and_then(|n| if n > 0.0 { Ok(n) } else { Err("must be greater than 0".to_owned()) })
}

/// Parses a share above 0 and below 1.
fn share(text: &str) -> Result<f64, String> {
    let inside = |n: f64| if n < 1.0 { Ok(n) } else { Err("must be less than 1".to_owned()) };
    positive(text).and_then(inside)
}

/// Tables and ledger of an existence space.
#[derive(Clone, Debug)]
pub struct Flags {
    /// Name of the space.
    pub name: &'static str,
    /// Number of flags that are kept.
    pub flags: f64,
    /// Bits per flag in a full table, including late flags.
    pub bits: f64,
    /// Value of `pairs_per_table`.
    pub pairs_per_table: u64,
    /// Number of tables in memory.
    pub tables: u64,
    /// Memory of the tables, in bytes.
    pub bytes: f64,
    /// Number of pairs in the ledger over the whole retention, or `None` without a ledger.
    pub ledger_pairs: Option<f64>,
}

impl Flags {
    /// Memory of the ledger, in bytes.
    fn ledger_memory(&self) -> f64 {
        self.ledger_pairs.unwrap_or(0.0) * LEDGER_PAIR_BITS / 8.0
    }

    /// Bytes on disk: the ledger, and filters that are not in memory.
    pub fn disk_bytes(&self) -> f64 {
        let pairs = self.ledger_pairs.unwrap_or(0.0);
        pairs * LEDGER_PAIR_BYTES + (pairs - self.flags).max(0.0) * self.bits / 8.0
    }
}

/// Resources for a workload.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rows in memory.
    pub rows: f64,
    /// Bits of a row's fields.
    pub field_bits: u32,
    /// Bytes per row in a full table.
    pub row_bytes: f64,
    /// Value of `rows_per_table`.
    pub rows_per_table: u64,
    /// Number of row tables in memory.
    pub tables: u64,
    /// Memory of the row tables, in bytes.
    pub row_memory: f64,
    /// The spaces `liked` and `read`.
    pub flags: Vec<Flags>,
    /// Rows on disk.
    pub cold_rows: f64,
    /// Bytes per row on disk.
    pub cold_row_bytes: f64,
    /// Number of likes and read marks per day.
    pub writes_per_day: f64,
    /// Bytes of the reply to one page.
    pub page_bytes: f64,
    /// Bytes of the request for one page.
    pub request_bytes: f64,
}

/// Returns the number of entries per table, a power of two, that divides `all` entries into about
/// `parts` tables.
fn per_table(all: f64, parts: f64) -> u64 {
    let wanted = (all / parts).clamp(65_536.0, f64::from(1 << 28));
    1 << (wanted.log2().round() as u32)
}

impl Plan {
    /// Computes the resources. Returns an error if a value is out of range.
    pub fn of(args: &SizeArgs) -> Result<Plan, String> {
        let schema = counter::Schema::parse(&args.fields)
            .map_err(|e| format!("--fields '{}': {e}", args.fields))?;
        if !phantom::RATES.contains(&args.false_positive_rate) {
            return Err(format!(
                "--false-positive-rate must be between {} and {}",
                phantom::RATES.start(),
                phantom::RATES.end()
            ));
        }
        let widths: Vec<u32> = schema.living().map(|(_, field)| u32::from(field.width)).collect();
        let field_bits: u32 = widths.iter().sum();
        let posts = args.posts_per_day as f64;
        let in_memory = args.memory_days.min(args.retention_days);
        let rows = posts * in_memory;
        let rows_per_table = per_table(rows, 50.0);
        let tables = (rows / rows_per_table as f64).ceil() as u64 + FIRST_TABLES;
        let row_bytes = counter::bytes_per_row(field_bits, args.ids_per_post.max(1.0))
            + args.outliers * OUTLIER_BYTES;
        let flags = |name, per_post: f64, days: f64| {
            let flags = posts * per_post * days;
            let pairs_per_table = per_table(flags, 30.0);
            let bits = phantom::bits_per_pair(args.false_positive_rate) / FILL;
            let tables = (flags / (pairs_per_table as f64 * FILL)).ceil() as u64;
            // The newest table is half full on average.
            let bytes = (flags + pairs_per_table as f64 / 2.0) * bits / 8.0;
            Flags { name, flags, bits, pairs_per_table, tables, bytes, ledger_pairs: None }
        };
        let like_days = args.like_days.min(args.retention_days);
        let liked = Flags {
            ledger_pairs: Some(posts * args.likes_per_post * args.retention_days),
            ..flags("liked", args.likes_per_post, like_days)
        };
        // A counter takes `:`, its digits and CR LF, with half of the digits that its width allows.
        // A flag takes `:0` CR LF.
        let digits: f64 =
            widths.iter().map(|&bits| (f64::from(bits) * 0.301 / 2.0).max(1.0) + 3.0).sum();
        let page_posts = args.page_posts as f64;
        Ok(Plan {
            rows,
            field_bits,
            row_bytes,
            rows_per_table,
            tables,
            row_memory: (rows + rows_per_table as f64 / 2.0) * row_bytes,
            flags: vec![liked, flags("read", args.reads_per_post, args.read_days)],
            cold_rows: posts * (args.retention_days - in_memory).max(0.0),
            cold_row_bytes: f64::from(field_bits) / 8.0 + COLD_OVERHEAD_BYTES,
            writes_per_day: posts * (args.likes_per_post + args.reads_per_post),
            page_bytes: 5.0 + page_posts * (4.0 + digits + 8.0),
            request_bytes: 44.0 + page_posts * 23.0,
        })
    }
}

/// Runs `tidemark size`.
pub(super) fn run(args: &SizeArgs) -> Result<(), String> {
    let plan = Plan::of(args)?;
    crate::terminal::print(&if args.toml { plan.toml(args) } else { plan.text(args) })
}

/// Formats a number of bytes with three digits and a unit: `96.1 GB`.
fn bytes(value: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let power = ((value.max(1.0).log10() / 3.0) as usize).min(units.len() - 1);
    let shown = value / 1000f64.powi(power as i32);
    let digits = if shown >= 99.95 { 0 } else { usize::from(shown < 9.995) + 1 };
    format!("{shown:.digits$} {}", units[power])
}

fn whole(value: f64) -> String {
    grouped(value.round() as u64)
}

impl Plan {
    fn table_bytes(&self) -> f64 {
        self.row_memory + self.flags.iter().map(|f| f.bytes).sum::<f64>()
    }

    fn ledger_memory(&self) -> f64 {
        self.flags.iter().map(Flags::ledger_memory).sum()
    }

    fn memory_bytes(&self) -> f64 {
        (self.table_bytes() + self.ledger_memory()) * MARGIN + PROCESS_BYTES
    }

    // Long: the function has one call of `add` for each row of the output table.
    fn text(&self, args: &SizeArgs) -> String {
        let mut rows = vec![["what", "value", "formula"].map(str::to_owned).to_vec()];
        let mut add = |what: &str, value: String, formula: String| {
            rows.push(vec![what.to_owned(), value, formula]);
        };
        let posts = whole(args.posts_per_day as f64);
        let days = args.memory_days.min(args.retention_days);
        add("rows in memory", whole(self.rows), format!("{posts} posts x {days} days"));
        add(
            "bytes per row",
            format!("{:.2}", self.row_bytes),
            format!("{} bits, id, empty slots, outliers", self.field_bits),
        );
        let row_tables =
            format!("rows / {} + {FIRST_TABLES} small tables", grouped(self.rows_per_table));
        add("tables of post", whole(self.tables as f64), row_tables);
        add("memory of post", bytes(self.row_memory), "(rows + half a table) x bytes".to_owned());
        for f in &self.flags {
            let (per_post, days) = match f.name {
                "liked" => (args.likes_per_post, args.like_days.min(args.retention_days)),
                _ => (args.reads_per_post, args.read_days),
            };
            let name = f.name;
            let formula = format!("posts x {per_post} x {days} days");
            add(&format!("flags of {name}"), whole(f.flags), formula);
            let formula = format!("filter bits at rate {} / {FILL}", args.false_positive_rate);
            add(&format!("bits per flag of {name}"), format!("{:.1}", f.bits), formula);
            let formula = format!("flags / ({} x {FILL})", grouped(f.pairs_per_table));
            add(&format!("tables of {name}"), whole(f.tables as f64), formula);
            add(
                &format!("memory of {name}"),
                bytes(f.bytes),
                "(flags + half a table) x bits / 8".to_owned(),
            );
            if let Some(pairs) = f.ledger_pairs {
                let formula = format!("posts x {per_post} x {} days", args.retention_days);
                add("pairs in the ledger", whole(pairs), formula);
                let formula = format!("pairs x {LEDGER_PAIR_BITS} bits / 8");
                add("memory of the ledger", bytes(f.ledger_memory()), formula);
            }
        }
        let memory = self.memory_bytes();
        let formula =
            format!("sum of memory x {MARGIN} + {} for the process", bytes(PROCESS_BYTES));
        add("memory of a server", bytes(memory), formula);

        let kept = Durability::default();
        let log = (kept.keep_log_bytes + 2 * kept.snapshot_log_bytes) as f64;
        let cold = self.cold_rows * self.cold_row_bytes;
        add(
            "rows on disk",
            bytes(cold),
            format!("posts x {} days x {:.1} B", args.retention_days - days, self.cold_row_bytes),
        );
        let flags: f64 = self.flags.iter().map(Flags::disk_bytes).sum();
        let formula = format!("pairs x {LEDGER_PAIR_BYTES} B + older flags x bits / 8");
        add("likes on disk", bytes(flags), formula);
        let snapshots = 2.0 * self.table_bytes();
        add("snapshots", bytes(snapshots), "up to 2 x tables (old and new)".to_owned());
        add("write-ahead log", bytes(log), "keep_log + 2 snapshot_log".to_owned());
        let ssd = cold + flags + snapshots + log;
        add("disk of a server", bytes(ssd), "sum of the four above".to_owned());
        let written = self.writes_per_day * LOG_BYTES_PER_WRITE;
        let formula = format!("{} writes x {LOG_BYTES_PER_WRITE} B", whole(self.writes_per_day));
        add("log per day", bytes(written), formula);

        let pages = args.pages_per_second;
        let formula = format!("{} posts with their digits and flags", args.page_posts);
        add("bytes of a page", whole(self.page_bytes), formula);
        let formula = format!("{} pages/s x bytes x 8", whole(pages));
        add("network out, peak", bits_per_second(pages * self.page_bytes), formula);
        let formula = format!("{} pages/s x {} B x 8", whole(pages), whole(self.request_bytes));
        add("network in, peak", bits_per_second(pages * self.request_bytes), formula);
        let writes = self.writes_per_day / 86_400.0 * args.peak;
        let formula = format!("writes x {} / 86,400 s x {LOG_BYTES_PER_WRITE} B", args.peak);
        add("network per replica", bits_per_second(writes * LOG_BYTES_PER_WRITE), formula);

        let page_s = PAGE_CORE_S * args.page_posts as f64 / 20.0;
        let cores = (pages * page_s + self.write_cores(args)) / CORE_USE;
        let page_us = page_s * 1e6;
        let formula =
            format!("(pages x {page_us:.0} us + writes x 1.5 us + likes x 1.4 us) / {CORE_USE}");
        add("cores, peak", format!("{cores:.1}"), formula);
        add("replicas", self.replicas(args).to_string(), self.replica_formula(args));
        let mut out = String::from("\n");
        let paint = Paint::of_stdout();
        let columns = [Align::Left, Align::Right, Align::Left];
        out += &table(&columns, &rows, |row, column, cell| match (row, column) {
            (0, _) => paint.bold(cell),
            (_, 2) => paint.dim(cell),
            _ => cell.to_owned(),
        });
        out += "\nFor the configuration, add --toml. Assumptions: docs/sizing.md.\n";
        out
    }

    /// Number of cores that the writes need at the peak.
    fn write_cores(&self, args: &SizeArgs) -> f64 {
        let likes_per_day = args.posts_per_day as f64 * args.likes_per_post;
        let day_s = self.writes_per_day * WRITE_CORE_S + likes_per_day * LEDGER_CORE_S;
        day_s / 86_400.0 * args.peak
    }

    /// Returns the number of replicas. Each server has all data, and applies all writes. The
    /// replicas share the page requests, and one spare replica covers a failed server.
    fn replicas(&self, args: &SizeArgs) -> u64 {
        let pages = args.pages_per_second * PAGE_CORE_S * args.page_posts as f64 / 20.0;
        let left = (args.cores * CORE_USE - self.write_cores(args)).max(args.cores * 0.05);
        ((pages / left).ceil() as u64).max(1)
    }

    fn replica_formula(&self, args: &SizeArgs) -> String {
        format!("pages / capacity left on {} cores, at least 1", args.cores)
    }

    fn toml(&self, args: &SizeArgs) -> String {
        let mut out = String::from(
            "# Printed by `tidemark size`; `tidemark config --all` prints all settings.\n",
        );
        let spills = args.retention_days > args.memory_days;
        let number = |n: u64| grouped(n).replace(',', "_");
        let _ = write!(
            out,
            "\n[server]\nmemory = \"{}\"\n\n\
             [[counter]]\nname = \"post\"\nfields = \"{}\"\nrows = \"post:{{id}}\"\n\
             cells = \"post:{{id}}:{{field}}\"\nspill = {spills}\nrows_per_table = {}\n",
            Unit::Bytes.format((self.memory_bytes() as u64).next_multiple_of(1 << 20)),
            args.fields,
            number(self.rows_per_table),
        );
        for f in &self.flags {
            let kept = match f.ledger_pairs {
                Some(_) => "ledger = \"exact\"",
                None => "spill = false",
            };
            let _ = write!(
                out,
                "\n[[existence]]\nname = \"{name}\"\npairs = \"{name}:{{id}}\"\n\
                 false_positive_rate = {}\npairs_per_table = {}\nmax_tables = {}\n{kept}\n",
                args.false_positive_rate,
                number(f.pairs_per_table),
                f.tables.max(1) + 2,
                name = f.name,
            );
        }
        out
    }
}

fn bits_per_second(bytes_per_second: f64) -> String {
    bytes(bytes_per_second * 8.0).replace('B', "bit/s")
}
