//! Applies messages: each step commits some hundred events and the new offset as one batch.

use super::dead::{DeadLetter, DeadLetterFile};
use super::event;
use super::event::Event;
use super::reading::{Chunk, Message, ReadStopReason};
use dataset::cold;
use dataset::cold::fetch::ColdReads;
use dataset::engines::events::{Event as Change, EventEffect, Partition};
use dataset::engines::{Engines, WriteError};
use dataset::offsets::{Moved, Offset};
use node::config::IngestPoison;
use node::roles::node::{Host, Node};
use node::runtime::ingest::{IngestSource, SourceState};
use node::runtime::pause::Paused;
use phantom::Change as Done;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use store::time;

/// Delay before a temporarily refused change is retried.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Time after which refusals of outliers (ids far above all tables) no longer count as temporary.
const TEMPORARY_REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Time without refusals of outlier ids after which [`TEMPORARY_REFUSAL_TIME`] starts over.
const REFUSAL_RESET_TIME: Duration = Duration::from_secs(60);

struct Item<'a> {
    at: Offset,
    payload: &'a [u8],
    /// The parsed event, or the reason why it is poison.
    read: Result<Event<'a>, String>,
    /// Whether the dead letter of a poison event is written.
    is_buried: bool,
}

/// Applies the messages of one partition.
pub(super) struct EventApplier<'a> {
    host: &'a Arc<Host>,
    source: &'a IngestSource,
    partition: u32,
    /// Offset stored in the data set, if any.
    stored: Option<Offset>,
    /// Offset of the next event to read.
    at: Offset,
    letters: DeadLetterFile,
    /// Times of the first and the last refusal of outlier ids.
    outlier_refusals: Option<(Instant, Instant)>,
}

enum Step {
    Completed,
    /// The next event is permanently refused.
    Poison(String),
    /// The next event is temporarily refused.
    Later(String),
}

impl<'a> EventApplier<'a> {
    /// Creates the applier for a reader that starts at `at`. Stores `at` immediately if the data
    /// set has another offset (first start, or a gap). Otherwise `start = "new"` would select a
    /// different message after a restart.
    pub(super) async fn new(
        host: &'a Arc<Host>,
        source: &'a IngestSource,
        partition: u32,
        stored: Option<Offset>,
        at: Offset,
    ) -> Result<EventApplier<'a>, ReadStopReason> {
        let letters = DeadLetterFile::new(source, &host.config().durability.dir);
        let mut taker =
            EventApplier { host, source, partition, stored, at, letters, outlier_refusals: None };
        // Report configuration errors before the first message arrives.
        taker.may_change().await?;
        if stored != Some(at) {
            taker.apply_all(&mut [], at).await?;
        }
        Ok(taker)
    }

    pub(super) fn next(&self) -> u128 {
        self.at.message
    }

    /// Applies the messages step by step and yields after each step.
    pub(super) async fn take(&mut self, chunk: &Chunk) -> Result<(), ReadStopReason> {
        let most = self.source.config.batch;
        let mut items = Vec::with_capacity(most);
        let mut before = self.at.hash;
        for Message { offset, payload, hash } in &chunk.messages {
            // Number of events of this message that were already applied.
            let skipped = if *offset == self.at.message { self.at.events } else { 0 };
            let at = |events| {
                let hash = if events == 0 { before } else { *hash };
                Offset { message: *offset, events, hash }
            };
            let mut rest = &chunk.bytes[payload.clone()];
            let mut events = 0;
            while let Some((payload, read)) =
                event::next(&mut rest, &self.source.config, &self.source.mapped)
            {
                events += 1;
                if events <= skipped {
                    continue;
                }
                items.push(Item { at: at(events - 1), payload, read, is_buried: false });
                if items.len() == most {
                    self.apply_all(&mut items, at(events)).await?;
                    items.clear();
                }
            }
            before = *hash;
        }
        if let Some(last) = chunk.messages.last() {
            let end = Offset { message: last.offset + 1, events: 0, hash: last.hash };
            self.apply_all(&mut items, end).await?;
            self.source.messages.fetch_add(chunk.messages.len() as u64, Relaxed);
        }
        Ok(())
    }

    /// Applies these events and advances the offset to `end`, in one or more steps.
    async fn apply_all(&mut self, all: &mut [Item<'_>], end: Offset) -> Result<(), ReadStopReason> {
        let mut made = 0;
        loop {
            let items = &mut all[made..];
            self.may_change().await?;
            let node = self.host.node();
            let engines = node.engines();
            if event::missing(&self.source.mapped, &engines).is_some() {
                continue;
            }
            let halts = self.write_dead_letters(items, &engines);
            let (items, to) = match halts {
                Some((0, why)) => return Err(ReadStopReason::Halt(why)),
                // Apply the events that precede the event which halts the source.
                Some((place, _)) => (&items[..place], items[place].at),
                None => (&*items, end),
            };
            fetch(items, &self.source.mapped, &engines).await;
            let bytes = engines.log_bytes_of_events(items.len());
            let Some(reserved) = node.durability.committer().reserve(bytes) else {
                node.durability.room_for(bytes).await;
                continue;
            };
            // There must be no `await` from here to the end of the step.
            let turn = node.ingest.tallies.enter();
            if let Some(why) = refusal(&node) {
                drop((turn, reserved));
                self.wait(&why).await?;
                continue;
            }
            // The schema may have changed while this function waited.
            let engines = node.engines();
            let (step, done) = self.step(items, to, &engines, reserved)?;
            drop(turn);
            drop((engines, node));
            made += done;
            match step {
                Step::Completed if made == all.len() => {
                    self.at = end;
                    self.source.stand(self.partition, SourceState::Running);
                    // Yield the core. Otherwise a worker with a page request would wait for the
                    // next scheduler tick.
                    std::thread::yield_now();
                    tokio::task::yield_now().await;
                    return Ok(());
                }
                Step::Completed => {}
                Step::Poison(why) => all[made].read = Err(why),
                Step::Later(why) => self.wait(&why).await?,
            }
        }
    }

    /// Writes the dead letters of poison events. If `poison = "stop"` is configured, returns the
    /// first poison event instead.
    fn write_dead_letters(
        &mut self,
        items: &mut [Item<'_>],
        engines: &Engines,
    ) -> Option<(usize, String)> {
        for (place, item) in items.iter_mut().enumerate().filter(|(_, item)| !item.is_buried) {
            let why = match &item.read {
                Err(why) => Some(why.clone()),
                Ok(event) => event::resolve(event, &self.source.mapped, engines).err(),
            };
            let Some(why) = why else { continue };
            if self.source.config.poison == IngestPoison::Stop {
                let shown = self.source.shown(item.at.message);
                let text = format!(
                    "poison event {} of message {shown}: {why}; skip it with TM.INGEST SETOFFSET",
                    item.at.events
                );
                return Some((place, text));
            }
            let letter = DeadLetter {
                partition: self.partition,
                message: item.at.message,
                event: item.at.events,
                why: &why,
                payload: item.payload,
            };
            self.letters.put(self.source, &letter);
            (item.read, item.is_buried) = (Err(why), true);
        }
        None
    }

    /// Executes one step. Returns the result of the step and the number of items completed.
    fn step(
        &mut self,
        items: &[Item<'_>],
        end: Offset,
        engines: &Engines,
        reserved: store::BatchReservation<'_, dataset::dirty_keys::Mark>,
    ) -> Result<(Step, usize), ReadStopReason> {
        let source = self.source;
        let mut changes = Vec::with_capacity(items.len());
        let mut places = Vec::with_capacity(items.len());
        let mut step = Step::Completed;
        let mut to = end;
        for (place, item) in items.iter().enumerate() {
            let Ok(event) = &item.read else { continue };
            match event::resolve(event, &source.mapped, engines) {
                Ok(doing) => {
                    changes.push(Change { id: event.id, doing, at: item.at });
                    places.push(place);
                }
                // The action or counter was dropped after `write_dead_letters` had checked the
                // event.
                Err(why) => {
                    let is_missing = event::missing(&source.mapped, engines).is_some();
                    step = if is_missing { Step::Later(why) } else { Step::Poison(why) };
                    to = item.at;
                    places.push(place);
                    break;
                }
            }
        }
        let (mut repeated, mut unknown) = (0, 0);
        let each = |_, done: Result<Done, WriteError>| match done {
            Ok(Done::Unchanged) => {
                repeated += 1;
                ControlFlow::Continue(())
            }
            Ok(Done::Unknown) => {
                unknown += 1;
                ControlFlow::Continue(())
            }
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                let why = error.to_string();
                step = if passes(&error, &mut self.outlier_refusals) {
                    Step::Later(why)
                } else {
                    Step::Poison(why)
                };
                ControlFlow::Break(())
            }
        };
        let partition = Partition { source: &source.config.name, number: self.partition };
        let made = engines.take_over(partition, &changes, (self.stored, to), reserved, each);
        cold::unpin();
        let made = made.map_err(|Moved| ReadStopReason::Ordered)?;
        source.events.fetch_add(made as u64, Relaxed);
        source.repeated.fetch_add(repeated, Relaxed);
        source.unknown.fetch_add(unknown, Relaxed);
        self.stored = Some(changes.get(made).map_or(to, |change| change.at));
        let done = if matches!(step, Step::Completed) { items.len() } else { places[made] };
        Ok((step, done))
    }

    /// Waits until the node accepts changes. Fails if this node must not apply any changes.
    async fn may_change(&self) -> Result<(), ReadStopReason> {
        loop {
            if may_read(self.host, self.source).is_err() {
                return Err(ReadStopReason::Ordered);
            }
            let node = self.host.node();
            let missing = || event::missing(&self.source.mapped, &node.engines());
            if let Some(why) = refusal(&node).or_else(missing) {
                drop(node);
                self.wait(&why).await?;
            } else if node.durability.is_crowded() {
                node.durability.room().await;
            } else if node.is_spilling() {
                drop(node);
                tokio::time::sleep(RETRY_DELAY).await;
            } else {
                return Ok(());
            }
        }
    }

    /// Waits briefly after a refusal, or until a command stops the reader.
    async fn wait(&self, why: &str) -> Result<(), ReadStopReason> {
        self.source.stand(self.partition, SourceState::Waiting);
        if self.source.note_trouble(self.partition, why) {
            tracing::warn!("ingest '{}' is waiting: {why}", self.source.config.name);
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_DELAY) => Ok(()),
            () = self.source.told.notified() => Err(ReadStopReason::Ordered),
        }
    }
}

/// Returns why the node refuses changes: pause, role, or disk.
fn refusal(node: &Node) -> Option<String> {
    if node.pause.now() != Paused::Nothing {
        return Some("writes are paused".to_owned());
    }
    node.refusal().map(|refusal| String::from_utf8_lossy(refusal.text()).into_owned())
}

/// Returns whether a refusal is temporary, so that the change can succeed once memory is available
/// or the disk is readable. `outlier_refusals` is a field of [`EventApplier`].
fn passes(error: &WriteError, outlier_refusals: &mut Option<(Instant, Instant)>) -> bool {
    match error {
        WriteError::Counter(counter::Error::TooManyOutliers { .. }) => {
            !refusals_persist(outlier_refusals)
        }
        WriteError::Counter(error) => matches!(
            error,
            counter::Error::Full { .. } | counter::Error::NoMemory | counter::Error::Unreadable(_)
        ),
        WriteError::Phantom(error) => matches!(
            error,
            phantom::Error::Full
                | phantom::Error::LateFull
                | phantom::Error::Memory(_)
                | phantom::Error::Unreadable(_)
        ),
        WriteError::Unreadable(_) | WriteError::LedgerFull(_) => true,
        _ => false,
    }
}

/// Records that the space refused an outlier id. Returns whether the refusals have lasted longer
/// than `TEMPORARY_REFUSAL_TIME`. Until then the refusals may be temporary, because a new table
/// range may open, or other spaces may release memory.
fn refusals_persist(outlier_refusals: &mut Option<(Instant, Instant)>) -> bool {
    let now = time::now();
    let since = match *outlier_refusals {
        Some((since, last)) if now - last < REFUSAL_RESET_TIME => since,
        _ => now,
    };
    *outlier_refusals = Some((since, now));
    now - since > TEMPORARY_REFUSAL_TIME
}

/// Reads all cold rows that the events need, concurrently, before any stripe is locked.
async fn fetch(items: &[Item<'_>], mapped: &[node::config::Mapped], engines: &Engines) {
    if !engines.has_cold() {
        return;
    }
    cold::unpin();
    let mut fetching = ColdReads::default();
    for event in items.iter().filter_map(|item| item.read.as_ref().ok()) {
        let Ok(doing) = event::resolve(event, mapped, engines) else { continue };
        let space = match doing {
            EventEffect::Act(action, member) | EventEffect::Undo(action, member) => {
                let (flags, counters) = engines.spaces_of(action);
                flags.ask((event.id, &member), true, &mut fetching);
                counters
            }
            EventEffect::Add(space, ..) | EventEffect::Set(space, ..) => space,
        };
        if space.is_cold(event.id) {
            space.cold().ask(event.id, &mut fetching);
        }
    }
    if !fetching.is_ready() {
        cold::pin(engines.cold.fetch(fetching).await);
    }
}

/// Checks whether this node may read the source. The error is the state that the source then
/// reports.
pub(super) fn may_read(host: &Host, source: &IngestSource) -> Result<(), SourceState> {
    let node = host.now();
    if !node.is_loaded() || !node.replication.is_master() || !node.replication.log_matches_role() {
        return Err(SourceState::Idle);
    }
    if source.is_paused() { Err(SourceState::Paused) } else { Ok(()) }
}
