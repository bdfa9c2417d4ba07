//! Generates client commands: the requests, their effect on rows, and the form of their replies.

use crate::model::{FLAGS, Flag, Key, LIKE, Model, READ, REPOST, SEEN, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Number of members (viewers) that set flags.
const MEMBERS: u64 = 6;
const PAGE: usize = 20;
/// Number of new posts per command. This number is large enough to fill tables.
const NEW_POSTS_PER_COMMAND: u64 = 60;
/// First id of each range. In every run, a few posts have ids in the second range.
const RANGES: [u64; 3] = [0, 1 << 40, 1 << 50];
const FAR_RANGE_START: u64 = RANGES[1];
/// Number of ids at the start of a range that new posts do not use. An id below the first post of
/// the range is in the gap before the range and is stored as an outlier.
const GAP: u64 = 400;
/// Maximum number of increments with a token that are stored for resending.
const MAX_RESENT_INCREMENTS: usize = 40;
/// Number of users. Users 2n and 2n + 1 always change together.
const USERS: u64 = 20;

/// A client command and its expected effects.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// A single request, or the requests of a transaction.
    pub(crate) requests: Vec<Vec<String>>,
    /// Effects on rows, in the order of the reply's items.
    pub(crate) steps: Vec<(Key, Step)>,
    pub(crate) shape: ReplyShape,
}

/// Form of a reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReplyShape {
    /// An array with one item per step.
    Each,
    /// The reply to the only step.
    One,
    /// The reply of EXEC, with one item per step.
    Exec,
    /// The reply of EXEC for two rows of the space `user` that always have equal values.
    Twins,
    /// The reply of an operator's command.
    Admin(Admin),
}

/// Administrative command of an operator.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Admin {
    AddField(String),
    DropField(String),
    Create(u32),
    Rename(u32),
    Drop(u32),
    Save,
    Roll,
    Spill,
    Rebuild,
    List,
}

/// Fields and spaces that the workload has added to the configured fields and spaces.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    /// Fields that were added to posts.
    pub(crate) fields: BTreeSet<String>,
    /// Space that the workload creates and drops.
    pub(crate) extra: Option<u32>,
    pub(crate) is_renamed: bool,
    /// Number of names created so far. The number becomes part of each new name, so that no name is
    /// reused.
    next_name: u32,
    /// Fields that were added or dropped, with the time of the reply.
    pub(crate) altered: BTreeMap<String, Duration>,
    /// Whether a snapshot is pending. Only one snapshot may be pending, because the order in which
    /// tokio wakes waiters is random and does not depend on the seed.
    pub(crate) saving: bool,
    /// Whether a change of the catalogue is pending. Other commands then avoid the affected names.
    pub(crate) changing: bool,
}

/// Properties that all commands of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    ranges: usize,
    /// Number of new posts per command.
    group: u64,
}

impl Default for Habits {
    fn default() -> Habits {
        Habits { ranges: 1, group: NEW_POSTS_PER_COMMAND }
    }
}

impl Habits {
    /// Draws the properties of a run with several id ranges. Each command has enough posts to fill
    /// tables with likes.
    pub(crate) fn ranged(random: &mut fastrand::Rng) -> Habits {
        Habits {
            ranges: random.usize(2..=RANGES.len()),
            group: random.u64(NEW_POSTS_PER_COMMAND..4 * NEW_POSTS_PER_COMMAND),
        }
    }
}

/// State of the command generator.
#[derive(Debug, Default)]
pub(crate) struct Workload {
    pub(crate) catalogue: Catalogue,
    habits: Habits,
    /// Next new post of each range, relative to the first new post of the range.
    next_posts: [u64; RANGES.len()],
    /// Ids of the last command.
    last: Vec<u64>,
    /// Most recently forgotten post.
    forgotten: Option<u64>,
    next_token: u32,
    /// Sent increments with a token, for resending.
    sent: Vec<Command>,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn one(text: &str, key: Key, step: Step) -> Command {
    Command { requests: vec![words(text)], steps: vec![(key, step)], shape: ReplyShape::One }
}

fn admin(text: &str, admin: Admin) -> Command {
    Command { requests: vec![words(text)], steps: Vec::new(), shape: ReplyShape::Admin(admin) }
}

fn each(mut text: String, ids: &[u64], step: &Step) -> Command {
    ids.iter().for_each(|id| text += &format!(" {id}"));
    let steps = ids.iter().map(|id| (Key::Post(*id), step.clone())).collect();
    Command { requests: vec![words(&text)], steps, shape: ReplyShape::Each }
}

impl Workload {
    pub(crate) fn new(habits: Habits) -> Workload {
        Workload { habits, ..Workload::default() }
    }

    /// Draws a command. The command changes no row that has a pending change. Returns `None` if the
    /// command cannot run in the current state.
    pub(crate) fn draw(&mut self, model: &Model, random: &mut fastrand::Rng) -> Option<Command> {
        let ids = self.posts(random);
        let (id, member) = (ids[0], random.u64(0..MEMBERS));
        let key = Key::Post(id);
        let command = match random.u32(0..100) {
            0..=12 => self.new_posts(member, random)?,
            50..=57 | 81..=84 if self.habits.ranges > 1 => self.new_posts(member, random)?,
            13..=29 => {
                let flag = *random.choice(&[LIKE, LIKE, LIKE, REPOST, READ])?;
                let on = random.u32(0..3) > 0;
                let verb = if on { "ACT" } else { "UNDO" };
                let set = Step::Set { flag, member, on };
                each(format!("FEED.{verb} {} {member}", FLAGS[flag]), &ids, &set)
            }
            30..=49 => {
                each(format!("FEED.GET home {member}"), &ids, &Step::Page { viewer: member })
            }
            50..=57 => {
                let bits = random.u32(1..30);
                let delta = random.i64(1..1 << bits);
                let add = Step::Add { field: "comment".to_owned(), delta };
                one(&format!("HINCRBY post:{id} comment {delta}"), key, add)
            }
            58..=61 => self.increment_with_token(id, random),
            62..=65 => {
                let value = random.i64(..);
                let put = Step::Put { field: "comment".to_owned(), value: value >> 8 };
                one(&format!("HSET post:{id} comment {}", value >> 8), key, put)
            }
            66..=70 => {
                let (verb, on) = *random.choice(&[("ADD", true), ("ADD", true), ("DEL", false)])?;
                each(
                    format!("PH.{verb} seen {member}"),
                    &ids,
                    &Step::Set { flag: SEEN, member, on },
                )
            }
            71..=74 => {
                let flag: Flag = *random.choice(&[LIKE, SEEN])?;
                let name = if flag == LIKE { "liked" } else { "seen" };
                each(format!("PH.EXISTS {name} {member}"), &ids, &Step::Is { flag, member })
            }
            75 => one(&format!("SCARD liked:{id}"), key, Step::Count { flag: LIKE }),
            76 => one(&format!("SMEMBERS liked:{id}"), key, Step::Members { flag: LIKE }),
            77..=80 => self.field_command(id, random)?,
            81..=84 => self.extra_space_command(id % 50, random)?,
            85 | 86 => {
                self.forgotten = Some(id);
                one(&format!("TM.FORGET post {id}"), key, Step::Forget)
            }
            87..=89 => twins(random),
            90..=92 if self.habits.ranges == 1 => twins(random),
            _ => self.operator_command(random)?,
        };
        let is_free = |(key, step): &(Key, Step)| !step.changes() || !model.is_busy(*key);
        let twins_are_free = || command.steps.iter().all(|(key, _)| !model.is_busy(*key));
        let may = command.steps.iter().all(is_free)
            && (command.shape != ReplyShape::Twins || twins_are_free());
        may.then_some(command)
    }

    /// Whether posts have ids in several ranges.
    pub(crate) fn has_ranges(&self) -> bool {
        self.habits.ranges > 1
    }

    /// Draws a range, in most cases the lowest range.
    fn range(&self, random: &mut fastrand::Rng) -> usize {
        let ranges = self.habits.ranges;
        if ranges > 1 && random.u32(0..3) == 0 { random.usize(1..ranges) } else { 0 }
    }

    /// Returns the first id of new posts in a range, and the id of the next new post.
    fn bounds(&self, range: usize) -> (u64, u64) {
        let first = RANGES[range] + if range == 0 { 0 } else { GAP };
        (first, first + self.next_posts[range])
    }

    fn new_posts(&mut self, member: u64, random: &mut fastrand::Rng) -> Option<Command> {
        let range = self.range(random);
        let (group, (_, end)) = (self.habits.group, self.bounds(range));
        // With several ranges, another member may be added to the newest posts.
        let again = self.habits.ranges > 1 && self.next_posts[range] >= group && random.bool();
        let from = if again { end - group } else { end };
        if !again {
            self.next_posts[range] += group + random.u64(0..5);
        }
        let new: Vec<u64> = (from..from + group).collect();
        let (read, seen) = (("FEED.ACT read", READ), ("PH.ADD seen", SEEN));
        let (like, repost) = (("FEED.ACT like", LIKE), ("FEED.ACT repost", REPOST));
        let (verb, flag) = match self.habits.ranges {
            1 if random.u32(0..3) == 0 => seen,
            1 => read,
            _ => *random.choice(&[like, like, repost, repost, read, seen])?,
        };
        Some(each(format!("{verb} {member}"), &new, &Step::Set { flag, member, on: true }))
    }

    /// Draws posts, mostly new posts.
    fn posts(&mut self, random: &mut fastrand::Rng) -> Vec<u64> {
        // Repeat the last ids, to read or undo the last change.
        if !self.last.is_empty() && random.u32(0..4) == 0 {
            return self.last.clone();
        }
        let count = 1 + random.usize(0..PAGE);
        let range = self.range(random);
        let (first, end) = self.bounds(range);
        let recent = end.saturating_sub(100).max(first);
        let end = end.max(first + 1);
        let ids = match random.u32(0..40) {
            // Use ids greater than all existing ids. Later posts will have these ids.
            0..=4 => end..end + 3 * NEW_POSTS_PER_COMMAND,
            5 => FAR_RANGE_START..FAR_RANGE_START + NEW_POSTS_PER_COMMAND,
            6..=8 if range > 0 => RANGES[range]..first,
            6..=22 => recent..end,
            _ => first..end,
        };
        let some: BTreeSet<u64> = (0..count).map(|_| random.u64(ids.clone())).collect();
        let mut some: Vec<u64> = some.into_iter().collect();
        random.shuffle(&mut some);
        // Add new data to a forgotten post.
        if let Some(id) = self.forgotten.filter(|_| random.u32(0..5) == 0) {
            some.retain(|other| *other != id);
            some.insert(0, id);
        }
        self.last.clone_from(&some);
        some
    }

    /// Returns commands that read everything: pages of all posts for each member, and all other
    /// rows.
    pub(crate) fn audit(&self, model: &Model) -> Vec<Command> {
        let posts: Vec<u64> = model
            .keys()
            .filter_map(|key| if let Key::Post(id) = key { Some(id) } else { None })
            .collect();
        let mut all = Vec::new();
        for ids in posts.chunks(100) {
            for member in 0..MEMBERS {
                let page = Step::Page { viewer: member };
                all.push(each(format!("FEED.GET home {member}"), ids, &page));
                for (flag, name) in [(SEEN, "seen"), (REPOST, "reposted")] {
                    let is = Step::Is { flag, member };
                    all.push(each(format!("PH.EXISTS {name} {member}"), ids, &is));
                }
            }
        }
        // Read the fields that the view does not contain.
        let fields: Vec<String> = self.catalogue.fields.iter().cloned().collect();
        for id in posts.iter().step_by(16).filter(|_| !fields.is_empty()) {
            let text = format!("HMGET post:{id} {}", fields.join(" "));
            all.push(one(&text, Key::Post(*id), Step::Fields { fields: fields.clone() }));
        }
        for &id in posts.iter().step_by(8) {
            let text = format!("SMEMBERS liked:{id}");
            all.push(one(&text, Key::Post(id), Step::Members { flag: LIKE }));
        }
        let extra = self.catalogue.extra;
        for key in model.keys() {
            if let Key::Extra(number, id) = key
                && extra == Some(number)
            {
                let fields = vec!["n".to_owned()];
                all.push(one(&format!("HMGET x{number}:{id} n"), key, Step::Fields { fields }));
            }
        }
        let users = |pair: u64| twin_read(2 * pair);
        all.extend((0..USERS / 2).map(users));
        all
    }

    /// Stores a sent command for resending if it has a token.
    pub(crate) fn keep_for_resend(&mut self, command: Command) {
        if command.requests[0].iter().any(|word| word == "TOKEN") {
            self.sent.truncate(MAX_RESENT_INCREMENTS - 1);
            self.sent.push(command);
        }
    }

    /// Returns a new increment with a token, or an earlier one to resend.
    fn increment_with_token(&mut self, id: u64, random: &mut fastrand::Rng) -> Command {
        if !self.sent.is_empty() && random.bool() {
            return self.sent.swap_remove(random.usize(0..self.sent.len()));
        }
        self.next_token += 1;
        let (token, delta) = (self.next_token, random.i64(1..100));
        let add = Step::AddOnce { field: "comment".to_owned(), delta, token };
        one(&format!("CNT.INCRBY post {id} comment {delta} TOKEN t{token}"), Key::Post(id), add)
    }

    fn field_command(&mut self, id: u64, random: &mut fastrand::Rng) -> Option<Command> {
        if self.catalogue.changing {
            return None;
        }
        let fields: Vec<String> = self.catalogue.fields.iter().cloned().collect();
        if random.bool() {
            let names = ["like", "comment", "read"].map(str::to_owned);
            let fields: Vec<String> = names.into_iter().chain(fields).collect();
            let text = format!("HMGET post:{id} {}", fields.join(" "));
            return Some(one(&text, Key::Post(id), Step::Fields { fields }));
        }
        let (field, delta) = (random.choice(fields)?, random.i64(1..5000));
        let text = format!("HINCRBY post:{id} {field} {delta}");
        Some(one(&text, Key::Post(id), Step::Add { field, delta }))
    }

    fn extra_space_command(&mut self, id: u64, random: &mut fastrand::Rng) -> Option<Command> {
        let number = self.catalogue.extra.filter(|_| !self.catalogue.changing)?;
        let (key, field) = (Key::Extra(number, id), "n".to_owned());
        if random.bool() {
            let text = format!("HMGET x{number}:{id} n");
            return Some(one(&text, key, Step::Fields { fields: vec![field] }));
        }
        let delta = random.i64(1..5000);
        Some(one(&format!("HINCRBY x{number}:{id} n {delta}"), key, Step::Add { field, delta }))
    }

    fn operator_command(&mut self, random: &mut fastrand::Rng) -> Option<Command> {
        let catalogue = &mut self.catalogue;
        let drawn = match self.habits.ranges {
            1 => random.u32(0..15),
            // Choose spills and rebuilds more often.
            _ => *random.choice(&[0, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13, 10, 11, 14, 14])?,
        };
        if drawn < 7 && catalogue.changing || matches!(drawn, 7 | 8) && catalogue.saving {
            return None;
        }
        catalogue.saving |= matches!(drawn, 7 | 8);
        catalogue.next_name += 1;
        let next = catalogue.next_name;
        let extra = |catalogue: &Catalogue| {
            let suffix = if catalogue.is_renamed { "r" } else { "" };
            catalogue.extra.map(|number| (number, format!("x{number}{suffix}")))
        };
        let spilling = ["post", "liked", "reposted"];
        Some(match drawn {
            0 | 1 if catalogue.fields.len() < 6 && next < 50 => {
                let (field, bits) = (format!("f{next}"), random.u32(1..20));
                admin(&format!("TM.SPACE ALTER post ADD {field}:{bits}"), Admin::AddField(field))
            }
            2 => {
                let field = random.choice(catalogue.fields.iter().cloned().collect::<Vec<_>>())?;
                admin(&format!("TM.SPACE ALTER post DROP {field}"), Admin::DropField(field))
            }
            3 | 4 => match extra(catalogue) {
                None => admin(
                    &format!("TM.SPACE CREATE x{next} COUNTER fields n:5 rows x{next}:{{id}}"),
                    Admin::Create(next),
                ),
                Some((number, name)) if !catalogue.is_renamed => {
                    admin(&format!("TM.SPACE RENAME {name} {name}r"), Admin::Rename(number))
                }
                Some(_) => return None,
            },
            5 => {
                let (number, name) = extra(catalogue)?;
                admin(&format!("TM.SPACE DROP {name} YES-I-MEAN-{name}"), Admin::Drop(number))
            }
            7 => admin(random.choice(["SAVE", "BGSAVE"])?, Admin::Save),
            // Take two snapshots. The second one has few changes to write.
            8 => {
                let requests = vec![words("SAVE"), words("SAVE")];
                Command { requests, steps: Vec::new(), shape: ReplyShape::Admin(Admin::Save) }
            }
            9 => admin(
                &format!("TM.ROLL {}", random.choice(["liked", "reposted", "read", "seen"])?),
                Admin::Roll,
            ),
            10..=13 => admin(
                &format!("TM.SPILL {} {}", random.choice(spilling)?, random.u32(1..4)),
                Admin::Spill,
            ),
            14 if self.habits.ranges > 1 => {
                let rate = random.choice(["0.0000001", "0.0000002", "0.0000004"])?;
                let alter = format!("TM.SPACE ALTER liked SET false_positive_rate {rate}");
                admin(&alter, Admin::Rebuild)
            }
            14 => admin("TM.REBUILD liked", Admin::Rebuild),
            _ => return None,
        })
    }
}

pub(crate) fn list() -> Command {
    admin("TM.SPACE LIST", Admin::List)
}

fn twins(random: &mut fastrand::Rng) -> Command {
    let first = 2 * random.u64(0..USERS / 2);
    if random.bool() {
        return twin_read(first);
    }
    let (field, delta) = ("post".to_owned(), random.i64(1..100));
    let change = |id: u64| words(&format!("HINCRBY user:{id} post {delta}"));
    let step = |id: u64| (Key::User(id), Step::Add { field: field.clone(), delta });
    Command {
        requests: vec![words("MULTI"), change(first), change(first + 1), words("EXEC")],
        steps: vec![step(first), step(first + 1)],
        shape: ReplyShape::Exec,
    }
}

fn twin_read(first: u64) -> Command {
    let read = |id: u64| words(&format!("HMGET user:{id} post"));
    let step = |id: u64| (Key::User(id), Step::Fields { fields: vec!["post".to_owned()] });
    Command {
        requests: vec![words("MULTI"), read(first), read(first + 1), words("EXEC")],
        steps: vec![step(first), step(first + 1)],
        shape: ReplyShape::Twins,
    }
}
