//! Rows and pairs that a request accesses, derived from the ids and keys among its arguments.
//!
//! Before a request runs, the footprint determines what to prefetch, what to read from disk, how
//! much log space to reserve, which stripes a transaction locks, and which permissions are needed.
//! The footprint also determines which keys CLIENT TRACKING records, and which objects a read has
//! shown.

use crate::command::among;
use crate::command::id_list::Ids;
use crate::command::spec::{KeyArgs, MEMBER, Of, Spec, flag};
use crate::command::stream_options;
use crate::command::streams;
use dataset::engines::{Action, CounterSpace, Engines, ExistenceSpace, KeyRef, NO_MEMBER, View};
use phantom::Member;
use resp::{Args, natural};
use std::cell::LazyCell;

/// An object that a request reads or changes.
pub enum Touch<'a> {
    /// A row of counters, or one of its cells.
    Row(&'a CounterSpace, u64),
    /// A pair; `None` means all pairs of the id.
    Pair(&'a ExistenceSpace, u64, Option<Member<'a>>),
    /// The fields that a view returns for an id and a viewer. Requests only read them.
    Shown(&'a View, u64, Member<'a>),
}

impl Touch<'_> {
    /// Returns the object's id.
    #[inline]
    pub fn id(&self) -> u64 {
        match self {
            Touch::Row(_, id) | Touch::Pair(_, id, _) | Touch::Shown(_, id, _) => *id,
        }
    }
}

/// Object that a request names before its ids.
#[derive(Clone, Copy)]
enum Named<'a> {
    Rows(&'a CounterSpace),
    Pairs(&'a ExistenceSpace),
    Action(&'a Action),
    View(&'a View),
    RowsAndPairs(&'a CounterSpace),
    Flags(&'a ExistenceSpace),
}

/// Key or id that determines the cluster node of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed<'a> {
    /// A key of the request.
    Key(&'a [u8]),
    /// An id in the request.
    Id(u64),
}

/// Whether the arguments of a request identify all objects that it accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reach {
    /// The request accesses only the objects named by its keys and ids.
    Named,
    /// The objects are unknown, because the request scans the data or changes a schema.
    Everything,
}

/// Footprint of a request.
#[derive(Clone, Copy)]
pub struct Footprint<'a> {
    spec: &'a Spec,
    keys: KeyArgs,
    name: usize,
    args: Args<'a>,
    engines: &'a Engines,
}

impl<'a> Footprint<'a> {
    /// Creates the footprint of a request. Invalid arguments are ignored; the command reports them.
    #[inline]
    pub fn new(spec: &'a Spec, args: Args<'a>, engines: &'a Engines) -> Footprint<'a> {
        Footprint { spec, keys: spec.keys, name: 1, args, engines }
    }

    /// Returns the footprint of the action that an option runs: `FEED.GET ... MARK`.
    pub fn marked(&self) -> Option<Footprint<'a>> {
        let name = self.spec.mark(self.args)?;
        Some(Footprint { keys: KeyArgs::ids_of(Of::Action), name, ..*self })
    }

    /// Returns the footprint of the option AMONG: all pairs of each id in the space of the flag.
    pub fn among(&self) -> Option<Footprint<'a>> {
        let at = among::position(self.args)?;
        Some(Footprint { keys: KeyArgs::ids_of(Of::RowsAndPairs), name: at + 1, ..*self })
    }

    /// Calls `each` for each accessed object, with the position of the argument that names it.
    pub fn each(&self, each: impl FnMut(usize, Touch<'a>)) {
        self.walk(|_| None, each);
    }

    /// Like [`Footprint::each`], but only for the first key or id and its first member. Used for
    /// pipelines of small commands.
    #[inline]
    pub fn first(&self, mut each: impl FnMut(Touch<'a>)) {
        let mut each = |_, touch| each(touch);
        match self.keys {
            KeyArgs::None | KeyArgs::Streams(_) => {}
            KeyArgs::Keys(first, ..) => {
                let at = first.unsigned_abs() as usize;
                self.touch_key(at, || self.args.from(at + 1).iter().take(1), each);
            }
            KeyArgs::Shown => {
                if let Some((view, id)) = self.shown() {
                    each(1, Touch::Shown(view, id, Member::parse(self.args.at(3))));
                }
            }
            KeyArgs::Ids(of, at, _) => {
                if let (Some(named), Some(id)) = (self.named(of), natural(self.args.at(at))) {
                    self.touch_id(named, at, id, || Member::parse(self.args.at(MEMBER)), each);
                }
            }
        }
    }

    /// Whether the request reads ledgers: some space has a ledger, and the request writes or has
    /// the option EXACT.
    pub fn is_exact(&self) -> bool {
        self.engines.ledgers().next().is_some()
            && (self.spec.has(flag::WRITE)
                || self.keys == KeyArgs::ids_of(Of::Action)
                || exact(self.spec, self.args).is_some())
    }

    /// Like [`Footprint::each`], but skips ids newer than all data on disk. Most requests only
    /// access such ids, and one comparison filters them. `is_exact` is the result of
    /// [`Footprint::is_exact`].
    pub fn old(&self, is_exact: bool, mut each: impl FnMut(Touch<'a>)) {
        self.walk(|named| Some(self.cold_end(named, is_exact)), |_, touch| each(touch));
    }

    /// Whether the arguments identify all objects that the request accesses.
    pub fn reach(&self) -> Reach {
        let any = self.spec.has(flag::READONLY) || self.spec.may_write(self.args);
        if self.keys == KeyArgs::None && any { Reach::Everything } else { Reach::Named }
    }

    /// Calls `each` for each id of the request.
    pub fn ids(&self, mut each: impl FnMut(u64)) -> Reach {
        // Id 0 represents the cursors of consumer groups.
        if self.spec.group == "stream" && self.spec.has(flag::WRITE) {
            each(0);
        }
        match self.keys {
            KeyArgs::None | KeyArgs::Streams(_) => {}
            KeyArgs::Keys(..) | KeyArgs::Shown => {
                key_positions(self.spec, self.args).filter_map(|at| self.key(at)).for_each(
                    |(KeyRef::Row { id, .. }
                     | KeyRef::Cell { id, .. }
                     | KeyRef::Pair { id, .. })| { each(id) },
                )
            }
            KeyArgs::Ids(of, first, step) => {
                if of == Of::Action
                    && let Some(Named::Action(action)) = self.named(of)
                    && action.counts_member()
                {
                    natural(self.args.at(MEMBER)).into_iter().for_each(&mut each);
                }
                if self.joined(of).is_some() {
                    entries(among::before(self.args), first).for_each(|(_, _, id)| each(id));
                    return self.reach();
                }
                Ids::new(self.spec, self.args, first, step).for_each(|(_, id)| each(id))
            }
        }
        self.reach()
    }

    /// Calls `each` for each key or id that determines the request's cluster node. Streams of
    /// changes are omitted, since each node has its own.
    pub fn placed(&self, mut each: impl FnMut(Placed<'a>)) {
        match self.keys {
            KeyArgs::None | KeyArgs::Streams(_) => {}
            KeyArgs::Keys(..) | KeyArgs::Shown => key_positions(self.spec, self.args)
                .map(|at| self.args.at(at))
                .filter(|key| !streams::is_stream(key))
                .for_each(|key| each(Placed::Key(key))),
            // The node depends on the ids alone, not on the space.
            KeyArgs::Ids(..) => _ = self.ids(|id| each(Placed::Id(id))),
        }
    }

    #[inline]
    fn key(&self, at: usize) -> Option<KeyRef<'a>> {
        self.engines.resolve_for(self.spec.is_about_pairs(), self.args.at(at))
    }

    /// Calls `each` for each accessed object. `end` may return an exclusive upper bound for ids.
    fn walk(&self, end: impl Fn(Named<'a>) -> Option<u64>, mut each: impl FnMut(usize, Touch<'a>)) {
        match self.keys {
            KeyArgs::None | KeyArgs::Streams(_) => {}
            KeyArgs::Keys(..) => {
                // Members, or options, follow the keys.
                let behind = LazyCell::new(|| {
                    key_positions(self.spec, self.args).last().map_or(0, |last| last + 1)
                });
                for at in key_positions(self.spec, self.args) {
                    self.touch_key(at, || self.args.from(*behind).iter(), &mut each);
                }
            }
            KeyArgs::Shown => {
                if let Some((view, id)) = self.shown()
                    && end(Named::View(view)).is_none_or(|end| id < end)
                {
                    each(1, Touch::Shown(view, id, Member::parse(self.args.at(3))));
                }
            }
            KeyArgs::Ids(of, first, step) => {
                let Some(named) = self.named(of) else { return };
                let member = LazyCell::new(|| Member::parse(self.args.at(MEMBER)));
                if let Some(view) = self.joined(of) {
                    for (at, part, id) in entries(among::before(self.args), first) {
                        let part = std::iter::once(view).chain(self.engines.then(view)).nth(part);
                        if let Some(view) = part
                            && end(Named::View(view)).is_none_or(|end| id < end)
                        {
                            each(at, Touch::Shown(view, id, *member));
                        }
                    }
                    return;
                }
                let end = end(named);
                Ids::new(self.spec, self.args, first, step)
                    .filter(|(_, id)| end.is_none_or(|end| *id < end))
                    .for_each(|(at, id)| self.touch_id(named, at, id, || *member, &mut each));
            }
        }
    }

    /// Returns the view, and the id in the first key ([`KeyArgs::Shown`]).
    #[inline]
    fn shown(&self) -> Option<(&'a View, u64)> {
        let Some(KeyRef::Row { id, .. }) = self.key(1) else { return None };
        Some((self.engines.view(self.args.at(2))?, id))
    }

    /// Calls `each` for the key at this position; `members` are the members in the request.
    #[inline]
    fn touch_key<M: ExactSizeIterator<Item = &'a [u8]>>(
        &self,
        at: usize,
        members: impl FnOnce() -> M,
        mut each: impl FnMut(usize, Touch<'a>),
    ) {
        match self.key(at) {
            Some(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) => {
                each(at, Touch::Row(space, id));
            }
            Some(KeyRef::Pair { space, id }) if !space.has_members => {
                each(at, Touch::Pair(space, id, Some(NO_MEMBER)));
            }
            Some(KeyRef::Pair { space, id }) => {
                let members = members();
                if members.len() == 0 {
                    each(at, Touch::Pair(space, id, None));
                }
                members.for_each(|member| {
                    each(at, Touch::Pair(space, id, Some(Member::parse(member))));
                });
            }
            None => {}
        }
    }

    #[inline]
    fn touch_id(
        &self,
        named: Named<'a>,
        at: usize,
        id: u64,
        member: impl FnOnce() -> Member<'a>,
        mut each: impl FnMut(usize, Touch<'a>),
    ) {
        match named {
            Named::Rows(space) => each(at, Touch::Row(space, id)),
            Named::Pairs(space) => each(at, Touch::Pair(space, id, Some(member()))),
            Named::View(view) => each(at, Touch::Shown(view, id, member())),
            Named::RowsAndPairs(space) => {
                self.engines.rows_beside(space).for_each(|rows| each(at, Touch::Row(rows, id)));
                let flags = self.engines.flags_beside(space);
                flags.for_each(|flags| each(at, Touch::Pair(flags, id, None)));
            }
            Named::Flags(space) => each(at, Touch::Pair(space, id, None)),
            Named::Action(action) => {
                let (flags, counters) = self.engines.spaces_of(action);
                let member = member();
                each(at, Touch::Pair(flags, id, Some(member)));
                each(at, Touch::Row(counters, id));
                if action.is_wide() {
                    self.touch_beside(action, at, id, member, each);
                }
            }
        }
    }

    /// Calls `each` for the additional counters that an action changes.
    #[cold]
    fn touch_beside(
        &self,
        action: &'a Action,
        at: usize,
        id: u64,
        member: Member<'a>,
        mut each: impl FnMut(usize, Touch<'a>),
    ) {
        for (space, of_member) in self.engines.beside(action) {
            match member {
                _ if !of_member => each(at, Touch::Row(space, id)),
                Member::Number(member) => each(at, Touch::Row(space, member)),
                Member::Bytes(_) => {}
            }
        }
    }

    /// Returns the view if each of its entries has several ids.
    fn joined(&self, of: Of) -> Option<&'a View> {
        let view = if of == Of::View { self.engines.view(self.args.at(self.name)) } else { None };
        view.filter(|view| view.is_joined())
    }

    #[inline]
    fn named(&self, of: Of) -> Option<Named<'a>> {
        let name = self.args.at(self.name);
        match of {
            Of::Rows => self.engines.counter(name).map(Named::Rows),
            Of::Pairs => self.engines.existence(name).map(Named::Pairs),
            Of::Action => self.engines.action(name).map(Named::Action),
            Of::View => self.engines.view(name).map(Named::View),
            Of::RowsAndPairs => {
                let rows = self.engines.counter(name).map(Named::RowsAndPairs);
                rows.or_else(|| self.engines.existence(name).map(Named::Flags))
            }
        }
    }

    /// Returns the exclusive upper bound of ids on disk. There is no bound if the request reads a
    /// ledger on disk.
    fn cold_end(&self, named: Named<'a>, is_exact: bool) -> u64 {
        let engines = self.engines;
        let of_pairs = |space: &ExistenceSpace| match space.ledger() {
            Some(ledger) if is_exact && ledger.ledger().has_runs() => u64::MAX,
            _ => space.cold().end(),
        };
        match named {
            Named::Rows(space) => space.cold_end(),
            Named::Pairs(space) => of_pairs(space),
            Named::Action(action) => {
                let (flags, counters) = engines.spaces_of(action);
                counters.cold_end().max(of_pairs(flags))
            }
            Named::RowsAndPairs(space) => {
                engines.rows_beside(space).map(|space| space.cold_end()).max().unwrap_or(0)
            }
            // The command reads no cold pairs.
            Named::Flags(_) => 0,
            Named::View(view) => {
                let rows = engines.sources(view).map(|space| space.cold_end());
                rows.chain(engines.flags(view).map(of_pairs)).max().unwrap_or(0)
            }
        }
    }
}

/// Returns the ids in entries with several ids (`1001/77`): position of the argument, position in
/// the entry, and the id.
fn entries<'a>(
    args: Args<'a>,
    first: usize,
) -> impl Iterator<Item = (usize, usize, u64)> + use<'a> {
    (first..args.len()).flat_map(move |at| {
        let parts = args.at(at).split(|byte| *byte == b'/').enumerate();
        parts.filter_map(move |(part, text)| Some((at, part, natural(text)?)))
    })
}

/// Returns the position of the option EXACT, for commands that have it.
pub fn exact(spec: &Spec, args: Args<'_>) -> Option<usize> {
    if !matches!(spec.name, "feed.get" | "feed.row" | "ph.exists") {
        return None;
    }
    let at = (MEMBER + 1..args.len()).find(|at| args.at(*at).eq_ignore_ascii_case(b"EXACT"))?;
    (!among::precedes(args, at)).then_some(at)
}

/// Returns the positions of the keys in a request.
#[inline]
pub fn key_positions(spec: &Spec, args: Args<'_>) -> impl Iterator<Item = usize> + use<> {
    let (first, last, step) = match spec.keys {
        KeyArgs::Streams(_) => match stream_options::Options::read(spec, args) {
            Ok(options) => {
                let last = options.keys.0 + options.keys.1 - 1;
                // The cast cannot overflow: a request has fewer than 2^31 arguments.
                (options.keys.0 as i32, last as i32, 1)
            }
            // The options are invalid, so the command will return an error.
            Err(_) => (0, 0, 0),
        },
        keys => keys.positions(),
    };
    let count = i64::try_from(args.len()).unwrap_or(i64::MAX);
    // For an invalid SINTERCARD all arguments count as keys.
    let numbered =
        || natural(args.at(1)).and_then(|keys| i64::try_from(keys).ok()).filter(|&keys| keys > 0);
    let last = match last {
        _ if spec.name == "sintercard" => numbered().map_or(count, |keys| keys.saturating_add(1)),
        ..0 => count + i64::from(last),
        _ => i64::from(last),
    };
    let last = last.min(count - 1);
    let mut at = i64::from(first);
    std::iter::from_fn(move || {
        let position = usize::try_from(at).ok().filter(|_| step > 0 && at <= last)?;
        at += i64::from(step);
        Some(position)
    })
}
