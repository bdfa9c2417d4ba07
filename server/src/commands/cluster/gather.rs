//! Requests whose ids belong to several shards. This node executes its own part immediately,
//! requests the other parts ([`peers`]), and merges the elements in the order of the ids.
//!
//! A part is the same command with fewer ids. The parts of all requests in a client's pipeline are
//! sent together. The replies to the client are held back until every part has arrived or timed
//! out. In the meantime the worker serves other clients. If a part fails, the reply contains an
//! error for each id of that part. The whole request is refused only if all nodes refuse it.
//!
//! A part lists its ids as separate arguments, even if the request packs them. PH.UNSEEN sends
//! PH.EXISTS, or PH.ADD with MARK, and selects the ids itself. With MARK and LIMIT all ids must
//! belong to one shard: several shards, each applying the limit, would set too many flags.
//!
//! A node that receives a part does not forward it ([`Session::is_coordinator`]). For ids of other
//! shards it returns MOVED, and the coordinator retries once on the named node. A part also carries
//! a hash of the expected element layout ([`shape`]).

use crate::commands::call::{check_packed, view};
use crate::commands::cluster::gathering::{At, Columns, IdGroup, IdOwner, Page, Plan, element_of};
use crate::commands::cluster::{route, shape};
use crate::commands::feed::among::{check_binary, check_ids, other_shard, top};
use crate::commands::flags::unseen;
use crate::commands::run::run;
use crate::session::unseen::UnseenOptions;
use crate::session::{Scratch, Session};
use dataset::engines::Engines;
use node::cluster::slot::{of_id, of_text};
use node::cluster::{Server, Topology};
use node::command::among::{self, Parts, is_among};
use node::command::error::Refusal;
use node::command::id_list::{self, Ids, first_id};
use node::command::spec::{IdTarget, KeyArgs, MEMBER, Outcome, Spec, flag};
use node::command::table::{bit_of, find};
use node::command::unseen_options::{Options, UnseenOption};
use node::config::ReadFrom;
use node::roles::node::Now;
use resp::{Args, Protocol, Reply, RequestQueue, natural};
use std::cell::LazyCell;

/// Maximum number of requests of one client that may wait for other nodes at the same time.
const MAX_GATHERED_REQUESTS: usize = 512;

/// Returns whether a request can be split into parts.
pub(crate) fn can_be_parted(
    spec: &Spec,
    args: Args<'_>,
    session: &Session,
    engines: &Engines,
) -> bool {
    let KeyArgs::Ids(of, ..) = spec.keys else { return false };
    // An action with member counters cannot be split.
    let counts_member =
        || engines.action(args.at(1)).is_some_and(dataset::engines::Action::counts_member);
    spec.has(flag::PER_ID)
        && session.transaction.is_none()
        && !session.in_exec
        && !(of == IdTarget::Action && counts_member())
}

/// Returns whether this node is a replica that serves reads of its shard.
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

/// Returns whether this node serves all ids of a request.
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
    if id_list::packed(spec, args).is_some() {
        return Ids::new(spec, args, head, step).all(|(_, id)| is_here(of_id(id)));
    }
    let args = among::before(args);
    let mut words = args.from(first_id(spec, args, head)).iter().step_by(step);
    words.all(|word| {
        slot_of(word, is_joined, topology).is_none_or(|(slot, is_one)| is_one && is_here(slot))
    })
}

fn is_joined(of: IdTarget, args: Args<'_>, node: Now<'_>) -> bool {
    of == IdTarget::View
        && node.engines().view(args.at(1)).is_some_and(dataset::engines::View::is_joined)
}

/// Returns the slot of an argument's first id, and whether the argument's other ids belong to the
/// same shard. Returns `None` if the argument is an option.
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
                        plan.refuse(b"CROSSSLOT Ids of an entry don't belong to the same shard")
                    };
                    plan.ids.push((at as u32, of));
                    at += step;
                }
                None if of == IdTarget::View && word.eq_ignore_ascii_case(b"BINARY") => {
                    if plan.is_binary {
                        return Err(Refusal::SYNTAX);
                    }
                    plan.is_binary = true;
                    at += 1;
                }
                None if is_among(args, at) => {
                    plan.options.extend(at as u32..args.len() as u32);
                    break;
                }
                None => {
                    // The argument after MARK is the name of an action, even if it looks like an
                    // id.
                    let is_mark = of == IdTarget::View && word.eq_ignore_ascii_case(b"MARK");
                    for option in at..(at + 1 + usize::from(is_mark)).min(args.len()) {
                        plan.options.push(option as u32);
                    }
                    at += 1 + usize::from(is_mark);
                }
            }
        }
        Ok(plan)
    }

    /// Returns the part that executes the ids of a slot. `of_master` caches the parts found so far.
    fn place(
        &mut self,
        slot: u16,
        session: &Session,
        topology: &Topology,
        reads_here: bool,
        of_master: &mut [Option<u32>],
    ) -> IdOwner {
        let Some(master) = topology.number_of(slot) else {
            return self.refuse(b"CLUSTERDOWN Hash slot not served");
        };
        if let Some(part) = of_master[master] {
            self.parts[part as usize].count += 1;
            return IdOwner::IdGroup(part);
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
        self.parts.push(IdGroup { at, count: 1, number: 0, reply: Vec::new(), is_answered: false });
        IdOwner::IdGroup(part)
    }
}

/// Executes a request that [can be split](can_be_parted). Writes the reply, or registers the
/// request with the session's [`Gathering`](super::gathering::Gathering), which supplies the reply
/// later. `told` is the layout hash that a coordinator sent.
#[expect(clippy::too_many_arguments, reason = "parameters of execute")]
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
    let unseen = unseen_options(spec, args)?;
    let separate = separate(spec, args, unseen, session)?;
    let args = separate.as_ref().map_or(args, RequestQueue::first);
    let separated = separate.as_ref().and_then(|_| find(args.at(0)));
    let (number, spec) = separated.unwrap_or((number, spec));
    let mut plan = Plan::new(spec, args, session, node, &topology)?;
    plan.shape = match shape::own(spec, args, node.engines()) {
        // If the layout is unknown on this node, its own part reports the error.
        Err(_) if session.is_coordinator => None,
        shape => shape?,
    };
    let columns = if plan.is_binary { Some(columns(node.engines(), args)?) } else { None };
    if plan.is_binary {
        shape::check_layout(plan.shape, spec, args, node)?;
    }
    if let Some(at) = among::position(args) {
        check_ids(plan.ids.len())?;
        if Parts::new(args, at).space.is_some() {
            return Err(other_shard());
        }
    }
    if let Some(part) = plan.parts.iter().position(|part| part.at == At::Here) {
        let own = own_part(number, spec, args, told, &plan, part, session, node, scratch);
        if session.suspension.is_requested() {
            return Ok(());
        }
        plan.parts[part].reply = own;
        plan.parts[part].is_answered = true;
    } else {
        node.calls.of(session.worker).begins(bit_of(number, 0));
    }
    let mut request = RequestQueue::default();
    request.push(args);
    let (protocol, place) = (session.client.protocol(), 0..0);
    let mut page =
        Page { spec, request, plan, columns, unseen, place, protocol, again: Vec::new() };
    if page.plan.parts.iter().all(|part| part.is_answered) {
        page.write(reply.bytes());
        return Ok(());
    }
    let gathering = session.gathering.get_or_insert_default();
    page.ask(args, &gathering.batch, &topology, node);
    session.wrote_to_other_nodes |= spec.may_write(args);
    let mark = reply.mark();
    reply.null();
    page.place = mark..reply.mark();
    gathering.pages.push(page);
    session.ends_turn |= gathering.pages.len() >= MAX_GATHERED_REQUESTS;
    Ok(())
}

fn unseen_options(spec: &Spec, args: Args<'_>) -> Result<Option<UnseenOptions>, Refusal> {
    if spec.name != "ph.unseen" {
        return Ok(None);
    }
    let is_packed = id_list::packed(spec, args).is_some();
    unseen::read_options(args, is_packed).map(Some)
}

/// Converts a request with packed ids, or a PH.UNSEEN request, to a request with separate ids and
/// one element per id. Returns `None` for any other request.
fn separate(
    spec: &Spec,
    args: Args<'_>,
    unseen: Option<UnseenOptions>,
    session: &Session,
) -> Result<Option<RequestQueue>, Refusal> {
    let packed = id_list::packed(spec, args);
    let mut ids = Vec::new();
    if let Some(at) = packed {
        if Ids::new(spec, args, MEMBER + 1, 1).any(|(place, _)| place != at) {
            return Err(Refusal::SYNTAX);
        }
        let packed = id_list::unpack(args.at(at)).ok_or(Refusal::PACKED_IDS)?;
        check_packed(packed.len(), session.args_limit)?;
        ids.extend(packed.map(|id| id.to_string()));
    }
    let ids = ids.iter().map(String::as_bytes);
    let mut kept = RequestQueue::default();
    match (unseen, packed) {
        (None, None) => return Ok(None),
        (None, Some(at)) => {
            let options = args.from(at + 1).iter();
            kept.push_all(args.until(at - 1).iter().chain(ids).chain(options));
        }
        (Some(options), _) => {
            let command: &[u8] = if options.marks { b"PH.ADD" } else { b"PH.EXISTS" };
            let first = first_id(spec, args, MEMBER + 1);
            let words = args.from(if packed.is_some() { args.len() } else { first }).iter();
            let head = [command, args.at(1), args.at(MEMBER)];
            kept.push_all(head.into_iter().chain(ids).chain(words));
        }
    }
    Ok(Some(kept))
}

#[expect(clippy::too_many_arguments, reason = "parameters of execute")]
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
    let mut kept = RequestQueue::default();
    kept.push_all(plan.words(args, |_, of| of == IdOwner::IdGroup(part as u32)));
    let mut bytes = Vec::new();
    let Some(args) = kept.iter().next() else { return bytes };
    let reply = Reply::new(&mut bytes, Protocol::Resp2);
    let outcome = shape::execute_part(told.or(plan.shape), spec, args, session, node, |session| {
        run(spec, u32::from(number), args, reply, session, node, scratch)
    });
    if let Err(refusal) = outcome {
        node.calls.of(session.worker).error(refusal.text());
        bytes = element_of(refusal.text());
    }
    bytes
}

/// Returns whether a request limits the number of flags that it sets. Such a request cannot be
/// split, because each part would apply the limit separately.
fn counts_marks(spec: &Spec, args: Args<'_>) -> bool {
    let limits = |option| matches!(option, UnseenOption::Limit(_));
    spec.sets_flags(args) && Options::new(args, MEMBER + 1).any(limits)
}

/// Returns the columns of a page that the client asked for in the binary form.
fn columns(engines: &Engines, args: Args<'_>) -> Result<Columns, Refusal> {
    let view = view(engines, args.at(1))?;
    let views = std::iter::once(view).chain(engines.then(view));
    let views = views.map(|view| (engines.columns(view).len(), view.flags())).collect();
    let among = among::position(args);
    among.map_or(Ok(()), |at| check_binary(args, at))?;
    Ok(Columns { views, among_top: among.map(|at| top(args, at)).transpose()? })
}

/// Checks whether this node serves a request. If it does not, and the request can be split, sets
/// `spans_nodes` in the session.
#[cold]
pub(crate) fn check(
    topology: &Topology,
    spec: &Spec,
    args: Args<'_>,
    session: &Session,
    node: Now<'_>,
    engines: &Engines,
) -> Outcome {
    if can_be_parted(spec, args, session, engines) && !counts_marks(spec, args) {
        let spans_nodes = !are_all_here(spec, args, session, node, topology);
        session.spans_nodes.set(spans_nodes);
        return if spans_nodes { Err(route::CROSS_SLOT) } else { Ok(()) };
    }
    let mut router = route::Router::new(topology, session, node);
    router.add(spec, args, engines);
    router.outcome()
}
