//! Requests whose ids are of several shards. This node does its own part at once, asks other nodes
//! for theirs ([`peers`]), and joins the elements of their replies in the order of the ids.
//!
//! A part is the same command with fewer ids. What a client asks for in one turn goes out together;
//! the replies of the turn are held until all parts have come or are late, while other clients of
//! the worker go on. An id whose part failed has an error in its place: a page is partial, never
//! refused, unless all nodes refuse it.
//!
//! A node that is asked by another one asks no further ([`Session::is_coordinator`]): where it does
//! not serve an id it says MOVED in its place, and the coordinator asks the node that this names,
//! once. It is told, too, what the coordinator takes the elements of its reply for ([`shape`]).

use crate::handlers::call::{Call, view};
use crate::handlers::cluster::peers::{self, Address, Answer, Batch, Failure, Link};
use crate::handlers::cluster::{route, shape};
use crate::handlers::execute::run;
use crate::handlers::session::{Scratch, Session};
use dataset::engines::Engines;
use node::client::connect::{put_bulk, put_head};
use node::cluster::slot::of_text;
use node::cluster::{Server, Topology};
use node::command::error::Refusal;
use node::command::spec::{KeyArgs, Of, Outcome, Spec, flag};
use node::command::table::bit_of;
use node::config::ReadFrom;
use node::roles::node::{Now, Process};
use resp::{Args, Kept, Protocol, Reply, elements, natural, put_resp3};
use std::cell::LazyCell;
use std::ops::Range;
use std::sync::Arc;

/// Requests of one turn that wait for other nodes; the next ones wait for their replies.
const MOST_TOGETHER: usize = 512;
/// What a row is in a packed page if it could not be had: -1 in all columns.
pub(crate) const MISSING: u8 = 0xff;

/// Whether a request can be done in parts.
pub(crate) fn can_be_parted(
    spec: &Spec,
    args: Args<'_>,
    session: &Session,
    engines: &Engines,
) -> bool {
    let KeyArgs::Ids(of, ..) = spec.keys else { return false };
    // What such an action moves belongs together.
    let counts_member =
        || engines.action(args.at(1)).is_some_and(dataset::engines::Action::counts_member);
    spec.has(flag::PER_ID)
        && session.transaction.is_none()
        && !session.in_exec
        && !(of == Of::Action && counts_member())
}

/// Whether this node, as a replica, answers reads of ids for its master.
pub(crate) fn reads_here(session: &Session, node: Now<'_>) -> bool {
    let (from, most_ms) = {
        let config = node.config();
        (config.cluster.read_from, config.cluster.max_staleness_ms)
    };
    let in_step =
        || node.replication.link.lock().is_in_step(most_ms) && route::has_masters_data(node);
    match (session.is_coordinator, session.reads_replica) {
        (true, reads) => reads && in_step(),
        (false, true) => route::reads_replica(session, node),
        (false, false) => from != ReadFrom::Master && in_step(),
    }
}

/// Whether this node answers for all ids of such a request, as for those of a part.
pub(crate) fn are_all_here(
    spec: &Spec,
    args: Args<'_>,
    session: &Session,
    node: Now<'_>,
    topology: &Topology,
) -> bool {
    let KeyArgs::Ids(of, head, step) = spec.keys else { return false };
    let is_joined = is_joined(of, args, node);
    let reads_here = LazyCell::new(|| !spec.may_write(args) && reads_here(session, node));
    let is_here = |slot| topology.server_of(slot).is_here(|| *reads_here);
    let mut words = args.from(head).iter().step_by(step);
    words.all(|word| {
        slot_of(word, is_joined, topology).is_none_or(|(slot, is_one)| is_one && is_here(slot))
    })
}

/// Whether a page has several ids for each entry.
fn is_joined(of: Of, args: Args<'_>, node: Now<'_>) -> bool {
    of == Of::View && node.engines().view(args.at(1)).is_some_and(dataset::engines::View::is_joined)
}

/// Where the ids of a part are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Here,
    /// The shard of the master at this position.
    Shard(usize),
}

/// Ids that one node answers for.
struct Part {
    at: At,
    /// How many.
    count: usize,
    /// The number of its answer in the batch.
    number: usize,
    /// A whole reply; of a node that gave none, an error of ours.
    reply: Vec<u8>,
    is_answered: bool,
}

/// Which part, or which refusal, an id belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Belongs {
    Part(u32),
    Refusal(u32),
}

/// How a request is divided.
struct Plan {
    /// Arguments in front of the ids, and those of each id.
    head: usize,
    step: usize,
    /// The position of each id among the arguments, and what it belongs to.
    ids: Vec<(u32, Belongs)>,
    /// Positions of arguments that all parts have.
    options: Vec<u32>,
    parts: Vec<Part>,
    /// Errors of ids that are nowhere, as elements.
    refusals: Vec<Vec<u8>>,
    is_binary: bool,
    /// What other nodes are told of the shape, if there is something to tell.
    shape: Option<u64>,
}

fn element_of(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Reply::new(&mut bytes, Protocol::Resp2).error(text);
    bytes
}

/// The slot of an argument's first id, and whether its others are of the same shard; `None`: it is
/// an option.
fn slot_of(word: &[u8], is_joined: bool, topology: &Topology) -> Option<(u16, bool)> {
    if natural(word).is_some() {
        return Some((of_text(word), true));
    }
    if !is_joined || !word.first()?.is_ascii_digit() {
        return None;
    }
    let mut slots = word.split(|byte| *byte == b'/').map(of_text);
    let first = slots.next()?;
    let shard = topology.number_of(first);
    Some((first, slots.all(|slot| topology.number_of(slot) == shard)))
}

impl Plan {
    fn new(
        spec: &Spec,
        args: Args<'_>,
        session: &Session,
        node: Now<'_>,
        topology: &Topology,
    ) -> Result<Plan, Refusal> {
        let KeyArgs::Ids(of, head, step) = spec.keys else { return Err(Refusal::SYNTAX) };
        let mut plan = Plan {
            head,
            step,
            ids: Vec::with_capacity(args.len()),
            options: Vec::new(),
            parts: Vec::new(),
            refusals: Vec::new(),
            is_binary: false,
            shape: None,
        };
        let is_joined = is_joined(of, args, node);
        let reads_here = !spec.may_write(args) && reads_here(session, node);
        let mut of_master = vec![None; topology.members().len()];
        let mut at = head;
        while at < args.len() {
            let word = args.at(at);
            match slot_of(word, is_joined, topology).filter(|_| at + step <= args.len()) {
                Some((slot, is_one)) => {
                    let of = if is_one {
                        plan.place(slot, session, topology, reads_here, &mut of_master)
                    } else {
                        plan.refuse(b"CROSSSLOT the ids of an entry are of several shards")
                    };
                    plan.ids.push((at as u32, of));
                    at += step;
                }
                None if of == Of::View && word.eq_ignore_ascii_case(b"BINARY") => {
                    if plan.is_binary {
                        return Err(Refusal::SYNTAX);
                    }
                    plan.is_binary = true;
                    at += 1;
                }
                None => {
                    // The name of the action may be anything.
                    let is_mark = of == Of::View && word.eq_ignore_ascii_case(b"MARK");
                    for option in at..(at + 1 + usize::from(is_mark)).min(args.len()) {
                        plan.options.push(option as u32);
                    }
                    at += 1 + usize::from(is_mark);
                }
            }
        }
        Ok(plan)
    }

    fn refuse(&mut self, text: &[u8]) -> Belongs {
        self.refusals.push(element_of(text));
        Belongs::Refusal(self.refusals.len() as u32 - 1)
    }

    /// The part of an id in this slot. `of_master`: the parts that are known.
    fn place(
        &mut self,
        slot: u16,
        session: &Session,
        topology: &Topology,
        reads_here: bool,
        of_master: &mut [Option<u32>],
    ) -> Belongs {
        let Some(master) = topology.number_of(slot) else {
            return self.refuse(b"CLUSTERDOWN Hash slot not served");
        };
        if let Some(part) = of_master[master] {
            self.parts[part as usize].count += 1;
            return Belongs::Part(part);
        }
        let at = match topology.server_of(slot) {
            server if server.is_here(|| reads_here) => At::Here,
            Server::OwnMaster(to) | Server::Other(to) if session.is_coordinator => {
                return self.refuse(format!("MOVED {slot} {}:{}", to.host, to.port).as_bytes());
            }
            _ => At::Shard(master),
        };
        let part = self.parts.len() as u32;
        of_master[master] = Some(part);
        self.parts.push(Part { at, count: 1, number: 0, reply: Vec::new(), is_answered: false });
        Belongs::Part(part)
    }

    /// The arguments of the request with these ids only.
    fn words<'a>(
        &self,
        args: Args<'a>,
        is_meant: impl Fn(usize, Belongs) -> bool,
    ) -> impl Iterator<Item = &'a [u8]> {
        let ids = self.ids.iter().enumerate();
        let ids = ids.filter(move |(id, (_, of))| is_meant(*id, *of)).map(|(_, (at, _))| *at);
        let ids = ids.flat_map(move |at| at as usize..at as usize + self.step);
        let options = self.options.iter().map(|at| *at as usize);
        (0..self.head).chain(ids).chain(options).map(move |at| args.at(at))
    }

    /// Appends the request of some ids, for another node.
    fn write(
        &self,
        args: Args<'_>,
        count: usize,
        is_meant: impl Fn(usize, Belongs) -> bool,
        out: &mut Vec<u8>,
    ) {
        let length = self.head + count * self.step + self.options.len();
        put_head(out, b'*', length + usize::from(self.shape.is_some()));
        self.words(args, is_meant).for_each(|word| put_bulk(out, word));
        if let Some(shape) = self.shape {
            shape::put(shape, out);
        }
    }
}

/// A request that waits for other nodes.
struct Page {
    spec: &'static Spec,
    request: Kept,
    plan: Plan,
    /// Counters and flags of a view and its further ones, if the page is to be packed.
    columns: Option<Vec<(usize, usize)>>,
    /// Where its reply comes among the replies of the turn, in the place of this.
    place: Range<usize>,
    protocol: Protocol,
    /// Elements of ids that were asked for again.
    again: Vec<(usize, Vec<u8>)>,
}

/// What of a turn waits for other nodes.
#[derive(Default)]
pub(crate) struct Gathering {
    batch: Arc<Batch>,
    pages: Vec<Page>,
}

/// A reply, and the bytes among the replies of the turn that it replaces.
pub(crate) type Joined = (Range<usize>, Vec<u8>);

/// Answers a request that [can be parted](can_be_parted): at once, or with what its session
/// gathers. `told`: what another node takes the elements for.
// Long: all that a command is executed with.
#[expect(clippy::too_many_arguments, reason = "all that a command is executed with")]
pub(crate) fn answer(
    number: u16,
    spec: &'static Spec,
    args: Args<'_>,
    told: Option<u64>,
    reply: &mut Reply<'_>,
    session: &mut Session,
    node: Now<'_>,
    scratch: &mut Scratch,
) -> Outcome {
    let Some(topology) = session.topology.clone() else { return Ok(()) };
    let mut plan = Plan::new(spec, args, session, node, &topology)?;
    plan.shape = match shape::own(spec, args, node.engines()) {
        // Its own part says it.
        Err(_) if session.is_coordinator => None,
        shape => shape?,
    };
    let columns = if plan.is_binary { Some(columns(node.engines(), args.at(1))?) } else { None };
    if plan.is_binary {
        shape::is_still(plan.shape, spec, args, node)?;
    }
    if let Some(part) = plan.parts.iter().position(|part| part.at == At::Here) {
        let own = own_part(number, spec, args, told, &plan, part, session, node, scratch);
        if session.suspension.is_asked() {
            return Ok(());
        }
        plan.parts[part].reply = own;
        plan.parts[part].is_answered = true;
    } else {
        node.calls.of(session.worker).begins(bit_of(number, 0));
    }
    let mut request = Kept::default();
    request.push(args);
    let (protocol, place) = (session.client.protocol(), 0..0);
    let mut page = Page { spec, request, plan, columns, place, protocol, again: Vec::new() };
    if page.plan.parts.iter().all(|part| part.is_answered) {
        page.write(reply.bytes());
        return Ok(());
    }
    let gathering = session.gathering.get_or_insert_default();
    page.ask(args, &gathering.batch, &topology, node);
    session.wrote_elsewhere |= spec.may_write(args);
    let mark = reply.mark();
    reply.null();
    page.place = mark..reply.mark();
    gathering.pages.push(page);
    session.ends_turn |= gathering.pages.len() >= MOST_TOGETHER;
    Ok(())
}

/// What this node has to say of its ids.
// Long: all that a command is executed with.
#[expect(clippy::too_many_arguments, reason = "all that a command is executed with")]
fn own_part(
    number: u16,
    spec: &'static Spec,
    args: Args<'_>,
    told: Option<u64>,
    plan: &Plan,
    part: usize,
    session: &mut Session,
    node: Now<'_>,
    scratch: &mut Scratch,
) -> Vec<u8> {
    let mut kept = Kept::default();
    kept.push_all(plan.words(args, |_, of| of == Belongs::Part(part as u32)));
    let mut bytes = Vec::new();
    let Some(args) = kept.iter().next() else { return bytes };
    let reply = Reply::new(&mut bytes, Protocol::Resp2);
    let outcome = shape::as_told(told.or(plan.shape), spec, args, session, node, |session| {
        run(spec, u32::from(number), args, reply, session, node, scratch)
    });
    if let Err(refusal) = outcome {
        node.calls.of(session.worker).error(refusal.text());
        bytes = element_of(refusal.text());
    }
    bytes
}

/// How many counters and flags an entry of a view has, and its further ones.
fn columns(engines: &Engines, name: &[u8]) -> Result<Vec<(usize, usize)>, Refusal> {
    let view = view(engines, name)?;
    let views = std::iter::once(view).chain(engines.then(view));
    Ok(views.map(|view| (engines.columns(view).len(), view.flags())).collect())
}

impl Page {
    /// Asks the other nodes for their parts.
    fn ask(&mut self, args: Args<'_>, batch: &Arc<Batch>, topology: &Arc<Topology>, node: Now<'_>) {
        let process = node.process();
        let from = if self.spec.may_write(args) {
            ReadFrom::Master
        } else {
            node.config().cluster.read_from
        };
        for part in 0..self.plan.parts.len() {
            let At::Shard(master) = self.plan.parts[part].at else { continue };
            // This node is a replica of that shard that may not answer: only its master may.
            let is_own = topology
                .own_master()
                .is_some_and(|own| std::ptr::eq(own, &raw const topology.members()[master]));
            let from = if is_own { ReadFrom::Master } else { from };
            let link = peers::with(|peers| peers.of_shard(topology, master, from, &process));
            let count = self.plan.parts[part].count;
            let of = Belongs::Part(part as u32);
            self.plan.parts[part].number = link.ask(&process, batch, |out| {
                self.plan.write(args, count, |_, other| other == of, out);
            });
        }
    }

    /// What a part that failed is answered with.
    fn error_of(&self, failure: &Failure) -> Vec<u8> {
        let args = self.request.iter().next();
        let changes = args.is_some_and(|args| self.spec.may_write(args));
        let text = match (failure, changes) {
            (Failure::Unsent(why) | Failure::Lost(why), false) => format!("CLUSTERDOWN {why}"),
            (Failure::Unsent(why), true) => format!("CLUSTERDOWN {why}; nothing was changed"),
            (Failure::Lost(why), true) => {
                let once = args.is_some_and(|args| counts_once(self.spec, args));
                let advice = if once {
                    "it can be sent again, and counts once"
                } else {
                    "it may have been counted"
                };
                format!("UNKNOWN outcome: {why}; {advice}")
            }
        };
        element_of(text.as_bytes())
    }

    fn take(&mut self, answers: &mut [Answer]) {
        for part in 0..self.plan.parts.len() {
            if self.plan.parts[part].is_answered {
                continue;
            }
            let none = Err(Failure::Unsent(String::new()));
            let answer = std::mem::replace(&mut answers[self.plan.parts[part].number], none);
            let (is_answered, reply) = match answer {
                Ok(reply) => (true, reply),
                Err(failure) => (false, self.error_of(&failure)),
            };
            let part = &mut self.plan.parts[part];
            part.is_answered = is_answered;
            part.reply = reply;
        }
    }

    /// Each id's element, in order, and an error that concerns all of them.
    fn elements(&self) -> (Vec<&[u8]>, Option<&[u8]>) {
        let mut replies: Vec<_> = self.plan.parts.iter().map(|p| elements(&p.reply)).collect();
        let mut again = self.again.iter().peekable();
        let mut all = Vec::with_capacity(self.plan.ids.len());
        for (id, (_, of)) in self.plan.ids.iter().enumerate() {
            let element = match *of {
                Belongs::Refusal(at) => &self.plan.refusals[at as usize][..],
                Belongs::Part(part) => match &mut replies[part as usize] {
                    Some(reply) => reply.next().unwrap_or(b"-ERR a node answered too few rows\r\n"),
                    // An error: of each of its ids.
                    None => &self.plan.parts[part as usize].reply[..],
                },
            };
            all.push(match again.next_if(|(at, _)| *at == id) {
                Some((_, element)) => element,
                None => element,
            });
        }
        let beyond = replies.into_iter().flatten().find_map(|mut reply| reply.next());
        (all, beyond)
    }

    /// Asks again for the ids that have moved.
    fn ask_again(&self, process: &Arc<Process>, batch: &Arc<Batch>) -> Vec<(usize, Vec<usize>)> {
        let mut by_link: Vec<(Arc<Link>, Vec<usize>)> = Vec::new();
        for (id, element) in self.elements().0.into_iter().enumerate() {
            let Some(address) = moved_to(element) else { continue };
            match by_link.iter_mut().find(|(link, _)| link.address == address) {
                Some((_, ids)) => ids.push(id),
                None => {
                    let link = peers::with(|peers| peers.moved_to(address, process));
                    by_link.extend(link.map(|link| (link, vec![id])));
                }
            }
        }
        let Some(args) = self.request.iter().next() else { return Vec::new() };
        let ask = |(link, ids): (Arc<Link>, Vec<usize>)| {
            let is_meant = |id: usize, _| ids.binary_search(&id).is_ok();
            let number = link.ask(process, batch, |out| {
                self.plan.write(args, ids.len(), is_meant, out);
            });
            (number, ids)
        };
        by_link.into_iter().map(ask).collect()
    }

    fn take_again(&mut self, asked: Vec<(usize, Vec<usize>)>, answers: &[Answer]) {
        for (number, ids) in asked {
            match &answers[number] {
                Ok(reply) => {
                    let mut rows = elements(reply);
                    for id in ids {
                        let row = rows.as_mut().map_or(Some(&reply[..]), Iterator::next);
                        self.again.extend(row.map(|row| (id, row.to_vec())));
                    }
                }
                Err(failure) => {
                    let error = self.error_of(failure);
                    self.again.extend(ids.into_iter().map(|id| (id, error.clone())));
                }
            }
        }
        self.again.sort_by_key(|(id, _)| *id);
    }

    /// The whole reply.
    fn write(&self, out: &mut Vec<u8>) {
        let parts = &self.plan.parts;
        let refused = |part: &Part| part.is_answered && part.reply.starts_with(b"-");
        if let Some(first) = parts.first()
            && self.plan.refusals.is_empty()
            && self.again.is_empty()
            && parts.iter().all(refused)
        {
            // Nothing was done anywhere: what is wrong is the request.
            out.extend_from_slice(&first.reply);
            return;
        }
        let (elements, beyond) = self.elements();
        if let Some(columns) = &self.columns {
            return write_packed(columns, &elements, beyond, out);
        }
        put_head(out, b'*', elements.len() + usize::from(beyond.is_some()));
        for element in elements.into_iter().chain(beyond) {
            match self.protocol {
                Protocol::Resp2 => out.extend_from_slice(element),
                Protocol::Resp3 => put_resp3(element, out),
            }
        }
    }
}

/// Whether a change counts once, however often it is sent.
fn counts_once(spec: &Spec, args: Args<'_>) -> bool {
    let has_token = args.len() > 2 && args.at(args.len() - 2).eq_ignore_ascii_case(b"TOKEN");
    spec.name != "cnt.mincrby" || has_token
}

/// The node that a MOVED names.
fn moved_to(element: &[u8]) -> Option<Address> {
    let rest = element.strip_prefix(b"-MOVED ")?.strip_suffix(b"\r\n")?;
    Address::of_master(std::str::from_utf8(rest).ok()?.split(' ').nth(1)?)
}

/// Rows as FEED.GET ... BINARY has them. One that could not be had is [`MISSING`], and the first
/// error follows.
fn write_packed(
    columns: &[(usize, usize)],
    rows: &[&[u8]],
    beyond: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let width: usize = columns.iter().map(|(counters, flags)| counters * 8 + flags).sum();
    let first_error = rows.iter().copied().find(|row| row.starts_with(b"-")).or(beyond);
    if first_error.is_some() {
        put_head(out, b'*', 2);
    }
    put_head(out, b'$', rows.len() * width);
    for row in rows {
        let end = out.len() + width;
        // An error has none.
        let mut cells = elements(row).into_iter().flatten();
        for (counters, flags) in columns {
            for cell in cells.by_ref().take(*counters) {
                let value = resp::integer(&cell[1..cell.len() - 2]).unwrap_or(-1);
                out.extend_from_slice(&value.to_le_bytes());
            }
            out.extend(cells.by_ref().take(*flags).map(|cell| match cell {
                b":0\r\n" => 0,
                b":1\r\n" => 1,
                _ => MISSING,
            }));
        }
        out.resize(end, MISSING);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(first_error.unwrap_or_default());
}

impl Gathering {
    /// What was written from `mark` on is not wanted.
    pub(crate) fn drop_replies(&mut self, mark: usize) {
        self.pages.iter_mut().filter(|page| page.place.start >= mark).for_each(|page| {
            page.place = 0..0;
        });
    }

    /// The replies, when all parts have come or are late.
    pub(crate) async fn joined(mut self, process: Arc<Process>) -> Vec<Joined> {
        let mut answers = self.batch.answers().await;
        let again = Arc::new(Batch::default());
        let mut asked = Vec::with_capacity(self.pages.len());
        for page in &mut self.pages {
            page.take(&mut answers);
            let has_moved = page.plan.parts.iter().any(|part| has_moved(&part.reply));
            asked.push(if has_moved { page.ask_again(&process, &again) } else { Vec::new() });
        }
        if asked.iter().any(|asked| !asked.is_empty()) {
            let answers = again.answers().await;
            for (page, asked) in self.pages.iter_mut().zip(asked) {
                page.take_again(asked, &answers);
            }
        }
        let wanted = self.pages.into_iter().filter(|page| !page.place.is_empty());
        let join = |page: Page| {
            let mut bytes = Vec::new();
            page.write(&mut bytes);
            (page.place, bytes)
        };
        wanted.map(join).collect()
    }
}

fn has_moved(reply: &[u8]) -> bool {
    // Errors are rare, and so are negative numbers.
    reply.contains(&b'-') && reply.windows(7).any(|bytes| bytes == b"-MOVED ")
}

/// TM.COORDINATOR.
pub(crate) fn coordinator(call: &mut Call<'_>) -> Outcome {
    super::controller::refuse_alone(&call.node)?;
    call.session.is_coordinator = true;
    call.reply.ok();
    Ok(())
}
