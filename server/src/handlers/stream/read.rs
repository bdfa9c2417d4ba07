//! XREAD.

use super::{Found, Log, count, id, scope};
use crate::command::error::{Refusal, refuse};
use crate::command::spec::Outcome;
use crate::command::streams::Options;
use crate::handlers::Handler;
use crate::handlers::call::{Call, answer};
use crate::handlers::cluster::replication::{UNBLOCKED, deadline};
use crate::roles::node::Node;
use crate::runtime::clients::Client;
use dataset::changes::{Place, Scope, Start};
use resp::{Protocol, Reply};
use std::sync::Arc;
use store::Position;
use tokio::time::Instant;

pub(crate) const RUN: &[(&str, Handler)] = &[("xread", xread)];

/// Most streams of one request: there are no more spaces.
const MOST_STREAMS: usize = 256;

/// A stream that is read.
struct Reading {
    key: Vec<u8>,
    scope: Scope,
    start: Start,
    /// Where it is, once that is known.
    place: Option<Place>,
}

/// What XREAD asks for.
struct Asked {
    readings: Vec<Reading>,
    most: usize,
    /// Until when it waits for entries, if it does.
    until: Option<Instant>,
    /// What `$` means.
    end: Position,
}

fn parse(call: &Call<'_>) -> Result<Asked, Refusal> {
    let options = Options::read(call.spec, call.args)?;
    let until = options.block.map(deadline).transpose()?;
    let most = count(options.count)?;
    let (first, streams) = options.keys;
    if streams > MOST_STREAMS {
        return Err(refuse!("ERR at most {MOST_STREAMS} streams can be read at once"));
    }
    let mut readings = Vec::new();
    for at in first..first + streams {
        let (key, text) = (call.args.at(at), call.args.at(at + streams));
        // Of the wrong type before its id is wrong, as in Redis.
        let scope = scope(call.node, key)?;
        let start = match text {
            b"$" => Start::End,
            b">" => {
                return Err(refuse!(
                    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP \
                     <group> <consumer> option."
                ));
            }
            text => Start::After(id(text, 0)?),
        };
        if let Some(scope) = scope {
            readings.push(Reading { key: key.to_vec(), scope, start, place: None });
        }
    }
    Ok(Asked { readings, most, until, end: call.node.durability.certain() })
}

fn xread(call: &mut Call<'_>) -> Outcome {
    let mut asked = parse(call)?;
    if call.session.in_exec {
        // As in Redis: no wait is possible there.
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

impl Asked {
    /// Reads what is there, of each stream; an entry of the list for each that has any.
    fn read(
        &mut self,
        log: Log<'_>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<(usize, Found)>, Refusal> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for (index, reading) in self.readings.iter_mut().enumerate() {
            if reading.place.is_none() {
                reading.place = log.find(reading.scope, reading.start)?;
            }
            let Some(mut place) = reading.place else { continue };
            // What one stream has taken, others leave for the next time.
            let mut found = Found::default();
            if bytes < super::MOST_BYTES {
                log.collect(reading.scope, &mut place, self.most, goes_on, &mut found)?;
            }
            bytes += found.bytes.len();
            reading.place = Some(place);
            if found.count > 0 {
                all.push((index, found));
            }
        }
        Ok(all)
    }

    /// The same, and waits for entries if that is asked for.
    async fn follow(
        &mut self,
        node: &Arc<Node>,
        client: &Arc<Client>,
    ) -> Result<Vec<(usize, Found)>, Refusal> {
        let mut end = self.end;
        loop {
            let is_at_hand =
                |reading: &Reading| reading.place.is_some_and(|place| place.is_at_hand(end));
            let found = if self.readings.iter().all(is_at_hand) {
                let moment = node.moment();
                self.read(Log { node: moment.now(), end }, &|| true)?
            } else {
                self.read_apart(node, client, end).await?
            };
            let Some(until) = self.until.filter(|_| found.is_empty()) else { return Ok(found) };
            // The wait is for more than was read.
            client.blocked.begin(true);
            let waited = tokio::select! {
                biased;
                with_error = client.blocked.is_let_go() => Some(with_error),
                () = node.durability.certain_beyond(end.offset) => None,
                () = tokio::time::sleep_until(until) => Some(false),
            };
            client.blocked.end(false);
            match waited {
                None => end = node.durability.certain(),
                Some(true) => return Err(refuse!("{UNBLOCKED}")),
                Some(false) => return Ok(Vec::new()),
            }
        }
    }

    /// [`Asked::read`] on another thread.
    async fn read_apart(
        &mut self,
        node: &Arc<Node>,
        client: &Arc<Client>,
        end: Position,
    ) -> Result<Vec<(usize, Found)>, Refusal> {
        let readings = std::mem::take(&mut self.readings);
        let mut taken = Asked { readings, ..*self };
        let (node, client) = (node.clone(), client.clone());
        let work = tokio::task::spawn_blocking(move || {
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
        // In RESP3 a map; in RESP2 each stream is an array of two.
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
