//! Requests with many ids, keys or members, which take several handler calls.
//!
//! The request loop calls the handler repeatedly (`items.rs`). Between two calls the replies are
//! sent, other connections of the worker run, and a write may wait for room. An error before the
//! first element becomes the reply; a later error replaces every remaining element.
//!
//! Some requests run in one turn regardless of their length: requests inside a transaction, pages
//! with MARK or AMONG, actions with member counters, requests for keys by a user with several
//! selectors, and all requests in a cluster. `max_request_args` limits the length of these
//! requests. See `docs/decisions/0033-*.md`.

use crate::commands::call::counter_space;
use crate::commands::check::{checked, note_rejected};
use crate::commands::cluster::gather::can_be_parted;
use crate::commands::cluster::shape;
use crate::commands::command::{Run, handler};
use crate::commands::connection::tracking;
use crate::commands::execute::{note_refusal, withhold};
use crate::commands::items::{TURN_ITEMS, TURN_TESTS};
use crate::commands::run::{record_duration, run_turn};
use crate::commands::turn::{Answer, Step, Turn};
use crate::session::{Replies, Scratch, Session};
use dataset::engines::Engines;
use node::command::among;
use node::command::error::{Refusal, refuse};
use node::command::id_list::{self, ID_BYTES, count_packed, first_id};
use node::command::spec::{IdTarget, KeyArgs, Outcome, Spec, flag};
use node::command::table::{Found, bit_of};
use node::roles::node::Now;
use resp::{Args, Reply, RequestQueue};
use std::time::{Duration, Instant};

/// Number of arguments up to which a request runs in one handler call.
const LONG_ARGS: usize = 1024;
/// Number of keys up to which a request runs in one handler call if a space has an exact ledger. A
/// lookup in the ledger's files takes up to 0.3 ms.
const LONG_LEDGER_ARGS: usize = 32;
/// Maximum number of options after the ids of a page.
const OPTIONS: usize = 4;

/// A request that takes several handler calls, and its progress.
pub(crate) struct LongRequest {
    pub(crate) found: Found,
    spec: &'static Spec,
    pub(crate) step: Step,
    /// Maximum number of items per handler call.
    most_items: usize,
    scratch: Scratch,
    took: Duration,
    /// Hash of the schema at the first handler call.
    shape: Option<u64>,
    /// Error for all remaining items, once an item has failed.
    refusal: Option<Refusal>,
}

/// Returns whether a request is long enough to run in several turns. `bytes` is its size.
#[inline]
pub(crate) fn is_long(found: Found, args: Args<'_>, bytes: usize, node: Now<'_>) -> bool {
    args.len() > LONG_LEDGER_ARGS && (args.len() > LONG_ARGS || is_of_ledger(found, node))
        || bytes > LONG_ARGS * ID_BYTES && has_many_packed(found, args)
}

#[cold]
fn has_many_packed(found: Found, args: Args<'_>) -> bool {
    found.is_some_and(|(_, spec)| spec.has(flag::PACKED)) && count_packed(args) > LONG_ARGS
}

/// Returns whether each key of a request may need a read of ledger files.
fn is_of_ledger(found: Found, node: Now<'_>) -> bool {
    found.is_some_and(|(_, spec)| spec.may_read_sets())
        && node.loaded().is_some_and(|engines: &Engines| engines.ledgers().next().is_some())
}

impl LongRequest {
    /// Creates the state of a long request. Returns `None` if the request must run in one handler
    /// call.
    pub(crate) fn new(
        found: Found,
        args: Args<'_>,
        session: &Session,
        engines: &Engines,
    ) -> Option<LongRequest> {
        let (number, spec) = found?;
        let has_selectors =
            || session.access.user.as_ref().is_some_and(|user| !user.selectors().1.is_empty());
        // One selector must allow all keys of a request.
        let rights_are_per_key = session.access.free || !spec.keys.are_keys() || !has_selectors();
        let belongs_together =
            spec.has(flag::PER_ID) && !can_be_parted(spec, args, session, engines);
        let takes_turns = matches!(handler(bit_of(number, 0)), Run::Long(_))
            && session.transaction.is_none()
            && session.topology.is_none()
            && rights_are_per_key
            && !belongs_together
            && spec.mark(args).is_none()
            && among::position(args).is_none();
        let only_tests = spec.keys == KeyArgs::ids_of(IdTarget::Pairs)
            && id_list::packed(spec, args).is_some()
            && !spec.may_write(args)
            && !engines.has_cold();
        takes_turns.then(|| LongRequest {
            found,
            spec,
            step: Step::Check(0),
            most_items: if only_tests { TURN_TESTS } else { TURN_ITEMS },
            scratch: Scratch::default(),
            took: Duration::ZERO,
            shape: None,
            refusal: None,
        })
    }

    /// Returns the request reduced to the items of the next handler call, plus the options.
    pub(crate) fn part(&self, args: Args<'_>) -> RequestQueue {
        if let Some(at) = id_list::packed(self.spec, args) {
            return self.part_of_packed(args, at);
        }
        let (head, step, options) = match self.spec.keys {
            KeyArgs::Ids(_, head, step) => {
                (first_id(self.spec, args, head), step, if step == 1 { OPTIONS } else { 0 })
            }
            // Either all arguments are keys, or one key is followed by members.
            KeyArgs::Keys(1, -1, 1) => (1, 1, 0),
            _ => (2, 1, 0),
        };
        let from = head + self.item() * step;
        // If options precede the ids, the ids are at higher positions.
        let end = args.len().min(from + TURN_ITEMS * step + options);
        let tail = end.max(args.len() - options)..args.len();
        let mut part = RequestQueue::default();
        part.push_all((0..head).chain(from..end).chain(tail).map(|at| args.at(at)));
        part
    }

    /// Returns the request reduced to the packed ids of the next turn. `at` is the position of the
    /// packed ids.
    fn part_of_packed(&self, args: Args<'_>, at: usize) -> RequestQueue {
        let ids = args.at(at);
        let from = ids.len().min(self.item() * ID_BYTES);
        let end = ids.len().min(from + self.most_items * ID_BYTES);
        let word = |index| if index == at { &ids[from..end] } else { args.at(index) };
        let mut part = RequestQueue::default();
        part.push_all((0..args.len()).map(word));
        part
    }

    /// Returns the next turn. `part` must be the result of [`LongRequest::part`] for `args`.
    pub(crate) fn turn<'a>(&self, args: Args<'a>, part: Args<'a>) -> Turn<'a> {
        Turn { args, part, step: self.step, most_items: self.most_items }
    }

    fn item(&self) -> usize {
        match self.step {
            Step::Check(item) | Step::Do(item) => item,
            Step::Whole => 0,
        }
    }

    /// Returns whether only a part of an array was sent so far. A push message must not be inserted
    /// into the array.
    pub(crate) fn is_amid_reply(&self) -> bool {
        matches!(self.step, Step::Do(1..)) && self.scratch.elements > 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.scratch.bytes()
    }

    /// Fails if the schema has changed since the first handler call. All rows of a reply have the
    /// same columns, and the changes were checked against that schema.
    fn check_shape(&mut self, part: Args<'_>, engines: &Engines) -> Outcome {
        let shape = match self.spec.keys {
            KeyArgs::Ids(IdTarget::Rows, ..) => {
                Some(counter_space(engines, part.at(1))?.shape_of_rows())
            }
            _ => shape::own(self.spec, part, engines)?,
        };
        if self.step == Step::Check(0) {
            self.shape = shape;
        } else if self.shape != shape {
            return Err(refuse!("ERR spaces or views changed during the request: retry it"));
        }
        Ok(())
    }

    /// Writes an error for each of the remaining items, but for at most [`TURN_ITEMS`] of them.
    /// Returns true once the reply is complete.
    fn refuse(&mut self, refusal: Refusal, reply: &mut Reply<'_>) -> bool {
        if !self.is_amid_reply() {
            reply.error(refusal.text());
            return true;
        }
        let end = self.scratch.elements.min(self.item() + TURN_ITEMS);
        (self.item()..end).for_each(|_| reply.error(refusal.text()));
        self.step = Step::Do(end);
        self.refusal = Some(refusal);
        end == self.scratch.elements
    }

    /// Handles a failed sync of the changes of one handler call. The connection has already
    /// replaced the array elements of that call by errors. An integer or a packed page is sent only
    /// at the end, so this error replaces the whole reply.
    pub(crate) fn fail(&mut self, text: &str) {
        if self.scratch.elements == 0 {
            self.refusal = Some(Refusal::new(text.as_bytes().to_vec()));
        }
    }

    /// Returns the number of replies or array elements that a handler call has written, and the
    /// number of bytes that precede them. `before` is the step at which the call began.
    pub(crate) fn written(&self, before: Step, is_done: bool, out: &[u8]) -> (usize, usize) {
        let from = if let Step::Do(from) = before { from } else { 0 };
        let is_array = self.scratch.elements > 0 && (from > 0 || out.starts_with(b"*"));
        if !is_array || out.is_empty() {
            return (usize::from(!out.is_empty()), 0);
        }
        let head = out.iter().take_while(|&&byte| byte != b'\n').count() + 1;
        let to = if is_done { self.scratch.elements } else { self.item() };
        (to - from, if from == 0 { head } else { 0 })
    }
}

/// Calls the handler for the next items of a long request. Returns true if the reply is complete.
#[cold]
pub(crate) fn execute_turn(
    long: &mut LongRequest,
    turn: Turn<'_>,
    session: &mut Session,
    node: Now<'_>,
    out: &mut Vec<u8>,
) -> bool {
    let mut reply = Reply::new(out, session.client.protocol());
    let mark = reply.mark();
    let is_tracked = node.tracking.any();
    if is_tracked {
        tracking::begin(session, &node);
    }
    let answer = match long.refusal.clone() {
        Some(refusal) => Err(refusal),
        None => checked(long.found, turn.part, usize::MAX, session, node)
            .inspect_err(|_| note_rejected(long.found, turn.part, session, node))
            .and_then(|(numbers, spec)| {
                long.check_shape(turn.part, node.engines())?;
                let began = Instant::now();
                let reply = reply.again();
                let answer = run_turn(spec, numbers, turn, reply, session, node, &mut long.scratch);
                long.took += began.elapsed();
                answer
            }),
    };
    session.records_missing_rows = false;
    if matches!(turn.step, Step::Check(_)) {
        session.wrote = false;
    }
    if is_tracked {
        session.messages_due |= node.tracking.end(node.loaded());
    }
    if session.suspension.is_requested() {
        // The handler is called again with the same items, and writes its reply then.
        reply.rewind(mark);
        return false;
    }
    // Discard the result of a wait that the handler has not taken.
    session.suspension.take_result();
    let is_done = match answer {
        Ok(Answer::Done) => true,
        Ok(Answer::Continue(step)) => {
            long.step = step;
            false
        }
        Err(refusal) => {
            reply.rewind(mark);
            if long.refusal.is_none() {
                note_refusal(&refusal, session, node);
                node.tallies[session.worker].errors.add(1);
            }
            long.refuse(refusal, &mut reply)
        }
    };
    match (session.replies, is_done) {
        (Replies::On, _) => {}
        (_, true) => withhold(&mut reply, mark, session),
        (_, false) => reply.rewind(mark),
    }
    if !is_done {
        return false;
    }
    if let Some((number, spec)) = long.found {
        record_duration(spec, bit_of(number, 0), turn.args, long.took, session, node);
    }
    tracking::end_caching(session);
    if std::mem::take(&mut session.messages_due) {
        session.client.inbox.take(reply.bytes(), None);
    }
    true
}

#[cfg(test)]
mod tests {
    use crate::fuzz::commands::{Guest, alone};
    use crate::net::request_loop::ROOM_CHECK_INTERVAL;
    use node::config::Config;
    use node::roles::node::Node;
    use std::sync::Arc;

    fn node() -> (tempfile::TempDir, Arc<Node>) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        (folder, alone(&config))
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

    /// Merges the replies of many short requests into one reply.
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
            ("FEED.ACT like 9", "#", ""),
            ("TM.FORGET post", "#", ""),
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

    #[tokio::test]
    async fn options_stand_anywhere_among_the_ids_of_a_long_page() {
        let (_folder, node) = node();
        let mut guest = Guest::new(&node);
        let numbers = || ids().map(|id| id.to_string());
        answer(&mut guest, &words("FEED.ACT like 9", numbers().step_by(3), "")).await;
        let expected = answer(&mut guest, &words("FEED.GET home 9", numbers(), "BINARY")).await;
        assert!(expected.starts_with("$102000\r\n"), "{expected:.100}");
        let mut page = words("FEED.GET home 9", numbers(), "");
        page.insert(1500, "BINARY".to_owned());
        assert!(answer(&mut guest, &page).await == expected);
    }

    /// All arguments are checked before the first change.
    #[tokio::test]
    async fn invalid_last_argument_of_a_long_request_changes_nothing() {
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
            ("PH.EXISTS read 8", "#", "EXACT", "ERR the space 'read' has no ledger"),
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
        assert_eq!(rows.matches("*-1\r\n").count() as u64, IDS, "no row was created");
    }

    #[tokio::test]
    async fn packed_rows_of_a_long_request_have_the_limit_of_replies() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        config.server.max_output_buffer_bytes = 1 << 20;
        let node = alone(&config);
        let mut guest = Guest::new(&node);
        let ids = |many: u64| (1_000_000..1_000_000 + many).map(|id| id.to_string());
        for (many, is_fine) in [(20_000, true), (100_000, false), (2_000, true)] {
            let told = answer(&mut guest, &words("FEED.GET home 9", ids(many), "BINARY")).await;
            if is_fine {
                assert!(told.starts_with('$'), "{told:.200}");
            } else {
                let error = "-ERR the page exceeds 1048576 bytes (max_output_buffer)";
                assert_eq!(told, format!("{error}\r\n"));
            }
        }
    }

    /// Other clients are served while a long request yields. Replies keep their order.
    #[tokio::test]
    async fn other_clients_run_between_turns_of_a_long_request() {
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

    /// The handler call that executes the first items; calls are numbered from 1. Call 1 detects
    /// that the request is long. Each of the following calls checks 512 ids.
    const BEGUN: u64 = 2 + IDS.div_ceil(512);

    /// Returns the reply to one request. After the n-th handler call, calls `behind(n)`.
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

    /// A request is also long if each key may need a disk read.
    #[tokio::test]
    async fn a_request_for_keys_of_ledgers_takes_several_turns() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        let node = alone(&config);
        let mut guest = Guest::new(&node);
        for (keys, least) in [(40, 3), (2000, 9)] {
            let keys = (0..keys).map(|id| format!("liked:{id}"));
            let request = request(&words("EXISTS", keys, ""));
            let mut turns = 0;
            let told = in_turns(&mut guest, &request, |turn| turns = turn);
            assert_eq!(told, ":0\r\n");
            assert!(turns >= least, "{turns} turns");
        }
    }

    /// Creates rows, and logs in as another user that may delete them.
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

    /// Access to all keys is checked before the first is touched.
    #[tokio::test]
    async fn no_key_is_touched_before_the_rights_to_all_are_checked() {
        let (_folder, node) = node();
        let mut guest = Guest::new(&node);
        guest_of(&mut guest, "+@all ~post:*").await;
        let mut turns = 0;
        let told = in_turns(&mut guest, &deletion("liked:1"), |turn| turns = turn);
        assert!(told.starts_with("-NOPERM") && told.matches('\n').count() == 1, "{told}");
        assert!(turns > 2 && forbidden(&mut guest).await == "1", "{turns} turns");
        // A request too long for one handler call returns the same error.
        let many = words("DEL", (0..20_000).map(|id| format!("post:{id}")), "liked:1");
        let told = in_turns(&mut guest, &request(&many), |_| ());
        assert!(told.starts_with("-NOPERM") && forbidden(&mut guest).await == "2", "{told}");
        let told = in_turns(&mut guest, &deletion("post:1"), |turn| turns = turn);
        assert_eq!(told, format!(":{IDS}\r\n"), "no row was deleted before");
        assert!(turns > IDS / 512, "{turns} turns");
    }

    /// As in Redis, one selector must allow everything that a request touches.
    #[tokio::test]
    async fn one_selector_must_allow_all_keys_of_a_request() {
        let (_folder, node) = node();
        let mut guest = Guest::new(&node);
        guest_of(&mut guest, "+@all ~post:* (+@all ~user:*)").await;
        let keys = |of: &str| (0..1024).map(|id| format!("{of}:{id}")).collect::<Vec<_>>();
        let both = words("DEL", [keys("post"), keys("user")].concat().into_iter(), "");
        assert!(answer(&mut guest, &both).await.starts_with("-NOPERM"));
        let told = in_turns(&mut guest, &deletion("post:1"), |_| ());
        assert_eq!(told, format!(":{IDS}\r\n"), "no row was deleted before");
    }

    /// A long request ends when the user loses its permissions. Otherwise the ACL would refuse and
    /// log each remaining key.
    #[tokio::test]
    async fn rights_that_are_taken_away_end_a_long_request() {
        let (_folder, node) = node();
        let (mut guest, mut other) = (Guest::new(&node), Guest::new(&node));
        let mut take = |turn| {
            if turn == BEGUN {
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

    /// After any error, the reply contains an error for each remaining item.
    #[tokio::test]
    async fn a_turn_that_is_refused_is_an_error_of_each_id_left() {
        for (head, form, done) in [
            ("FEED.ACT like 9", "#", ":1\r\n"),
            ("CNT.MINCRBY post", "# read 1", ":1\r\n"),
            ("CNT.DEL post", "#", ""),
        ] {
            let (_folder, node) = node();
            let mut guest = Guest::new(&node);
            let form = |id: u64| form.replace('#', &id.to_string());
            let request = request(&words(head, ids().map(form), ""));
            let told = in_turns(&mut guest, &request, |turn| {
                if turn == BEGUN {
                    node.durability
                        .refuse_writes(&store::Error::Refused("the disk is gone".to_owned()));
                }
            });
            let Some(elements) = told.strip_prefix("*3000\r\n") else {
                assert!(done.is_empty() && told.starts_with("-MISCONF"), "{head}: {told:.300}");
                continue;
            };
            let (fine, refused) = elements.split_at(elements.find('-').unwrap());
            assert_eq!(fine, done.repeat(fine.len() / done.len()));
            assert_eq!(refused.matches("-MISCONF").count() + fine.len() / done.len(), 3000);
            assert_eq!(refused.matches("\r\n").count(), refused.matches("-MISCONF").count());
        }
    }

    /// A write waits for room in the space before every handler call. Without the wait the write
    /// would be refused.
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
            while guest.processor.stalled.is_none() {
                assert_eq!(guest.step(&asked), (0, Vec::new()));
                turns += 1;
            }
            assert!(turns <= 2, "{turns}");
            let mut reader = Guest::new(&node);
            assert_eq!(reader.step(b"GET post:1:like\r\n").1, b"$-1\r\n", "readers do not wait");
            let mut waits = guest.processor.stalled.take().unwrap();
            assert!(tokio::time::timeout(ROOM_CHECK_INTERVAL * 10, &mut waits).await.is_err());
            space.set_memory_limit_bytes(u64::MAX);
            waits.await;
            let told = String::from_utf8(guest.answers(&asked).await).unwrap();
            assert!(!told.contains('-') && told.ends_with(":1\r\n"), "{told:.200}");
            assert_eq!(reader.answers(b"DEL post:1\r\n").await.len(), 4);
        }
    }
}
