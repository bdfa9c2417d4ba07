//! Prefetches cache lines for batches of small commands (HINCRBY, HMGET, SADD, FEED.ACT, ...).
//!
//! Without prefetching, each such command would wait for its own cache misses: a counter bucket, or
//! two cache lines of a filter. Commands over many ids or keys prefetch their own items.

use dataset::engines::{CounterSpace, Engines, ExistenceSpace};
use node::command::footprint::{Footprint, Touch};
use node::command::spec::{KeyArgs, ONE_KEY, Spec, flag};
use node::command::table::Found;
use phantom::Member;
use resp::Args;

/// Returns whether a command reads so little memory that it is prefetched here.
#[inline]
fn is_small(spec: &Spec) -> bool {
    spec.keys == ONE_KEY
        || spec.keys == KeyArgs::Shown
        || matches!(spec.keys, KeyArgs::Ids(..)) && spec.has(flag::WRITE)
}

/// Prefetcher for a batch. The prefetcher caches the last space, because most requests of a batch
/// name the same space.
pub(crate) struct Prefetcher<'a> {
    engines: &'a Engines,
    rows: Option<(&'a CounterSpace, counter::Read<'a>)>,
    pairs: Option<(&'a ExistenceSpace, phantom::PairPrefetcher<'a>)>,
}

impl<'a> Prefetcher<'a> {
    #[inline]
    pub(crate) fn new(engines: &'a Engines) -> Prefetcher<'a> {
        Prefetcher { engines, rows: None, pairs: None }
    }

    /// Prefetches the memory of one request, if the request is small.
    #[inline]
    pub(crate) fn at(&mut self, found: Found, args: Args<'a>) {
        let Some((_, spec)) = found.filter(|(_, spec)| is_small(spec)) else { return };
        let engines = self.engines;
        let mut hinted = !spec.has(flag::WRITE);
        Footprint::new(spec, args, engines).first(|touch| {
            let id = touch.id();
            match touch {
                Touch::Row(space, _) => self.row(space, id),
                Touch::Pair(space, _, Some(member)) => self.pair(space, id, &member),
                Touch::Pair(_, _, None) => {}
                Touch::Shown(view, _, viewer) => {
                    engines.sources(view).for_each(|space| self.row(space, id));
                    engines.flags(view).for_each(|space| self.pair(space, id, &viewer));
                }
            }
            if !std::mem::replace(&mut hinted, true) {
                engines.hint(id);
            }
        });
    }

    #[inline]
    fn row(&mut self, space: &'a CounterSpace, id: u64) {
        let view = match &self.rows {
            Some((of, view)) if std::ptr::eq(*of, space) => view,
            _ => &self.rows.insert((space, space.read())).1,
        };
        view.prefetch(&[id]);
    }

    #[inline]
    fn pair(&mut self, space: &'a ExistenceSpace, id: u64, member: &Member<'_>) {
        let pair_prefetcher = match &self.pairs {
            Some((of, pair_prefetcher)) if std::ptr::eq(*of, space) => pair_prefetcher,
            _ => &self.pairs.insert((space, space.pair_prefetcher())).1,
        };
        pair_prefetcher.prefetch(id, member);
    }
}
