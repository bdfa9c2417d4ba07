//! Reference model. It consists of plain maps, from which it computes the reply of each command.

use crate::fuzz::commands::Words;
use crate::fuzz::commands::choices::{FIELDS, FLAGS, IDS, MEMBERS};
use dataset::engines::Engines;
use phantom::{Answer, Member};
use redis_protocol::resp2::types::OwnedFrame as Frame;
use std::collections::{BTreeMap, BTreeSet};

fn number(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse::<i64>().ok().filter(|value| value.to_string() == text)
}

/// Returns a value that stands for any error. The model does not compare error texts.
pub(super) fn error() -> Frame {
    Frame::Error(String::new())
}

fn bulk(text: impl ToString) -> Frame {
    Frame::BulkString(text.to_string().into_bytes())
}

fn ok() -> Frame {
    Frame::SimpleString(b"OK".to_vec())
}

fn ints(values: impl IntoIterator<Item = i64>) -> Frame {
    Frame::Array(values.into_iter().map(Frame::Integer).collect())
}

/// Key of an applied increment: the row, the counter (if the token covers a single counter), and
/// the client's token.
type Token = (u64, Option<usize>, Vec<u8>);

#[derive(Default)]
pub(super) struct Model {
    rows: BTreeMap<u64, [i64; 4]>,
    /// Pairs of each space of [`FLAGS`].
    flags: [BTreeSet<(u64, Vec<u8>)>; 2],
    horizons: [u64; 2],
    /// Number of rows in the engines that the model does not track.
    others: i64,
    queue: Option<Vec<Words>>,
    /// Applied increments and their replies.
    tokens: BTreeMap<Token, (Increment, Vec<i64>)>,
}

#[derive(Clone, PartialEq)]
struct Increment {
    changes: Vec<(usize, i64)>,
    min: Option<i64>,
    max: Option<i64>,
    saturates: bool,
}

impl Increment {
    fn of(field: usize, delta: i64) -> Increment {
        Increment { changes: vec![(field, delta)], min: None, max: None, saturates: false }
    }
}

impl Model {
    /// Reads the horizons from the engines. If `rows_too`, also copies all data, because another
    /// client may have changed the data.
    pub(super) fn look(&mut self, engines: &Engines, rows_too: bool) {
        for (index, (name, ..)) in FLAGS.iter().enumerate() {
            let space = engines.existence(name.as_bytes()).expect("a space");
            let horizon = space.horizon();
            self.horizons[index] = horizon;
            self.flags[index].retain(|&(id, _)| id >= horizon);
            if rows_too {
                let pairs = IDS
                    .iter()
                    .flat_map(|&id| MEMBERS.map(|member| (id, member.as_bytes().to_vec())));
                self.flags[index] = pairs
                    .filter(|(id, member)| {
                        space.contains(*id, &Member::parse(member)).expect("in memory")
                            == Answer::Yes
                    })
                    .collect();
            }
        }
        if rows_too {
            let post = engines.counter(b"post").expect("a space");
            let row = |id: u64| {
                let mut row = [0; 4];
                post.get(id, &mut row).expect("in memory").then_some((id, row))
            };
            self.rows = IDS.into_iter().filter_map(row).collect();
            let all: u64 = engines.counters().iter().map(|space| space.rows()).sum();
            self.others = all as i64 - self.rows.len() as i64;
        }
    }

    fn id_of(text: &[u8]) -> u64 {
        std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok())
            .expect("an id of the universe")
    }

    fn place(key: &[u8]) -> (u64, Option<usize>) {
        let mut parts = key.split(|&b| b == b':').skip(1);
        let id = Model::id_of(parts.next().unwrap_or_default());
        (id, parts.next().map(Model::field))
    }

    fn field(name: &[u8]) -> usize {
        FIELDS.iter().position(|field| field.as_bytes() == name).expect("a field")
    }

    fn flag(name: &[u8]) -> usize {
        FLAGS
            .iter()
            .position(|(space, action, _)| [space.as_bytes(), action.as_bytes()].contains(&name))
            .expect("a name")
    }

    fn add(&mut self, id: u64, field: usize, delta: i64) -> Option<i64> {
        let now = self.rows.get(&id).map_or(0, |row| row[field]).checked_add(delta)?;
        self.rows.entry(id).or_default()[field] = now;
        Some(now)
    }

    fn value(&self, id: u64, field: usize) -> Frame {
        self.rows.get(&id).map_or(Frame::Null, |row| bulk(row[field]))
    }

    /// Parses field-value pairs. Returns `None` if a value is not an integer.
    fn values(words: &[Vec<u8>]) -> Option<Vec<(usize, i64)>> {
        words.chunks(2).map(|pair| Some((Model::field(&pair[0]), number(&pair[1])?))).collect()
    }

    fn set(&mut self, id: u64, values: &[(usize, i64)]) {
        let row = self.rows.entry(id).or_default();
        values.iter().for_each(|&(field, value)| row[field] = value);
    }

    /// Returns whether a pair is set, or `None` if the id is below the horizon.
    fn is_set(&self, flag: usize, id: u64, member: &[u8]) -> Option<bool> {
        (id >= self.horizons[flag]).then(|| self.flags[flag].contains(&(id, member.to_vec())))
    }

    /// Sets or clears a pair and returns its previous state.
    fn turn(&mut self, flag: usize, id: u64, member: &[u8], to: bool) -> Option<bool> {
        let before = self.is_set(flag, id, member)?;
        match to {
            true => self.flags[flag].insert((id, member.to_vec())),
            false => self.flags[flag].remove(&(id, member.to_vec())),
        };
        Some(before)
    }

    fn act(&mut self, flag: usize, id: u64, member: &[u8]) -> Frame {
        match self.is_set(flag, id, member) {
            None => Frame::Null,
            Some(true) if self.rows.contains_key(&id) => Frame::Integer(0),
            Some(_) => match self.add(id, FLAGS[flag].2, 1) {
                None => error(),
                Some(_) => {
                    self.turn(flag, id, member, true);
                    Frame::Integer(1)
                }
            },
        }
    }

    fn undo(&mut self, flag: usize, id: u64, member: &[u8]) -> Frame {
        match self.turn(flag, id, member, false) {
            None => Frame::Null,
            Some(false) => Frame::Integer(0),
            Some(true) => {
                let counter = &mut self.rows.entry(id).or_default()[FLAGS[flag].2];
                *counter -= i64::from(*counter > 0);
                Frame::Integer(1)
            }
        }
    }

    fn page(&mut self, words: &[Vec<u8>]) -> Frame {
        let (ids, mark) = match words.iter().position(|word| word == b"MARK") {
            Some(at) => (&words[3..at], Some(Model::flag(&words[at + 1]))),
            None => (&words[3..], None),
        };
        let ids: Vec<u64> = ids.iter().map(|id| Model::id_of(id)).collect();
        let row = |id: &u64| {
            let flags = [0, 1].map(|flag| {
                self.is_set(flag, *id, &words[2])
                    .map_or(Frame::Null, |is| Frame::Integer(is.into()))
            });
            let counters = self.rows.get(id).copied().unwrap_or_default().map(Frame::Integer);
            Frame::Array(counters.into_iter().chain(flags).collect())
        };
        let mut page: Vec<Frame> = ids.iter().map(row).collect();
        for (shown, &id) in page.iter_mut().zip(&ids) {
            if let Some(refusal @ Frame::Error(_)) = mark.map(|flag| self.act(flag, id, &words[2]))
            {
                *shown = refusal;
            }
        }
        Frame::Array(page)
    }

    fn incrby(&mut self, id: u64, words: &[Vec<u8>]) -> Option<Frame> {
        let mut asked = Increment { changes: vec![], min: None, max: None, saturates: false };
        let mut token = None;
        let is_option = |word: &&Vec<u8>| {
            [&b"MIN"[..], b"MAX", b"SAT", b"FAIL", b"TOKEN"].contains(&word.as_slice())
        };
        // SAT and FAIL count as the same option, because they are mutually exclusive.
        let kinds = words.iter().filter(is_option).map(|word| match word.as_slice() {
            b"FAIL" => &b"SAT"[..],
            word => word,
        });
        if kinds.clone().collect::<BTreeSet<_>>().len() < kinds.count() {
            return None;
        }
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_slice() {
                b"SAT" => asked.saturates = true,
                b"FAIL" => asked.saturates = false,
                b"TOKEN" => token = Some(words.next()?.clone()),
                word => {
                    let value = number(words.next()?)?;
                    match word {
                        b"MIN" => asked.min = Some(value),
                        b"MAX" => asked.max = Some(value),
                        field => asked.changes.push((Model::field(field), value)),
                    }
                }
            }
        }
        if asked.min.zip(asked.max).is_some_and(|(min, max)| min > max) {
            return None;
        }
        let fields: BTreeSet<usize> = asked.changes.iter().map(|(field, _)| *field).collect();
        if token.is_some() && fields.len() < asked.changes.len() {
            return None;
        }
        self.count(id, asked, token.map(|token| (None, token))).map(ints)
    }

    /// Applies an increment unless it was already applied under this token.
    fn count(
        &mut self,
        id: u64,
        asked: Increment,
        token: Option<(Option<usize>, Vec<u8>)>,
    ) -> Option<Vec<i64>> {
        let token = token.map(|(cell, token)| (id, cell, token));
        // The token of CNT.INCRBY covers a row, the token of CNT.MINCRBY a single counter. A row
        // token conflicts with every counter token of the row.
        let names = token.iter().flat_map(|(id, cell, token)| {
            let others = match cell {
                Some(_) => vec![None],
                None => asked.changes.iter().map(|change| Some(change.0)).collect(),
            };
            let all = std::iter::once(*cell).chain(others);
            all.map(|cell| (*id, cell, token.clone())).collect::<Vec<_>>()
        });
        let mut known = names.filter_map(|name| self.tokens.get(&name));
        if let Some((known, told)) = known.next() {
            return (*known == asked).then(|| told.clone());
        }
        let told = self.increment(id, &asked)?;
        if let Some(token) = token {
            self.tokens.insert(token, (asked, told.clone()));
        }
        Some(told)
    }

    fn increment(&mut self, id: u64, asked: &Increment) -> Option<Vec<i64>> {
        let mut row = self.rows.get(&id).copied().unwrap_or_default();
        let mut told = Vec::new();
        for &(field, delta) in &asked.changes {
            let (now, sum) = (row[field], i128::from(row[field]) + i128::from(delta));
            let end = if delta < 0 {
                asked.min.map(|min: i64| min.min(now))
            } else {
                asked.max.map(|max: i64| max.max(now))
            };
            let beyond =
                end.is_some_and(|end| if delta < 0 { sum < end.into() } else { sum > end.into() });
            let next =
                if beyond { end.filter(|_| asked.saturates) } else { i64::try_from(sum).ok() };
            row[field] = next?;
            told.push(next?);
        }
        self.rows.insert(id, row);
        Some(told)
    }

    fn mincrby(&mut self, words: &[Vec<u8>]) -> Option<Frame> {
        let (words, token) = match words {
            [triples @ .., word, token] if word == b"TOKEN" => (triples, Some(token)),
            triples => (triples, None),
        };
        let triples: Option<Vec<_>> = words
            .chunks(3)
            .map(|t| Some((Model::id_of(&t[0]), Model::field(&t[1]), number(&t[2])?)))
            .collect();
        let triples = triples?;
        let cells: BTreeSet<_> = triples.iter().map(|&(id, field, _)| (id, field)).collect();
        if token.is_some() && cells.len() < triples.len() {
            return None;
        }
        let one = |(id, field, delta)| {
            let token = token.map(|token| (Some(field), token.clone()));
            let told = self.count(id, Increment::of(field, delta), token);
            told.map_or_else(error, |told| Frame::Integer(told[0]))
        };
        Some(Frame::Array(triples.into_iter().map(one).collect()))
    }

    /// Returns whether HSETNX and SETNX would set this counter, and HSET would count it as new.
    fn is_unset(&self, id: u64, field: usize) -> bool {
        self.rows.get(&id).is_none_or(|row| row[field] == 0)
    }

    fn forget(&mut self, name: &[u8], id: u64) -> bool {
        let unset = |flags: &mut BTreeSet<(u64, Vec<u8>)>| flags.retain(|(of, _)| *of != id);
        if name == b"post" {
            self.flags.iter_mut().for_each(unset);
            return self.rows.remove(&id).is_some();
        }
        let flag = Model::flag(name);
        unset(&mut self.flags[flag]);
        id >= self.horizons[flag]
    }

    pub(super) fn execute(&mut self, words: &[Vec<u8>]) -> Frame {
        let name = words[0].as_slice();
        match (name, &mut self.queue) {
            (b"MULTI", Some(_)) => return error(),
            (b"MULTI", queue) => {
                *queue = Some(Vec::new());
                return ok();
            }
            (b"EXEC", queue) => {
                let Some(queued) = queue.take() else { return error() };
                return Frame::Array(queued.iter().map(|words| self.execute(words)).collect());
            }
            (b"DISCARD", queue) => return queue.take().map_or(error(), |_| ok()),
            (_, Some(queue)) => {
                queue.push(words.to_vec());
                return Frame::SimpleString(b"QUEUED".to_vec());
            }
            _ => {}
        }
        self.execute_now(name, words).unwrap_or_else(error)
    }

    /// Returns `None` if the command fails.
    // Long: this function is a `match` with an arm of a few lines for each command. The arms share
    // two closures.
    fn execute_now(&mut self, name: &[u8], words: &[Vec<u8>]) -> Option<Frame> {
        let opposite = |text: &[u8]| number(text)?.checked_neg();
        let int = |is: bool| Frame::Integer(is.into());
        Some(match name {
            b"HSET" | b"CNT.SET" => {
                let (id, from) = if name == b"HSET" {
                    (Model::place(&words[1]).0, 2)
                } else {
                    (Model::id_of(&words[2]), 3)
                };
                let values = Model::values(&words[from..])?;
                let fields: BTreeSet<usize> = values.iter().map(|(field, _)| *field).collect();
                let created = fields.iter().filter(|&&field| self.is_unset(id, field)).count();
                self.set(id, &values);
                if name == b"HSET" { Frame::Integer(created as i64) } else { ok() }
            }
            b"HSETNX" => {
                let (id, values) = (Model::place(&words[1]).0, Model::values(&words[2..])?);
                let is_new = values.iter().all(|&(field, _)| self.is_unset(id, field));
                if is_new {
                    self.set(id, &values);
                }
                int(is_new)
            }
            b"HINCRBY" => {
                let (id, delta) = (Model::place(&words[1]).0, number(&words[3])?);
                Frame::Integer(self.add(id, Model::field(&words[2]), delta)?)
            }
            b"HGET" => self.value(Model::place(&words[1]).0, Model::field(&words[2])),
            b"HMGET" => {
                let id = Model::place(&words[1]).0;
                Frame::Array(
                    words[2..].iter().map(|field| self.value(id, Model::field(field))).collect(),
                )
            }
            b"HGETALL" => {
                let row = self.rows.get(&Model::place(&words[1]).0);
                let pairs = row.into_iter().flat_map(|row| FIELDS.iter().zip(row));
                Frame::Array(pairs.flat_map(|(field, value)| [bulk(field), bulk(value)]).collect())
            }
            b"HDEL" | b"DEL" | b"UNLINK" => {
                let places: Vec<(u64, Option<usize>)> = match name {
                    b"HDEL" => {
                        let id = Model::place(&words[1]).0;
                        words[2..].iter().map(|field| (id, Some(Model::field(field)))).collect()
                    }
                    _ => words[1..].iter().map(|key| Model::place(key)).collect(),
                };
                let mut deleted = 0;
                for (id, field) in places {
                    deleted += i64::from(match field {
                        None => self.rows.remove(&id).is_some(),
                        Some(field) => self
                            .rows
                            .get_mut(&id)
                            .is_some_and(|row| std::mem::take(&mut row[field]) != 0),
                    });
                }
                Frame::Integer(deleted)
            }
            b"EXISTS" => {
                let found =
                    words[1..].iter().filter(|key| self.rows.contains_key(&Model::place(key).0));
                Frame::Integer(found.count() as i64)
            }
            b"INCR" | b"DECR" | b"INCRBY" | b"DECRBY" => {
                let (id, field) = Model::place(&words[1]);
                let delta = match name {
                    b"INCR" => 1,
                    b"DECR" => -1,
                    b"INCRBY" => number(&words[2])?,
                    _ => opposite(&words[2])?,
                };
                Frame::Integer(self.add(id, field?, delta)?)
            }
            b"GET" | b"STRLEN" => {
                let (id, field) = Model::place(&words[1]);
                match (self.value(id, field?), name) {
                    (value, b"GET") => value,
                    (Frame::BulkString(text), _) => Frame::Integer(text.len() as i64),
                    _ => Frame::Integer(0),
                }
            }
            b"SET" | b"GETSET" | b"SETNX" => {
                let ((id, field), value) = (Model::place(&words[1]), number(&words[2])?);
                let (before, is_new) = (self.value(id, field?), self.is_unset(id, field?));
                if name != b"SETNX" || is_new {
                    self.set(id, &[(field?, value)]);
                }
                match name {
                    b"SET" => ok(),
                    b"GETSET" => before,
                    _ => int(is_new),
                }
            }
            b"MGET" | b"MINCR" => {
                let mut told = Vec::new();
                for key in &words[1..] {
                    let (id, field) = Model::place(key);
                    told.push(match name {
                        b"MGET" => self.value(id, field?),
                        _ => self.add(id, field?, 1).map_or_else(error, Frame::Integer),
                    });
                }
                Frame::Array(told)
            }
            b"MSET" => {
                let pairs: Option<Vec<_>> = words[1..]
                    .chunks(2)
                    .map(|pair| Some((Model::place(&pair[0]), number(&pair[1])?)))
                    .collect();
                for ((id, field), value) in pairs? {
                    self.set(id, &[(field?, value)]);
                }
                ok()
            }
            b"CNT.GET" => {
                let row = |id: &Vec<u8>| {
                    self.rows.get(&Model::id_of(id)).map_or(Frame::Null, |row| ints(*row))
                };
                Frame::Array(words[2..].iter().map(row).collect())
            }
            b"CNT.INCRBY" => self.incrby(Model::id_of(&words[2]), &words[3..])?,
            b"CNT.HINCRBY" => {
                let asked = Increment::of(Model::field(&words[2]), number(&words[3])?);
                let token = Some((None, words[5].clone()));
                Frame::Integer(self.count(Model::place(&words[1]).0, asked, token)?[0])
            }
            b"TM.FORGET" => {
                let forget = |id: &&Vec<u8>| self.forget(&words[1], Model::id_of(id));
                Frame::Integer(words[2..].iter().filter(forget).count() as i64)
            }
            b"CNT.DEL" => {
                let deleted = words[2..]
                    .iter()
                    .filter(|id| self.rows.remove(&Model::id_of(id)).is_some())
                    .count();
                Frame::Integer(deleted as i64)
            }
            b"CNT.MINCRBY" => self.mincrby(&words[2..])?,
            b"PH.ADD" | b"PH.DEL" | b"PH.EXISTS" => {
                let (flag, member) = (Model::flag(&words[1]), &words[2]);
                let one = |id: &Vec<u8>| {
                    let id = Model::id_of(id);
                    let answer = match name {
                        b"PH.EXISTS" => self.is_set(flag, id, member),
                        b"PH.ADD" => self.turn(flag, id, member, true).map(|before| !before),
                        _ => self.turn(flag, id, member, false),
                    };
                    answer.map_or(Frame::Null, int)
                };
                Frame::Array(words[3..].iter().map(one).collect())
            }
            b"FEED.GET" => self.page(words),
            b"FEED.ACT" | b"FEED.UNDO" => {
                let (flag, member) = (Model::flag(&words[1]), &words[2]);
                let one = |id: &Vec<u8>| match name {
                    b"FEED.ACT" => self.act(flag, Model::id_of(id), member),
                    _ => self.undo(flag, Model::id_of(id), member),
                };
                Frame::Array(words[3..].iter().map(one).collect())
            }
            b"DBSIZE" => Frame::Integer(self.rows.len() as i64 + self.others),
            _ => return self.members(name, words),
        })
    }

    /// Returns the reply to a command on the members of one id, or `None` if the command fails.
    fn members(&mut self, name: &[u8], words: &[Vec<u8>]) -> Option<Frame> {
        let int = |is: bool| Frame::Integer(is.into());
        let space = words[1].split(|&b| b == b':').next().unwrap_or_default();
        let (flag, id) = (Model::flag(space), Model::place(&words[1]).0);
        let mut told = Vec::new();
        for member in &words[2..] {
            told.push(match name {
                b"SMISMEMBER" | b"SISMEMBER" => {
                    self.is_set(flag, id, member).map_or(Frame::Null, int)
                }
                b"BF.MEXISTS" | b"BF.EXISTS" => int(self.is_set(flag, id, member).unwrap_or(false)),
                b"BF.MADD" => {
                    self.turn(flag, id, member, true).map_or_else(error, |before| int(!before))
                }
                b"SREM" | b"CF.DEL" => int(self.turn(flag, id, member, false)?),
                b"CF.ADD" => self.turn(flag, id, member, true).map(|_| int(true))?,
                _ => int(!self.turn(flag, id, member, true)?),
            });
        }
        Some(match name {
            b"SADD" | b"SREM" => Frame::Integer(
                told.iter().filter(|frame| **frame == Frame::Integer(1)).count() as i64,
            ),
            b"SMISMEMBER" | b"BF.MADD" | b"BF.MEXISTS" => Frame::Array(told),
            _ => told.pop()?,
        })
    }
}
