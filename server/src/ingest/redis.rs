//! Redis stream reader, based on XREAD.
//!
//! Each read runs XINFO STREAM and XREAD in one transaction, so trimming is detected at the moment
//! of the read. From the second read on, the number of trimmed entries is known from
//! `entries-added`.

use super::reading::{
    CHUNK_BYTES, CHUNK_MESSAGES, Chunk, IDLE, ReadStopReason, ends_before, hash_of, record_gap,
};
use client::{ConnectArgs, Link, Reply, put_command};
use node::config::Ingest;
use node::runtime::ingest::IngestSource;
use std::borrow::Cow;

/// Number of entries of the first read, when the entry size is unknown.
const FIRST_ENTRIES: usize = 16;

pub(super) struct Reader {
    link: Link,
    key: String,
    payload: String,
    /// Position of the next entry among all entries ever added, from 0.
    index: Option<u64>,
    /// Highest id deleted by XDEL that was already reported.
    deleted: u128,
    /// Number of entries of the next read, chosen to fill a chunk.
    entries: usize,
}

struct Info {
    first: Option<u128>,
    last: u128,
    /// Position of the first entry, and position after the last entry. Known from Redis 7 on.
    indexes: Option<(u64, u64)>,
    /// Highest id that was deleted by XDEL. Known from Redis 7 on.
    deleted: u128,
    entries: u64,
}

fn connection(config: &Ingest) -> Result<(ConnectArgs, u32), ReadStopReason> {
    let place = config.url.split_once("://").map_or("", |(_, place)| place);
    let (connect, db) = ConnectArgs::of_redis(place).map_err(|_| {
        ReadStopReason::Halt("url: must have the form redis://host[:port][/db]".to_owned())
    })?;
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let connect = ConnectArgs {
        user: some(&config.user),
        pass: some(&config.password),
        tls: config.tls,
        cacert: some(&config.ca_file),
        ..connect
    };
    Ok((connect, db))
}

impl Reader {
    pub(super) async fn open(
        source: &IngestSource,
        next: Option<u128>,
        is_new: bool,
    ) -> Result<(Reader, u128), ReadStopReason> {
        let config = &source.config;
        let (connect, db) = connection(config)?;
        let tls = connect.tls()?;
        let link = connect.open_as(tls.as_ref(), "Set user and password.").await?;
        let (key, payload) = (config.stream.clone(), config.payload.clone());
        let mut reader =
            Reader { link, key, payload, index: None, deleted: 0, entries: FIRST_ENTRIES };
        if db > 0 {
            reader.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
        }
        let next = match next {
            Some(next) => next,
            None if is_new => {
                let key = reader.key.clone();
                let info = reader.ask(&[b"XINFO", b"STREAM", key.as_bytes()]).await;
                match info {
                    Ok(info) => read_info(&info)?.last + 1,
                    Err(ReadStopReason::Broken(why)) if why.contains("no such key") => 1,
                    Err(trouble) => return Err(trouble),
                }
            }
            None => 1,
        };
        Ok((reader, next))
    }

    async fn ask(&mut self, args: &[&[u8]]) -> Result<Reply, ReadStopReason> {
        Ok(self.link.ask(args).await?)
    }

    /// Returns the hash of an entry, or `None` if the entry was trimmed or deleted. If the stream
    /// never contained the entry, returns the hash of empty content.
    pub(super) async fn hash_of(
        &mut self,
        source: &IngestSource,
        id: u128,
    ) -> Result<Option<u64>, ReadStopReason> {
        let (info, read) = self.look(&source.shown(id.saturating_sub(1))).await?;
        if let Reply::Error(why) = info {
            let is_gone = why.contains("no such key");
            return if is_gone { Ok(None) } else { Err(ReadStopReason::Broken(why)) };
        }
        let (info, entries) = (read_info(&info)?, read_entries(read, &self.key)?);
        if let Some((_, fields)) = entries.first().filter(|(first, _)| *first == id) {
            return Ok(Some(hash_of_fields(fields)));
        }
        let (Some((first_index, _)), Some(first)) = (info.indexes, info.first) else {
            return Ok(None);
        };
        let is_trimmed = first > id && first_index > 0;
        let is_unknown = is_trimmed || info.deleted >= id || info.last < id;
        Ok((!is_unknown).then(|| hash_of(b"")))
    }

    pub(super) async fn read(
        &mut self,
        source: &IngestSource,
        next: u128,
        chunk: &mut Chunk,
    ) -> Result<(), ReadStopReason> {
        let before = next.saturating_sub(1);
        let behind = source.shown(before);
        let (info, read) = self.look(&behind).await?;
        if let Reply::Error(why) = &info {
            if !why.contains("no such key") {
                return Err(ReadStopReason::Broken(why.clone()));
            }
            if before > 0 {
                return Err(ReadStopReason::Broken(format!(
                    "the stream '{}' no longer exists, after it was read up to {behind}",
                    self.key
                )));
            }
            chunk.lag = Some(0);
            tokio::time::sleep(IDLE).await;
            return Ok(());
        }
        let info = read_info(&info)?;
        if info.last < before {
            return Err(ends_before(source, info.last, before));
        }
        if info.first.is_none() && info.last >= next {
            // The stream is empty, and its last entries were never read.
            let behind = info.indexes.map(|(_, behind)| behind);
            let lost = self.index.zip(behind).map(|(index, behind)| behind.saturating_sub(index));
            record_gap(source, 0, lost, next, info.last + 1);
            self.index = behind;
            chunk.pass_over(info.last);
            return Ok(());
        }
        self.look_for_gap(source, next, &info);
        if info.last == before {
            // Every trimmed entry was read before.
            self.index = info.indexes.map(|(_, behind)| behind);
        }
        let entries = read_entries(read, &self.key)?;
        if entries.is_empty() {
            chunk.lag = Some(0);
            return self.wait(&behind).await;
        }
        let many = entries.len() as u64;
        self.index = self.index.map(|index| index + many);
        if let (None, Some((_, behind))) = (self.index, info.indexes)
            && entries.last().is_some_and(|(id, _)| *id == info.last)
        {
            self.index = Some(behind);
        }
        for (id, fields) in entries {
            chunk.push(id, &events_of(&fields, self.payload.as_bytes()), hash_of_fields(&fields));
        }
        let each = chunk.bytes.len() / chunk.messages.len().max(1);
        let most = CHUNK_MESSAGES.min(4 * self.entries);
        self.entries = (CHUNK_BYTES / each.max(1)).clamp(1, most);
        chunk.lag = Some(match (self.index, info.indexes) {
            (Some(index), Some((_, behind))) => behind.saturating_sub(index),
            _ => info.entries.saturating_sub(many),
        });
        Ok(())
    }

    /// Reads stream info and the entries after `behind` atomically.
    async fn look(&mut self, behind: &str) -> Result<(Reply, Reply), ReadStopReason> {
        let count = self.entries.to_string();
        let (key, count) = (self.key.as_bytes(), count.as_bytes());
        let mut requests = Vec::new();
        for request in [
            &[&b"MULTI"[..]][..],
            &[b"XINFO", b"STREAM", key],
            &[b"XREAD", b"COUNT", count, b"STREAMS", key, behind.as_bytes()],
            &[b"EXEC"],
        ] {
            put_command(&mut requests, request);
        }
        self.link.send(&requests).await?;
        for _ in 0..3 {
            if let Reply::Error(why) = self.link.next().await? {
                return Err(ReadStopReason::Broken(why));
            }
        }
        match self.link.next().await? {
            Reply::Array(parts) => match <[Reply; 2]>::try_from(parts) {
                Ok([info, read]) => Ok((info, read)),
                Err(_) => Err(strange()),
            },
            Reply::Error(why) => Err(ReadStopReason::Broken(why)),
            _ => Err(strange()),
        }
    }

    /// Reports unread entries from `next` on that were trimmed or deleted.
    fn look_for_gap(&mut self, source: &IngestSource, next: u128, info: &Info) {
        let trimmed = self.look_for_trim(next, info);
        let deleted = Some(info.deleted).filter(|&id| id >= next && id > self.deleted);
        if let Some(id) = deleted {
            self.deleted = id;
            // XINFO does not report which entries existed before `id`.
            let end = trimmed.map_or(0, |(first, _)| first).max(id + 1);
            record_gap(source, 0, None, next, end);
        } else if let Some((first, lost)) = trimmed {
            record_gap(source, 0, lost, next, first);
        }
    }

    /// Returns the id of the first remaining entry, and the number of entries trimmed from `next`
    /// on. Returns `None` if none of them were trimmed.
    fn look_for_trim(&mut self, next: u128, info: &Info) -> Option<(u128, Option<u64>)> {
        let (first, (first_index, _)) = info.first.zip(info.indexes)?;
        if first < next {
            return None;
        }
        let index = self.index.replace(first_index);
        // If the position is unknown, a gap is possible only if entries were ever removed.
        let is_lost = index.map_or(first_index > 0 && next > 1, |index| first_index > index);
        is_lost.then(|| (first, index.map(|index| first_index - index)))
    }

    /// Waits for a new entry for at most [`IDLE`].
    async fn wait(&mut self, behind: &str) -> Result<(), ReadStopReason> {
        let (key, ms) = (self.key.clone(), IDLE.as_millis().to_string());
        let ms = ms.as_bytes();
        let args: [&[u8]; 8] =
            [b"XREAD", b"COUNT", b"1", b"BLOCK", ms, b"STREAMS", key.as_bytes(), behind.as_bytes()];
        self.ask(&args).await.map(drop)
    }
}

fn strange() -> ReadStopReason {
    ReadStopReason::Broken("unexpected reply of Redis to XINFO or XREAD".to_owned())
}

/// Parses an id such as `1700000000000-7`.
fn read_id(frame: &Reply) -> Option<u128> {
    let text = frame.as_bytes()?;
    let dash = text.iter().position(|&byte| byte == b'-')?;
    let (ms, seq) = (resp::natural(&text[..dash])?, resp::natural(&text[dash + 1..])?);
    Some(u128::from(ms) << 64 | u128::from(seq))
}

fn read_info(info: &Reply) -> Result<Info, ReadStopReason> {
    let number = |name: &str| u64::try_from(info.get(name)?.as_integer()?).ok();
    let id = |name: &str| info.get(name).and_then(read_id);
    let entries = number("length").ok_or_else(strange)?;
    let last = id("last-generated-id").ok_or_else(strange)?;
    let first = info.get("first-entry").and_then(|entry| read_id(entry.items().first()?));
    let deleted = id("max-deleted-entry-id").unwrap_or(0);
    let added = number("entries-added");
    let indexes = added.map(|added| (added.saturating_sub(entries), added));
    Ok(Info { first, last, indexes, deleted, entries })
}

type Fields = [(Vec<u8>, Vec<u8>)];
type Entry = (u128, Vec<(Vec<u8>, Vec<u8>)>);

/// Hash of all fields of an entry, independent of the configured payload field.
fn hash_of_fields(fields: &Fields) -> u64 {
    let mut content = Vec::new();
    for text in fields.iter().flat_map(|(name, value)| [name, value]) {
        content.extend_from_slice(&(text.len() as u64).to_le_bytes());
        content.extend_from_slice(text);
    }
    hash_of(&content)
}

/// Parses the XREAD reply for the one requested stream.
fn read_entries(frame: Reply, key: &str) -> Result<Vec<Entry>, ReadStopReason> {
    let streams = match frame {
        Reply::Null => return Ok(Vec::new()),
        Reply::Array(streams) => streams,
        Reply::Error(why) => return Err(ReadStopReason::Broken(why)),
        _ => return Err(strange()),
    };
    let Some(Reply::Array(stream)) = streams.into_iter().next() else { return Ok(Vec::new()) };
    let Ok([Reply::BulkString(name), Reply::Array(entries)]) = <[Reply; 2]>::try_from(stream)
    else {
        return Err(strange());
    };
    if name != key.as_bytes() {
        return Err(strange());
    }
    let entry = |entry: Reply| {
        let Reply::Array(parts) = entry else { return None };
        let [id, fields] = <[Reply; 2]>::try_from(parts).ok()?;
        let id = read_id(&id)?;
        // A deleted entry has no fields.
        let Reply::Array(words) = fields else { return Some((id, Vec::new())) };
        let mut words = words.into_iter().map(Reply::into_bytes);
        let mut pairs = Vec::new();
        while let Some(name) = words.next() {
            pairs.push((name?, words.next()??));
        }
        Some((id, pairs))
    };
    entries.into_iter().map(entry).collect::<Option<_>>().ok_or_else(strange)
}

/// Returns the events of an entry: its payload field, or all fields as a JSON object. Empty fields
/// are omitted, since Redis has no null. Fields that are not UTF-8 produce invalid JSON.
fn events_of<'f>(fields: &'f [(Vec<u8>, Vec<u8>)], payload: &[u8]) -> Cow<'f, [u8]> {
    match fields.iter().find(|(name, _)| name == payload) {
        Some((_, events)) if !events.is_empty() || fields.len() == 1 => Cow::Borrowed(events),
        _ => Cow::Owned(object(fields)),
    }
}

fn object(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    if fields.is_empty() {
        return Vec::new();
    }
    let mut out = vec![b'{'];
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        if out.len() > 1 {
            out.push(b',');
        }
        put_text(&mut out, name);
        out.push(b':');
        put_text(&mut out, value);
    }
    out.push(b'}');
    out
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_field_of_an_entry_is_as_if_it_were_absent() {
        let events = |fields: &[(&str, &str)]| {
            let fields = fields.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec()));
            let fields: Vec<_> = fields.collect();
            String::from_utf8(events_of(&fields, b"payload").into_owned()).unwrap()
        };
        let like = "{\"event\":\"like\",\"id\":\"2\",\"member\":\"7\"}";
        let fields =
            [("event", "like"), ("id", "2"), ("member", "7"), ("field", ""), ("value", "")];
        assert_eq!(events(&fields), like);
        assert_eq!(events(&[&[("payload", "")], &fields[..]].concat()), like);
        assert_eq!(events(&[("payload", like), ("event", "other")]), like);
        assert_eq!(
            events(&[("event", ""), ("id", "")]),
            "{}",
            "an event without its required fields is empty"
        );
        assert_eq!([events(&[]), events(&[("payload", "")])], ["", ""]);
    }
}
