//! `tidemark import --from redis://...`: copies counters and flags from a running Redis.
//!
//! One thread per source scans its keys and reads changed keys. The main thread converts their
//! values to commands for several pipelined connections ([`super::pipe`]). Values are set, never
//! incremented, so every step is idempotent. After a failure of either side, the import resumes at
//! the position in its state file, or starts over.
//!
//! Long: the phases of an import are in one file because they share the import's counts and
//! connections.

mod cluster;
mod divided;
mod follow;
mod items;
pub(crate) mod layout;
pub(crate) mod missing;
mod packed;
mod reader;
mod reading;
mod shapes;
pub(crate) mod source;
mod state;
mod values;
mod verify;
mod writer;

use super::args::ImportArgs;
use super::lanes::Lanes;
use super::lines::rate;
use super::pipe::{CommandKind, Pipe};
use super::spaces::{Cluster, Spaces};
use crate::import::rows::AllRows;
use client::{Client, Reply};
use dataset::key_patterns::Kind;
use divided::DividedRows;
use follow::ChangeQueue;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use items::{Item, Read};
use layout::Layout;
use parking_lot::Mutex;
use reader::ScanStats;
use reading::{MissingRowDeletes, ReaderMessage, ReaderParams};
use source::{RedisSource, Side};
use state::{ImportState, MIN_ACK_AGE, ScanPosition, StateFile};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use writer::{Failure, Writer};

const MESSAGES: usize = 16;
const PROGRESS_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between writes of the import's state file. `PROGRESS_LINE_INTERVAL`: interval between
/// progress lines without a terminal.
const STATE_WRITE_INTERVAL: Duration = Duration::from_secs(1);
const PROGRESS_LINE_INTERVAL: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Time without progress after which an import that is stopping exits immediately.
const STUCK: Duration = Duration::from_secs(5);
/// A source with fewer keys than its former number divided by this factor has lost its data.
const LOSS_FACTOR: u64 = 10;

#[derive(Default)]
struct CopySummary {
    seen: ScanStats,
    rows: u64,
    flags: u64,
    unknown: u64,
    bad: u64,
    removals: u64,
    deleted: u64,
}

#[derive(Default)]
struct SourceProgress {
    place: ScanPosition,
    /// Scan positions whose keys were sent to the server, each with the sequence number of the last
    /// key before the position.
    sent: VecDeque<(u64, ScanPosition)>,
    /// Acknowledged scan positions, each with the time of the acknowledgement.
    settling: VecDeque<(Instant, ScanPosition)>,
    /// Batches of changed keys, each with the sequence number of its last key and the time of its
    /// first change.
    following: VecDeque<(u64, Instant)>,
    /// Number of acknowledged batches of changed keys.
    acknowledged: Arc<AtomicU64>,
}

struct RedisImport<'a> {
    args: &'a ImportArgs,
    sources: Vec<RedisSource>,
    layouts: Arc<Vec<Layout>>,
    name: Vec<String>,
    /// Lineage of the server's data set, as recorded in the state file.
    target: String,
    file: StateFile,
    stop: Arc<AtomicBool>,
    /// Number of messages received from the readers. If the number does not change, the import
    /// makes no progress.
    moves: Arc<AtomicU64>,
    /// Maximum number of keys seen in each source.
    had: Vec<u64>,
    /// With `--follow --delete-missing`: ids of the copied sets, by layout.
    sets: HashMap<usize, HashSet<u64>>,
    /// Whether a source has been flushed. If so, the next attempt first unsets the members of
    /// `sets`.
    is_flushed: bool,
    summary: CopySummary,
    /// Whether any key was acknowledged since the last failure.
    advanced: bool,
    /// Whether all readers have finished.
    is_all: bool,
    /// Whether this run resumed an earlier run.
    is_resumed: bool,
    report: Option<Arc<File>>,
}

/// Runs the import. Also returns an error if a key was not copied or the comparison found a
/// difference.
pub(super) fn main(args: &ImportArgs) -> Result<(), String> {
    let started = Instant::now();
    let cacert = args.from_cacert.as_deref();
    let sources = args.from.iter().map(|url| RedisSource::parse(Side::From, url, cacert));
    let sources: Vec<RedisSource> = sources.collect::<Result<_, _>>()?;
    let cannot = |e: io::Error| format!("cannot import into {}: {e}", args.connect.address());
    let (mut remote, spaces) = Spaces::open(&args.connect).map_err(cannot)?;
    spaces.cluster.check()?;
    let layouts = Arc::new(layouts(args, &spaces, &mut remote)?);
    let target = AllRows::open(&args.connect).map_err(cannot)?.0.lineage();
    let mut import = RedisImport {
        args,
        name: sources
            .iter()
            .map(ToString::to_string)
            .chain(layouts.iter().map(|layout| layout.text.clone()))
            .chain([args.connect.address()])
            .collect(),
        had: vec![0; sources.len()],
        sources,
        layouts,
        target,
        file: StateFile::at(&args.state),
        stop: Arc::new(AtomicBool::new(false)),
        moves: Arc::new(AtomicU64::new(0)),
        sets: HashMap::new(),
        is_flushed: false,
        summary: CopySummary::default(),
        advanced: false,
        is_all: true,
        is_resumed: false,
        report: None,
    };
    check_source(&import)?;
    if let Some(path) = &args.report {
        let file = File::create(path).map_err(|e| format!("--report: {}: {e}", path.display()))?;
        import.report = Some(Arc::new(file));
    }
    if !args.only_verify {
        stop_on_signals(&import)?;
        import.copy()?;
        import.print_summary(started);
        if !import.is_all {
            return Err(format!(
                "stopped; run the same command to resume ({})",
                import.file.name()
            ));
        }
        import.check_that_something_was_set()?;
    }
    if args.verify || args.only_verify {
        import.verify(remote, &spaces)?;
    }
    match import.summary.bad {
        0 => Ok(()),
        bad => Err(format!("{} keys could not be copied completely", HumanCount(bad))),
    }
}

/// Warns about data that a source cannot provide, and fails if masters of the source cluster are
/// missing. A cluster node has only the keys of its own slots. A Tidemark server cannot list the
/// members of its sets.
fn check_source(import: &RedisImport<'_>) -> Result<(), String> {
    let mut known = cluster::ClusterNodes::default();
    for source in &import.sources {
        source.resolve()?;
        // If a source is unreachable, its reader retries later.
        let Ok(mut remote) = source.open() else { continue };
        let info = remote.ask(&[b"INFO"]).ok().and_then(Reply::into_text).unwrap_or_default();
        if info.contains("tidemark_version:") && import.layouts.iter().any(Layout::is_flags) {
            eprintln!(
                "{source} is a Tidemark server, whose SCAN does not list sets: flags are not copied"
            );
        }
        if info.contains("cluster_enabled:1") {
            known.note(&mut remote);
        }
    }
    let absent = known.absent();
    if absent.is_empty() || import.args.allow_part {
        return Ok(());
    }
    Err(format!(
        "the cluster has masters that are not in --from: {}. Add them, or use --allow-part",
        absent.join(", ")
    ))
}

/// Returns the layouts of the options, or those of the server's own key patterns, with the
/// declarations of their counters.
fn layouts(args: &ImportArgs, spaces: &Spaces, remote: &mut Client) -> Result<Vec<Layout>, String> {
    let named =
        |text: &String| Layout::parse_all(text).map_err(|e| format!("--layout \"{text}\": {e}"));
    let layouts = args.layout.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    let mut layouts: Vec<Layout> = layouts.into_iter().flatten().collect();
    if layouts.is_empty() {
        let in_cluster = matches!(spaces.cluster, Cluster::Part(_));
        for (section, names) in [("counter", &spaces.counters), ("existence", &spaces.existences)] {
            let keys: &[(&str, Kind)] = match section {
                "counter" => &[("rows", Kind::Row), ("cells", Kind::Cell)],
                _ => &[("pairs", Kind::Pair)],
            };
            for (name, (key, kind)) in names.iter().flat_map(|n| keys.iter().map(move |k| (n, k))) {
                let patterns = setting(remote, &format!("{section}.{name}.{key}"))?;
                let Some(patterns) = patterns else { continue };
                let fields = spaces.fields.get(name);
                let first = fields.and_then(|all| all.first()).map_or("", String::as_str);
                let padded_ids = setting(remote, &format!("{section}.{name}.padded_ids"))?;
                let padded_ids = padded_ids.is_some_and(|text| text == "yes" || text == "true");
                layouts.extend(layout::of_patterns(
                    *kind, name, &patterns, first, padded_ids, in_cluster,
                )?);
            }
        }
    }
    for layout in &mut layouts {
        let (what, known) = match layout.is_flags() {
            true => ("existence", &spaces.existences),
            false => ("counter", &spaces.counters),
        };
        if !known.contains(&layout.space) {
            let (space, all) = (&layout.space, known.join(", "));
            return Err(format!("no such {what} space '{space}'; the server has: {all}"));
        }
        if !layout.is_flags() {
            layout.declare(spaces.declared.get(&layout.space).map_or(&[][..], Vec::as_slice))?;
        }
    }
    // Several patterns of one space may belong to one row, so only layouts from options can
    // conflict.
    if !args.layout.is_empty() {
        check_conflicts(&layouts)?;
    }
    let all = layouts.clone();
    layouts.iter_mut().for_each(|layout| layout.note_others(&all));
    if layouts.is_empty() {
        return Err("the spaces of the server have no key patterns: use --layout".to_owned());
    }
    Ok(layouts)
}

/// Refuses two layouts that store the same counter, because the value that is read last would
/// overwrite the other.
fn check_conflicts(layouts: &[Layout]) -> Result<(), String> {
    for (at, one) in layouts.iter().enumerate() {
        let conflict = |other: &Layout| Some((other.text.clone(), one.conflict(other)?.to_owned()));
        if let Some((other, field)) = layouts[..at].iter().find_map(conflict) {
            return Err(format!(
                "'{field}' of the space '{}' has two sources, --layout \"{other}\" and \"{}\": use \
                 different fields=; for the shards of a counter use one layout, with {{shard}} in \
                 key= and sum=",
                one.space, one.text
            ));
        }
    }
    Ok(())
}

fn setting(remote: &mut Client, name: &str) -> Result<Option<String>, String> {
    let reply = remote
        .ask(&[b"CONFIG", b"GET", name.as_bytes()])
        .map_err(|e| format!("cannot read the key patterns of the server: {e}. Use --layout"))?;
    let Reply::Array(mut pair) = reply else { return Ok(None) };
    Ok(pair.pop().and_then(Reply::into_text))
}

/// The first signal requests a stop; the second signal exits immediately. The process also exits
/// after the first signal if there is no progress, for example because a peer hangs.
fn stop_on_signals(import: &RedisImport<'_>) -> Result<(), String> {
    let (stop, moves, state) = (import.stop.clone(), import.moves.clone(), import.file.name());
    let wait = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            let stuck = async {
                while !stop.load(Relaxed) {
                    tokio::time::sleep(PROGRESS_POLL_INTERVAL).await;
                }
                let mut before = moves.load(Relaxed);
                loop {
                    tokio::time::sleep(STUCK).await;
                    let now = moves.load(Relaxed);
                    if now == before {
                        return;
                    }
                    before = now;
                }
            };
            tokio::pin!(stuck);
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    () = &mut stuck => {
                        eprintln!(
                            "stopped: no progress; run the same command to resume ({state})"
                        );
                        std::process::exit(1);
                    }
                }
                if stop.swap(true, Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    };
    let spawned = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    spawned.map(|_| ()).map_err(|error| error.to_string())
}

impl RedisImport<'_> {
    /// Repeats the copy until an attempt succeeds, or until no attempt has made progress for
    /// `--retry` seconds.
    fn copy(&mut self) -> Result<(), String> {
        let mut failing: Option<Instant> = None;
        loop {
            self.advanced = false;
            match self.attempt() {
                Ok(()) => return Ok(()),
                Err(Failure::Permanent(reason)) => return Err(reason),
                Err(Failure::Broken(reason)) => {
                    if self.advanced {
                        failing = None;
                    }
                    let since = *failing.get_or_insert_with(Instant::now);
                    let stopped = self.stop.load(Relaxed);
                    if stopped || since.elapsed() >= Duration::from_secs(self.args.retry) {
                        return Err(format!(
                            "{reason} (run the same command to resume: {})",
                            self.file.name()
                        ));
                    }
                    if self.advanced || since.elapsed() < RETRY_INTERVAL {
                        eprintln!("{reason}; retrying for {} s", self.args.retry);
                    }
                    std::thread::sleep(RETRY_INTERVAL);
                }
            }
        }
    }

    fn attempt(&mut self) -> Result<(), Failure> {
        let mut progress = self.progress()?;
        self.check_target()?;
        let mut changes = Vec::new();
        if self.args.follow {
            for source in &self.sources {
                // Subscribe before the first key is read, so that no change is missed.
                let listening = follow::listen(source, &self.layouts);
                changes.push(listening.map_err(|error| Failure::of(source, &error))?);
            }
        }
        let into = || format!("cannot import into {}", self.args.connect.address());
        let pipe = self.pipe().map_err(|error| Failure::of(&into(), &error))?;
        let (tell, told) = sync_channel(MESSAGES);
        self.start_readers(&progress, &changes, &tell)?;
        drop(tell);
        // An attempt that resumes an earlier scan does not read that scan's keys again.
        let may_be_any = progress.iter().any(|of| of.place.cursor != 0 || of.place.done);
        self.is_resumed |= may_be_any;
        let divided = DividedRows::new(may_be_any);
        let progress_bar = progress_bar(&self.args.from);
        let executed = pipe.executed();
        let (layouts, deletes) = (self.layouts.clone(), self.args.delete_missing);
        let report = self.report.clone();
        let mut writer = Writer::new(pipe, layouts, deletes, divided, report, progress_bar.clone());
        self.unset_flushed(&mut writer);
        let received = self.receive(&told, &mut progress, &mut writer, &changes);
        self.summary.removals += writer.lost;
        self.is_flushed |= changes.iter().any(|changes| changes.is_flushed());
        // The server executes the commands that were already sent, even if the attempt has failed.
        let (bad, unknown) = match received {
            Ok(()) => writer.finish(),
            Err(failure) => (writer.abandon(), Err(failure)),
        };
        progress_bar.finish_and_clear();
        self.summary.bad += bad;
        self.summary.rows += executed.of(CommandKind::Row);
        self.summary.flags += executed.of(CommandKind::Flag);
        self.summary.deleted += executed.of(CommandKind::Delete);
        if !self.args.delete_missing {
            let removals = |changes: &Arc<ChangeQueue>| changes.removals();
            self.summary.removals += changes.iter().map(removals).sum::<u64>();
        }
        self.summary.unknown += unknown?;
        if self.is_all {
            self.file.remove();
        }
        Ok(())
    }

    /// Fails if the server's data set has been replaced since a failure, because the new data set
    /// lacks the copied data.
    fn check_target(&self) -> Result<(), Failure> {
        let connect = &self.args.connect;
        let of = |error: io::Error| {
            Failure::of(&format!("cannot import into {}", connect.address()), &error)
        };
        let now = AllRows::open(connect).map_err(of)?.0.lineage();
        if [&now, &self.target].into_iter().any(String::is_empty) || now == self.target {
            return Ok(());
        }
        Err(Failure::Permanent(format!(
            "the data set of {} has changed, and the copied data are gone; delete {} and start \
             over",
            connect.address(),
            self.file.name()
        )))
    }

    /// Unsets the members of copied sets after a FLUSHALL of their source. After a FLUSHALL, a scan
    /// finds no keys.
    fn unset_flushed(&self, writer: &mut Writer) {
        if !self.is_flushed {
            return;
        }
        for (&layout, ids) in &self.sets {
            for &id in ids {
                let key = self.layouts[layout].key(id, b"").unwrap_or_default();
                writer.push(Read::of(key, layout, vec![Item::Unset(id)]));
            }
        }
    }

    fn note_sets(&mut self, reads: &[Read]) {
        if !(self.args.follow && self.args.delete_missing) {
            return;
        }
        for read in reads.iter().filter(|read| self.layouts[read.layout].is_flags()) {
            if let Some(item) = read.items.iter().find(|item| matches!(item, Item::Member(..))) {
                self.sets.entry(read.layout).or_default().insert(item.id());
            }
        }
    }

    /// Fails if a source seems to have lost its keys, for example because it restarted without its
    /// dump file. In that case the import deletes nothing, unless `--allow-loss` is given.
    fn check_loss(&mut self, source: usize, keys: u64) -> Result<(), Failure> {
        let had = self.had[source];
        self.had[source] = had.max(keys);
        let deletes = self.args.delete_missing && !self.args.allow_loss && !self.is_flushed;
        if !deletes || keys * LOSS_FACTOR >= had && keys > 0 {
            return Ok(());
        }
        let before = match had {
            0 => String::new(),
            had => format!(", but had {} before", HumanCount(had)),
        };
        Err(Failure::Permanent(format!(
            "{} has {} keys{before}: --delete-missing would delete the others on the server. If \
             this is intended, start over with --allow-loss",
            self.sources[source],
            HumanCount(keys)
        )))
    }

    /// Returns the start position of each source.
    fn progress(&self) -> Result<Vec<SourceProgress>, Failure> {
        let state = self.file.read(&self.name, &self.target).map_err(Failure::Permanent)?;
        let begin = |source: &RedisSource| {
            let name = source.to_string();
            let known = state.iter().flat_map(|state| &state.places).find(|p| p.source == name);
            // With --follow, changes before the subscription are unknown. With --delete-missing,
            // all keys must be read. Both require a full scan.
            let known = known.filter(|_| !self.args.follow && !self.args.delete_missing);
            let place =
                known.cloned().unwrap_or(ScanPosition { source: name, ..ScanPosition::default() });
            SourceProgress { place, ..SourceProgress::default() }
        };
        Ok(self.sources.iter().map(begin).collect())
    }

    fn start_readers(
        &self,
        progress: &[SourceProgress],
        changes: &[Arc<ChangeQueue>],
        tell: &SyncSender<(usize, ReaderMessage)>,
    ) -> Result<(), Failure> {
        let deletes = self.args.delete_missing.then(|| {
            Arc::new(MissingRowDeletes {
                connect: self.args.connect.clone(),
                sources: self.sources.clone(),
                ambiguous_ids: Mutex::default(),
                scanning: AtomicUsize::new(self.sources.len()),
            })
        });
        for (number, of) in progress.iter().enumerate() {
            let reading = ReaderParams {
                number,
                sources: self.sources.clone(),
                layouts: self.layouts.clone(),
                place: of.place.clone(),
                rate: self.args.rate.map(|rate| rate / self.sources.len() as f64),
                changes: changes.get(number).cloned(),
                deletes: deletes.clone(),
                renews: self.args.renew_sets,
                acknowledged: of.acknowledged.clone(),
                until_idle: self.args.until_idle.map(Duration::from_secs),
                stop: self.stop.clone(),
                tell: tell.clone(),
            };
            let spawned =
                std::thread::Builder::new().name("reader".to_owned()).spawn(move || reading.run());
            spawned.map_err(|error| Failure::Permanent(error.to_string()))?;
        }
        Ok(())
    }

    fn pipe(&self) -> io::Result<Pipe> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Reconnect for each attempt, because the masters of a cluster can change.
        let (lanes, spaces) =
            runtime.block_on(Lanes::open(&self.args.connect, self.args.connections))?;
        spaces.cluster.check().map_err(io::Error::other)?;
        Pipe::start(lanes, runtime)
    }

    fn receive(
        &mut self,
        told: &Receiver<(usize, ReaderMessage)>,
        progress: &mut [SourceProgress],
        writer: &mut Writer,
        changes: &[Arc<ChangeQueue>],
    ) -> Result<(), Failure> {
        let (mut looked, mut written, mut said) = (Instant::now(), Instant::now(), Instant::now());
        let mut totals = vec![0; progress.len()];
        loop {
            match told.recv_timeout(PROGRESS_POLL_INTERVAL) {
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                // The queue is empty, so send chunks that are not full.
                Err(RecvTimeoutError::Timeout) => writer.pipe.flush(),
                Ok((source, told)) => {
                    self.moves.fetch_add(1, Relaxed);
                    if let ReaderMessage::Started(keys, _) = &told {
                        self.check_loss(source, *keys)?;
                    }
                    if let ReaderMessage::Read(reads) = &told {
                        self.note_sets(reads);
                    }
                    let of = &mut progress[source];
                    match told {
                        ReaderMessage::Started(keys, place) => {
                            totals[source] = keys;
                            writer.progress_bar.set_length(totals.iter().sum());
                            writer.progress_bar.inc(place.keys);
                            of.place = place;
                        }
                        ReaderMessage::Read(reads) => {
                            reads.into_iter().for_each(|read| writer.push(read))
                        }
                        ReaderMessage::ScanStepDone(place, seen) => {
                            writer.progress_bar.inc(seen.keys);
                            self.summary.seen.merge(seen);
                            if place.done && self.args.follow {
                                let source = &self.sources[source];
                                writer.progress_bar.suspend(|| {
                                    eprintln!("{source}: read all keys; following changes")
                                });
                            }
                            of.sent.push_back((writer.number, place));
                        }
                        ReaderMessage::ChangesRead(since) => {
                            of.following.push_back((writer.number, since))
                        }
                        ReaderMessage::Ended(Ok(is_all)) => self.is_all &= is_all,
                        ReaderMessage::Ended(Err(error)) => {
                            return Err(Failure::of(&self.sources[source], &error));
                        }
                    }
                }
            }
            if looked.elapsed() < PROGRESS_POLL_INTERVAL {
                continue;
            }
            looked = Instant::now();
            writer.events()?;
            self.update_progress(progress, writer, changes);
            if written.elapsed() >= STATE_WRITE_INTERVAL {
                written = Instant::now();
                self.write(progress)?;
            }
            if said.elapsed() >= PROGRESS_LINE_INTERVAL && writer.progress_bar.is_hidden() {
                said = Instant::now();
                eprintln!(
                    "{} keys. {}",
                    HumanCount(self.summary.seen.keys),
                    writer.progress_bar.message()
                );
            }
        }
    }

    /// Updates the progress from the acknowledged keys.
    fn update_progress(
        &mut self,
        progress: &mut [SourceProgress],
        writer: &mut Writer,
        changes: &[Arc<ChangeQueue>],
    ) {
        let answered = writer.answered;
        let (mut behind, mut since) = (0, None);
        for of in progress {
            while of.sent.front().is_some_and(|(number, _)| *number <= answered) {
                let place = of.sent.pop_front().map(|(_, place)| place).unwrap_or_default();
                of.settling.push_back((Instant::now(), place));
            }
            while of.following.front().is_some_and(|(number, _)| *number <= answered) {
                of.following.pop_front();
                of.acknowledged.fetch_add(1, Relaxed);
            }
            while of.settling.front().is_some_and(|(when, _)| when.elapsed() >= MIN_ACK_AGE) {
                of.place = of.settling.pop_front().map(|(_, place)| place).unwrap_or_default();
                self.advanced = true;
            }
            since = since.into_iter().chain(of.following.front().map(|(_, since)| *since)).min();
        }
        let mut silent = Duration::ZERO;
        for changes in changes {
            silent = silent.max(changes.silent());
            let (keys, first) = changes.waiting();
            behind += keys;
            since = since.into_iter().chain(first).min();
        }
        if self.args.follow {
            let lag = since.map_or(0, |since: Instant| since.elapsed().as_millis());
            let mut text = format!("{behind} changed keys to read, lag {lag} ms");
            // If no message has arrived from the source for some time, an empty queue does not
            // prove that the import is up to date.
            if silent >= follow::SILENCE_WARNING_AGE {
                text = format!("no reply from the source for {} s; {text}", silent.as_secs());
            }
            writer.progress_bar.set_message(text);
        }
    }

    fn write(&self, progress: &[SourceProgress]) -> Result<(), Failure> {
        if self.args.follow {
            return Ok(());
        }
        let places = progress.iter().map(|of| of.place.clone()).collect();
        let (import, target) = (self.name.clone(), self.target.clone());
        let state = ImportState { import, target, places };
        self.file.write(&state).map_err(Failure::Permanent)
    }

    fn print_summary(&self, started: Instant) {
        let CopySummary { ref seen, rows, flags, unknown, bad, removals, deleted } = self.summary;
        let keys = seen.keys;
        let seconds = started.elapsed();
        let rate = keys as f64 / seconds.as_secs_f64().max(0.001);
        let mut text = format!(
            "{} keys in {} ({}/s); {} rows set, {} flags",
            HumanCount(keys),
            HumanDuration(seconds),
            HumanCount(rate as u64),
            HumanCount(rows),
            HumanCount(flags)
        );
        if unknown > 0 {
            text += &format!("; {} below the horizon", HumanCount(unknown));
        }
        if deleted > 0 {
            text += &format!("; {} rows deleted that the source lacks", HumanCount(deleted));
        }
        if removals > 0 {
            text += &format!(
                "; {} removals of members not copied, because notifications do not name members \
                 ({})",
                HumanCount(removals),
                if self.args.delete_missing {
                    "start over with --renew-sets"
                } else {
                    "--delete-missing"
                }
            );
        }
        let left = [
            (&seen.unmatched_keys, "keys match no pattern"),
            (&seen.foreign, "fields are not counters of their space (use fields= to rename them)"),
            (&seen.expiring, "keys have an expiration, which is not copied"),
        ];
        for (shapes, what) in left.into_iter().filter(|(shapes, _)| shapes.total > 0) {
            text += &format!("; {} {what} ({shapes})", HumanCount(shapes.total));
        }
        // A closed standard output is not a failure of the import.
        let _ = writeln!(io::stdout(), "{text}; {} bad keys", HumanCount(bad));
    }

    /// Fails if the import copied nothing, because the key patterns or the address are probably
    /// wrong.
    fn check_that_something_was_set(&self) -> Result<(), String> {
        let CopySummary { ref seen, rows, flags, deleted, bad, .. } = self.summary;
        let keys = seen.keys;
        // A resumed import, or an import that follows a source without keys, may have nothing to
        // copy.
        let is_begun = self.is_resumed || (self.args.follow && keys == 0);
        if rows + flags + deleted + bad > 0 || is_begun {
            return Ok(());
        }
        let patterns: Vec<&str> = self.layouts.iter().map(|layout| &layout.glob[..]).collect();
        Err(match keys {
            0 => {
                "nothing was copied: the source has no keys (check the database number)".to_owned()
            }
            _ if seen.foreign.total > 0 => format!(
                "nothing was copied: the fields of the keys are not counters ({}); use --layout \
                 with fields=",
                seen.foreign
            ),
            _ => format!(
                "nothing was copied: none of {} keys matches a pattern ({}); use --layout",
                HumanCount(keys),
                patterns.join(", ")
            ),
        })
    }

    fn verify(&self, ours: Client, spaces: &Spaces) -> Result<(), String> {
        let started = Instant::now();
        let progress = progress_bar(&self.args.from);
        let all = AllRows::open(&self.args.connect).map(|(all, _)| all);
        let all = all.map_err(|error| format!("cannot verify: {error}"))?;
        let verify = verify::Verify {
            ours,
            layouts: self.layouts.clone(),
            order: &spaces.fields,
            progress,
            divided: DividedRows::default(),
            ambiguous_ids: missing::AmbiguousIds::default(),
            is_after_copy: !self.args.only_verify,
            allow_extra: self.args.allow_extra,
            told: 0,
            report: verify::Report::default(),
        };
        let report = verify.run(all, &self.sources, self.report.as_deref());
        let report = report.map_err(|error| format!("cannot verify: {error}"))?;
        let verify::Report { rows, flags, unknown, unreadable, differ, missing } = report;
        let _ = writeln!(
            io::stdout(),
            "verified in {}: {} rows, {} flags ({} below the horizon); {} keys not readable; {} \
             keys differ; {} extra rows",
            HumanDuration(started.elapsed()),
            HumanCount(rows),
            HumanCount(flags),
            HumanCount(unknown),
            HumanCount(unreadable),
            HumanCount(differ),
            HumanCount(missing)
        );
        if differ + unreadable + missing > 0 {
            return Err("the source and the server differ".to_owned());
        }
        Ok(())
    }
}

fn progress_bar(from: &[String]) -> ProgressBar {
    let template = "{wide_bar} {percent:>3} %  {human_pos} keys, {rate}, {eta} left  {msg}";
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("rate", rate);
    // This length is a placeholder until the readers report the number of keys.
    ProgressBar::new(from.len() as u64).with_style(style)
}
