//! Messages become changes: some hundred events, and how far the partition is read, in one step.

use super::dead::{Letter, Letters};
use super::event;
use super::event::Event;
use super::reading::{Chunk, Message, Trouble};
use dataset::cold;
use dataset::cold::fetch::Fetching;
use dataset::engines::events::{Doing, Event as Change, Partition};
use dataset::engines::{Engines, WriteError};
use dataset::offsets::{Moved, Offset};
use node::config::IngestPoison;
use node::roles::node::{Host, Node};
use node::runtime::ingest::{Source, State};
use node::runtime::pause::Paused;
use phantom::Change as Done;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use store::time;

/// After a refusal that passes: how long until the next attempt.
const AGAIN: Duration = Duration::from_millis(50);
/// So long it is tried whether one for an id far from all others passes.
const A_MOMENT: Duration = Duration::from_secs(1);
/// Such refusals are forgotten when so long none has come.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// One place of a message.
struct Item<'a> {
    at: Offset,
    payload: &'a [u8],
    /// What it is, or why it is poison.
    read: Result<Event<'a>, String>,
    /// It is poison, and its letter is written.
    is_buried: bool,
}

/// Takes messages of one partition over.
pub(super) struct Taker<'a> {
    host: &'a Arc<Host>,
    source: &'a Source,
    partition: u32,
    /// In the data set; none if it was never set.
    stored: Option<Offset>,
    /// What is to be read next.
    at: Offset,
    letters: Letters,
    /// Since when ids far from all others have been refused, and when the last one was.
    crowded: Option<(Instant, Instant)>,
}

/// How a step ended that made some events.
enum Step {
    /// Nothing is in the way.
    Well,
    /// The next event is refused, for its own sake.
    Poison(String),
    /// For the moment.
    Later(String),
}

impl<'a> Taker<'a> {
    /// For a reader that begins at `at`, while `stored` is in the data set. Where they differ, as
    /// at the very first start and behind a gap, `at` is stored at once: what is "new" must not be
    /// another message after a restart.
    pub(super) async fn new(
        host: &'a Arc<Host>,
        source: &'a Source,
        partition: u32,
        stored: Option<Offset>,
        at: Offset,
    ) -> Result<Taker<'a>, Trouble> {
        let letters = Letters::new(source, &host.config().durability.dir);
        let mut taker = Taker { host, source, partition, stored, at, letters, crowded: None };
        // What is wrong with the configuration is said before the first message comes.
        taker.may_change().await?;
        if stored != Some(at) {
            taker.make(&mut [], at).await?;
        }
        Ok(taker)
    }

    /// The message that is to be read next.
    pub(super) fn next(&self) -> u128 {
        self.at.message
    }

    /// Takes these messages over, step by step. After each others have their turn.
    pub(super) async fn take(&mut self, chunk: &Chunk) -> Result<(), Trouble> {
        let most = self.source.config.batch;
        let mut items = Vec::with_capacity(most);
        let mut before = self.at.hash;
        for Message { offset, payload, hash } in &chunk.messages {
            // What is taken already is skipped.
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
                    self.make(&mut items, at(events)).await?;
                    items.clear();
                }
            }
            before = *hash;
        }
        if let Some(last) = chunk.messages.last() {
            let end = Offset { message: last.offset + 1, events: 0, hash: last.hash };
            self.make(&mut items, end).await?;
            self.source.messages.fetch_add(chunk.messages.len() as u64, Relaxed);
        }
        Ok(())
    }

    /// Makes these events, and moves the offset to `end`, in as many steps as it takes.
    async fn make(&mut self, all: &mut [Item<'_>], end: Offset) -> Result<(), Trouble> {
        let mut made = 0;
        loop {
            let items = &mut all[made..];
            self.may_change().await?;
            let node = self.host.node();
            let engines = node.engines();
            if event::missing(&self.source.mapped, &engines).is_some() {
                continue;
            }
            let halts = self.bury(items, &engines);
            let (items, to) = match halts {
                Some((0, why)) => return Err(Trouble::Halt(why)),
                // What lies before it first.
                Some((place, _)) => (&items[..place], items[place].at),
                None => (&*items, end),
            };
            fetch(items, &self.source.mapped, &engines).await;
            let bytes = engines.log_bytes_of_events(items.len());
            let Some(reserved) = node.durability.committer().reserve(bytes) else {
                node.durability.room_for(bytes).await;
                continue;
            };
            // From here on nothing is waited for.
            let turn = node.ingest.tallies.enter();
            if let Some(why) = refusal(&node) {
                drop((turn, reserved));
                self.wait(&why).await?;
                continue;
            }
            // They may be others by now.
            let engines = node.engines();
            let (step, done) = self.step(items, to, &engines, reserved)?;
            drop(turn);
            drop((engines, node));
            made += done;
            match step {
                Step::Well if made == all.len() => {
                    self.at = end;
                    self.source.stand(self.partition, State::Running);
                    // Else pages that are woken on this processor would wait for the clock's tick.
                    std::thread::yield_now();
                    tokio::task::yield_now().await;
                    return Ok(());
                }
                Step::Well => {}
                Step::Poison(why) => all[made].read = Err(why),
                Step::Later(why) => self.wait(&why).await?,
            }
        }
    }

    /// Writes the letters of what is poison; or, where the source is to halt before it, gives the
    /// first of that.
    fn bury(&mut self, items: &mut [Item<'_>], engines: &Engines) -> Option<(usize, String)> {
        for (place, item) in items.iter_mut().enumerate().filter(|(_, item)| !item.is_buried) {
            let why = match &item.read {
                Err(why) => Some(why.clone()),
                Ok(event) => event::resolve(event, &self.source.mapped, engines).err(),
            };
            let Some(why) = why else { continue };
            if self.source.config.poison == IngestPoison::Stop {
                let shown = self.source.shown(item.at.message);
                let text = format!(
                    "poison at {shown}, event {}: {why}; TM.INGEST SETOFFSET passes over it",
                    item.at.events
                );
                return Some((place, text));
            }
            let letter = Letter {
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

    /// One step: how it ended, and how many of the items are behind it.
    fn step(
        &mut self,
        items: &[Item<'_>],
        end: Offset,
        engines: &Engines,
        reserved: store::Reserved<'_, dataset::dirty_keys::Mark>,
    ) -> Result<(Step, usize), Trouble> {
        let source = self.source;
        let mut changes = Vec::with_capacity(items.len());
        let mut places = Vec::with_capacity(items.len());
        let mut step = Step::Well;
        let mut to = end;
        for (place, item) in items.iter().enumerate() {
            let Ok(event) = &item.read else { continue };
            match event::resolve(event, &source.mapped, engines) {
                Ok(doing) => {
                    changes.push(Change { id: event.id, doing, at: item.at });
                    places.push(place);
                }
                // What it names has gone since the letters were written.
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
                step = if passes(&error, &mut self.crowded) {
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
        let made = made.map_err(|Moved| Trouble::Ordered)?;
        source.events.fetch_add(made as u64, Relaxed);
        source.repeated.fetch_add(repeated, Relaxed);
        source.unknown.fetch_add(unknown, Relaxed);
        self.stored = Some(changes.get(made).map_or(to, |change| change.at));
        let done = if matches!(step, Step::Well) { items.len() } else { places[made] };
        Ok((step, done))
    }

    /// Until changes are taken; an error: this node is not to make any.
    async fn may_change(&self) -> Result<(), Trouble> {
        loop {
            if may_read(self.host, self.source).is_err() {
                return Err(Trouble::Ordered);
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
                tokio::time::sleep(AGAIN).await;
            } else {
                return Ok(());
            }
        }
    }

    /// Waits a moment: changes are refused, or this one is.
    async fn wait(&self, why: &str) -> Result<(), Trouble> {
        self.source.stand(self.partition, State::Waiting);
        if self.source.note_trouble(self.partition, why) {
            tracing::warn!("ingest '{}' waits: {why}", self.source.config.name);
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => Ok(()),
            () = self.source.told.notified() => Err(Trouble::Ordered),
        }
    }
}

/// Why no change is to be made now, if so: a pause, the role, the disk.
fn refusal(node: &Node) -> Option<String> {
    if node.pause.now() != Paused::Nothing {
        return Some("changes are paused".to_owned());
    }
    node.refusal().map(|refusal| String::from_utf8_lossy(refusal.text()).into_owned())
}

/// Whether a refusal is one of the moment: it is right again when there is room, or the disk can be
/// read. `crowded`: of [`Taker`].
fn passes(error: &WriteError, crowded: &mut Option<(Instant, Instant)>) -> bool {
    match error {
        WriteError::Counter(counter::Error::TooManyOutliers { .. }) => !has_lasted(crowded),
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

/// Whether ids far from all others are refused not just for a moment, in which a range opens for
/// them, or other spaces give memory back. Called at each such refusal.
fn has_lasted(crowded: &mut Option<(Instant, Instant)>) -> bool {
    let now = time::now();
    let since = match *crowded {
        Some((since, last)) if now - last < FORGIVEN_AFTER => since,
        _ => now,
    };
    *crowded = Some((since, now));
    now - since > A_MOMENT
}

/// Has what the events need and lies on the disk read, all of it at the same time, before any
/// stripe is held.
async fn fetch(items: &[Item<'_>], mapped: &[node::config::Mapped], engines: &Engines) {
    if !engines.has_cold() {
        return;
    }
    cold::unpin();
    let mut fetching = Fetching::default();
    for event in items.iter().filter_map(|item| item.read.as_ref().ok()) {
        let Ok(doing) = event::resolve(event, mapped, engines) else { continue };
        let space = match doing {
            Doing::Act(action, member) | Doing::Undo(action, member) => {
                let (flags, counters) = engines.spaces_of(action);
                flags.ask((event.id, &member), true, &mut fetching);
                counters
            }
            Doing::Add(space, ..) | Doing::Set(space, ..) => space,
        };
        if space.is_cold(event.id) {
            space.cold().ask(event.id, &mut fetching);
        }
    }
    if !fetching.is_ready() {
        cold::pin(engines.cold.fetch(fetching).await);
    }
}

/// Whether this node may read the source now; and if not, why.
pub(super) fn may_read(host: &Host, source: &Source) -> Result<(), State> {
    let node = host.now();
    if !node.is_loaded() || !node.replication.is_master() || !node.replication.is_settled() {
        return Err(State::Idle);
    }
    if source.is_paused() { Err(State::Paused) } else { Ok(()) }
}
