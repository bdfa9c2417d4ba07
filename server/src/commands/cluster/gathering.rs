//! State of a client's requests that wait for other nodes: how each request was split, what was
//! sent, and how the replies are merged ([`gather`](super::gather)).

use crate::commands::cluster::peers::{self, Address, Answer, Batch, Failure, PeerLink};
use crate::session::unseen::{Unseen, UnseenOptions};
use node::cluster::Topology;
use node::command::among::binary_bytes;
use node::command::spec::Spec;
use node::config::ReadFrom;
use node::roles::node::{Now, Process};
use resp::{Args, Protocol, Reply, RequestQueue, elements, put_resp3};
use std::ops::Range;
use std::sync::Arc;

/// Byte that fills all columns of an unavailable row in a packed page; counters read as -1.
pub(crate) const MISSING: u8 = 0xff;

/// Node that executes a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Here,
    /// Another shard, by the position of its master in the topology.
    Shard(usize),
}

pub(super) struct IdGroup {
    pub(super) at: At,
    pub(super) count: usize,
    pub(super) number: usize,
    /// The complete reply, or the coordinator's error if no reply arrived.
    pub(super) reply: Vec<u8>,
    pub(super) is_answered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IdOwner {
    IdGroup(u32),
    Refusal(u32),
}

pub(super) struct Plan {
    /// Number of arguments before the first id. The next field is the number of arguments per id.
    pub(super) head: usize,
    pub(super) step: usize,
    /// For each id, its argument position, and the part or the refusal to which the id belongs.
    pub(super) ids: Vec<(u32, IdOwner)>,
    /// Positions of options, which every part repeats.
    pub(super) options: Vec<u32>,
    pub(super) parts: Vec<IdGroup>,
    /// Encoded errors of ids that no part contains.
    pub(super) refusals: Vec<Vec<u8>>,
    pub(super) is_binary: bool,
    /// Layout hash to send to other nodes, for commands that require the same layout on all nodes.
    pub(super) shape: Option<u64>,
}

pub(super) fn element_of(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Reply::new(&mut bytes, Protocol::Resp2).error(text);
    bytes
}

impl Plan {
    pub(super) fn refuse(&mut self, text: &[u8]) -> IdOwner {
        self.refusals.push(element_of(text));
        IdOwner::Refusal(self.refusals.len() as u32 - 1)
    }

    /// Returns the arguments of the request with only the selected ids.
    pub(super) fn words<'a>(
        &self,
        args: Args<'a>,
        is_meant: impl Fn(usize, IdOwner) -> bool,
    ) -> impl Iterator<Item = &'a [u8]> {
        let ids = self.ids.iter().enumerate();
        let ids = ids.filter(move |(id, (_, of))| is_meant(*id, *of)).map(|(_, (at, _))| *at);
        let ids = ids.flat_map(move |at| at as usize..at as usize + self.step);
        let options = self.options.iter().map(|at| *at as usize);
        (0..self.head).chain(ids).chain(options).map(move |at| args.at(at))
    }

    fn write(
        &self,
        args: Args<'_>,
        count: usize,
        is_meant: impl Fn(usize, IdOwner) -> bool,
        out: &mut Vec<u8>,
    ) {
        let length = self.head + count * self.step + self.options.len();
        let mut request = Reply::new(out, Protocol::Resp2);
        request.array(length + usize::from(self.shape.is_some()));
        self.words(args, is_meant).for_each(|word| request.bulk(word));
        if let Some(shape) = self.shape {
            request.bulk_with(SHAPE.len() + 8, |out| {
                out.extend_from_slice(SHAPE);
                out.extend_from_slice(&shape.to_le_bytes());
            });
        }
    }
}

/// Prefix of the layout hash, which is the last argument of a part. Eight little-endian bytes
/// follow. No id or option has this form.
pub(super) const SHAPE: &[u8] = b"shape=";

/// Columns of a packed page.
pub(super) struct Columns {
    /// Number of counters and of flags of the view and of each joined view.
    pub(super) views: Vec<(usize, usize)>,
    /// Number of members per row of the option AMONG.
    pub(super) among_top: Option<usize>,
}

pub(super) struct Page {
    pub(super) spec: &'static Spec,
    pub(super) request: RequestQueue,
    pub(super) plan: Plan,
    /// Columns of a packed page.
    pub(super) columns: Option<Columns>,
    /// Options of PH.UNSEEN. The parts of such a request ask for the flag of each id.
    pub(super) unseen: Option<UnseenOptions>,
    /// Range in the turn's output that the reply replaces.
    pub(super) place: Range<usize>,
    pub(super) protocol: Protocol,
    pub(super) again: Vec<(usize, Vec<u8>)>,
}

/// Requests of a client that wait for other nodes.
#[derive(Default)]
pub(crate) struct Gathering {
    pub(super) batch: Arc<Batch>,
    pub(super) pages: Vec<Page>,
}

/// A reply, and the range it replaces in the output buffer.
pub(crate) type Joined = (Range<usize>, Vec<u8>);

impl Page {
    pub(super) fn ask(
        &mut self,
        args: Args<'_>,
        batch: &Arc<Batch>,
        topology: &Arc<Topology>,
        node: Now<'_>,
    ) {
        let process = node.process();
        let from = if self.spec.may_write(args) {
            ReadFrom::Master
        } else {
            node.config().cluster.read_from
        };
        for part in 0..self.plan.parts.len() {
            let At::Shard(master) = self.plan.parts[part].at else { continue };
            // This node is a replica of that shard and may not serve the read. Send the part to the
            // shard's master.
            let is_own = topology
                .own_master()
                .is_some_and(|own| std::ptr::eq(own, &raw const topology.members()[master]));
            let from = if is_own { ReadFrom::Master } else { from };
            let link = peers::with(|peers| peers.of_shard(topology, master, from, &process));
            let count = self.plan.parts[part].count;
            let of = IdOwner::IdGroup(part as u32);
            self.plan.parts[part].number = link.ask(&process, batch, |out| {
                self.plan.write(args, count, |_, other| other == of, out);
            });
        }
    }

    /// Returns the error for the ids of a failed part.
    fn error_of(&self, failure: &Failure) -> Vec<u8> {
        let args = self.request.iter().next();
        let changes = args.is_some_and(|args| self.spec.may_write(args));
        let text = match (failure, changes) {
            (Failure::Unsent(why) | Failure::Lost(why), false) => format!("CLUSTERDOWN {why}"),
            (Failure::Unsent(why), true) => format!("CLUSTERDOWN {why}; nothing was changed"),
            (Failure::Lost(why), true) => {
                let once = args.is_some_and(|args| is_idempotent(self.spec, args));
                let advice =
                    if once { "it is safe to retry" } else { "the change may have been applied" };
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

    /// Returns the element of each id, in order, and the error that follows the last row, if any.
    fn elements(&self) -> (Vec<&[u8]>, Option<&[u8]>) {
        let mut replies: Vec<_> = self.plan.parts.iter().map(|p| elements(&p.reply)).collect();
        let mut again = self.again.iter().peekable();
        let mut all = Vec::with_capacity(self.plan.ids.len());
        for (id, (_, of)) in self.plan.ids.iter().enumerate() {
            let element = match *of {
                IdOwner::Refusal(at) => &self.plan.refusals[at as usize][..],
                IdOwner::IdGroup(part) => match &mut replies[part as usize] {
                    Some(reply) => reply.next().unwrap_or(b"-ERR a node returned too few rows\r\n"),
                    // The whole part failed, so the error applies to each of its ids.
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

    /// Sends the ids that returned MOVED to the node that the error names.
    fn retry_moved(&self, process: &Arc<Process>, batch: &Arc<Batch>) -> Vec<(usize, Vec<usize>)> {
        let mut by_link: Vec<(Arc<PeerLink>, Vec<usize>)> = Vec::new();
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
        let ask = |(link, ids): (Arc<PeerLink>, Vec<usize>)| {
            let is_meant = |id: usize, _| ids.binary_search(&id).is_ok();
            let number = link.ask(process, batch, |out| {
                self.plan.write(args, ids.len(), is_meant, out);
            });
            (number, ids)
        };
        by_link.into_iter().map(ask).collect()
    }

    fn take_retried(&mut self, asked: Vec<(usize, Vec<usize>)>, answers: &[Answer]) {
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

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let parts = &self.plan.parts;
        let refused = |part: &IdGroup| part.is_answered && part.reply.starts_with(b"-");
        if let Some(first) = parts.first()
            && self.plan.refusals.is_empty()
            && self.again.is_empty()
            && parts.iter().all(refused)
        {
            // All nodes refused, so the error applies to the whole request.
            out.extend_from_slice(&first.reply);
            return;
        }
        let (elements, beyond) = self.elements();
        if let Some(columns) = &self.columns {
            return write_packed(columns, &elements, beyond, out);
        }
        if let Some(options) = self.unseen {
            return self.write_unseen(options, &elements, out);
        }
        let length = elements.len() + usize::from(beyond.is_some());
        Reply::new(out, Protocol::Resp2).array(length);
        for element in elements.into_iter().chain(beyond) {
            match self.protocol {
                Protocol::Resp2 => out.extend_from_slice(element),
                Protocol::Resp3 => put_resp3(element, out),
            }
        }
    }

    /// Selects the unseen ids, given the elements of PH.EXISTS or PH.ADD. If any element is an
    /// error, that error becomes the whole reply.
    fn write_unseen(&self, options: UnseenOptions, elements: &[&[u8]], out: &mut Vec<u8>) {
        if let Some(error) = elements.iter().find(|element| element.starts_with(b"-")) {
            return out.extend_from_slice(error);
        }
        let args = self.request.first();
        let is_unseen: &[u8] = if options.marks { b":1\r\n" } else { b":0\r\n" };
        let mut unseen = Unseen::new(options, elements.len());
        for (index, (element, (at, _))) in elements.iter().zip(&self.plan.ids).enumerate() {
            let is_below = element.starts_with(b"$-1");
            let is_meant = *element == is_unseen || is_below && options.below_is_unseen;
            if is_meant && unseen.has_room() {
                unseen.push(index, resp::natural(args.at(*at as usize)).unwrap_or(0));
            }
        }
        unseen.write(&mut Reply::new(out, self.protocol));
    }
}

/// Returns whether the change is idempotent.
fn is_idempotent(spec: &Spec, args: Args<'_>) -> bool {
    let has_token = args.len() > 2 && args.at(args.len() - 2).eq_ignore_ascii_case(b"TOKEN");
    spec.name != "cnt.mincrby" || has_token
}

fn moved_to(element: &[u8]) -> Option<Address> {
    let rest = element.strip_prefix(b"-MOVED ")?.strip_suffix(b"\r\n")?;
    Address::of_master(std::str::from_utf8(rest).ok()?.split(' ').nth(1)?)
}

/// Returns the value of an integer element; -1 for a null.
fn integer_of(element: &[u8]) -> i64 {
    resp::integer(&element[1..element.len() - 2]).unwrap_or(-1)
}

/// Returns the value of an element that is a number, as an integer or as a bulk string.
fn number_of(element: &[u8]) -> u64 {
    let mut lines = element.split(|byte| *byte == b'\r');
    let first = lines.next().and_then(|line| line.strip_prefix(b":"));
    let text = first.or_else(|| lines.next().and_then(|line| line.strip_prefix(b"\n")));
    text.and_then(resp::natural).unwrap_or(0)
}

/// Writes a packed page in the format of FEED.GET ... BINARY. Unavailable rows consist of
/// [`MISSING`] bytes. The first error, if any, follows the page.
fn write_packed(columns: &Columns, rows: &[&[u8]], beyond: Option<&[u8]>, out: &mut Vec<u8>) {
    let views = columns.views.iter().map(|(counters, flags)| counters * 8 + flags);
    let width = views.sum::<usize>() + columns.among_top.map_or(0, binary_bytes);
    let first_error = rows.iter().copied().find(|row| row.starts_with(b"-")).or(beyond);
    let mut reply = Reply::new(out, Protocol::Resp2);
    if first_error.is_some() {
        reply.array(2);
    }
    reply.bulk_with(rows.len() * width, |out| {
        for row in rows {
            let end = out.len() + width;
            // If the row is an error, it has no cells, and `resize` below fills the columns.
            let mut cells = elements(row).into_iter().flatten();
            for (counters, flags) in &columns.views {
                for cell in cells.by_ref().take(*counters) {
                    out.extend_from_slice(&integer_of(cell).to_le_bytes());
                }
                out.extend(cells.by_ref().take(*flags).map(|cell| match cell {
                    b":0\r\n" => 0,
                    b":1\r\n" => 1,
                    _ => MISSING,
                }));
            }
            if let (Some(_), Some(count), Some(members)) =
                (columns.among_top, cells.next(), cells.next())
            {
                out.extend_from_slice(&integer_of(count).to_le_bytes());
                for member in elements(members).into_iter().flatten() {
                    out.extend_from_slice(&number_of(member).to_le_bytes());
                }
                out.resize(end, 0);
            }
            out.resize(end, MISSING);
        }
    });
    reply.bytes().extend_from_slice(first_error.unwrap_or_default());
}

impl Gathering {
    pub(crate) fn drop_replies(&mut self, mark: usize) {
        self.pages.iter_mut().filter(|page| page.place.start >= mark).for_each(|page| {
            page.place = 0..0;
        });
    }

    /// Returns the replies once every part has arrived or timed out.
    pub(crate) async fn joined(mut self, process: Arc<Process>) -> Vec<Joined> {
        let mut answers = self.batch.answers().await;
        let again = Arc::new(Batch::default());
        let mut asked = Vec::with_capacity(self.pages.len());
        for page in &mut self.pages {
            page.take(&mut answers);
            let has_moved = page.plan.parts.iter().any(|part| has_moved(&part.reply));
            asked.push(if has_moved { page.retry_moved(&process, &again) } else { Vec::new() });
        }
        if asked.iter().any(|asked| !asked.is_empty()) {
            let answers = again.answers().await;
            for (page, asked) in self.pages.iter_mut().zip(asked) {
                page.take_retried(asked, &answers);
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
    // Fast path: replies rarely contain a minus sign.
    reply.contains(&b'-') && reply.windows(7).any(|bytes| bytes == b"-MOVED ")
}
