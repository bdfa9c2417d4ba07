//! TM.SPACE, TM.TABLES, TM.ADVISE and related commands.
//!
//! Scans of rows or filters run on another thread ([`Call::answer_later`]), so that they do not
//! delay page requests.

use crate::commands::call::{Call, counter_space, disk};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::flags::phantom::no_ledger;
use crate::commands::schema::changes;
use crate::commands::schema::changes::{change, pairs, refuse_event_target};
use counter::{Alteration, Field, FieldBounds};
use dataset::engines::{CounterSpace, Engines, ExistenceSpace};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{NO_KEYS, Outcome, flag};
use resp::Reply;

/// Number of probes that TM.TABLES adds per table; the counts accumulate over calls.
const CANARIES: u64 = 1 << 16;

const SCHEMA: Group = Group::new("schema", "0.1.0", NO_KEYS);
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    SCHEMA.container("tm.space", "A container for commands about spaces.", &[
        SCHEMA.row("tm.space|alter", -5, ADMIN | flag::WRITE | flag::NAMED,
            "space <ADD field:bits|WIDEN field:bits|NARROW field:bits|BOUND field bounds|DROP \
             field|SET option value [option value ...]>", Once(alter),
            "SET changes one or more options of a space atomically and returns OK. The options \
             have the names of the configuration (memory_limit, keep_newest, spill, max_ahead, \
             rows, pairs, ...). The other forms change the schema of a counter space immediately, \
             without blocking clients, and return the new schema. ADD creates a field that is 0 in \
             all rows. WIDEN increases the number of bits of a field, and NARROW reduces it. \
             Values that need more bits are stored exactly, outside the row. BOUND limits the \
             values that commands may write to a field: {0..}, {..100}, {-5..5}, or {..} for no \
             limit. ADD accepts bounds after the bits: stock:20{0..}. A write outside the bounds \
             fails; with 'sat', the bound is written instead. Existing values stay unchanged until \
             they are written. DROP removes a field and its values. Older tables are rewritten in \
             the background. In the returned schema, dropped fields have the prefix '!'. A line \
             with the prefix 'warning: ' follows for each view that shows all fields of the space \
             (counters = [\"post\"]), because the number of values in its pages changes. A space \
             can have up to 64 fields in its lifetime, including dropped fields."),
        SCHEMA.row("tm.space|create", -4, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
            "space <COUNTER|EXISTENCE> [option value [option value ...]]",
            Once(changes::create_space),
            "Creates a space, which all connections can use immediately. The options are the keys \
             of [[counter]] or [[existence]] in the configuration, and are validated in the same \
             way. For example, fields and keys must differ from those of other spaces. A counter \
             space needs at least one field. Replies after the log is synced to disk."),
        SCHEMA.row("tm.space|drop", 4, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
            "space confirmation", Once(changes::drop_space),
            "Permanently deletes a space and its data, in memory and on disk. The confirmation \
             must contain the name: TM.SPACE DROP post YES-I-MEAN-post. Fails while a view or an \
             action uses the space. ACL rules for the space ($name) are kept, and apply to a later \
             space with the same name."),
        SCHEMA.help("tm.space|help"),
        SCHEMA.row("tm.space|list", 2, flag::STALE | flag::NO_MULTI, "", Once(list),
            "Returns a map for each space with its contents and memory usage. For an existence \
             space, the map also contains the horizon and the estimated time in seconds until the \
             oldest table is recycled. The estimate is based on the last minute, and is nil if no \
             pairs were added.").linear("tables"),
        SCHEMA.row("tm.space|rename", 4, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
            "space newname", Once(changes::rename_space),
            "Renames a space. Commands, views, actions and ACL rules ($name) then use the new \
             name. The keys of the space do not change; use TM.SPACE ALTER SET to change them."),
        SCHEMA.row("tm.space|retire", 4, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
            "space id", Once(changes::retire),
            "Permanently deletes the rows of all ids below the given id, in memory and on disk. \
             The given id becomes the horizon of the counter space. For ids below the horizon, \
             reads find no row (nil, or 0 in a page), FEED.ACT returns nil, and other writes fail. \
             Fails if the given id is above the highest id of the space. The option keep_newest \
             retires rows automatically."),
    ]),
    SCHEMA.row("tm.tables", -1, flag::STALE | flag::NO_MULTI | flag::NAMED, "[space]", Once(tables),
        "Returns a map for each table of a space, or of all spaces, in ascending order of ids: id \
         range, number of rows or pairs, fill ratio, and size in bytes. For counter spaces, the \
         map also contains the number of buckets read per hit, and the sizes of the aux and extend \
         dictionaries. For existence spaces, it also contains the configured, expected and \
         measured false-positive rates, and the time until recycling; the first table starts at \
         the horizon. The cold files of a space precede its tables, with where = 'disk'. The \
         outliers follow the tables, with where = 'outliers'. A space with fewer than 64 ids has \
         only outliers.")
        .linear("tables"),
    SCHEMA.row("tm.advise", 2, flag::READONLY | flag::NO_MULTI | flag::NAMED, "space", Once(advise),
        "Recommends the number of bits per field that minimizes memory, based on a sample of up to \
         a million rows (at least 1000). Returns a map with the savings, a readable table, and the \
         commands that apply the recommendation.")
        .linear("rows in a sample of at most a million"),
    SCHEMA.row("tm.roll", 2, ADMIN | flag::WRITE | flag::NAMED, "space", Once(roll),
        "Closes the newest table of a space before it is full, and creates the next table. Returns \
         1, or 0 if the newest table is empty."),
    SCHEMA.row("tm.spill", -2, ADMIN | flag::WRITE | flag::NO_MULTI | flag::NAMED,
        "space [tables]", Once(spill),
        "Moves the oldest tables of a space to disk: the given number of tables, or one by \
         default, but never the newest table. The server does the same automatically when memory \
         is low. Also merges changes into tables that are already on disk. Returns the number of \
         rows or pairs that were moved out of memory.")
        .linear("rows in the tables"),
    SCHEMA.row("tm.rebuild", 2, ADMIN | flag::NO_MULTI | flag::NAMED, "space", Once(rebuild),
        "Rebuilds the filters of an existence space from its ledger, one table at a time, in the \
         background. Use it, for example, after a disk error has damaged a page of a filter. Reads \
         use the old filters until the new filters are complete. Returns the number of tables to \
         rebuild. A restart cancels the rebuild. Changing false_positive_rate with TM.SPACE ALTER \
         also starts a rebuild, which continues after a restart.")
        .linear("tables"),
];

pub(crate) enum Value {
    Count(u64),
    /// An id is a string, because RESP integers cannot hold unsigned 64-bit ids.
    Id(u64),
    Number(f64),
    Text(String),
    Texts(Vec<String>),
    Nil,
}

pub(crate) fn count(value: usize) -> Value {
    Value::Count(value as u64)
}

fn number_or_nil(value: Option<f64>) -> Value {
    value.map_or(Value::Nil, Value::Number)
}

pub(crate) type Entries = Vec<(&'static str, Value)>;

fn write_map(reply: &mut Reply<'_>, entries: &[(&str, Value)]) {
    reply.map(entries.len());
    for (name, value) in entries {
        reply.bulk(name.as_bytes());
        match value {
            Value::Count(n) => reply.int(i64::try_from(*n).unwrap_or(i64::MAX)),
            Value::Id(id) => reply.bulk(id.to_string().as_bytes()),
            Value::Number(x) => reply.double(*x),
            Value::Text(text) => reply.bulk(text.as_bytes()),
            Value::Texts(texts) => {
                reply.array(texts.len());
                texts.iter().for_each(|text| reply.bulk(text.as_bytes()));
            }
            Value::Nil => reply.null(),
        }
    }
}

pub(crate) fn write_maps(reply: &mut Reply<'_>, maps: &[Entries]) {
    reply.array(maps.len());
    maps.iter().for_each(|entries| write_map(reply, entries));
}

pub(crate) enum AnySpace<'a> {
    Counter(&'a CounterSpace),
    Existence(&'a ExistenceSpace),
}

pub(crate) fn any_space<'a>(engines: &'a Engines, name: &[u8]) -> Result<AnySpace<'a>, Refusal> {
    if let Some(space) = engines.counter(name) {
        return Ok(AnySpace::Counter(space));
    }
    match engines.existence(name) {
        Some(space) => Ok(AnySpace::Existence(space)),
        None => Err(refuse!("ERR no such space '{}'", Printable(name))),
    }
}

fn existence_space<'a>(engines: &'a Engines, name: &[u8]) -> Result<&'a ExistenceSpace, Refusal> {
    engines
        .existence(name)
        .ok_or_else(|| refuse!("ERR no such existence space '{}'", Printable(name)))
}

/// Parses `field:bits`, or `field` and `bits` as two arguments.
fn alteration(call: &Call<'_>) -> Result<Alteration, Refusal> {
    let what = call.args.at(3);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let sized = || -> Result<(String, u8), Refusal> {
        let (name, bits) = match call.args.len() {
            5 => match call.args.at(4).iter().position(|&b| b == b':') {
                Some(at) => (&call.args.at(4)[..at], &call.args.at(4)[at + 1..]),
                None => {
                    return Err(refuse!(
                        "ERR Invalid field '{}': must be field:bits",
                        Printable(call.args.at(4))
                    ));
                }
            },
            6 => (call.args.at(4), call.args.at(5)),
            _ => return Err(call.wrong_arity()),
        };
        let width = resp::natural(bits).and_then(|bits| u8::try_from(bits).ok());
        let width = width.ok_or_else(|| {
            refuse!("ERR Invalid number of bits '{}': must be 1 to 64", Printable(bits))
        })?;
        Ok((text(name), width))
    };
    let declared = |error| refuse!("ERR {error}");
    if what.eq_ignore_ascii_case(b"ADD") {
        let word = match call.args.len() {
            5 => text(call.args.at(4)),
            6 => format!("{}:{}", text(call.args.at(4)), text(call.args.at(5))),
            _ => return Err(call.wrong_arity()),
        };
        let Field { name, width, bounds, .. } = Field::parse(&word).map_err(declared)?;
        Ok(Alteration::Add { name, width, bounds })
    } else if what.eq_ignore_ascii_case(b"BOUND") {
        if call.args.len() != 6 {
            return Err(call.wrong_arity());
        }
        let bounds = FieldBounds::parse(&text(call.args.at(5))).map_err(declared)?;
        Ok(Alteration::Bound { name: text(call.args.at(4)), bounds })
    } else if what.eq_ignore_ascii_case(b"WIDEN") {
        sized().map(|(name, width)| Alteration::Widen { name, width })
    } else if what.eq_ignore_ascii_case(b"NARROW") {
        // The engine uses the same operation to widen and to narrow.
        sized().map(|(name, width)| Alteration::Widen { name, width })
    } else if what.eq_ignore_ascii_case(b"DROP") {
        if call.args.len() != 5 {
            return Err(call.wrong_arity());
        }
        Ok(Alteration::Drop { name: text(call.args.at(4)) })
    } else {
        Err(Refusal::SYNTAX)
    }
}

/// Refuses a WIDEN to fewer bits and a NARROW to more bits, which are probably typos.
fn check_direction(call: &Call<'_>, space: &CounterSpace, change: &Alteration) -> Outcome {
    let Alteration::Widen { name, width } = change else { return Ok(()) };
    let schema = space.schema();
    let Some(now) = schema.living().find(|(_, field)| field.name == *name) else {
        // The engine returns an error for an unknown field.
        return Ok(());
    };
    let (widens, now) = (call.args.at(3).eq_ignore_ascii_case(b"WIDEN"), now.1.width);
    let wrong = if widens { *width < now } else { *width > now };
    if wrong {
        let (asked, other) = if widens { ("WIDEN", "NARROW") } else { ("NARROW", "WIDEN") };
        return Err(refuse!(
            "ERR {asked} cannot change field '{name}' from {now} to {width} bits: use {other}"
        ));
    }
    Ok(())
}

fn alter(call: &mut Call<'_>) -> Outcome {
    if call.args.at(3).eq_ignore_ascii_case(b"set") {
        return set(call);
    }
    let engines = call.node.engines();
    let space = counter_space(engines, call.args.at(2))?;
    let change = alteration(call)?;
    check_direction(call, space, &change)?;
    if let Alteration::Drop { name } = &change {
        let counter = format!("{}.{name}", space.name());
        refuse_event_target(call, &format!("counter '{counter}'"), |target| target == counter)?;
    }
    // Pending changes will be encoded with the new schema, so they may exceed their reservations.
    let Some(_room) = call.reserve_whole_batch() else { return Ok(()) };
    let altered = call.node.current.alter(space.number(), &change);
    let schema = altered.map_err(|error| refuse!("ERR {error}"))?;
    tracing::info!("schema of '{}' changed to: {schema}", space.name());
    let mut answer = schema.to_string();
    if matches!(change, Alteration::Add { .. } | Alteration::Drop { .. }) {
        for view in engines.views().iter().filter(|view| engines.shows_whole(view, space)) {
            let values = engines.columns(view).len() + view.flags();
            let warning = format!(
                "the view '{}' shows the whole space '{}': its pages now have {values} values per \
                 id",
                view.name(),
                space.name()
            );
            tracing::warn!(
                "{warning}; name the fields in `counters` of [[view]] to keep pages as they are"
            );
            answer += &format!("\nwarning: {warning}");
        }
    }
    call.reply.bulk(answer.as_bytes());
    Ok(())
}

fn set(call: &mut Call<'_>) -> Outcome {
    let name = call.args.at(2);
    any_space(call.node.engines(), name)?;
    let (name, pairs) = (String::from_utf8_lossy(name).into_owned(), pairs(call, 4)?);
    change(call, move |now| now.set(&name, &pairs))
}

fn list(call: &mut Call<'_>) -> Outcome {
    call.answer_later(|node, reply| {
        let engines = node.engines();
        let counters = engines.counters().iter().map(|space| {
            vec![
                ("name", Value::Text(space.name().to_owned())),
                ("kind", Value::Text("counter".to_owned())),
                ("keys", Value::Texts(engines.key_patterns(space.number()))),
                ("fields", Value::Text(space.schema().to_string())),
                ("rows", Value::Count(space.all_rows())),
                ("cold_rows", Value::Count(space.cold().rows())),
                ("cold_files", count(space.cold().files().all().len())),
                ("outlier_rows", Value::Count(space.outlier_rows())),
                ("tables", count(space.ranges().len())),
                ("memory_bytes", Value::Count(space.memory_bytes())),
                ("memory_limit_bytes", Value::Count(space.declared().memory_limit_bytes)),
                ("memory_share_bytes", Value::Count(space.memory_limit_bytes())),
                ("horizon", Value::Id(space.horizon())),
            ]
        });
        let existences = engines.existences().iter().map(|space| {
            let ledger = if space.ledger().is_some() { "exact" } else { "off" };
            vec![
                ("name", Value::Text(space.name().to_owned())),
                ("kind", Value::Text("existence".to_owned())),
                ("keys", Value::Texts(engines.key_patterns(space.number()))),
                ("false_positive_rate", Value::Number(space.false_positive_rate())),
                ("ledger", Value::Text(ledger.to_owned())),
                ("pairs", Value::Count(space.pairs())),
                ("outlier_pairs", count(space.outlier_pairs())),
                ("most_revoked", count(space.most_revoked())),
                ("tables", count(space.layout().len())),
                ("memory_bytes", Value::Count(space.memory_bytes())),
                ("memory_limit_bytes", Value::Count(space.declared().memory_limit_bytes)),
                ("memory_share_bytes", Value::Count(space.filter_bytes_limit())),
                ("horizon", Value::Id(space.horizon())),
                ("pairs_per_s", Value::Number(space.pairs_per_s())),
                ("pairs_until_recycled", Value::Count(space.pairs_until_recycled())),
                ("recycled_in_s", number_or_nil(space.recycled_in_s())),
                ("forgotten_ids", count(space.forgotten_ids())),
            ]
        });
        write_maps(reply, &counters.chain(existences).collect::<Vec<Entries>>());
        Ok(())
    })
}

fn tables(call: &mut Call<'_>) -> Outcome {
    if call.args.len() > 2 {
        return Err(call.wrong_arity());
    }
    let name = (call.args.len() == 2).then(|| call.args.at(1).to_vec());
    if let Some(name) = &name {
        any_space(call.node.engines(), name)?;
    }
    call.answer_later(move |node, reply| {
        let wanted = |space: &str| name.as_ref().is_none_or(|name| space.as_bytes() == name);
        let mut all = Vec::new();
        node.engines()
            .counters()
            .iter()
            .filter(|s| wanted(s.name()))
            .for_each(|s| counter_tables(s, &mut all));
        node.engines()
            .existences()
            .iter()
            .filter(|s| wanted(s.name()))
            .for_each(|s| existence_tables(s, &mut all));
        write_maps(reply, &all);
        Ok(())
    })
}

fn counter_tables(space: &CounterSpace, all: &mut Vec<Entries>) {
    all.extend(space.cold().files().all().iter().map(|file| {
        let (head, entry) = (file.head(), file.entry());
        vec![
            ("space", Value::Text(space.name().to_owned())),
            ("where", Value::Text("disk".to_owned())),
            ("low", Value::Id(entry.tag.low)),
            ("last", Value::Id(entry.tag.high)),
            ("rows", Value::Count(head.rows)),
            ("file", Value::Text(entry.name.clone())),
            ("bytes", Value::Count(entry.bytes)),
            ("bytes_per_row", Value::Number(entry.bytes as f64 / head.rows as f64)),
            ("index_bytes", count(file.memory_bytes())),
        ]
    }));
    all.extend(space.tables().into_iter().map(|table| {
        vec![
            ("space", Value::Text(space.name().to_owned())),
            ("where", Value::Text("memory".to_owned())),
            ("low", Value::Id(table.low)),
            ("last", Value::Id(table.last)),
            ("rows", Value::Count(table.rows)),
            ("capacity", Value::Count(table.capacity)),
            ("fill", Value::Number(table.fill)),
            ("probes_mean", Value::Number(table.probes_mean)),
            ("probes_p99", Value::Count(table.probes_p99)),
            ("probes_max", Value::Count(table.probes_max)),
            ("past_share", Value::Number(table.overflow_probe_share)),
            ("aux_entries", Value::Count(table.aux_entries)),
            ("aux_bytes", Value::Count(table.aux_bytes)),
            ("extend_rows", Value::Count(table.extend_rows)),
            ("extend_bytes", Value::Count(table.extend_bytes)),
            ("draining_rows", Value::Count(table.draining_rows)),
            ("draining_bytes", Value::Count(table.draining_bytes)),
            ("bytes", Value::Count(table.bytes)),
            ("bytes_per_row", Value::Number(table.bytes_per_row)),
            ("slot_bits", Value::Count(u64::from(table.slot_bits))),
            ("fields", Value::Text(table.schema)),
        ]
    }));
    let outliers = space.outlier_range();
    all.extend(outliers.map(|range| {
        vec![
            ("space", Value::Text(space.name().to_owned())),
            ("where", Value::Text("outliers".to_owned())),
            ("low", Value::Id(range.low)),
            ("last", Value::Id(range.last)),
            ("rows", Value::Count(range.rows)),
        ]
    }));
}

fn existence_tables(space: &ExistenceSpace, all: &mut Vec<Entries>) {
    let files = space.cold().files();
    for (index, table) in space.tables_probed(CANARIES).into_iter().enumerate() {
        // Only the oldest table has a known time. The rate at which later tables are recycled is
        // unknown.
        let recycled_in_s = if index == 0 { space.recycled_in_s() } else { None };
        // Cold tables are not probed, because each probe would be a disk read.
        let known = (!table.is_cold).then_some(table.measured);
        all.push(vec![
            ("space", Value::Text(space.name().to_owned())),
            ("where", Value::Text(if table.is_cold { "disk" } else { "memory" }.to_owned())),
            ("low", Value::Id(table.low)),
            ("last", Value::Id(table.last)),
            ("pairs", Value::Count(table.pairs)),
            ("capacity", Value::Count(table.capacity)),
            ("roll_at", Value::Count(table.roll_at)),
            ("fill", Value::Number(table.fill)),
            ("bits_set", number_or_nil(table.bits_set)),
            ("extensions", count(table.extensions)),
            ("revoked", count(table.revoked)),
            ("bytes", count(table.bytes)),
            ("false_positive_rate", Value::Number(table.configured_rate)),
            ("expected_rate", Value::Number(table.expected_rate)),
            ("measured_rate", number_or_nil(table.measured.rate())),
            ("measured_at_least", number_or_nil(known.map(|measured| measured.at_least()))),
            ("measured_at_most", number_or_nil(known.map(|measured| measured.at_most()))),
            ("canaries", known.map_or(Value::Nil, |measured| Value::Count(measured.canaries))),
            ("recycled_in_s", number_or_nil(recycled_in_s)),
        ]);
        let file = files.iter().find(|file| table.is_cold && file.entry().tag.low == table.low);
        if let (Some(file), Some(entries)) = (file, all.last_mut()) {
            entries.extend([
                ("late", count(table.late)),
                ("file", Value::Text(file.entry().name.clone())),
                ("file_bytes", Value::Count(file.entry().bytes)),
                ("index_bytes", count(file.memory_bytes())),
            ]);
        }
    }
    all.extend(space.outlier_range().map(|(low, last, pairs)| {
        vec![
            ("space", Value::Text(space.name().to_owned())),
            ("where", Value::Text("outliers".to_owned())),
            ("low", Value::Id(low)),
            ("last", Value::Id(last)),
            ("pairs", Value::Count(pairs)),
        ]
    }));
}

/// Minimum number of rows for TM.ADVISE. Fewer values do not predict the width of later values.
const MIN_ADVICE_ROWS: u64 = 1000;

fn advise(call: &mut Call<'_>) -> Outcome {
    let name = call.args.at(1).to_vec();
    counter_space(call.node.engines(), &name)?;
    call.answer_later(move |node, reply| {
        let space = counter_space(node.engines(), &name)?;
        let advice = space
            .advise_with(space.cold().rows(), |most, f| space.cold().sample(most, f))
            .map_err(disk)?;
        let rows = advice.as_ref().map_or(0, |advice| advice.rows);
        let Some(advice) = advice.filter(|_| rows >= MIN_ADVICE_ROWS) else {
            return Err(refuse!(
                "ERR the space '{}' has {rows} rows; TM.ADVISE needs at least {MIN_ADVICE_ROWS}",
                space.name()
            ));
        };
        let changed = advice.fields.iter().filter(|field| field.best != field.width);
        let commands = changed.map(|f| {
            let how = if f.best > f.width { "WIDEN" } else { "NARROW" };
            format!("TM.SPACE ALTER {} {how} {}:{}", space.name(), f.name, f.best)
        });
        let entries = [
            ("rows", Value::Count(advice.rows)),
            ("fields", Value::Text(advice.schema())),
            ("bytes_per_row", Value::Number(advice.bytes_per_row)),
            ("best_bytes_per_row", Value::Number(advice.best_bytes_per_row)),
            ("saving", Value::Number(advice.saving())),
            ("table", Value::Texts(advice.to_string().lines().map(str::to_owned).collect())),
            ("commands", Value::Texts(commands.collect())),
        ];
        write_map(reply, &entries);
        Ok(())
    })
}

fn roll(call: &mut Call<'_>) -> Outcome {
    let engines = call.node.engines();
    let rolled = match any_space(engines, call.args.at(1))? {
        AnySpace::Existence(space) => engines.roll_pairs(space),
        AnySpace::Counter(space) => space.roll_now().map_err(dataset::engines::WriteError::from)?,
    };
    call.reply.int(i64::from(rolled));
    Ok(())
}

fn rebuild(call: &mut Call<'_>) -> Outcome {
    let space = existence_space(call.node.engines(), call.args.at(1))?;
    if space.ledger().is_none() {
        return Err(no_ledger(space));
    }
    call.reply.int(space.ask_rebuild() as i64);
    Ok(())
}

fn spill(call: &mut Call<'_>) -> Outcome {
    if call.args.len() > 3 {
        return Err(call.wrong_arity());
    }
    let name = call.args.at(1).to_vec();
    let instead = match any_space(call.node.engines(), &name)? {
        AnySpace::Counter(space) if !space.spills() => Some("keeps its tables in memory"),
        AnySpace::Existence(space) if !space.spills() => Some("recycles its tables"),
        _ => None,
    };
    if let Some(instead) = instead {
        return Err(refuse!(
            "ERR the space '{}' {instead}: spilling is not enabled",
            Printable(&name)
        ));
    }
    let tables = match call.args.from(2).iter().next() {
        Some(text) => resp::natural(text)
            .ok_or_else(|| refuse!("ERR Invalid number of tables '{}'", Printable(text)))?,
        None => 1,
    };
    call.answer_later(move |node, reply| {
        let is_stopped = || node.stop.is_stopped();
        let live = node.live(&is_stopped).ok_or(Refusal::LOADING)?;
        let mut left = 0;
        for _ in 0..tables {
            let spilled = match any_space(node.engines(), &name)? {
                AnySpace::Counter(space) => dataset::tiering::spill_oldest(&live, space),
                AnySpace::Existence(space) => dataset::tiering::spill_oldest_pairs(&live, space),
            };
            match spilled {
                Ok(Some(spilled)) => left += spilled.left,
                Ok(None) => break,
                Err(error) => return Err(disk(error)),
            }
        }
        reply.int(left as i64);
        Ok(())
    })
}
