//! The rows of `server/src/handlers/schema/spaces.rs`.

use crate::command::spec::{NO_KEYS, Spec, flag, help_row};

pub(crate) const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT;

pub(crate) const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity,
        flags,
        keys: NO_KEYS,
        group: "schema",
        since: "0.1.0",
        usage,
        summary,
        subcommands: &[],
    }
}

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    Spec {
        subcommands: &[
            spec("tm.space|alter", -5, flag::NAMED | flag::WRITE | ADMIN,
                "space <ADD field:bits|WIDEN field:bits|NARROW field:bits|BOUND field bounds|\
                 DROP field|SET option value [option value ...]>",
                "SET changes options of a space of either kind, as the configuration names them \
                 (memory_limit_bytes, max_tables, rows_per_table, max_ahead, spill, rows, pairs, \
                 ...), all or none, and answers OK. The others change the schema of a counter \
                 space, at once and without a pause: a new field \
                 is 0 in all rows; WIDEN gives a field more bits inside a row, NARROW fewer (what \
                 does not fit is kept beside, exactly); BOUND declares the values that a field may \
                 be written with, whatever the command ({0..}, {..100}, {-5..5}; {..} for any; ADD \
                 takes them behind the bits, stock:20{0..}): a \
                 write beyond is refused, or stops at the bound if 'sat' follows, and values that \
                 lie beyond already stay until they are written; DROP removes a field and its \
                 values. Older tables are rewritten in the background. Answers the new schema, \
                 dropped fields with a '!'; behind it, on a line each that begins with \
                 'warning: ', the views whose pages have more or fewer values from now on, as \
                 they show the whole space (counters = [\"post\"], not its fields by name). A \
                 space has at most 64 fields in its life, dropped ones included."),
            spec("tm.space|create", -4, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN,
                "space <COUNTER|EXISTENCE> [option value [option value ...]]",
                "Makes a space, for all connections at once. The options are the keys of \
                 [[counter]] or [[existence]] in the configuration, with its checks and errors: \
                 fields and keys that no other space has, say. A counter space needs fields. \
                 Answered when it is safe in the log."),
            spec("tm.space|drop", 4, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN,
                "space confirmation",
                "Removes a space and all that is in it, from memory and from the disk, for good. \
                 Asks for its name twice: TM.SPACE DROP post YES-I-MEAN-post. Refused while a view \
                 or an action names it. Rules of users ($name) stay, and grant what is made under \
                 that name later."),
            help_row("tm.space|help", "schema", "0.1.0"),
            spec("tm.space|list", 2, flag::STALE | flag::NO_MULTI, "",
                "All spaces, a map each: what they hold and how much memory that takes; for \
                 existence spaces also the horizon, and in how many seconds the oldest table will \
                 be recycled if pairs go on coming as in the last minute (nil: none come)."),
            spec("tm.space|rename", 4, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN,
                "space newname",
                "Gives a space another name in commands, views, actions and rules of users \
                 ($name). Its keys stay as they are: TM.SPACE ALTER SET changes them."),
            spec("tm.space|retire", 4, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN,
                "space id",
                "Gives up the rows of all ids below this one, for good, with their memory and \
                 their files: the horizon of a counter space. Reads find no row there (nil, or 0 \
                 in a page), FEED.ACT answers nil, other writes are refused. An id above the \
                 highest one is refused. keep_tables does it by itself."),
        ],
        ..spec("tm.space", -2, 0, "", "A container for commands about spaces.")
    },
    spec("tm.tables", -1, flag::NAMED | flag::STALE | flag::NO_MULTI, "[space]",
        "The tables of a space (or of all), oldest first, a map each: id range, rows or pairs, \
         fill, bytes; for counter spaces the buckets that a hit touches and the sizes of the aux \
         and extend dictionaries; for existence spaces the configured, the expected and the \
         measured false-positive rate, and when it will be recycled; the first one begins at the \
         horizon. Cold files of a space come before its tables: where is 'disk' for them. What is \
         kept aside comes last: where is 'aside'. In a space that has hardly begun (fewer than 64 \
         ids) that is all."),
    spec("tm.advise", 2, flag::NAMED | flag::READONLY | flag::NO_MULTI, "space",
        "From the values that are there (a sample of a million rows, at least 1000): the bits per \
         field that take the fewest bytes in total, and what they save; as a map, with a table for \
         people and the commands that would do it."),
    spec("tm.roll", 2, flag::NAMED | flag::WRITE | ADMIN, "space",
        "Closes the newest table of a space, though it is not full, and opens the next. 1, or 0 if \
         it is empty."),
    spec("tm.spill", -2, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN, "space [tables]",
        "Moves the oldest tables of a space to the disk, as happens by itself when memory runs \
         short: one, or so many, but never the newest. What was changed of rows or pairs that are \
         there already is merged. How many rows, or pairs, have left memory."),
    spec("tm.rebuild", 2, flag::NAMED | flag::NO_MULTI | ADMIN, "space",
        "Builds the filters of an existence space anew from its ledger, in the background, table \
         by table: for one of which the disk has damaged a page. The old filters answer until the \
         new ones have every pair. How many tables that are. A restart forgets it. Another \
         false_positive_rate, by TM.SPACE ALTER, does the same, and is not forgotten."),
];
