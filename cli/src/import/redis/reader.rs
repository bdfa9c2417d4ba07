//! Reads the keys that the layouts describe from the source Redis, by SCAN or by name.

use super::follow::{ChangedKey, check_setting};
use super::items::{Item, Read};
use super::layout::{Container, Layout};
use super::shapes::Shapes;
use super::source::RedisSource;
use client::{Client, Reply, info_field, put_command};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of keys per SCAN, and number of fields or members per request.
const COUNT: &[u8] = b"1000";
const BITS_BYTES: usize = 64 << 10;

/// Statistics of a scan: number of keys, and names of the keys and fields that are not copied.
#[derive(Default)]
pub(crate) struct ScanStats {
    pub(crate) keys: u64,
    /// Keys that match no layout.
    pub(crate) unmatched_keys: Shapes,
    /// Fields of hashes and buckets that are not counters.
    pub(crate) foreign: Shapes,
    /// Keys of the layouts that have an expiry.
    pub(crate) expiring: Shapes,
}

impl ScanStats {
    pub(crate) fn merge(&mut self, other: ScanStats) {
        self.keys += other.keys;
        self.unmatched_keys.merge(other.unmatched_keys);
        self.foreign.merge(other.foreign);
        self.expiring.merge(other.expiring);
    }
}

struct Job {
    key: Vec<u8>,
    layout: usize,
    /// Row id or bucket number.
    id: u64,
    /// Counter or shard in the key's name.
    field: Vec<u8>,
    /// Whether to unset all members of the id before the current members are set.
    unset_first: bool,
    /// Whether the key is read only because another key of the same id has changed. Such a key may
    /// not exist.
    beside: bool,
}

pub(crate) struct RateLimiter {
    per_s: f64,
    since: Instant,
    taken: f64,
}

impl RateLimiter {
    pub(crate) fn new(per_s: f64) -> RateLimiter {
        RateLimiter { per_s, since: Instant::now(), taken: 0.0 }
    }

    /// Waits until the rate limit allows reading `keys` more keys. Unused capacity expires after
    /// one second.
    pub(crate) fn take(&mut self, keys: usize) {
        let elapsed = self.since.elapsed().as_secs_f64();
        self.taken = self.taken.max((elapsed - 1.0) * self.per_s) + keys as f64;
        let ahead = self.taken / self.per_s - elapsed;
        if ahead > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(ahead));
        }
    }
}

pub(crate) struct KeyReader {
    remote: Client,
    /// The other sources. In a cluster, another source may hold a key that this one lacks.
    others: Vec<OtherSource>,
    layouts: Arc<Vec<Layout>>,
    rate: Option<RateLimiter>,
    /// With --renew-sets: sets that were read, by layout and id. When a set is read for the first
    /// time, by the scan or after a change, all of its members are unset.
    renewed: Option<HashSet<(usize, u64)>>,
    has_expiries: bool,
}

impl KeyReader {
    /// Connects to the source at index `number`.
    pub(crate) fn open(
        sources: &[RedisSource],
        number: usize,
        layouts: Arc<Vec<Layout>>,
        rate: Option<RateLimiter>,
        renews: bool,
    ) -> io::Result<KeyReader> {
        let others = sources.iter().enumerate().filter(|(other, _)| *other != number);
        let others = others.map(|(_, source)| OtherSource { source: source.clone(), remote: None });
        let (remote, others) = (sources[number].open()?, others.collect());
        let renewed = renews.then(HashSet::new);
        Ok(KeyReader { remote, others, layouts, rate, renewed, has_expiries: false })
    }

    /// Returns the number of keys and the run id of the server process. A SCAN cursor is a position
    /// in a hash table, and the order differs in another process.
    pub(crate) fn source_info(&mut self) -> io::Result<(u64, String)> {
        let keys = self.remote.ask(&[b"DBSIZE"])?.as_integer().unwrap_or(0).unsigned_abs();
        // Without permission for INFO, each start scans from the beginning.
        let info = self.remote.ask(&[b"INFO", b"server"]).ok().and_then(Reply::into_text);
        self.has_expiries = self.look_for_expiries();
        let info = info.unwrap_or_default();
        Ok((keys, info_field(&info, "run_id").unwrap_or_default().to_owned()))
    }

    /// Returns whether the source has keys with an expiry. Returns false without permission for
    /// INFO.
    fn look_for_expiries(&mut self) -> bool {
        let info = self.remote.ask(&[b"INFO", b"keyspace"]).ok().and_then(Reply::into_text);
        let info = info.unwrap_or_default();
        let expires = |line: &str| {
            line.split(",expires=").nth(1).is_some_and(|number| !number.starts_with("0,"))
        };
        if !info.lines().any(expires) {
            return false;
        }
        let key = self.layouts.first().and_then(|layout| layout.key(0, b"")).unwrap_or_default();
        self.remote.ask(&[b"PTTL", &key]).is_ok()
    }

    pub(crate) fn check_setting(&mut self) -> io::Result<()> {
        check_setting(&mut self.remote, &self.layouts, false)
    }

    pub(crate) fn scan(
        &mut self,
        cursor: u64,
        give: &mut dyn FnMut(Read),
    ) -> io::Result<(u64, ScanStats)> {
        let cursor = cursor.to_string();
        let args: [&[u8]; 4] = [b"SCAN", cursor.as_bytes(), b"COUNT", COUNT];
        let Reply::Array(mut reply) = self.remote.ask(&args)? else {
            return Err(unexpected_reply());
        };
        let (Some(Reply::Array(keys)), Some(next)) = (reply.pop(), reply.pop()) else {
            return Err(unexpected_reply());
        };
        let next =
            next.into_bytes().as_deref().and_then(resp::natural).ok_or_else(unexpected_reply)?;
        let keys: Vec<Vec<u8>> = keys.into_iter().filter_map(Reply::into_bytes).collect();
        let mut seen = ScanStats { keys: keys.len() as u64, ..ScanStats::default() };
        if self.has_expiries {
            self.count_expiries(&keys, &mut seen.expiring)?;
        }
        let ScanStats { unmatched_keys, foreign, .. } = &mut seen;
        let changed = |key| ChangedKey { key, removed: false };
        let unmatched_keys = &mut |key: Vec<u8>| unmatched_keys.add(&key);
        let give = &mut |mut read: Read| {
            read.foreign.drain(..).for_each(|name| foreign.add(&name));
            give(read);
        };
        self.read(keys.into_iter().map(changed), false, unmatched_keys, give)?;
        Ok((next, seen))
    }

    fn count_expiries(&mut self, keys: &[Vec<u8>], expiring: &mut Shapes) -> io::Result<()> {
        let is_read = |key: &&Vec<u8>| self.layouts.iter().any(|of| of.read(key).is_some());
        let keys: Vec<&Vec<u8>> = keys.iter().filter(is_read).collect();
        let mut requests = Vec::new();
        keys.iter().for_each(|key| put_command(&mut requests, &[b"PTTL", key]));
        let mut asked = keys.iter();
        self.remote.batch(&requests, keys.len(), |reply| {
            if let (Some(key), Reply::Integer(0..)) = (asked.next(), reply) {
                expiring.add(key);
            }
        })
    }

    /// Reads the keys. `unmatched_keys` receives keys that match no layout. `tell_gone` also
    /// reports keys that no longer exist.
    pub(crate) fn read(
        &mut self,
        keys: impl Iterator<Item = ChangedKey>,
        tell_gone: bool,
        unmatched_keys: &mut dyn FnMut(Vec<u8>),
        give: &mut dyn FnMut(Read),
    ) -> io::Result<()> {
        let layouts = self.layouts.clone();
        let mut jobs = Vec::new();
        for ChangedKey { key, removed } in keys {
            let before = jobs.len();
            for (layout, one) in layouts.iter().enumerate() {
                if let Some((id, field)) = one.read(&key) {
                    let is_first = one.is_flags()
                        && self.renewed.as_mut().is_some_and(|sets| sets.insert((layout, id)));
                    let (field, unset_first) =
                        (field.to_vec(), is_first || removed && one.is_flags());
                    jobs.push(Job {
                        key: key.clone(),
                        layout,
                        id,
                        field,
                        unset_first,
                        beside: false,
                    });
                    if unset_first {
                        jobs.extend(Job::beside(&layouts, &one.space, id, &key));
                    }
                }
            }
            if jobs.len() == before {
                let refusal = |(layout, of): (usize, &Layout)| Some((layout, of.refusal(&key)?));
                match layouts.iter().enumerate().find_map(refusal) {
                    Some((layout, why)) => {
                        let mut read = Read::of(key, layout, Vec::new());
                        read.reject(why);
                        give(read);
                    }
                    None => unmatched_keys(key),
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
        let replies = jobs.iter().map(|job| layouts[job.layout].parts()).sum();
        let mut parts = Vec::new();
        self.remote.batch(&requests, replies, |reply| {
            parts.push(reply);
            let Some(job) = replied.as_slice().first() else { return };
            if parts.len() < layouts[job.layout].parts() {
                return;
            }
            replied.next();
            let parts = std::mem::take(&mut parts);
            if job.beside && parts.iter().any(is_redirect) {
                elsewhere.push((job, parts));
            } else if let Some(next) = job.take(&layouts[job.layout], 0, parts, tell_gone, give) {
                rest.push((job, next));
            }
        })?;
        for (job, next) in rest {
            job.read_remaining_parts(&layouts[job.layout], next, &mut self.remote, give)?;
        }
        for (job, parts) in elsewhere {
            self.read_after_redirect(job, &layouts[job.layout], parts, give)?;
        }
        Ok(())
    }

    /// Reads a set that belongs to another cluster node from that node. `refusal` is the reply of
    /// this node to the same request.
    fn read_after_redirect(
        &mut self,
        job: &Job,
        layout: &Layout,
        mut refusal: Vec<Reply>,
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
                Some(reply) if is_redirect(&reply) => refusal = vec![reply],
                Some(reply) => {
                    if let Some(next) = job.take(layout, 0, vec![reply], false, give) {
                        job.read_remaining_parts(layout, next, remote, give)?;
                    }
                    return Ok(());
                }
                None => {}
            }
        }
        // If no source has the set, the key is rejected with `refusal` as the reason.
        job.take(layout, 0, refusal, false, give);
        Ok(())
    }
}

/// Another source, connected on first use.
struct OtherSource {
    source: RedisSource,
    remote: Option<Client>,
}

/// Returns whether the reply redirects to another node of the cluster.
pub(crate) fn is_redirect(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(why) if why.starts_with("MOVED ") || why.starts_with("ASK "))
}

fn unexpected_reply() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected reply to SCAN")
}

impl Job {
    /// Returns the other keys that hold members of an id. When all members of the id are unset, the
    /// members of these keys must be set again.
    fn beside<'l>(
        layouts: &'l [Layout],
        space: &'l str,
        id: u64,
        key: &'l [u8],
    ) -> impl Iterator<Item = Job> {
        let all = layouts.iter().enumerate();
        let others = all.filter(move |(_, other)| other.is_flags() && other.space == space);
        others.flat_map(move |(layout, other)| {
            let keys = other.keys(id, b"").unwrap_or_default().into_iter();
            let job =
                move |key| Job { key, layout, id, field: vec![], unset_first: false, beside: true };
            keys.filter(move |other| *other != key).map(job)
        })
    }

    /// Encodes the requests for the part that starts at `next`, a cursor or an offset (0 at the
    /// beginning). A row has one request per shard.
    fn request(&self, layout: &Layout, next: u64, out: &mut Vec<u8>) {
        let from = next.to_string();
        let from = from.as_bytes();
        let keys = match layout.is_sum() {
            true => layout.keys(self.id, &self.field).unwrap_or_default(),
            false => vec![self.key.clone()],
        };
        for key in keys {
            let key = &key[..];
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
        if let Some((row, field)) = layout.row_key(self.id, &self.field) {
            put_command(out, &[b"HEXISTS", &row, field]);
        }
    }

    /// Reads the rest of a large key, starting at `next`.
    fn read_remaining_parts(
        &self,
        layout: &Layout,
        mut next: u64,
        remote: &mut Client,
        give: &mut dyn FnMut(Read),
    ) -> io::Result<()> {
        loop {
            let (mut request, mut more) = (Vec::new(), None);
            self.request(layout, next, &mut request);
            remote.batch(&request, 1, |reply| {
                more = self.take(layout, next, vec![reply], false, give)
            })?;
            match more {
                Some(more) => next = more,
                None => return Ok(()),
            }
        }
    }

    /// Processes the replies to a request. Returns the cursor or offset of the next part, if any.
    fn take(
        &self,
        layout: &Layout,
        from: u64,
        mut parts: Vec<Reply>,
        tell_gone: bool,
        give: &mut dyn FnMut(Read),
    ) -> Option<u64> {
        // A scan finds every shard, but the row must be read only once: when the scan finds its
        // first existing shard.
        let own = layout.shard(&self.field).unwrap_or(0);
        if !tell_gone && layout.is_sum() && parts[..own].iter().any(is_present) {
            return None;
        }
        let mut read = Read::of(self.key.clone(), self.layout, Vec::new());
        let mut next = None;
        match layout.container {
            Container::Hash | Container::String | Container::Card | Container::Ones => {
                layout.read_row(self.id, &self.field, &parts, &mut read);
            }
            Container::Set | Container::Bits | Container::Buckets(_) => match parts.pop() {
                Some(Reply::Error(reason)) => read.reject(reason),
                reply => {
                    if self.unset_first && from == 0 {
                        read.items.push(Item::Unset(self.id));
                    }
                    next = self.take_members(layout, from, reply, &mut read);
                }
            },
        }
        if read.items.is_empty() && read.bad.is_none() && next.is_none() && from == 0 {
            let is_in_hash = layout.row_key(self.id, b"").is_some()
                && matches!(parts.last(), Some(Reply::Integer(1)));
            if tell_gone && !self.beside && !is_in_hash {
                read.items.extend(layout.gone(self.id, &self.field));
                read.is_lost = read.items.is_empty() && read.foreign.is_empty();
            } else if read.foreign.is_empty() {
                return None;
            }
        }
        give(read);
        next
    }

    /// Processes members, or fields of a bucket. Returns the cursor or offset of the next part.
    fn take_members(
        &self,
        layout: &Layout,
        from: u64,
        reply: Option<Reply>,
        read: &mut Read,
    ) -> Option<u64> {
        match reply? {
            Reply::BulkString(value) => {
                read.items.extend(members(self.id, from, &value));
                (value.len() == BITS_BYTES).then(|| from + BITS_BYTES as u64)
            }
            Reply::Array(mut parts) => {
                let Some(Reply::Array(all)) = parts.pop() else { return None };
                let all = all.into_iter().filter_map(Reply::into_bytes);
                if layout.container == Container::Set {
                    read.items.extend(all.map(|member| Item::Member(self.id, member)));
                } else {
                    let texts: Vec<Vec<u8>> = all.collect();
                    for pair in texts.chunks_exact(2) {
                        layout.read_bucket(self.id, &pair[0], &pair[1], read);
                    }
                }
                let cursor =
                    parts.pop().and_then(Reply::into_bytes).as_deref().and_then(resp::natural);
                cursor.filter(|cursor| *cursor > 0)
            }
            _ => None,
        }
    }
}

fn is_present(reply: &Reply) -> bool {
    match reply {
        Reply::Null | Reply::Integer(0) => false,
        Reply::Array(all) => !all.is_empty(),
        reply => !is_redirect(reply),
    }
}

/// Returns the bits that are set. Redis counts from the highest bit of each byte.
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
        let (mut rate, started) = (RateLimiter::new(1000.0), Instant::now());
        (0..10).for_each(|_| rate.take(20));
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(195), "{took:?}");
    }
}
