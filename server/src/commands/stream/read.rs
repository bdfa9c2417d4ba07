//! XREAD and XREADGROUP.

use super::deliver::Member;
use super::{Found, Log, count, id, scope};
use super::{READ_COST, STREAM};
use crate::commands::call::{Call, answer};
use crate::commands::command::{Command, Run::Once};
use crate::commands::wait::{DEMOTED, UNBLOCKED, deadline};
use dataset::changes::{ChangeCursor, Id, Scope, Start};
use dataset::groups::Key;
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{KeyArgs, Outcome, flag};
use node::command::stream_options::Options;
use node::command::streams::is_stream;
use node::roles::node::Node;
use node::runtime::blocking_task::apart;
use node::runtime::clients::Client;
use resp::{Protocol, Reply};
use std::sync::Arc;
use store::Position;
use tokio::time::Instant;

#[rustfmt::skip]
pub(crate) const XREAD: &[Command] = &[
    STREAM.row("xread", -4, flag::READONLY,
        "[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]", Once(xread),
        "Returns the entries after an id in log order, or nil if there are none. The stream \
         tm:changes contains the changes of all spaces, and tm:changes:NAME those of one space. \
         Returns at most 10000 entries per stream, even without COUNT. Fails with PARTED if the id \
         is not part of this server's history, and with TRIMMED if the log no longer contains it. \
         Id 0-0 is the beginning of the history. Returns only entries that are synced to disk.")
        .keys(KeyArgs::Streams(1))
        .cost(READ_COST),
];

#[rustfmt::skip]
pub(crate) const XREADGROUP: &[Command] = &[
    STREAM.row("xreadgroup", -7, flag::WRITE,
        "GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key ...] id \
         [id ...]", Once(xread),
        "With the id `>`, returns entries that no consumer of the group has received. They are \
         pending until XACK, unless NOACK is given. With any other id, returns the consumer's \
         pending entries after that id. After a restart or failover, all pending entries are \
         delivered again.")
        .keys(KeyArgs::Streams(4))
        .cost(READ_COST),
];

/// Maximum number of streams per request, equal to the maximum number of spaces.
const MAX_STREAMS: usize = 256;

const NOT_NEW: Refusal = Refusal::fixed(
    b"ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> \
      <consumer> option.",
);
const NO_END: Refusal = Refusal::fixed(
    b"ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of \
      this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would \
      just return an empty result set.",
);

const NO_LAST: Refusal = Refusal::fixed(
    b"ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of \
      this consumer by specifying a proper ID, or use the > ID to get new messages. The + ID would \
      just return an empty result set.",
);

/// Returns the error for the stream of an unknown space. A reader that blocks on such a stream
/// would wait forever.
fn no_space(key: &[u8]) -> Refusal {
    refuse!("ERR No such key '{}': no space has that name (see TM.SPACE LIST)", Printable(key))
}

/// Position from which a stream is read.
#[derive(Clone, Copy)]
enum StartPosition {
    /// The reader starts at the last entry of the stream (`+`). Becomes `Behind` when the id of
    /// that entry is known.
    Last,
    /// The reader starts at a given position. The first read resolves the position.
    Behind(Start, Option<ChangeCursor>),
    /// The entries that no consumer of the group has received yet.
    New,
    /// The pending entries of the consumer that follow this id.
    Own(Id),
}

struct Reading {
    key: Vec<u8>,
    scope: Scope,
    what: StartPosition,
}

struct ReadRequest {
    readings: Vec<Reading>,
    most: usize,
    until: Option<Instant>,
    /// Log position that `$` denotes.
    end: Position,
    member: Option<Member>,
    /// Ticket in the wait queues of the groups, for a blocking XREADGROUP. The highest possible
    /// ticket until the reader is queued.
    number: Option<u64>,
}

fn parse(call: &Call<'_>) -> Result<ReadRequest, Refusal> {
    let options = Options::read(call.spec, call.args)?;
    let until = options.block.map(deadline).transpose()?;
    let most = count(options.count)?;
    let (first, streams) = options.keys;
    if streams > MAX_STREAMS {
        return Err(refuse!("ERR at most {MAX_STREAMS} streams can be read at once"));
    }
    let member = options
        .group
        .map(|group| Member::new(group, options.no_ack, call.reply.protocol()))
        .transpose()?;
    let mut readings = Vec::new();
    for at in first..first + streams {
        let (key, text) = (call.args.at(at), call.args.at(at + streams));
        // As in Redis, the type of the key is checked before the id.
        let scope = scope(call.node, key)?;
        if let Some(member) = &member {
            member.ensure_consumer(call.node, scope, key)?;
        }
        let what = match (text, &member) {
            (b"$", Some(_)) => return Err(NO_END),
            (b"$", None) => StartPosition::Behind(Start::End, None),
            (b"+", Some(_)) => return Err(NO_LAST),
            (b"+", None) => StartPosition::Last,
            (b">", Some(_)) => StartPosition::New,
            (b">", None) => return Err(NOT_NEW),
            (text, Some(_)) => StartPosition::Own(id(text, 0)?),
            (text, None) => StartPosition::Behind(Start::After(id(text, 0)?), None),
        };
        match scope {
            Some(scope) => readings.push(Reading { key: key.to_vec(), scope, what }),
            None if is_stream(key) => return Err(no_space(key)),
            None => {}
        }
    }
    let number = member.as_ref().and(until).map(|_| u64::MAX);
    Ok(ReadRequest {
        readings,
        most,
        until,
        end: call.node.durability.applied_and_synced(),
        member,
        number,
    })
}

fn xread(call: &mut Call<'_>) -> Outcome {
    let mut asked = parse(call)?;
    if call.session.in_exec {
        // As in Redis, EXEC does not block.
        asked.number = None;
        return call.answer_later(move |node, reply| {
            let found = asked.read(Log { node, end: asked.end }, &|| true)?;
            asked.write(found, reply);
            Ok(())
        });
    }
    let (node, protocol) = (call.node.node().clone(), call.reply.protocol());
    let client = call.session.client.clone();
    call.answer_when(async move {
        let read = asked.follow(&node, &client).await;
        answer(protocol, |reply| {
            asked.write(read?, reply);
            Ok(())
        })
    });
    Ok(())
}

impl ReadRequest {
    /// Reads the available entries; returns the streams that have entries.
    fn read(
        &mut self,
        log: Log<'_>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<(usize, Found)>, Refusal> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for (index, reading) in self.readings.iter_mut().enumerate() {
            let mut found = Found::default();
            if matches!(reading.scope, Scope::Space(number) if !log.node.engines().has(number)) {
                return Err(no_space(&reading.key));
            }
            if matches!(reading.what, StartPosition::Last) {
                let start = log.last(reading.scope)?.map_or(Start::End, Start::At);
                reading.what = StartPosition::Behind(start, None);
            }
            // The next call returns the streams that do not fit into this reply.
            let has_room = bytes < super::MAX_REPLY_BYTES;
            match (&mut reading.what, &self.member) {
                (StartPosition::Behind(start, place), _) => {
                    if place.is_none() {
                        *place = log.find(reading.scope, *start)?;
                    }
                    if let Some(place) = place.as_mut().filter(|_| has_room) {
                        log.collect(reading.scope, place, self.most, goes_on, &mut found)?;
                    }
                }
                (StartPosition::New, Some(member))
                    if has_room
                        && self.number.is_none_or(|number| {
                            log.node.engines().groups.has_turn(&member.key(reading.scope), number)
                        }) =>
                {
                    let of = (reading.scope, &reading.key[..]);
                    member.deliver(log, of, self.most, goes_on, &mut found)?;
                }
                (StartPosition::Own(after), Some(member)) => {
                    let of = (reading.scope, &reading.key[..]);
                    member.deliver_again(log, of, *after, self.most, &mut found)?;
                }
                _ => {}
            }
            bytes += found.bytes.len();
            // As in Redis, the reply contains the pending list of a consumer even if the list is
            // empty.
            if found.count > 0 || matches!(reading.what, StartPosition::Own(_)) {
                all.push((index, found));
            }
        }
        Ok(all)
    }

    /// Returns the groups whose new entries the reader waits for.
    fn awaited_groups(&self) -> Vec<Key> {
        let Some(member) = self.member.as_ref().filter(|_| self.until.is_some()) else {
            return Vec::new();
        };
        let new = self.readings.iter().filter(|reading| matches!(reading.what, StartPosition::New));
        new.map(|reading| member.key(reading.scope)).collect()
    }

    /// Reads, and waits for entries if the request blocks. If several consumers wait for a group,
    /// the consumer that has waited longest is served first.
    async fn follow(
        &mut self,
        node: &Arc<Node>,
        client: &Arc<Client>,
    ) -> Result<Vec<(usize, Found)>, Refusal> {
        let mut end = self.end;
        let (awaited, groups) = (self.awaited_groups(), node.engines().groups.clone());
        let mut place = None;
        loop {
            // Subscribe before checking the queues, so that no change of the queues is missed.
            let mut departures = groups.departures();
            let number = self.number.unwrap_or(0);
            let turns = awaited.iter().filter(|key| groups.has_turn(key, number)).count();
            let is_behind = turns < awaited.len();
            // Reads of a group may block on the group's lock, so they run on another thread.
            let is_at_hand = |reading: &Reading| match &reading.what {
                StartPosition::Behind(_, Some(place)) => place.is_at_hand(end),
                _ => false,
            };
            let found = if turns == 0 && is_behind && awaited.len() == self.readings.len() {
                Vec::new()
            } else if self.readings.iter().all(is_at_hand) {
                let moment = node.moment();
                self.read(Log { node: moment.now(), end }, &|| true)?
            } else {
                self.read_in_background(node, client, end).await?
            };
            let Some(until) = self.until.filter(|_| found.is_empty()) else { return Ok(found) };
            if place.is_none() && !awaited.is_empty() {
                let queued = groups.enqueue(awaited.clone());
                self.number = Some(queued.number());
                place = Some(queued);
                if is_behind {
                    continue;
                }
            }
            // Wait for entries after those that were read.
            client.blocked.begin(true);
            let demoted = async {
                // A demotion unblocks only readers of groups, because any replica serves reads
                // without groups.
                match self.member {
                    Some(_) => node.replication.demoted().await,
                    None => std::future::pending().await,
                }
            };
            let departed = async {
                match is_behind {
                    true => _ = departures.changed().await,
                    false => std::future::pending().await,
                }
            };
            let waited = tokio::select! {
                biased;
                () = demoted => return Err(refuse!("{DEMOTED}")),
                with_error = client.blocked.wait_for_unblock() => Some(with_error),
                () = departed => None,
                () = node.durability.wait_for_stable_offset(end.offset) => None,
                () = tokio::time::sleep_until(until) => Some(false),
            };
            client.blocked.end(false);
            match waited {
                None => end = node.durability.applied_and_synced(),
                Some(true) => return Err(refuse!("{UNBLOCKED}")),
                Some(false) => return Ok(Vec::new()),
            }
        }
    }

    /// Runs [`ReadRequest::read`] on another thread.
    async fn read_in_background(
        &mut self,
        node: &Arc<Node>,
        client: &Arc<Client>,
        end: Position,
    ) -> Result<Vec<(usize, Found)>, Refusal> {
        let (readings, member) = (std::mem::take(&mut self.readings), self.member.clone());
        let mut taken = ReadRequest { readings, member, ..*self };
        let (node, client) = (node.clone(), client.clone());
        let work = apart(move || {
            let moment = node.moment();
            let found = taken.read(Log { node: moment.now(), end }, &|| client.is_connected());
            (taken.readings, found)
        });
        let (readings, found) = work.await.map_err(|error| refuse!("ERR {error}"))?;
        self.readings = readings;
        found
    }

    fn write(&self, found: Vec<(usize, Found)>, reply: &mut Reply<'_>) {
        if found.is_empty() {
            reply.null_array();
            return;
        }
        // RESP3 uses a map, RESP2 an array of pairs.
        let is_map = reply.protocol() == Protocol::Resp3;
        if is_map {
            reply.map(found.len());
        } else {
            reply.array(found.len());
        }
        for (index, found) in found {
            if !is_map {
                reply.array(2);
            }
            reply.bulk(&self.readings[index].key);
            found.write(reply);
        }
    }
}
