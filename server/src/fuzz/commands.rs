//! Differential test of commands against a model of plain maps.
//!
//! The input chooses commands (counters, hashes, strings, sets, filters, pages; inside and outside
//! transactions), keys of a small universe, and values. The crate redis-protocol decodes each
//! reply, which must equal the reply of the model. Between batches a second client sends arbitrary
//! commands with arbitrary arguments. Each of these must get exactly one complete reply, and reads
//! must change nothing.

mod choices;
mod model;

use crate::commands::connection::client;
use crate::commands::families::install;
use crate::net::request_loop::{Closing, RequestLoop, TurnBuffers};
use choices::{Choices, FLAGS, KNOWN, LEFT_OUT, WORDS};
use model::{Model, error};
use node::command::spec::flag;
use node::command::table::{find, with_numbers};
use node::config::{Config, Counter, Existence};
use node::roles::node::{Host, Node};
use node::runtime::counters::Tallies;
use redis_protocol::resp2::{decode::decode, types::OwnedFrame as Frame};
use std::sync::{Arc, LazyLock};

type Words = Vec<Vec<u8>>;

fn node() -> Arc<Node> {
    static CONFIG: LazyLock<Config> = LazyLock::new(|| {
        let mut config = Config::default();
        config.server.workers = 1;
        for counter in &mut config.counter {
            *counter = Counter { rows_per_table: 64, ..counter.clone() };
        }
        for existence in &mut config.existence {
            *existence =
                Existence { pairs_per_table: 2_000, max_tables: 3, seed: 7, ..existence.clone() };
        }
        config
    });
    alone(&CONFIG)
}

/// Creates a node without sockets, on which all commands are registered.
pub(crate) fn alone(config: &Config) -> Arc<Node> {
    install();
    Host::alone(config)
}

/// Client without a socket. The client waits for the syncs and cold reads on which its replies
/// depend.
pub(crate) struct Guest {
    node: Arc<Node>,
    pub(crate) processor: RequestLoop,
    turn: TurnBuffers,
    tallies: Tallies,
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
});

impl Guest {
    pub(crate) fn new(node: &Arc<Node>) -> Guest {
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let client = node.clients.admit(nowhere, nowhere, usize::MAX).expect(
            "one more client is \
            allowed",
        );
        Guest {
            processor: RequestLoop::new(node, client, 0),
            node: node.clone(),
            turn: TurnBuffers::default(),
            tallies: Tallies::default(),
        }
    }

    fn ask(&mut self, requests: &[Vec<Vec<u8>>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for words in requests {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        RUNTIME.block_on(self.answers(&bytes))
    }

    /// Executes requests up to the first request that must wait. Returns the number of bytes
    /// consumed, and the replies. If a request must wait, [`RequestLoop::stalled`] is the future to
    /// wait for.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> (usize, Vec<u8>) {
        self.turn.out.clear();
        let used = self.processor.execute(&self.node, &self.tallies, bytes, &mut self.turn);
        (used, std::mem::take(&mut self.turn.out))
    }

    /// Executes the requests until all have finished, and returns the replies.
    pub(crate) async fn answers(&mut self, bytes: &[u8]) -> Vec<u8> {
        let (mut at, mut replies) = (0, Vec::new());
        while at < bytes.len() && self.processor.closing == Closing::No {
            let (used, mut given) = self.step(&bytes[at..]);
            let stalled = self.processor.stalled.take();
            let is_taken = used > 0 || stalled.is_some() || self.processor.more;
            assert!(is_taken, "an incomplete request");
            if let Some(stalled) = stalled {
                self.processor.pins = stalled.await;
            }
            at += used;
            replies.append(&mut given);
            if let Some(hold) = self.processor.session.hold.take() {
                hold.await.complete(&mut replies);
            }
        }
        replies
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        client::forget(&mut self.processor.session, &self.node);
        self.node.clients.remove(self.processor.session.client.id);
    }
}

fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let Ok(Some((frame, length))) = decode(bytes) else {
            panic!("an incomplete reply: {:?}", String::from_utf8_lossy(bytes))
        };
        frames.push(frame);
        bytes = &bytes[length..];
    }
    frames
}

/// Replaces error texts by a constant, because the model does not produce them.
fn without_texts(frame: Frame) -> Frame {
    match frame {
        Frame::Error(_) => error(),
        Frame::Array(frames) => Frame::Array(frames.into_iter().map(without_texts).collect()),
        other => other,
    }
}

/// Fuzz target; see the module documentation.
pub fn commands(input: &[u8]) {
    let mut choices = Choices(input);
    let (node, mut model) = (node(), Model::default());
    let mut guest = Guest::new(&node);
    let mut batch: Vec<Words> = Vec::new();
    while !choices.0.is_empty() || !batch.is_empty() {
        let kind = choices.byte() % (KNOWN + 6);
        if kind < KNOWN && !choices.0.is_empty() && batch.len() < 20 {
            batch.push(choices.known(kind).into_iter().map(String::into_bytes).collect());
            continue;
        }
        let replies = frames(&guest.ask(&batch));
        assert_eq!(replies.len(), batch.len(), "number of replies: {batch:?}");
        for (words, reply) in batch.drain(..).zip(replies) {
            let shown = words
                .iter()
                .map(|word| String::from_utf8_lossy(word))
                .collect::<Vec<_>>()
                .join(" ");
            assert_eq!(without_texts(reply), model.execute(&words), "{shown}");
        }
        match kind.saturating_sub(KNOWN) {
            0 => {
                node.engines().maintain();
            }
            1 => {
                let space = choices.of(&FLAGS).0.as_bytes();
                let engines = node.engines();
                engines.roll_pairs(engines.existence(space).expect("a space"));
            }
            2..=4 => anything(&mut choices, &node, &mut model),
            _ => {}
        }
        model.look(&node.engines(), false);
    }
}

fn anything(choices: &mut Choices<'_>, node: &Arc<Node>, model: &mut Model) {
    let names: Vec<&'static str> = with_numbers()
        .map(|(_, spec)| spec.name)
        .filter(|name| !name.contains('|') && !LEFT_OUT.contains(name))
        .collect();
    let mut guest = Guest::new(node);
    let mut writes = false;
    for _ in 0..=choices.byte() % 3 {
        let name = choices.of(&names);
        let mut words = vec![name.as_bytes().to_vec()];
        for _ in 0..choices.byte() % 7 {
            words.push(match choices.byte() % 8 {
                0 => {
                    let length = choices.byte().min(choices.0.len());
                    let (word, rest) = choices.0.split_at(length);
                    choices.0 = rest;
                    word.to_vec()
                }
                _ => choices.of(&WORDS).as_bytes().to_vec(),
            });
        }
        writes |= find(name.as_bytes())
            .is_some_and(|(_, spec)| !spec.has(flag::READONLY) || spec.has(flag::MAY_WRITE));
        let was = guest.processor.session.client.protocol();
        let bytes = guest.ask(std::slice::from_ref(&words));
        if was == resp::Protocol::Resp2 && guest.processor.session.client.protocol() == was {
            frames(&bytes);
        }
    }
    drop(guest);
    if writes {
        model.look(&node.engines(), true);
    }
}
