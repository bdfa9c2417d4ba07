//! A request for many ids or keys is done in portions: between two of them the other clients of
//! the worker have their turns, and a writer waits while a space that is nearly full makes room.
//!
//! ```text
//!   looked at    word by word, some thousands in a turn; anything unusual: it is not parted
//!   portion      the same command with a few of the ids, executed as if it had been sent alone:
//!                as many as took a millisecond or two the last time
//!   joined       the elements of its reply are sent behind those of the portion before; of a
//!                number the sum, and of a packed page the bytes, are sent at the end
//! ```
//!
//! So nothing is changed before all of the request has been looked at, and a portion that fails
//! (no memory, a disk that is full) is an error in the places of its ids, as one id's failure is in
//! a shorter request. What is not parted, whatever its length: a request in a transaction or of an
//! action that moves counters of its member, as it belongs together; one with MARK; any in a
//! cluster, where a request is parted by shards (`handlers/cluster/gather.rs`). Why, and what was
//! weighed: `docs/decisions/0026-long-requests-in-portions.md`.

use crate::handlers::cluster::gather::{MISSING, can_be_parted};
use crate::handlers::feed::page::too_long;
use crate::handlers::session::{Replies, Session};
use crate::net::request_loop::Request;
use counter::Schema;
use dataset::engines::Engines;
use node::acl;
use node::client::connect::put_head;
use node::command::error::Refusal;
use node::command::spec::{KeyArgs, Of, Spec, flag};
use node::command::table::{Found, bit_of};
use node::roles::node::Now;
use resp::{Args, Kept, Protocol, Reply, elements, integer, natural};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A request with fewer arguments is done at once: a millisecond or two.
const MANY: usize = 1024;
/// The same of keys where there is a ledger: one that has to be looked for there takes as long as
/// hundreds of others.
const MANY_EXACT: usize = 32;
/// Arguments of a portion, at most and at least.
const MOST: usize = 512;
const LEAST: usize = 8;
/// A portion that takes longer is followed by a smaller one.
const LONG: Duration = Duration::from_millis(2);
/// Arguments that are looked at in one turn.
const LOOKED_AT: usize = 32 << 10;
/// The same of keys that the user may or may not touch: each is held against its patterns.
const RIGHTS_LOOKED_AT: usize = 1024;

/// Bytes of a reply with packed rows beside these.
const HEADS: usize = 32;

/// What becomes of the replies of the portions.
enum Joins {
    /// They are arrays, whose elements follow each other.
    Elements,
    /// They are numbers.
    Sum(i64),
    /// They are packed rows, or those and an error.
    Rows(Vec<u8>),
}

/// What a look at the words has found.
pub(crate) enum Look {
    /// There are more of them.
    More,
    /// It can be parted.
    Usual,
    /// It is to be executed as it is.
    Unusual,
    /// Its user may not touch all of the keys.
    Refused(Refusal),
}

/// A long request that is being done. See the top of the file.
pub(crate) struct Portions {
    pub(crate) request: Request,
    spec: &'static Spec,
    /// Arguments in front of the ids, and those of each id.
    head: usize,
    step: usize,
    /// Where the ids end, and options begin.
    end: usize,
    joins: Joins,
    /// Arguments that were looked at.
    looked: usize,
    /// With a token: the counters that were named so far.
    named: Option<HashSet<(u64, usize)>>,
    /// Arguments of which the portions are done.
    done: usize,
    /// How long they took.
    pub(crate) took: Duration,
    /// Arguments of the next one.
    size: usize,
    /// What rows look like.
    rows_of: RowsOf,
    /// Those of the portion at hand.
    words: Kept,
    /// The first error of a number or of packed rows, which is sent at the end.
    error: Option<Vec<u8>>,
    /// The rights were taken away meanwhile: the reply to each portion that is left. They are not
    /// executed, or each would be noted.
    pub(crate) forbidden: Option<Vec<u8>>,
}

/// Where the ids of a request begin, how many arguments each has, and what its reply is.
fn shape(spec: &Spec) -> Option<(usize, usize, Joins)> {
    match (spec.keys, spec.name) {
        (KeyArgs::Ids(_, head, step), _) if spec.has(flag::PER_ID) => {
            Some((head, step, Joins::Elements))
        }
        (_, "cnt.del" | "sadd" | "srem") => Some((2, 1, Joins::Sum(0))),
        (_, "del" | "unlink" | "exists" | "touch") => Some((1, 1, Joins::Sum(0))),
        (_, "smismember" | "bf.madd" | "bf.mexists") => Some((2, 1, Joins::Elements)),
        (_, "mget") => Some((1, 1, Joins::Elements)),
        _ => None,
    }
}

/// Whether each argument may take long.
fn looks_long(spec: &Spec, engines: &Engines) -> bool {
    spec.keys.are_keys() && engines.ledgers().next().is_some()
}

/// Whether a request is long enough to be looked at.
#[inline]
pub(crate) fn is_long(found: Found, args: Args<'_>, node: Now<'_>) -> bool {
    let looks_long =
        |spec| node.loaded().is_some_and(|engines: &Engines| looks_long(spec, engines));
    args.len() > MANY
        || (args.len() > MANY_EXACT && found.is_some_and(|(_, spec)| looks_long(spec)))
}

/// What decides what the rows of a reply look like: what was made, and the schema.
type RowsOf = (u64, Option<Arc<Schema>>);

fn rows_of(spec: &Spec, args: Args<'_>, engines: &Engines) -> RowsOf {
    let rows = matches!(spec.keys, KeyArgs::Ids(Of::Rows, ..)).then(|| engines.counter(args.at(1)));
    (engines.version(), rows.flatten().map(|space| space.schema()))
}

impl Portions {
    /// If the request may be one for portions, as far as can be seen at a glance.
    pub(crate) fn of(
        request: &Request,
        args: Args<'_>,
        session: &Session,
        engines: &Engines,
    ) -> Option<Portions> {
        let (_, spec) = request.found?;
        let (head, step, joins) = shape(spec)?;
        let is_alone = session.transaction.is_none()
            && session.topology.is_none()
            && matches!(session.replies, Replies::On | Replies::Off);
        let belongs_together =
            spec.has(flag::PER_ID) && !can_be_parted(spec, args, session, engines);
        // Of several selectors one must allow all of the keys, and they are looked at by and by.
        let has_selectors =
            session.access.user.as_ref().is_some_and(|user| !user.selectors().1.is_empty());
        let may_part_keys = session.access.free || !spec.keys.are_keys() || !has_selectors;
        if request.is_inline || !is_alone || !may_part_keys || belongs_together {
            return None;
        }
        let mut portions = Portions {
            request: Request { bytes: 0..request.bytes.len(), ..request.clone() },
            spec,
            head,
            step,
            end: args.len(),
            joins,
            looked: head,
            named: None,
            done: head,
            took: Duration::ZERO,
            size: if looks_long(spec, engines) { LEAST } else { MOST },
            rows_of: rows_of(spec, args, engines),
            words: Kept::default(),
            error: None,
            forbidden: None,
        };
        portions.read_options(args);
        (portions.end - head).is_multiple_of(step).then_some(portions)
    }

    /// Finds where the options begin. A word that is none stays among the ids, where it is unusual.
    fn read_options(&mut self, args: Args<'_>) {
        if !matches!(self.spec.keys, KeyArgs::Ids(..)) {
            return;
        }
        let is = |at: usize, name: &str| args.at(at).eq_ignore_ascii_case(name.as_bytes());
        if self.step > 1 && is(self.end - 2, "TOKEN") {
            self.named = Some(HashSet::new());
            self.end -= 2;
        }
        // More than each once are unusual.
        for _ in 0..2 {
            if self.is_of(Of::View) && is(self.end - 1, "BINARY") {
                self.joins = Joins::Rows(Vec::new());
            } else if !is(self.end - 1, "EXACT") {
                break;
            }
            self.end -= 1;
        }
    }

    fn is_of(&self, what: Of) -> bool {
        matches!(self.spec.keys, KeyArgs::Ids(of, ..) if of == what)
    }

    /// Looks at some more words.
    pub(crate) fn look(
        &mut self,
        args: Args<'_>,
        session: &Session,
        node: Now<'_>,
        engines: &Engines,
    ) -> Look {
        let has_ids = matches!(self.spec.keys, KeyArgs::Ids(..));
        if !has_ids && session.access.free {
            return Look::Usual;
        }
        let most = if has_ids { LOOKED_AT / self.step * self.step } else { RIGHTS_LOOKED_AT };
        let from = self.looked;
        self.looked = self.end.min(from + most);
        if has_ids {
            if !(from..self.looked).step_by(self.step).all(|at| self.is_usual(args, at, engines)) {
                return Look::Unusual;
            }
        } else if let Err(refusal) = self.check(from..self.looked, args, session, node, engines) {
            return Look::Refused(refusal);
        }
        if self.looked < self.end { Look::More } else { Look::Usual }
    }

    /// Whether the user may touch these keys. Before the first key of a request is touched all of
    /// them are looked at.
    fn check(
        &self,
        keys: Range<usize>,
        args: Args<'_>,
        session: &Session,
        node: Now<'_>,
        engines: &Engines,
    ) -> Result<(), Refusal> {
        let mut words = Kept::default();
        words.push_all((0..self.head).chain(keys).map(|at| args.at(at)));
        let Some((number, spec)) = self.request.found else { return Ok(()) };
        let number = bit_of(number, 0);
        let request = acl::Request { spec, number, args: words.first() };
        session.access.check(&node.acl, Some(engines), &session.client, &request)
    }

    /// Whether an id, and what stands behind it, are what they should be.
    fn is_usual(&mut self, args: Args<'_>, at: usize, engines: &Engines) -> bool {
        let word = args.at(at);
        let view = if self.is_of(Of::View) { engines.view(args.at(1)) } else { None };
        if let Some(view) = view.filter(|view| view.is_joined()) {
            let mut parts = word.split(|byte| *byte == b'/').map(natural);
            let further = engines.then(view).count();
            return parts.by_ref().take(1 + further).flatten().count() == 1 + further
                && parts.next().is_none();
        }
        let Some(id) = natural(word) else { return false };
        if self.step == 1 {
            return true;
        }
        let schema = engines.counter(args.at(1)).map(|space| space.schema());
        let field = schema.and_then(|schema| schema.index_of(args.at(at + 1)));
        let is_new = match (&mut self.named, field) {
            (Some(named), Some(field)) => named.insert((id, field)),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        is_new && integer(args.at(at + 2)).is_some()
    }

    fn portion(&self) -> Range<usize> {
        let most = (self.size / self.step).max(1) * self.step;
        self.done..self.end.min(self.done + most)
    }

    /// Takes up the next portion, unless one is at hand.
    pub(crate) fn begin(&mut self, args: Args<'_>) {
        if self.words.is_empty() {
            // No field of a schema is looked for any more.
            self.named = None;
            let all = (0..self.head).chain(self.portion()).chain(self.end..args.len());
            self.words.push_all(all.map(|at| args.at(at)));
        }
    }

    /// A portion took so long.
    pub(crate) fn note_time(&mut self, took: Duration) {
        self.took += took;
        if took > LONG {
            self.size = (self.size / 2).max(LEAST);
        } else if took < LONG / 4 {
            self.size = (self.size * 2).min(MOST);
        }
    }

    /// The arguments of the portion at hand.
    pub(crate) fn args(&self) -> Args<'_> {
        self.words.first()
    }

    /// Whether the rows of the portion at hand would look otherwise than those before.
    pub(crate) fn is_reshaped(&self, engines: &Engines) -> bool {
        self.rows_of != rows_of(self.spec, self.args(), engines)
    }

    /// Whether some of its reply may have been sent, behind which no other message may come yet.
    pub(crate) fn is_amid(&self) -> bool {
        !self.is_first() && matches!(self.joins, Joins::Elements)
    }

    /// Whether no portion has been done.
    pub(crate) fn is_first(&self) -> bool {
        self.done == self.head
    }

    /// Joins the reply of the portion at hand, which begins at `from`. True: it was the last one.
    /// Gives, too, how many replies stand there, should all of them become errors, and how many
    /// bytes in front of those are none. `most`: bytes of packed rows.
    pub(crate) fn join(
        &mut self,
        out: &mut Vec<u8>,
        from: usize,
        most: usize,
    ) -> (bool, usize, usize) {
        let (is_first, portion) = (self.is_first(), self.portion());
        let reply = out.split_off(from);
        self.words = Kept::default();
        if reply.is_empty() {
            // The client wants none.
            self.done = portion.end;
            return (self.done == self.end, 0, from);
        }
        if is_first && reply.starts_with(b"-") {
            // What is wrong is the request.
            out.extend_from_slice(&reply);
            return (true, 1, from);
        }
        if reply.starts_with(b"-NOPERM") && self.forbidden.is_none() {
            self.forbidden = Some(reply.clone());
        }
        self.done = portion.end;
        let (ids, is_last) = (portion.len() / self.step, self.done == self.end);
        match &mut self.joins {
            Joins::Elements => {
                if is_first {
                    put_head(out, b'*', (self.end - self.head) / self.step);
                }
                let begin = out.len();
                match elements_in(&reply) {
                    Some(elements) => out.extend_from_slice(elements),
                    None => (0..ids).for_each(|_| out.extend_from_slice(&reply)),
                }
                (is_last, ids, begin)
            }
            Joins::Sum(sum) => {
                let number = reply.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n"));
                match number.and_then(integer) {
                    Some(number) => *sum += number,
                    None => drop(self.error.get_or_insert(reply)),
                }
                self.end_with(out, is_last)
            }
            Joins::Rows(rows) => {
                let mut parts = elements(&reply).into_iter().flatten();
                let (packed, error) = match parts.next() {
                    Some(packed) => (packed, parts.next()),
                    None => (&reply[..], reply.starts_with(b"-").then_some(&reply[..])),
                };
                let width = rows.len() / ((portion.start - self.head) / self.step).max(1);
                rows.extend_from_slice(bytes_of(packed));
                let whole = (portion.end - self.head) / self.step * width;
                if !is_first {
                    rows.resize(whole, MISSING);
                }
                if rows.len() + HEADS + out.len() > most {
                    // It changes nothing: what is left need not be done.
                    Reply::new(out, Protocol::Resp2).error(too_long(most).text());
                    return (true, 1, from);
                }
                if let Some(error) = error {
                    self.error.get_or_insert_with(|| error.to_vec());
                }
                self.end_with(out, is_last)
            }
        }
    }

    /// What was answered at the end of the last portion was not to be answered: its changes are
    /// not safe.
    pub(crate) fn fail(&mut self, error: Vec<u8>) {
        self.error.get_or_insert(error);
    }

    fn end_with(&mut self, out: &mut Vec<u8>, is_last: bool) -> (bool, usize, usize) {
        let begin = out.len();
        if !is_last {
            return (false, 0, begin);
        }
        let error = self.error.take();
        match &self.joins {
            Joins::Rows(rows) => {
                if error.is_some() {
                    put_head(out, b'*', 2);
                }
                put_head(out, b'$', rows.len());
                out.extend_from_slice(rows);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(&error.unwrap_or_default());
            }
            Joins::Sum(sum) => match error {
                Some(error) => out.extend_from_slice(&error),
                None => out.extend_from_slice(format!(":{sum}\r\n").as_bytes()),
            },
            Joins::Elements => {}
        }
        (true, 1, begin)
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let rows = if let Joins::Rows(rows) = &self.joins { rows.capacity() } else { 0 };
        let named = self.named.as_ref().map_or(0, HashSet::capacity);
        rows + named * (size_of::<(u64, usize)>() + 1) + self.words.bytes()
    }
}

/// What stands behind the head of an array.
fn elements_in(reply: &[u8]) -> Option<&[u8]> {
    let end = reply.iter().position(|&byte| byte == b'\n')?;
    reply.starts_with(b"*").then(|| &reply[end + 1..])
}

/// What a bulk string says; nothing of another reply.
fn bytes_of(reply: &[u8]) -> &[u8] {
    let text = || {
        let end = reply.iter().position(|&byte| byte == b'\n')?;
        reply.strip_prefix(b"$")?;
        reply.get(end + 1..reply.len() - 2)
    };
    text().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::fuzz::commands::Guest;
    use crate::net::request_loop::ROOM_EVERY;
    use node::config::Config;
    use node::roles::node::{Host, Node};
    use std::sync::Arc;

    fn node() -> (tempfile::TempDir, Arc<Node>) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        (folder, Host::alone(&config))
    }

    fn request(words: &[String]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        bytes
    }

    fn words(head: &str, ids: impl Iterator<Item = String>, options: &str) -> Vec<String> {
        let split = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        [split(head), ids.flat_map(|id| split(&id)).collect(), split(options)].concat()
    }

    async fn answer(guest: &mut Guest, words: &[String]) -> String {
        String::from_utf8_lossy(&guest.answers(&request(words)).await).into_owned()
    }

    /// The reply to many short requests, as if it were one.
    fn joined(replies: &[String]) -> String {
        if replies[0].starts_with(':') {
            let numbers = replies.iter().map(|reply| reply[1..].trim().parse::<i64>().unwrap());
            return format!(":{}\r\n", numbers.sum::<i64>());
        }
        let parts = replies.iter().map(|reply| reply.split_once("\r\n").unwrap());
        let (sign, total) = parts.clone().fold(("", 0), |(_, total), (head, _)| {
            (&head[..1], total + head[1..].parse::<usize>().unwrap())
        });
        let packed = sign == "$";
        let rest = parts.map(|(_, rest)| if packed { rest.trim_end_matches("\r\n") } else { rest });
        format!("{sign}{total}\r\n{}{}", rest.collect::<String>(), if packed { "\r\n" } else { "" })
    }

    const IDS: u64 = 3000;

    fn ids() -> impl Iterator<Item = u64> {
        (0..IDS).map(|n| 1_000_000 + n * 7)
    }

    #[tokio::test]
    async fn a_long_request_does_and_says_what_short_ones_do() {
        let ((_here, long), (_there, short)) = (node(), node());
        let (mut long, mut short) = (Guest::new(&long), Guest::new(&short));
        let of = |form: &'static str| move |id: u64| form.replace('#', &id.to_string());
        for (head, form, options) in [
            ("CNT.MINCRBY post", "# read 5", ""),
            ("CNT.MINCRBY post", "# comment 2", "TOKEN 77"),
            ("CNT.MINCRBY post", "# comment 2", "TOKEN 77"),
            ("FEED.ACT like 9", "#", ""),
            ("FEED.ACT like 9", "#", ""),
            ("CNT.GET post", "#", ""),
            ("FEED.GET home 9", "#", ""),
            ("FEED.GET home 9", "#", "BINARY"),
            ("FEED.UNDO like 9", "#", ""),
            ("PH.ADD read 8", "#", ""),
            ("PH.EXISTS read 8", "#", ""),
            ("PH.DEL read 8", "#", ""),
            ("EXISTS", "post:# post:{#}", ""),
            ("MGET", "post:#:read", ""),
            ("SADD liked:5", "#", ""),
            ("SMISMEMBER liked:5", "#", ""),
            ("SREM liked:5", "#", ""),
            ("CNT.DEL post", "#", ""),
            ("DEL", "post:#", ""),
        ] {
            let (all, form) = (ids().collect::<Vec<u64>>(), of(form));
            let whole = words(head, all.iter().map(|&id| form(id)), options);
            let told = answer(&mut long, &whole).await;
            let mut parts = Vec::new();
            for some in all.chunks(300) {
                let part = words(head, some.iter().map(|&id| form(id)), options);
                parts.push(answer(&mut short, &part).await);
            }
            assert!(!parts[0].starts_with('-'), "{head}: {}", parts[0]);
            assert!(told == joined(&parts), "{head} {options}: {}", &told[..told.len().min(200)]);
        }
    }

    /// What is wrong is found before anything is changed.
    #[tokio::test]
    async fn what_is_wrong_at_the_end_of_a_long_request_leaves_all_as_it_was() {
        let (_folder, node) = node();
        let mut guest = Guest::new(&node);
        for (head, form, last, error) in [
            ("CNT.MINCRBY post", "# read 5", "x read 5", "ERR"),
            ("CNT.MINCRBY post", "# read 5", "7 reads 5", "ERR"),
            ("CNT.MINCRBY post", "# read 5", "7 read five", "ERR"),
            ("CNT.MINCRBY post", "# read 5", "7 read 5 TOKEN", "ERR wrong number of arguments"),
            ("CNT.MINCRBY post", "# read 5", "1000000 read 5 TOKEN a", "ERR with TOKEN"),
            ("FEED.ACT like 9", "#", "-1", "ERR"),
            ("FEED.ACT like 9", "#", "18446744073709551616", "ERR"),
            ("FEED.ACT love 9", "#", "", "ERR no such action"),
            ("PH.ADD read 8", "#", "EXACT", "ERR"),
            ("FEED.GET home 8", "#", "BINARY BINARY", "ERR syntax"),
            ("FEED.GET home 8", "#", "1/2", "ERR Invalid id"),
            ("FEED.GET home 8", "BINARY", "", "ERR syntax"),
            ("CNT.GET posts", "#", "", "ERR no such counter space"),
            ("CNT.GET", "EXACT", "", "ERR no such counter space"),
        ] {
            let form = |id: u64| form.replace('#', &id.to_string());
            let told = answer(&mut guest, &words(head, ids().map(form), last)).await;
            assert!(told.starts_with(&format!("-{error}")), "{head} {last}: {told:.200}");
            assert!(told.ends_with("\r\n") && told.matches("\r\n").count() == 1, "{told:.200}");
        }
        let rows =
            answer(&mut guest, &words("CNT.GET post", ids().map(|id| id.to_string()), "")).await;
        assert_eq!(rows.matches("*-1\r\n").count() as u64, IDS, "no row has come to be");
    }

    #[tokio::test]
    async fn packed_rows_of_a_long_request_have_the_limit_of_replies() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        config.server.max_output_buffer_bytes = 1 << 20;
        let node = Host::alone(&config);
        let mut guest = Guest::new(&node);
        let ids = |many: u64| (1_000_000..1_000_000 + many).map(|id| id.to_string());
        for (many, is_fine) in [(20_000, true), (100_000, false), (2_000, true)] {
            let told = answer(&mut guest, &words("FEED.GET home 9", ids(many), "BINARY")).await;
            if is_fine {
                assert!(told.starts_with('$'), "{told:.200}");
            } else {
                let error = "-ERR the page takes more than 1048576 bytes (max_output_buffer_bytes)";
                assert_eq!(told, format!("{error}\r\n"));
            }
        }
    }

    /// Promise 9, and the order of replies.
    #[tokio::test]
    async fn others_have_their_turns_between_two_portions() {
        let (_folder, node) = node();
        let (mut long, mut other) = (Guest::new(&node), Guest::new(&node));
        let likes = request(&words("FEED.ACT like 9", ids().map(|id| id.to_string()), ""));
        let pipeline = [&b"PING\r\n"[..], &likes, b"ECHO end\r\n"].concat();
        let (mut at, mut turns, mut told) = (0, 0, Vec::new());
        while at < pipeline.len() {
            let (used, mut given) = long.step(&pipeline[at..]);
            at += used;
            turns += 1;
            told.append(&mut given);
            assert_eq!(other.step(b"PING\r\n"), (6, b"+PONG\r\n".to_vec()));
        }
        assert!(turns > IDS / 512, "{turns} turns");
        let told = String::from_utf8(told).unwrap();
        let rest = told.strip_prefix("+PONG\r\n*3000\r\n").unwrap();
        assert_eq!(rest, format!("{}$3\r\nend\r\n", ":1\r\n".repeat(IDS as usize)));
    }

    /// The reply to one request; `behind` hears the number of each turn that it takes.
    fn in_turns(guest: &mut Guest, request: &[u8], mut behind: impl FnMut(u64)) -> String {
        let mut told = Vec::new();
        for turn in 1.. {
            let (used, given) = guest.step(request);
            told.extend_from_slice(&given);
            behind(turn);
            if used > 0 {
                assert_eq!(used, request.len());
                break;
            }
        }
        String::from_utf8(told).unwrap()
    }

    /// Each may have to be looked for on the disk.
    #[tokio::test]
    async fn keys_of_ledgers_are_done_a_few_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        let node = Host::alone(&config);
        let mut guest = Guest::new(&node);
        for (keys, least) in [(40, 3), (500, 6)] {
            let keys = (0..keys).map(|id| format!("liked:{id}"));
            let request = request(&words("EXISTS", keys, ""));
            let mut turns = 0;
            let told = in_turns(&mut guest, &request, |turn| turns = turn);
            assert_eq!(told, ":0\r\n");
            assert!(turns >= least, "{turns} turns");
        }
    }

    /// Another user, and rows for it to delete.
    async fn guest_of(guest: &mut Guest, rules: &str) {
        let none = || [].into_iter();
        let cells = ids().map(|id| format!("post:{id}:like 1"));
        for request in [
            words("AUTH default x", none(), ""),
            words(&format!("ACL SETUSER u reset on >p {rules}"), none(), ""),
            words("ACL LOG RESET", none(), ""),
            words("MSET", cells, ""),
            words("AUTH u p", none(), ""),
        ] {
            assert_eq!(answer(guest, &request).await, "+OK\r\n", "{}", request[0]);
        }
    }

    fn deletion(last: &str) -> Vec<u8> {
        request(&words("DEL", ids().map(|id| format!("post:{id}")), last))
    }

    async fn forbidden(guest: &mut Guest) -> String {
        let log = String::from_utf8(guest.answers(b"ACL LOG\r\n").await).unwrap();
        let counts = log.split("count\r\n:").skip(1).map(|rest| rest.split('\r').next().unwrap());
        counts.collect::<Vec<_>>().join(" ")
    }

    /// The rights to all keys are looked at before the first is touched.
    #[tokio::test]
    async fn keys_that_a_user_may_touch_are_done_in_portions_and_else_none_is() {
        let (_folder, node) = node();
        let mut guest = Guest::new(&node);
        guest_of(&mut guest, "+@all ~post:*").await;
        let mut turns = 0;
        let told = in_turns(&mut guest, &deletion("liked:1"), |turn| turns = turn);
        assert!(told.starts_with("-NOPERM") && told.matches('\n').count() == 1, "{told}");
        assert!(turns > 2 && forbidden(&mut guest).await == "1", "{turns} turns");
        // Beyond the limit of what is executed at once the answer is the same.
        let many = words("DEL", (0..20_000).map(|id| format!("post:{id}")), "liked:1");
        let told = in_turns(&mut guest, &request(&many), |_| ());
        assert!(told.starts_with("-NOPERM") && forbidden(&mut guest).await == "2", "{told}");
        let told = in_turns(&mut guest, &deletion("post:1"), |turn| turns = turn);
        assert_eq!(told, format!(":{IDS}\r\n"), "none was deleted before");
        assert!(turns > IDS / 512, "{turns} turns");
    }

    /// As in Redis one of its selectors must allow all that a request touches.
    #[tokio::test]
    async fn a_user_with_selectors_may_not_touch_keys_of_both_in_one_request() {
        let (_folder, node) = node();
        let mut guest = Guest::new(&node);
        guest_of(&mut guest, "+@all ~post:* (+@all ~user:*)").await;
        let keys = |of: &str| (0..1024).map(|id| format!("{of}:{id}")).collect::<Vec<_>>();
        let both = words("DEL", [keys("post"), keys("user")].concat().into_iter(), "");
        assert!(answer(&mut guest, &both).await.starts_with("-NOPERM"));
        let told = in_turns(&mut guest, &deletion("post:1"), |_| ());
        assert_eq!(told, format!(":{IDS}\r\n"), "none was deleted before");
    }

    /// What is left would be refused and noted again and again.
    #[tokio::test]
    async fn rights_that_are_taken_away_end_a_long_request() {
        let (_folder, node) = node();
        let (mut guest, mut other) = (Guest::new(&node), Guest::new(&node));
        let mut take = |turn| {
            if turn == 6 {
                let taken = other.step(b"ACL SETUSER u -del -mget\r\n").1;
                assert_eq!(taken, b"+OK\r\n");
            }
        };
        guest_of(&mut guest, "+@all ~post:*").await;
        let told = in_turns(&mut guest, &deletion("post:1"), &mut take);
        assert!(told.starts_with("-NOPERM") && told.matches('\n').count() == 1, "{told}");
        assert_eq!(forbidden(&mut guest).await, "1");
        guest_of(&mut guest, "+@all ~post:*").await;
        let read = request(&words("MGET", ids().map(|id| format!("post:{id}:like")), ""));
        let told = in_turns(&mut guest, &read, &mut take);
        let refused = told.matches("-NOPERM").count();
        assert!(told.starts_with("*3000\r\n$1\r\n1\r\n") && refused > 100, "{told}");
        assert_eq!(told.matches("$1\r\n1\r\n").count() + refused, IDS as usize);
        assert_eq!(forbidden(&mut guest).await, "1");
    }

    /// Later portions have errors in the places of their ids, whatever happens meanwhile.
    #[tokio::test]
    async fn a_portion_that_is_refused_is_an_error_of_each_of_its_ids() {
        for (head, form, refused) in [
            ("FEED.ACT like 9", "#", 2488),
            ("CNT.MINCRBY post", "# read 1", 2830),
            ("CNT.DEL post", "#", 1),
        ] {
            let (_folder, node) = node();
            let mut guest = Guest::new(&node);
            let form = |id: u64| form.replace('#', &id.to_string());
            let request = request(&words(head, ids().map(form), ""));
            let told = in_turns(&mut guest, &request, |turn| {
                if turn == 2 {
                    // Behind the first portion.
                    node.durability.unable(&store::Error::Refused("the disk is gone".to_owned()));
                }
            });
            assert_eq!(told.matches("-MISCONF").count(), refused, "{head}: {told:.300}");
        }
    }

    /// The first request of a connection, too, and each portion: behind the limit it would be
    /// refused.
    #[tokio::test]
    async fn a_writer_waits_for_room_before_it_writes() {
        let (_folder, node) = node();
        let engines = node.engines();
        let space = &engines.counters()[0];
        let likes = words("FEED.ACT like 9", ids().map(|id| id.to_string()), "");
        for asked in [b"HINCRBY post:1 like 1\r\n".to_vec(), request(&likes)] {
            let mut guest = Guest::new(&node);
            space.set_memory_limit_bytes(1);
            let mut turns = 0;
            while guest.talk.stalled.is_none() {
                assert_eq!(guest.step(&asked), (0, Vec::new()));
                turns += 1;
            }
            assert!(turns <= 2, "{turns}");
            let mut reader = Guest::new(&node);
            assert_eq!(reader.step(b"GET post:1:like\r\n").1, b"$-1\r\n", "readers do not wait");
            let mut waits = guest.talk.stalled.take().unwrap();
            assert!(tokio::time::timeout(ROOM_EVERY * 10, &mut waits).await.is_err());
            space.set_memory_limit_bytes(u64::MAX);
            waits.await;
            let told = String::from_utf8(guest.answers(&asked).await).unwrap();
            assert!(!told.contains('-') && told.ends_with(":1\r\n"), "{told:.200}");
            assert_eq!(reader.answers(b"DEL post:1\r\n").await.len(), 4);
        }
    }
}
