//! Option AMONG of FEED.GET: how many of the given members have set a flag on each id, and the
//! first of them.
//!
//! The worker probes the filters. If the result also needs the disk (a hit to verify in the ledger,
//! an id on disk, or the members of `OF`), or if there are many pairs, another thread completes it,
//! and the request runs again with the result.
//!
//! The result is encoded in the form of the reply: for each id the elements that extend its row, or
//! an error. See [`Rows`].

use crate::commands::call::{Call, disk, too_long};
use crate::commands::flags::members::write_member;
use crate::commands::flags::phantom::{no_ledger, space_named};
use crate::session::suspend::SuspendResult;
use dataset::engines::{Engines, MemberSets};
use ledger::{MAX_MEMBER_BYTES, OwnedMember};
use node::cluster::slot::of_id;
use node::command::among::{Parts, binary_bytes};
use node::command::error::{Refusal, refuse};
use node::command::id_list::unpack;
use node::command::spec::MEMBER;
use phantom::Member;
use resp::{Args, Protocol, Reply};

/// Maximum number of members in a request.
const MAX_MEMBERS: usize = 2_000;
/// Maximum number of ids in a request with AMONG.
const MAX_IDS: usize = 1_024;
/// Maximum number of pairs that a request may ask for: about 20 ms of work for one thread.
const MAX_PAIRS: usize = MAX_IDS * MAX_MEMBERS;
/// Number of pairs that a worker looks up itself: about 0.2 ms of work.
const PAIRS_ON_WORKER: usize = 1 << 13;
/// Number of members returned per id without TOP.
const DEFAULT_TOP: usize = 3;

/// Bit of a row's length that marks an error.
const IS_ERROR: u32 = 1 << 31;

/// The elements that extend each row, in order. Each begins with its length (u32).
pub(crate) struct Rows(Vec<u8>);

impl Rows {
    /// Iterates over the elements of each row, or the error text of a row that cannot be read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<&[u8], &[u8]>> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (head, after) = rest.split_first_chunk()?;
            let head = u32::from_le_bytes(*head);
            let (row, after) = after.split_at((head & !IS_ERROR) as usize);
            rest = after;
            Some(if head & IS_ERROR == 0 { Ok(row) } else { Err(row) })
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// The question of a request, without its ids.
struct Question {
    /// Name of the flag's space.
    flag: Vec<u8>,
    /// Number of members to return per id.
    top: usize,
    members: Vec<OwnedMember>,
    /// For `OF`: the space and the id whose members are asked about.
    source: Option<(Vec<u8>, u64)>,
    /// Whether the members were packed, so that they are returned as integers.
    is_packed: bool,
    is_binary: bool,
    protocol: Protocol,
    /// Maximum number of pairs.
    max_pairs: usize,
    /// Maximum size of the reply in bytes.
    max_bytes: usize,
}

/// Answers the option at argument `at` for the ids of the request. Returns `None` if the request
/// must run again.
pub(crate) fn find(call: &mut Call<'_>, at: usize) -> Result<Option<Rows>, Refusal> {
    if let Some(done) = call.session.suspension.take_result() {
        // The rows are read now, on this thread if they are no longer cached.
        call.session.records_missing_rows = false;
        return Ok(Some(Rows(done?)));
    }
    let mut question = Question::read(call, at)?;
    let ids = &call.scratch.ids;
    check_ids(ids.len())?;
    let space = space_named(call.node.engines(), &question.flag)?;
    let is_long = ids.len() * question.members.len() > PAIRS_ON_WORKER;
    let found = if question.source.is_some() || is_long {
        None
    } else {
        let members = borrowed(&question.members);
        Some(space.members_in_memory(ids, &members))
    };
    if let Some((sets, true)) = &found {
        return Ok(Some(Rows(question.encode(sets, &question.members, ids, &[])?)));
    }
    let (ids, sets) = (ids.clone(), found.map(|(sets, _)| sets));
    // A transaction that holds locks must not wait. A client with tracking must not receive a
    // result that is older than an invalidation of its ids.
    let is_locked = call.session.in_exec && !call.session.may_suspend;
    if is_locked || call.session.tracking.is_some() {
        question.max_pairs = PAIRS_ON_WORKER;
        return Ok(Some(Rows(question.answer(call.node.engines(), &ids, sets)?)));
    }
    let done = call.suspension(move |node| question.answer(node.engines(), &ids, sets));
    done.map(|done| Ok(Rows(done?))).transpose()
}

fn borrowed(members: &[OwnedMember]) -> Vec<Member<'_>> {
    members
        .iter()
        .map(|member| match member {
            OwnedMember::Number(number) => Member::Number(*number),
            OwnedMember::Bytes(bytes) => Member::Bytes(bytes),
        })
        .collect()
}

/// Checks whether a request can be answered in the binary form, which has room for numbers only.
pub(crate) fn check_binary(args: Args<'_>, at: usize) -> Result<(), Refusal> {
    let parts = Parts::new(args, at);
    let is_listed = parts.packed.is_none() && parts.space.is_none();
    let mut members = args.from(parts.first).iter();
    if is_listed && members.any(|member| matches!(Member::parse(member), Member::Bytes(_))) {
        return Err(refuse!("ERR BINARY with AMONG needs members that are numbers"));
    }
    Ok(())
}

/// Returns the number of members per id that a request returns.
pub(crate) fn top(args: Args<'_>, at: usize) -> Result<usize, Refusal> {
    let Some(at) = Parts::new(args, at).top else { return Ok(DEFAULT_TOP) };
    let top = resp::natural(args.at(at)).ok_or(Refusal::NOT_AN_INTEGER)?;
    match usize::try_from(top) {
        Ok(top) if top <= MAX_MEMBERS => Ok(top),
        _ => Err(refuse!("ERR TOP must be at most {MAX_MEMBERS}")),
    }
}

impl Question {
    fn read(call: &Call<'_>, at: usize) -> Result<Question, Refusal> {
        let (args, parts) = (call.args, Parts::new(call.args, at));
        let is_binary = call.scratch.asked.binary;
        let mut source = None;
        let members: Vec<OwnedMember> = if let Some(at) = parts.packed {
            let packed = unpack(args.at(at)).ok_or_else(|| {
                refuse!("ERR MEMBERS needs a string of 8 bytes per member (little-endian u64)")
            })?;
            check_count(packed.len())?;
            packed.map(OwnedMember::Number).collect()
        } else if let Some(at) = parts.space {
            source = Some((args.at(at).to_vec(), viewer_of(call)?));
            Vec::new()
        } else {
            let members = args.from(parts.first);
            if members.is_empty() {
                return Err(call.wrong_arity());
            }
            check_count(members.len())?;
            members.iter().map(owned).collect::<Result<_, _>>()?
        };
        if is_binary {
            check_binary(args, at)?;
        }
        Ok(Question {
            flag: args.at(parts.flag).to_vec(),
            top: top(args, at)?,
            members,
            source,
            is_packed: parts.packed.is_some(),
            is_binary,
            protocol: call.reply.protocol(),
            max_pairs: MAX_PAIRS,
            max_bytes: call.session.max_out_bytes,
        })
    }

    /// Answers the question. Blocks on disk reads. `sets` is the result of the filters in memory,
    /// if the worker has probed them.
    fn answer(&self, engines: &Engines, ids: &[u64], sets: Option<MemberSets>) -> SuspendResult {
        let listed;
        let members = match &self.source {
            Some((name, id)) => {
                listed = list(engines, name, *id, self.max_pairs / ids.len().max(1))?;
                &listed
            }
            None if ids.len() * self.members.len() > self.max_pairs => {
                return Err(refuse!(
                    "ERR too many pairs of ids and members: at most {} in a transaction or with \
                     CLIENT TRACKING",
                    self.max_pairs
                ));
            }
            None => &self.members,
        };
        let space = space_named(engines, &self.flag)?;
        let pairs = borrowed(members);
        let mut sets = sets.unwrap_or_else(|| MemberSets::new(ids.len(), members.len()));
        let failed = match space.complete_members(ids, &pairs, &mut sets) {
            Ok(()) => Vec::new(),
            Err(unreadable) => {
                unreadable.all().iter().map(|one| (one.id, one.clone().into())).collect()
            }
        };
        self.encode(&sets, members, ids, &failed)
    }

    /// Encodes the elements that extend each row.
    fn encode(
        &self,
        sets: &MemberSets,
        members: &[OwnedMember],
        ids: &[u64],
        failed: &[(u64, Refusal)],
    ) -> SuspendResult {
        let mut out = Vec::with_capacity(ids.len() * 32);
        for (index, id) in ids.iter().enumerate() {
            if out.len() > self.max_bytes {
                return Err(too_long(self.max_bytes));
            }
            let start = out.len() + 4;
            let mut head = 0;
            out.extend_from_slice(&[0; 4]);
            let count = sets.count(index);
            let first = sets.members(index).take(self.top).map(|at| &members[at]);
            if let Some((_, refusal)) = failed.iter().find(|(failed, _)| failed == id) {
                out.extend_from_slice(refusal.text());
                head = IS_ERROR;
            } else if self.is_binary {
                self.pack(count, first, &mut out);
            } else {
                self.write(count, first, &mut Reply::new(&mut out, self.protocol));
            }
            head |= (out.len() - start) as u32;
            out[start - 4..start].copy_from_slice(&head.to_le_bytes());
        }
        Ok(out)
    }

    fn write<'m>(
        &self,
        count: Option<usize>,
        first: impl Iterator<Item = &'m OwnedMember>,
        reply: &mut Reply<'_>,
    ) {
        match count {
            Some(count) => reply.count(count),
            None => reply.null(),
        }
        reply.array(count.unwrap_or(0).min(self.top));
        for member in first.take(count.unwrap_or(0)) {
            match member {
                OwnedMember::Number(number) if self.is_packed => match i64::try_from(*number) {
                    Ok(number) => reply.int(number),
                    Err(_) => reply.bulk(number.to_string().as_bytes()),
                },
                member => write_member(reply, member.as_member()),
            }
        }
    }

    /// Appends the count as little-endian i64 (-1 below the horizon), then `top` members as
    /// little-endian u64, padded with zeros.
    fn pack<'m>(
        &self,
        count: Option<usize>,
        first: impl Iterator<Item = &'m OwnedMember>,
        out: &mut Vec<u8>,
    ) {
        let end = out.len() + binary_bytes(self.top);
        out.extend_from_slice(&count.map_or(-1, |count| count as i64).to_le_bytes());
        for member in first.take(count.unwrap_or(0)) {
            let OwnedMember::Number(number) = member else { continue };
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.resize(end, 0);
    }
}

fn check_count(members: usize) -> Result<(), Refusal> {
    if members > MAX_MEMBERS {
        return Err(refuse!("ERR too many members: at most {MAX_MEMBERS} with AMONG"));
    }
    Ok(())
}

fn owned(member: &[u8]) -> Result<OwnedMember, Refusal> {
    match Member::parse(member) {
        Member::Number(number) => Ok(OwnedMember::Number(number)),
        Member::Bytes(bytes) if bytes.len() > MAX_MEMBER_BYTES => {
            Err(refuse!("ERR member too long: at most {MAX_MEMBER_BYTES} bytes with AMONG"))
        }
        Member::Bytes(bytes) => Ok(OwnedMember::Bytes(bytes.into())),
    }
}

/// Returns the id whose members a request with `OF` reads.
pub(crate) fn source_id(args: Args<'_>, at: usize) -> Option<u64> {
    Parts::new(args, at).space.and_then(|_| resp::natural(args.at(MEMBER)))
}

/// Returns the viewer of a request with `OF`: the id whose members are read.
fn viewer_of(call: &Call<'_>) -> Result<u64, Refusal> {
    let viewer = resp::natural(call.args.at(MEMBER))
        .ok_or_else(|| refuse!("ERR AMONG ... OF needs a viewer that is a number"))?;
    let topology = call.session.topology.as_ref();
    if topology.is_some_and(|topology| !topology.server_of(of_id(viewer)).is_here(|| true)) {
        return Err(other_shard());
    }
    Ok(viewer)
}

/// Checks the number of ids of a request with AMONG.
pub(crate) fn check_ids(ids: usize) -> Result<(), Refusal> {
    if ids > MAX_IDS {
        return Err(refuse!("ERR too many ids: at most {MAX_IDS} with AMONG"));
    }
    Ok(())
}

/// Returns the error for `OF` if the members of the viewer are on a different shard from the ids.
pub(crate) fn other_shard() -> Refusal {
    refuse!(
        "CROSSSLOT AMONG ... OF needs the viewer and the ids on one shard: read the members with \
         PH.MEMBERS and send them"
    )
}

/// Returns the members of an id, at most `most`.
fn list(engines: &Engines, name: &[u8], id: u64, most: usize) -> Result<Vec<OwnedMember>, Refusal> {
    let space = space_named(engines, name)?;
    let Some(ledger) = space.ledger() else {
        return Err(no_ledger(space));
    };
    let pairs = ledger.ledger().list((id, id), None, most + 1);
    let pairs = pairs.map_err(disk)?;
    if pairs.len() > most {
        return Err(refuse!(
            "ERR too many members of '{}' for this number of ids: at most {most}",
            space.name()
        ));
    }
    Ok(pairs.iter().map(|pair| pair.member.to_owned()).collect())
}
