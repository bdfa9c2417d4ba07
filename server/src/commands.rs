//! The command table: what a command is called, how many arguments it takes, which of them are keys, what it does.
//!
//! A command is one row in its family's file and one function. From the rows come dispatch, arity errors, COMMAND and its
//! subcommands, HELP, and docs/commands.md: nothing is said twice.

mod acl;
mod ahead;
mod bloom;
pub(crate) mod channels;
mod client;
mod cold;
mod command;
mod config;
mod counter;
mod cuckoo;
mod feed;
mod hash;
mod info;
mod keys;
mod keyspec;
mod observe;
mod peers;
mod phantom;
mod refusal;
mod replication;
mod schema;
mod server;
mod set;
mod string;
pub(crate) mod transaction;
mod weibo;

pub(crate) use cold::ask as ask_cold;
pub(crate) use command::key_positions;
pub(crate) use refusal::{Printable, Refusal, refuse};

use crate::acl::{Access, Request, categories as categories_of};
use crate::clients::{Client, Kind};
use crate::engines::{CounterSpace, Engines, ExistenceSpace, KeyRef, Page, Seen};
use crate::marks::Mark;
use crate::node::Node;
use crate::pause::Paused;
use crate::resp::{Args, Protocol, Reply};
use crate::slowlog;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// What a command is, as COMMAND tells clients. Bits of [`Spec::flags`].
pub(crate) mod flag {
    /// Changes data.
    pub(crate) const WRITE: u32 = 1;
    /// Reads data.
    pub(crate) const READONLY: u32 = 1 << 1;
    /// May need more memory.
    pub(crate) const DENYOOM: u32 = 1 << 2;
    /// For operators.
    pub(crate) const ADMIN: u32 = 1 << 3;
    /// Takes constant time, or a little per argument.
    pub(crate) const FAST: u32 = 1 << 4;
    /// Also while data are being loaded.
    pub(crate) const LOADING: u32 = 1 << 5;
    /// Also on a replica that has lost its master.
    pub(crate) const STALE: u32 = 1 << 6;
    /// Also before a client has logged in.
    pub(crate) const NO_AUTH: u32 = 1 << 7;
    /// Not from scripts.
    pub(crate) const NOSCRIPT: u32 = 1 << 8;
    /// About channels.
    pub(crate) const PUBSUB: u32 = 1 << 9;
    /// Not between MULTI and EXEC: its reply comes later.
    pub(crate) const NO_MULTI: u32 = 1 << 10;
    /// Changes no data here, but something that others get.
    pub(crate) const MAY_REPLICATE: u32 = 1 << 11;
    /// MONITOR does not show it.
    pub(crate) const SKIP_MONITOR: u32 = 1 << 12;
    /// SLOWLOG does not show it: what it executes is shown.
    pub(crate) const SKIP_SLOWLOG: u32 = 1 << 13;
    /// Names in the order of the bits.
    pub(crate) const NAMES: [&str; 14] = [
        "write",
        "readonly",
        "denyoom",
        "admin",
        "fast",
        "loading",
        "stale",
        "no_auth",
        "noscript",
        "pubsub",
        "no_multi",
        "may_replicate",
        "skip_monitor",
        "skip_slowlog",
    ];

    // For this server only:
    /// Executed also between MULTI and EXEC.
    pub(crate) const AT_ONCE: u32 = 1 << 24;
    /// A RESP2 client that listens to channels may send it.
    pub(crate) const LISTENER: u32 = 1 << 25;
    /// An option makes it change data (FEED.GET ... MARK).
    pub(crate) const MAY_WRITE: u32 = 1 << 26;
    /// Its first argument (behind the name of a subcommand) names a space, view or action.
    pub(crate) const NAMED: u32 = 1 << 27;
    /// It writes, and also tells what was stored.
    pub(crate) const READS: u32 = 1 << 28;
}

/// Which arguments are keys: the first and the last one (negative: counted from the end), and the step. All 0: none.
pub(crate) type KeyArgs = (i32, i32, i32);
/// No keys.
pub(crate) const NO_KEYS: KeyArgs = (0, 0, 0);
/// One key, the first argument.
pub(crate) const ONE_KEY: KeyArgs = (1, 1, 1);
/// All arguments are keys.
pub(crate) const ALL_KEYS: KeyArgs = (1, -1, 1);

/// Why a command did nothing.
pub(crate) type Outcome = Result<(), Refusal>;
/// What a command does. It writes one reply, or returns a refusal: then whatever it wrote is forgotten and the refusal sent.
pub(crate) type Handler = fn(&mut Call<'_>) -> Outcome;

/// One command. See the top of the file.
pub(crate) struct Spec {
    /// In lower case; of a subcommand `command|subcommand`.
    pub(crate) name: &'static str,
    /// How many arguments, the name included; negative: at least so many.
    pub(crate) arity: i32,
    /// Bits of [`flag`].
    pub(crate) flags: u32,
    pub(crate) keys: KeyArgs,
    /// The family: Redis's group, and the ACL category of the same name.
    pub(crate) group: &'static str,
    /// The Redis version that brought it, or ours.
    pub(crate) since: &'static str,
    /// What follows the name.
    pub(crate) usage: &'static str,
    /// What it does, in a sentence or a few.
    pub(crate) summary: &'static str,
    pub(crate) run: Handler,
    /// If not empty, the first argument chooses one of these; without it `run` answers.
    pub(crate) subcommands: &'static [Spec],
}

/// All families, in the order of the reference.
const FAMILIES: &[(&str, &[Spec])] = &[
    ("The page", feed::TABLE),
    ("Counters", counter::TABLE),
    ("Flags", phantom::TABLE),
    ("Hashes: rows of counters", hash::TABLE),
    ("Strings: single counters", string::TABLE),
    ("Sets: the members of one id", set::TABLE),
    ("Bloom filters: the members of one id", bloom::TABLE),
    ("Cuckoo filters: the members of one id", cuckoo::TABLE),
    ("As the clients of Weibo's service", weibo::TABLE),
    ("Keys", keys::TABLE),
    ("Spaces and tables", schema::TABLE),
    ("Connection", client::TABLE),
    ("Channels", channels::TABLE),
    ("Transactions", transaction::TABLE),
    ("Server", server::TABLE),
    ("Observation", observe::TABLE),
    ("Replication", replication::TABLE),
];

/// Slots of the lookup: a power of two, several times the number of commands.
const SLOTS: usize = 1024;
const EMPTY: u16 = u16::MAX;

/// The commands by number, and a hash table of their names.
struct Table {
    specs: Vec<&'static Spec>,
    /// Each command's number among all commands and subcommands; behind the last one, how many there are.
    bits: Vec<usize>,
    slots: Box<[u16; SLOTS]>,
    /// By number: what to fetch for a request before it is its turn.
    ahead: Vec<Option<ahead::Ahead>>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let specs: Vec<&'static Spec> = FAMILIES.iter().flat_map(|(_, table)| table.iter()).collect();
    assert!(specs.len() * 4 <= SLOTS, "enlarge SLOTS");
    let mut slots = Box::new([EMPTY; SLOTS]);
    for (number, spec) in (0u16..).zip(&specs) {
        let mut slot = slot_of(spec.name.as_bytes());
        while slots[slot] != EMPTY {
            assert!(specs[usize::from(slots[slot])].name != spec.name, "two commands are called {}", spec.name);
            slot = (slot + 1) % SLOTS;
        }
        slots[slot] = number;
    }
    let mut bits = vec![0];
    for spec in &specs {
        bits.push(bits[bits.len() - 1] + 1 + spec.subcommands.len());
    }
    let ahead = specs.iter().map(|spec| ahead::of(spec.name)).collect();
    Table { specs, bits, slots, ahead }
});

/// FNV-1a over the name with the case bit cleared, so that upper and lower case meet.
#[inline]
fn slot_of(name: &[u8]) -> usize {
    let mut hash = 0xcbf2_9ce4u32;
    for &byte in name {
        hash = (hash ^ u32::from(byte & 0xdf)).wrapping_mul(0x0100_0193);
    }
    (hash >> 8) as usize % SLOTS
}

/// A command as it was looked up: its number and its row.
pub(crate) type Found = Option<(u16, &'static Spec)>;

/// Number and row of a command, in any case.
#[inline]
pub(crate) fn find(name: &[u8]) -> Found {
    let table = &*TABLE;
    let mut slot = slot_of(name);
    loop {
        let number = table.slots[slot];
        let spec = table.specs.get(usize::from(number))?;
        if spec.name.len() == name.len() && spec.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some((number, spec));
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// All top-level commands.
fn all() -> &'static [&'static Spec] {
    &TABLE.specs
}

/// The number of a command, or of its subcommand `sub` (0: none), among all commands and subcommands.
#[inline]
pub(crate) fn bit_of(number: u16, sub: u32) -> usize {
    TABLE.bits[usize::from(number)] + sub as usize
}

/// How many commands and subcommands there are.
pub(crate) fn bits() -> usize {
    TABLE.bits.last().copied().unwrap_or_default()
}

/// All commands and subcommands by their numbers.
pub(crate) fn with_numbers() -> impl Iterator<Item = (usize, &'static Spec)> {
    all().iter().flat_map(|spec| std::iter::once(*spec).chain(spec.subcommands)).enumerate()
}

/// The numbers of a command with its subcommands, or of one subcommand (`config|get`); none if there is no such.
pub(crate) fn numbers_named(name: &str) -> std::ops::Range<usize> {
    let (command, own) = name.split_once('|').map_or((name, None), |(command, own)| (command, Some(own)));
    let Some((number, spec)) = find(command.as_bytes()) else { return 0..0 };
    let first = bit_of(number, 0);
    match own {
        None => first..first + 1 + spec.subcommands.len(),
        Some(own) => match spec.subcommands.iter().position(|s| s.own_name().eq_ignore_ascii_case(own)) {
            Some(at) => first + 1 + at..first + 2 + at,
            None => 0..0,
        },
    }
}

/// The name of a command by its number, which lies in the lower 16 bits; above them the number of the subcommand, from 1.
pub(crate) fn name_of(numbers: u32) -> &'static str {
    let Some(spec) = TABLE.specs.get((numbers & 0xffff) as usize) else { return "NULL" };
    match (numbers >> 16).checked_sub(1) {
        None => spec.name,
        Some(sub) => spec.subcommands.get(sub as usize).map_or(spec.name, |s| s.name),
    }
}

impl Spec {
    #[inline]
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether this request may change data, or what others get.
    fn may_write(&self, args: Args<'_>) -> bool {
        self.has(flag::WRITE | flag::MAY_REPLICATE)
            || (self.has(flag::MAY_WRITE) && args.iter().any(|arg| arg.eq_ignore_ascii_case(b"MARK")))
    }

    fn fits(&self, args: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { args >= arity } else { args == arity }
    }

    /// Its own name, without its command's.
    fn own_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, own)| own)
    }

    /// Whether it has this subcommand.
    fn knows(&self, name: &[u8]) -> bool {
        self.subcommands.iter().any(|sub| sub.own_name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// Upper-case name and arguments, as the reference shows them.
    fn synopsis(&self) -> String {
        let name = self.name.to_ascii_uppercase().replace('|', " ");
        if self.usage.is_empty() { name } else { format!("{name} {}", self.usage) }
    }

    /// ACL categories, with their `@`.
    fn categories(&self) -> Vec<String> {
        categories_of(self).into_iter().map(|name| format!("@{name}")).collect()
    }
}

/// Which replies a client wants (CLIENT REPLY).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replies {
    On,
    Off,
    /// Not to the next command.
    SkipNext,
    /// Not to this one.
    SkipThis,
}

/// Replies are kept back until this is done. What it gives is appended to them, if anything; its error goes out instead of them.
pub(crate) type MayGo = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>>;

/// What a connection remembers between commands.
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    pub(crate) access: Access,
    /// The worker that serves it.
    pub(crate) worker: usize,
    pub(crate) replies: Replies,
    /// What comes between MULTI and EXEC.
    pub(crate) transaction: Option<transaction::Transaction>,
    pub(crate) watched: Vec<Seen>,
    /// EXEC is executing: nothing may wait.
    pub(crate) in_exec: bool,
    /// All writers were kept out: the turn ends, so that they come in before it is done again.
    pub(crate) kept_all_out: bool,
    pub(crate) subscriptions: channels::Subscriptions,
    /// It has subscriptions.
    pub(crate) listening: bool,
    /// It is shown what others send.
    pub(crate) monitoring: bool,
    /// All its commands are timed: see `slowlog`.
    pub(crate) timed: bool,
    /// Since the replies were last sent it was admitted to write.
    pub(crate) wrote: bool,
    /// What the replies of this turn wait for, if its last command said so.
    pub(crate) hold: Option<MayGo>,
    /// What the last command of this turn gives is its reply, which is missing from the others.
    pub(crate) later: bool,
    /// The connection becomes a replica's once the replies are written.
    pub(crate) replicates: bool,
    /// Close once the replies are written.
    pub(crate) leaving: bool,
}

impl Session {
    pub(crate) fn new(node: &Node, client: Arc<Client>, worker: usize) -> Session {
        Session {
            client,
            access: Access::new(node),
            worker,
            replies: Replies::On,
            transaction: None,
            watched: Vec::new(),
            in_exec: false,
            kept_all_out: false,
            subscriptions: channels::Subscriptions::default(),
            listening: false,
            monitoring: false,
            timed: false,
            wrote: false,
            hold: None,
            later: false,
            replicates: false,
            leaving: false,
        }
    }

    /// Whether its inbox is to be looked at.
    #[inline]
    pub(crate) fn listens(&self) -> bool {
        self.listening || self.monitoring
    }

    /// Gives back what the node keeps for it: at its end, and on RESET.
    pub(crate) fn forget(&mut self, node: &Node) {
        transaction::forget(self, node);
        channels::forget(self, node);
        if std::mem::take(&mut self.monitoring) {
            node.monitors.remove(&self.client);
        }
    }
}

/// Buffers that commands work in; they belong to the worker and keep their memory from one command to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) ids: Vec<u64>,
    pub(crate) fields: Vec<usize>,
    pub(crate) row: Vec<i64>,
    pub(crate) rows: Vec<i64>,
    pub(crate) found: Vec<bool>,
    pub(crate) answers: Vec<::phantom::Answer>,
    pub(crate) changes: Vec<::counter::Change>,
    pub(crate) page: Page,
}

/// One command being executed.
pub(crate) struct Call<'a> {
    pub(crate) spec: &'static Spec,
    /// The whole request, the name first.
    pub(crate) args: Args<'a>,
    pub(crate) reply: Reply<'a>,
    pub(crate) session: &'a mut Session,
    pub(crate) node: &'a Arc<Node>,
    pub(crate) scratch: &'a mut Scratch,
}

impl<'a> Call<'a> {
    /// The refusal for a wrong number of arguments that the arity alone cannot tell (a field without a value).
    pub(crate) fn wrong_arity(&self) -> Refusal {
        refuse!("ERR wrong number of arguments for '{}' command", self.spec.name)
    }

    /// To be asked before anything is changed: whether the log takes changes now.
    #[inline]
    pub(crate) fn admit_write(&mut self) -> Outcome {
        if let Some(text) = self.node.replication.refusal() {
            return Err(Refusal::new(text.as_bytes().to_vec()));
        }
        match self.node.durability.refusal() {
            None => {
                self.session.wrote = true;
                Ok(())
            }
            // Nothing was written, so nobody has to wait for the disk to hear it.
            Some(text) => Err(Refusal::new(text.into_bytes())),
        }
    }

    /// Keeps other writers of these ids out until it is dropped, for changes that belong together. Inside EXEC they are out already, and a
    /// thread must not ask twice.
    pub(crate) fn alone(&self, ids: Vec<u64>) -> Option<store::Exclusive<'a, Mark>> {
        (!self.session.in_exec).then(|| self.node.engines.exclusive(Some(ids)))
    }

    /// Does something that takes its time (walks all rows, reads a whole filter) on another thread, and answers when it is done. Others
    /// go on; the requests behind this one wait. Inside EXEC nothing may wait, and what is slow is not let in: there it is done at once.
    pub(crate) fn answer_later(
        &mut self,
        work: impl FnOnce(&Arc<Node>, &mut Reply<'_>) -> Outcome + Send + 'static,
    ) -> Outcome {
        if self.session.in_exec {
            return work(self.node, &mut self.reply);
        }
        let (node, protocol, wanted) = (self.node.clone(), self.reply.protocol(), self.session.replies == Replies::On);
        let work = tokio::task::spawn_blocking(move || {
            let mut out = Vec::new();
            let mut reply = Reply::new(&mut out, protocol);
            if let Err(refusal) = work(&node, &mut reply) {
                reply.rewind(0);
                reply.error(refusal.text());
            }
            if !wanted {
                reply.rewind(0);
            }
            out
        });
        self.session.later = wanted;
        self.session.hold = Some(Box::pin(async move { work.await.map_err(|e| format!("ERR {e}")) }));
        Ok(())
    }

    /// Resolves argument `index` as the key of a row.
    #[inline]
    pub(crate) fn row(&self, index: usize) -> Result<(&'a CounterSpace, u64), Refusal> {
        match self.node.engines.resolve(self.args.at(index))? {
            KeyRef::Row { space, id } => Ok((space, id)),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// Resolves a key of a cell: space, id, position of the field.
    #[inline]
    pub(crate) fn cell(&self, key: &[u8]) -> Result<(&'a CounterSpace, u64, usize), Refusal> {
        match self.node.engines.resolve(key)? {
            KeyRef::Cell { space, id, field } => Ok((space, id, field)),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// Resolves argument `index` as the key of an id's pairs, which are told apart by their members.
    #[inline]
    pub(crate) fn pairs(&self, index: usize) -> Result<(&'a ExistenceSpace, u64), Refusal> {
        match self.node.engines.resolve(self.args.at(index))? {
            KeyRef::Pair { space, id } if space.has_members => Ok((space, id)),
            KeyRef::Pair { space, .. } => Err(Refusal::no_members(space)),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// Argument `index` as an id.
    #[inline]
    pub(crate) fn id(&self, index: usize) -> Result<u64, Refusal> {
        id(self.args.at(index))
    }

    /// Reads all arguments from `first` on as ids, into `scratch.ids`.
    #[inline]
    pub(crate) fn ids_from(&mut self, first: usize) -> Outcome {
        self.scratch.ids.clear();
        for text in self.args.from(first).iter() {
            self.scratch.ids.push(id(text)?);
        }
        Ok(())
    }
}

/// Reads an id.
#[inline]
pub(crate) fn id(text: &[u8]) -> Result<u64, Refusal> {
    crate::resp::natural(text).ok_or_else(|| {
        refuse!("ERR Invalid id '{}': an id is a decimal number from 0 to 18446744073709551615", Printable(text))
    })
}

/// Reads an integer argument.
#[inline]
pub(crate) fn integer(text: &[u8]) -> Result<i64, Refusal> {
    crate::resp::integer(text).ok_or(Refusal::NOT_AN_INTEGER)
}

/// Asks the cache for what a request will need, if it is one of those that need little: their waits for memory overlap then.
#[inline]
pub(crate) fn look_ahead(found: Found, args: Args<'_>, node: &Node) {
    if let (Some((number, _)), Some(engines)) = (found, node.engines.get())
        && let Some(what) = TABLE.ahead[usize::from(number)]
    {
        ahead::fetch(what, args, engines);
    }
}

/// Executes one request, whose name was [`find`]-ed: one reply is appended to `out` (unless the client wants none). False if it is an error.
pub(crate) fn execute(
    found: Found,
    args: Args<'_>,
    session: &mut Session,
    node: &Arc<Node>,
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> bool {
    let mut reply = Reply::new(out, session.client.protocol());
    let mark = reply.mark();
    let outcome = match checked(found, args, session, node) {
        Err(refusal) => {
            note_rejected(found, args, session, node);
            Err(spoil(args, session, refusal))
        }
        Ok((_, spec)) if session.transaction.is_some() && !spec.has(flag::AT_ONCE) => {
            queue(spec, args, &mut reply, session, node)
        }
        Ok((numbers, spec)) => run(spec, numbers, args, reply.again(), session, node, scratch),
    };
    reply.set_protocol(session.client.protocol());
    let fine = match outcome {
        Ok(()) => true,
        Err(refusal) => {
            node.calls.of(session.worker).error(refusal.text());
            reply.rewind(mark);
            // A connection that is closed without a word gets none.
            if !session.leaving {
                reply.error(refusal.text());
            }
            false
        }
    };
    if session.replies != Replies::On {
        reply.rewind(mark);
        session.replies = match session.replies {
            Replies::SkipNext => Replies::SkipThis,
            Replies::SkipThis => Replies::On,
            other => other,
        };
    }
    fine
}

/// Finds the command of a request, and whether this client may send it now. Gives its numbers, too (see [`name_of`]).
fn checked(found: Found, args: Args<'_>, session: &mut Session, node: &Node) -> Result<(u32, &'static Spec), Refusal> {
    let Some((number, spec)) = found else { return Err(unknown(args, session)) };
    let (spec, sub) = select(spec, args)?;
    if !session.access.free {
        let request = Request { spec, number: bit_of(number, sub), args };
        session.access.check(node, &session.client, &request)?;
    }
    if !node.is_loaded() && !spec.has(flag::LOADING) {
        return Err(Refusal::LOADING);
    }
    if session.listening && !spec.has(flag::LISTENER) && session.client.protocol() == Protocol::Resp2 {
        return Err(channels::refuse_while_listening(spec));
    }
    Ok((u32::from(number) | sub << 16, spec))
}

/// For INFO commandstats: a command that was known, and not let in.
#[cold]
fn note_rejected(found: Found, args: Args<'_>, session: &Session, node: &Node) {
    if let Some((number, spec)) = found {
        let sub = select(spec, args).map_or(0, |(_, sub)| sub);
        node.calls.of(session.worker).rejected(bit_of(number, sub));
    }
}

/// Whether a request has to wait while `paused` is.
#[cold]
pub(crate) fn must_wait(args: Args<'_>, session: &Session, paused: Paused) -> bool {
    let Some((_, spec)) = find(args.at(0)) else { return false };
    match paused {
        _ if session.client.kind() == Kind::Replica => false,
        Paused::Nothing => false,
        Paused::All => true,
        Paused::Writes => {
            let queued = session.transaction.as_ref().is_some_and(transaction::Transaction::writes);
            spec.may_write(args) || (spec.name == "exec" && queued)
        }
    }
}

/// Executes a command that was checked.
fn run(
    spec: &'static Spec,
    numbers: u32,
    args: Args<'_>,
    reply: Reply<'_>,
    session: &mut Session,
    node: &Arc<Node>,
    scratch: &mut Scratch,
) -> Outcome {
    session.client.last_command.store(numbers, Relaxed);
    if node.monitors.any() && !spec.has(flag::ADMIN | flag::SKIP_MONITOR) {
        node.monitors.show(&session.client, args, node.config().server.max_push_buffer_bytes);
    }
    let (calls, number) = (node.calls.of(session.worker), bit_of(numbers as u16, numbers >> 16));
    let mut call = Call { spec, args, reply, session, node, scratch };
    if spec.has(flag::WRITE)
        && let Err(refusal) = call.admit_write()
    {
        calls.rejected(number);
        return Err(refusal);
    }
    let timed = calls.begins(number) || call.session.timed || !spec.has(flag::FAST) || args.len() > slowlog::MANY_ARGS;
    let began = timed.then(Instant::now);
    let outcome = (spec.run)(&mut call);
    if let Some(began) = began {
        let took = began.elapsed();
        calls.took(number, took);
        if !spec.has(flag::SKIP_SLOWLOG) {
            note_time(spec, args, took, session, node);
        }
    }
    // Whatever the outcome: what failed is not the next command's.
    let all_read = readable(node);
    let outcome = outcome.and(all_read);
    if outcome.is_err() {
        calls.failed(number);
    }
    outcome
}

/// For SLOWLOG and LATENCY.
fn note_time(spec: &Spec, args: Args<'_>, took: Duration, session: &Session, node: &Node) {
    let config = node.config();
    let server = &config.server;
    let us = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
    let is_slow = server.slowlog_slower_than_us >= 0 && us >= server.slowlog_slower_than_us;
    if is_slow || server.latency_threshold_ms > 0 {
        let secret = spec.has(flag::SKIP_MONITOR) || spec.name.starts_with("acl|") || spec.name == "config|set";
        let event = if spec.has(flag::FAST) { "fast-command" } else { "command" };
        node.slow.note(server, &session.client, args, took, secret, event);
    }
}

/// A command between MULTI and EXEC.
fn queue(spec: &'static Spec, args: Args<'_>, reply: &mut Reply<'_>, session: &mut Session, node: &Node) -> Outcome {
    let Some(transaction) = &mut session.transaction else { return Ok(()) };
    let most = node.config().server.max_transaction_bytes;
    let refused = if spec.has(flag::NO_MULTI) {
        Some(refuse!("ERR Command not allowed inside a transaction"))
    } else if spec.has(flag::WRITE) {
        let role = node.replication.refusal().map(|text| Refusal::new(text.as_bytes().to_vec()));
        role.or_else(|| node.durability.refusal().map(|text| Refusal::new(text.into_bytes())))
    } else {
        None
    };
    if let Some(refusal) = refused {
        transaction.spoil();
        return Err(refusal);
    }
    if !transaction.push(spec, args, most) {
        return Err(refuse!("ERR a transaction may take {most} bytes (max_transaction_bytes)"));
    }
    session.client.queued.store(i64::try_from(transaction.len()).unwrap_or(i64::MAX), Relaxed);
    reply.simple("QUEUED");
    Ok(())
}

/// After a command that could not be queued EXEC executes nothing; nor does an EXEC that is itself refused.
#[cold]
fn spoil(args: Args<'_>, session: &mut Session, refusal: Refusal) -> Refusal {
    let is_exec = args.at(0).eq_ignore_ascii_case(b"exec");
    if let Some(transaction) = &mut session.transaction {
        transaction.spoil();
    }
    if !is_exec {
        return refusal;
    }
    // As in Redis, without the reason's prefix.
    let text = refusal.text();
    let reason = text.iter().position(|&b| b == b' ').map_or(text, |at| &text[at + 1..]);
    Refusal::new([b"EXECABORT Transaction discarded because of: ", reason].concat())
}

/// Whether all rows that a command asked for could be read. A row that could not looked like none.
#[inline]
fn readable(node: &Node) -> Outcome {
    if !node.engines.get().is_some_and(Engines::has_cold) {
        return Ok(());
    }
    match crate::cold::take_failures().first() {
        None => Ok(()),
        Some((id, why)) => Err(unreadable(*id, why)),
    }
}

/// Whether this row, among those that the command has asked for, could be read. If not, that is for its place in the reply.
#[inline]
fn row_readable(node: &Node, id: u64) -> Outcome {
    if !node.engines.get().is_some_and(Engines::has_cold) {
        return Ok(());
    }
    crate::cold::take_failure(id).map_or(Ok(()), |why| Err(unreadable(id, &why)))
}

#[cold]
fn unreadable(id: u64, why: &str) -> Refusal {
    refuse!("ERR the row of {id} cannot be read: {why}")
}

/// Checks the number of arguments and steps down to the subcommand; gives its number, too, or 0 if there is none.
#[inline]
fn select(spec: &'static Spec, args: Args<'_>) -> Result<(&'static Spec, u32), Refusal> {
    let wrong_arity = |spec: &Spec| refuse!("ERR wrong number of arguments for '{}' command", spec.name);
    if !spec.fits(args.len()) {
        return Err(wrong_arity(spec));
    }
    if spec.subcommands.is_empty() || args.len() == 1 {
        return Ok((spec, 0));
    }
    let wanted = args.at(1);
    let named = |(_, s): &(u32, &Spec)| s.own_name().as_bytes().eq_ignore_ascii_case(wanted);
    let Some((number, sub)) = (1..).zip(spec.subcommands).find(named) else {
        return Err(refuse!(
            "ERR unknown subcommand '{}'. Try {} HELP.",
            String::from_utf8_lossy(&wanted[..wanted.len().min(128)]),
            spec.name.to_ascii_uppercase()
        ));
    };
    if sub.fits(args.len()) { Ok((sub, number)) } else { Err(wrong_arity(sub)) }
}

#[cold]
fn unknown(args: Args<'_>, session: &mut Session) -> Refusal {
    let name = args.at(0);
    // What a browser or an HTTP client sends first: somebody makes it talk to us. No answer, so that nothing of ours is
    // read as a page.
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        tracing::warn!("client {} speaks HTTP: closed (a cross-site attack?)", session.client.peer);
        session.leaving = true;
    }
    let mut shown = Vec::new();
    for arg in args.from(1).iter() {
        if shown.len() >= 128 {
            break;
        }
        shown.push(b'\'');
        shown.extend_from_slice(&arg[..arg.len().min(128 - shown.len().min(128))]);
        shown.extend_from_slice(b"' ");
    }
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(&name[..name.len().min(128)]);
    text.extend_from_slice(b"', with args beginning with: ");
    text.extend_from_slice(&shown);
    Refusal::new(text)
}

/// HELP of a command with subcommands, as Redis writes it.
pub(crate) fn help(call: &mut Call<'_>) -> Outcome {
    let name = call.spec.name.split('|').next().unwrap_or_default();
    let Some((_, spec)) = find(name.as_bytes()) else { return Err(call.wrong_arity()) };
    let mut lines =
        vec![format!("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", name.to_ascii_uppercase())];
    for sub in spec.subcommands {
        let mut line = sub.own_name().to_ascii_uppercase();
        if !sub.usage.is_empty() {
            let _ = write!(line, " {}", sub.usage);
        }
        lines.push(line);
        lines.push(format!("    {}", sub.summary));
    }
    call.reply.array(lines.len());
    for line in lines {
        call.reply.simple(&line);
    }
    Ok(())
}

/// A HELP row for a table of subcommands.
pub(crate) const fn help_row(name: &'static str, group: &'static str) -> Spec {
    Spec {
        name,
        arity: 2,
        flags: flag::LOADING | flag::STALE,
        keys: NO_KEYS,
        group,
        since: "5.0.0",
        usage: "",
        summary: "Print this help.",
        run: help,
        subcommands: &[],
    }
}

/// The reference of all commands, in Markdown: docs/commands.md.
pub fn reference() -> String {
    let mut out = String::from(
        "# Commands\n\n\
         Printed by `tidemark commands` from the command table; a test keeps this file equal to it.\n\n\
         `space`, `view` and `action` are names from the configuration. An id is a decimal number from 0 to 2^64-1. Keys of Redis's kind\n\
         (`post:17`, `post:17:like`, `liked:17`) name rows, cells and pairs by the patterns that each space declares. Names of commands and\n\
         options may be written in any case.\n",
    );
    for (title, table) in FAMILIES {
        let _ = write!(out, "\n## {title}\n");
        for spec in *table {
            let alone: &[&Spec] = &[spec];
            let rows: Vec<&Spec> =
                if spec.subcommands.is_empty() { alone.to_vec() } else { spec.subcommands.iter().collect() };
            if !spec.subcommands.is_empty() && spec.arity == -1 {
                describe(&mut out, spec);
            }
            for row in rows.into_iter().filter(|r| r.own_name() != "help") {
                describe(&mut out, row);
            }
        }
    }
    out
}

fn describe(out: &mut String, spec: &Spec) {
    let mut kinds: Vec<&str> = Vec::new();
    for (bit, name) in flag::NAMES.iter().enumerate() {
        if spec.has(1 << bit) && ["write", "readonly", "admin", "fast"].contains(name) {
            kinds.push(name);
        }
    }
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    let _ = write!(out, "\n### `{}`\n{}{kinds}\n", spec.synopsis(), spec.summary);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_others_are_not() {
        for spec in all() {
            for name in [spec.name.to_owned(), spec.name.to_ascii_uppercase()] {
                assert_eq!(find(name.as_bytes()).map(|(_, s)| s.name), Some(spec.name));
            }
            assert!(find(format!("{}x", spec.name).as_bytes()).is_none());
        }
        for name in [&b""[..], b"\0", b"no such command", b"GE\x14", &[b'A'; 10_000]] {
            assert!(find(name).is_none());
        }
    }

    #[test]
    fn rows_are_well_formed() {
        let subs = all().iter().flat_map(|s| s.subcommands);
        for spec in all().iter().copied().chain(subs) {
            assert_eq!(spec.name, spec.name.to_ascii_lowercase());
            assert!(spec.arity != 0 && !spec.summary.is_empty(), "{}", spec.name);
            assert!(spec.summary.ends_with('.'), "{}", spec.name);
            let (first, last, step) = spec.keys;
            assert!(first >= 0 && (first == 0) == (step == 0) && (first == 0) == (last == 0), "{}", spec.name);
            assert!(spec.arity.abs() > first, "{}: the first key may be missing", spec.name);
            assert!(!(spec.has(flag::WRITE) && spec.has(flag::READONLY)), "{}", spec.name);
        }
        for spec in all() {
            for sub in spec.subcommands {
                assert!(sub.name.starts_with(&format!("{}|", spec.name)), "{} in {}", sub.name, spec.name);
                assert!(sub.arity.abs() >= 2, "{}", sub.name);
            }
        }
    }

    #[test]
    fn the_reference_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/commands.md");
        let shipped = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            shipped == reference(),
            "docs/commands.md is not what the table says: write it anew with\n  cargo run -p tidemark-server -- commands > docs/commands.md"
        );
    }
}
