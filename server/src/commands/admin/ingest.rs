//! TM.INGEST commands. `crate::ingest` reads the sources.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use dataset::engines::events::Partition;
use dataset::offsets::Offset;
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{NO_KEYS, Outcome, flag};
use node::runtime::ingest::{IngestProgress, IngestSource};
use resp::Reply;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SCHEMA: Group = Group::new("schema", "0.1.0", NO_KEYS);
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    SCHEMA.container("tm.ingest", "A container for commands about ingest sources.", &[
        SCHEMA.help("tm.ingest|help"),
        SCHEMA.row("tm.ingest|list", 2, ADMIN | flag::STALE, "", Once(list),
            "Returns a map for each ingest source: its broker, state, counts since the server \
             started, last error, and the next offset of each partition."),
        SCHEMA.row("tm.ingest|pause", 3, ADMIN | flag::STALE,
            "source", Once(|call| pause(call, true)),
            "Stops reading events from a source until TM.INGEST RESUME or a restart. Events that \
             were already read are applied completely."),
        SCHEMA.row("tm.ingest|resume", 3, ADMIN | flag::STALE,
            "source", Once(|call| pause(call, false)),
            "Resumes a paused source, or retries the event at which a source has halted."),
        SCHEMA.row("tm.ingest|setoffset", 5, ADMIN | flag::WRITE | flag::NO_MULTI,
            "source partition offset", Once(set_offset),
            "Sets the offset of the next message to read from a partition. The partition is 0 for \
             sources without partitions. Messages before the offset are skipped. If messages are \
             read again, their increments are counted again."),
    ]),
];

fn source(call: &Call<'_>) -> Result<Arc<IngestSource>, Refusal> {
    let name = call.args.at(2);
    let found = call.node.ingest.find(name).cloned();
    found.ok_or_else(|| refuse!("ERR no such ingest source '{}'", Printable(name)))
}

fn pause(call: &mut Call<'_>, paused: bool) -> Outcome {
    source(call)?.pause(paused);
    call.reply.ok();
    Ok(())
}

fn set_offset(call: &mut Call<'_>) -> Outcome {
    let source = source(call)?;
    let number = resp::natural(call.args.at(3)).and_then(|number| u32::try_from(number).ok());
    let number = number.ok_or_else(|| {
        refuse!("ERR Invalid partition '{}': must be a number from 0", Printable(call.args.at(3)))
    })?;
    if !source.may_have_partition(number) {
        return Err(refuse!("ERR source '{}' has no partition {number}", source.config.name));
    }
    let message = source.read_offset(call.args.at(4)).ok_or_else(|| {
        let like = source.shown(17);
        refuse!(
            "ERR Invalid offset '{}': offsets of this source look like {like}",
            Printable(call.args.at(4))
        )
    })?;
    let partition = Partition { source: &source.config.name, number };
    if !call.node.engines().move_offset(partition, Offset { message, ..Offset::default() }) {
        return Err(refuse!("ERR too many partitions"));
    }
    source.order();
    call.reply.ok();
    Ok(())
}

fn list(call: &mut Call<'_>) -> Outcome {
    let node = call.node;
    let engines = node.loaded();
    call.reply.array(node.ingest.sources.len());
    for source in &node.ingest.sources {
        let mut partitions: BTreeMap<u32, (IngestProgress, Option<Offset>)> = BTreeMap::new();
        for (number, ingest_progress) in &*source.partitions.lock() {
            partitions.entry(*number).or_default().0 = *ingest_progress;
        }
        let offsets = engines.map(|engines| engines.offsets.list()).unwrap_or_default();
        for (_, number, offset) in
            offsets.into_iter().filter(|(name, ..)| **name == *source.config.name)
        {
            partitions.entry(number).or_default().1 = Some(offset);
        }
        write(&mut call.reply, source, &partitions);
    }
    Ok(())
}

fn write(
    reply: &mut Reply<'_>,
    source: &IngestSource,
    partitions: &BTreeMap<u32, (IngestProgress, Option<Offset>)>,
) {
    let ingest_progress = source.ingest_progress();
    let last_error = source.last_error();
    let texts = [
        ("name", source.config.name.as_str()),
        ("url", &source.config.url),
        ("stream", &source.config.stream),
        ("state", ingest_progress.state.name()),
        ("last_error", &last_error),
    ];
    let count = |cell: &AtomicU64| cell.load(Relaxed);
    let numbers = [
        ("events_per_s", count(&source.rate)),
        ("events", count(&source.events)),
        ("messages", count(&source.messages)),
        ("repeated", count(&source.repeated)),
        ("unknown", count(&source.unknown)),
        ("poison", count(&source.poison)),
        ("poison_dropped", count(&source.poison_dropped)),
        ("gaps", count(&source.gaps)),
        ("gap_messages", count(&source.gap_messages)),
        ("reconnects", count(&source.reconnects)),
    ];
    reply.map(texts.len() + numbers.len() + 2);
    for (name, text) in texts {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    write_lag(reply, ingest_progress);
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        reply.int(i64::try_from(number).unwrap_or(i64::MAX));
    }
    reply.bulk(b"partitions");
    reply.array(partitions.len());
    for (number, (ingest_progress, offset)) in partitions {
        reply.map(5);
        reply.bulk(b"partition");
        reply.int(i64::from(*number));
        write_lag(reply, *ingest_progress);
        reply.bulk(b"state");
        reply.bulk(ingest_progress.state.name().as_bytes());
        reply.bulk(b"offset");
        match offset {
            Some(offset) => reply.bulk(source.shown(offset.message).as_bytes()),
            None => reply.null(),
        }
        reply.bulk(b"events_of_message");
        reply.int(offset.map_or(0, |offset| i64::try_from(offset.events).unwrap_or(i64::MAX)));
    }
}

/// Writes the lag, or nil if the broker has not reported a lag.
fn write_lag(reply: &mut Reply<'_>, ingest_progress: IngestProgress) {
    reply.bulk(b"lag");
    match ingest_progress.lag {
        Some(lag) => reply.int(i64::try_from(lag).unwrap_or(i64::MAX)),
        None => reply.null(),
    }
}
