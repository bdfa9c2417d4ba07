//! Reads the keys of the layouts from one Redis: all of them by SCAN, and those that are named.

use super::follow::{Changed, check_setting};
use super::layout::{Container, Item, Layout};
use super::source::{Remote, Source, bytes};
use crate::import::SHOWN;
use node::client::connect::put_command;
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Keys that a SCAN looks at, and fields or members that are asked for at once.
const COUNT: &[u8] = b"1000";
/// Bytes of a bitmap that are read at once.
const BITS_BYTES: usize = 64 << 10;

/// What was read of a key; of a large one in several parts.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) key: Vec<u8>,
    pub(crate) layout: usize,
    pub(crate) items: Vec<Item>,
    /// Why it, or a part of it, is not read.
    pub(crate) bad: Option<String>,
    /// It is not there; what it had is not known.
    pub(crate) is_lost: bool,
}

/// A step of a scan.
pub(crate) struct Scanned {
    /// The next cursor.
    pub(crate) next: u64,
    pub(crate) keys: usize,
    /// Those of them that are of no layout; some of them by name.
    pub(crate) unfit: u64,
    pub(crate) examples: Vec<Vec<u8>>,
}

/// A key of a layout.
struct Job {
    key: Vec<u8>,
    layout: usize,
    /// Or the number of a bucket.
    id: u64,
    field: Vec<u8>,
    /// Members that were set are unset first.
    anew: bool,
    /// It has not changed itself, and may not be there.
    beside: bool,
}

/// So many keys per second are read.
pub(crate) struct Rate {
    per_s: f64,
    since: Instant,
    taken: f64,
}

impl Rate {
    pub(crate) fn new(per_s: f64) -> Rate {
        Rate { per_s, since: Instant::now(), taken: 0.0 }
    }

    /// Waits until so many may be read. What was not used in the last second is forgotten.
    pub(crate) fn take(&mut self, keys: usize) {
        let elapsed = self.since.elapsed().as_secs_f64();
        self.taken = self.taken.max((elapsed - 1.0) * self.per_s) + keys as f64;
        let ahead = self.taken / self.per_s - elapsed;
        if ahead > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(ahead));
        }
    }
}

/// See the top of the file.
pub(crate) struct Reader {
    remote: Remote,
    /// The other sources: of a cluster one of them may have a key that is not here.
    others: Vec<Other>,
    layouts: Arc<Vec<Layout>>,
    rate: Option<Rate>,
    /// With --renew-sets: the sets that were read, by layout and id. All members of a set are unset
    /// when it is read for the first time, be it in the scan or because it has changed.
    renewed: Option<HashSet<(usize, u64)>>,
}

impl Reader {
    /// Of the source with this place among all.
    pub(crate) fn open(
        sources: &[Source],
        number: usize,
        layouts: Arc<Vec<Layout>>,
        rate: Option<Rate>,
        renews: bool,
    ) -> io::Result<Reader> {
        let others = sources.iter().enumerate().filter(|(other, _)| *other != number);
        let others = others.map(|(_, source)| Other { source: source.clone(), remote: None });
        let (remote, others) = (sources[number].open()?, others.collect());
        let renewed = renews.then(HashSet::new);
        Ok(Reader { remote, others, layouts, rate, renewed })
    }

    /// How many keys there are, and which process of the server this is: a cursor of SCAN is one of
    /// its hash table, whose order another process does not share.
    pub(crate) fn about(&mut self) -> io::Result<(u64, String)> {
        let keys = match self.remote.ask(&[b"DBSIZE"])? {
            OwnedFrame::Integer(keys) => keys.unsigned_abs(),
            _ => 0,
        };
        // Where INFO is forbidden, each start scans from the beginning.
        let info = self.remote.ask(&[b"INFO", b"server"]).ok().and_then(bytes).unwrap_or_default();
        let info = String::from_utf8_lossy(&info).into_owned();
        let id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok((keys, id.unwrap_or_default().trim().to_owned()))
    }

    /// Whether the source still tells of changes.
    pub(crate) fn check_setting(&mut self) -> io::Result<()> {
        check_setting(&mut self.remote, &self.layouts, false)
    }

    /// One step of a scan.
    pub(crate) fn scan(&mut self, cursor: u64, give: &mut dyn FnMut(Read)) -> io::Result<Scanned> {
        let cursor = cursor.to_string();
        let args: [&[u8]; 4] = [b"SCAN", cursor.as_bytes(), b"COUNT", COUNT];
        let OwnedFrame::Array(mut reply) = self.remote.ask(&args)? else { return Err(strange()) };
        let (Some(OwnedFrame::Array(keys)), Some(next)) = (reply.pop(), reply.pop()) else {
            return Err(strange());
        };
        let next = bytes(next).as_deref().and_then(resp::natural).ok_or_else(strange)?;
        let mut scanned = Scanned { next, keys: keys.len(), unfit: 0, examples: Vec::new() };
        let changed = |key| Changed { key, removed: false };
        let unfit = &mut |key| {
            scanned.unfit += 1;
            if scanned.examples.len() < SHOWN {
                scanned.examples.push(key);
            }
        };
        self.read(keys.into_iter().filter_map(bytes).map(changed), false, unfit, give)?;
        Ok(scanned)
    }

    /// Reads these keys; those of no layout go to `unfit`. `tell_gone`: those that are not there
    /// any more are told of, too.
    pub(crate) fn read(
        &mut self,
        keys: impl Iterator<Item = Changed>,
        tell_gone: bool,
        unfit: &mut dyn FnMut(Vec<u8>),
        give: &mut dyn FnMut(Read),
    ) -> io::Result<()> {
        let layouts = self.layouts.clone();
        let mut jobs = Vec::new();
        for Changed { key, removed } in keys {
            let before = jobs.len();
            for (layout, one) in layouts.iter().enumerate() {
                if let Some((id, field)) = one.read(&key) {
                    let is_first = one.is_flags()
                        && self.renewed.as_mut().is_some_and(|sets| sets.insert((layout, id)));
                    let (field, anew) = (field.to_vec(), is_first || removed && one.is_flags());
                    jobs.push(Job { key: key.clone(), layout, id, field, anew, beside: false });
                    // What other keys have of the same members is set again, too.
                    let others = layouts.iter().enumerate().filter(|(number, other)| {
                        anew && *number != layout && other.is_flags() && other.space == one.space
                    });
                    jobs.extend(others.filter_map(|(layout, other)| {
                        let (key, field) = (other.key(id, b"")?, Vec::new());
                        Some(Job { key, layout, id, field, anew: false, beside: true })
                    }));
                }
            }
            if jobs.len() == before {
                let refusal = |(layout, of): (usize, &Layout)| Some((layout, of.refusal(&key)?));
                match layouts.iter().enumerate().find_map(refusal) {
                    Some((layout, why)) => {
                        let (items, bad) = (Vec::new(), Some(why));
                        give(Read { key, layout, items, bad, is_lost: false });
                    }
                    None => unfit(key),
                }
            }
        }
        if jobs.is_empty() {
            return Ok(());
        }
        if let Some(rate) = &mut self.rate {
            rate.take(jobs.len());
        }
        let mut requests = Vec::new();
        jobs.iter().for_each(|job| job.request(&layouts[job.layout], 0, &mut requests));
        let (mut rest, mut elsewhere) = (Vec::new(), Vec::new());
        let mut replied = jobs.iter();
        self.remote.batch(&requests, jobs.len(), |reply| {
            let Some(job) = replied.next() else { return };
            if job.beside && is_elsewhere(&reply) {
                elsewhere.push((job, reply));
            } else if let Some(next) = job.take(&layouts[job.layout], 0, reply, tell_gone, give) {
                rest.push((job, next));
            }
        })?;
        for (job, next) in rest {
            job.read_rest(&layouts[job.layout], next, &mut self.remote, give)?;
        }
        for (job, reply) in elsewhere {
            self.read_elsewhere(job, &layouts[job.layout], reply, give)?;
        }
        Ok(())
    }

    /// A key that this node of a cluster does not have, `refusal` says: from the one that has it.
    fn read_elsewhere(
        &mut self,
        job: &Job,
        layout: &Layout,
        mut refusal: OwnedFrame,
        give: &mut dyn FnMut(Read),
    ) -> io::Result<()> {
        let mut request = Vec::new();
        job.request(layout, 0, &mut request);
        for other in &mut self.others {
            let remote = match &mut other.remote {
                Some(remote) => remote,
                none => none.insert(other.source.open()?),
            };
            let mut found = None;
            remote.batch(&request, 1, |reply| found = Some(reply))?;
            match found {
                Some(reply) if is_elsewhere(&reply) => refusal = reply,
                Some(reply) => {
                    if let Some(next) = job.take(layout, 0, reply, false, give) {
                        job.read_rest(layout, next, remote, give)?;
                    }
                    return Ok(());
                }
                None => {}
            }
        }
        // No source has it, so what it holds is not copied.
        job.take(layout, 0, refusal, false, give);
        Ok(())
    }
}

/// A source that is asked when it is needed.
struct Other {
    source: Source,
    remote: Option<Remote>,
}

/// Whether another node of a cluster has the key.
pub(crate) fn is_elsewhere(reply: &OwnedFrame) -> bool {
    matches!(reply, OwnedFrame::Error(why) if why.starts_with("MOVED ") || why.starts_with("ASK "))
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "SCAN answers what Redis does not")
}

impl Job {
    /// The request for what follows `next`, a cursor or an offset; 0 begins.
    fn request(&self, layout: &Layout, next: u64, out: &mut Vec<u8>) {
        let key = &self.key[..];
        let from = next.to_string();
        let from = from.as_bytes();
        match layout.container {
            Container::Hash => put_command(out, &[b"HGETALL", key]),
            Container::String => put_command(out, &[b"GET", key]),
            Container::Card => put_command(out, &[b"SCARD", key]),
            Container::Ones => put_command(out, &[b"BITCOUNT", key]),
            Container::Set => put_command(out, &[b"SSCAN", key, from, b"COUNT", COUNT]),
            Container::Buckets(_) => put_command(out, &[b"HSCAN", key, from, b"COUNT", COUNT]),
            Container::Bits => {
                let to = (next + BITS_BYTES as u64 - 1).to_string();
                put_command(out, &[b"GETRANGE", key, from, to.as_bytes()]);
            }
        }
    }

    /// Reads a large key from `next` on.
    fn read_rest(
        &self,
        layout: &Layout,
        mut next: u64,
        remote: &mut Remote,
        give: &mut dyn FnMut(Read),
    ) -> io::Result<()> {
        loop {
            let (mut request, mut more) = (Vec::new(), None);
            self.request(layout, next, &mut request);
            remote
                .batch(&request, 1, |reply| more = self.take(layout, next, reply, false, give))?;
            match more {
                Some(more) => next = more,
                None => return Ok(()),
            }
        }
    }

    /// Takes a reply; gives what follows it, if anything does.
    fn take(
        &self,
        layout: &Layout,
        from: u64,
        reply: OwnedFrame,
        tell_gone: bool,
        give: &mut dyn FnMut(Read),
    ) -> Option<u64> {
        let mut read = Read {
            key: self.key.clone(),
            layout: self.layout,
            items: Vec::new(),
            bad: None,
            is_lost: false,
        };
        let mut next = None;
        if self.anew && from == 0 && !matches!(reply, OwnedFrame::Error(_)) {
            read.items.push(Item::Unset(self.id));
        }
        match reply {
            OwnedFrame::Error(reason) => read.bad = Some(reason),
            OwnedFrame::Integer(count) if count > 0 => {
                read.items.push(Item::Row(self.id, vec![(0, count)]));
            }
            OwnedFrame::BulkString(value) if layout.container == Container::Bits => {
                read.items.extend(members(self.id, from, &value));
                next = (value.len() == BITS_BYTES).then(|| from + BITS_BYTES as u64);
            }
            OwnedFrame::BulkString(value) => match layout.string(self.id, &self.field, &value) {
                Ok(item) => read.items.push(item),
                Err(reason) => read.bad = Some(reason),
            },
            OwnedFrame::Array(all) if layout.container == Container::Hash => {
                let texts: Vec<Vec<u8>> = all.into_iter().filter_map(bytes).collect();
                let pairs = texts.chunks_exact(2).map(|pair| (&pair[0][..], &pair[1][..]));
                if !texts.is_empty() {
                    match layout.hash(self.id, pairs) {
                        Ok(item) => read.items.push(item),
                        Err(reason) => read.bad = Some(reason),
                    }
                }
            }
            OwnedFrame::Array(mut parts) => {
                let all = parts.pop();
                let cursor = parts.pop().and_then(bytes).as_deref().and_then(resp::natural);
                next = cursor.filter(|cursor| *cursor > 0);
                if let Some(OwnedFrame::Array(all)) = all {
                    self.scanned(layout, all, &mut read);
                }
            }
            // Not there.
            _ => {}
        }
        if read.items.is_empty() && read.bad.is_none() && next.is_none() && from == 0 {
            if !tell_gone || self.beside {
                return None;
            }
            read.items.extend(layout.gone(self.id, &self.field));
            read.is_lost = read.items.is_empty();
        }
        give(read);
        next
    }

    /// What SSCAN or HSCAN gave.
    fn scanned(&self, layout: &Layout, all: Vec<OwnedFrame>, read: &mut Read) {
        let texts = all.into_iter().filter_map(bytes);
        if layout.container == Container::Set {
            read.items.extend(texts.map(|member| Item::Member(self.id, member)));
            return;
        }
        let texts: Vec<Vec<u8>> = texts.collect();
        for pair in texts.chunks_exact(2) {
            match layout.bucket(self.id, &pair[0], &pair[1]) {
                Ok(item) => read.items.push(item),
                Err(reason) => read.bad = Some(reason),
            }
        }
    }
}

/// The bits that are set: Redis counts from the highest of each byte.
fn members(id: u64, from: u64, value: &[u8]) -> Vec<Item> {
    let set = value.iter().zip(from..).flat_map(|(byte, at)| {
        (0..8).filter(move |bit| byte << bit & 0x80 != 0).map(move |bit| at * 8 + bit)
    });
    set.map(|member| Item::Member(id, member.to_string().into_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_as_redis_counts_them() {
        let text = |n: u64| Item::Member(7, n.to_string().into_bytes());
        assert_eq!(members(7, 2, &[0x80, 0x41]), [text(16), text(25), text(31)]);
    }

    #[test]
    fn rate_is_kept() {
        let (mut rate, started) = (Rate::new(1000.0), Instant::now());
        (0..10).for_each(|_| rate.take(20));
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(195), "{took:?}");
    }
}
