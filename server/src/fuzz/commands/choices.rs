//! Decodes fuzz input into commands, keys of a small universe, and values.

pub(super) const FIELDS: [&str; 4] = ["like", "repost", "comment", "read"];
pub(super) const MEMBERS: [&str; 4] = ["7", "8", "007", "x"];
/// Existence space, its action, and the field that the action increments.
pub(super) const FLAGS: [(&str, &str, usize); 2] = [("liked", "like", 0), ("read", "read", 3)];
pub(super) const IDS: [u64; 16] = [
    0,
    1,
    2,
    3,
    64,
    65,
    1000,
    1 << 20,
    (1 << 20) + 1,
    1 << 40,
    3_631_614_501_919_378,
    3_631_614_501_919_379,
    3_631_614_501_923_474,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];
const VALUES: [&str; 14] = [
    "1",
    "0",
    "-1",
    "2",
    "4095",
    "4096",
    "70000",
    "-70000",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775806",
    "1.5",
    "01",
    "",
];
/// Commands that the second client does not send. They need other threads or time, use files, or
/// change users or spaces.
pub(super) const LEFT_OUT: [&str; 20] = [
    "acl",
    "bgsave",
    "client",
    "config",
    "debug",
    "failover",
    "psync",
    "replconf",
    "replicaof",
    "save",
    "shutdown",
    "slaveof",
    "sync",
    "tm.advise",
    "tm.replicate",
    "tm.space",
    "tm.spill",
    "wait",
    "waitaof",
    "lastsave",
];

/// Arguments for the commands of the second client.
pub(super) const WORDS: [&str; 40] = [
    "post:1",
    "post:1:like",
    "liked:1",
    "user:1",
    "read:64",
    "post:18446744073709551615",
    "post:18446744073709551616",
    "post",
    "liked",
    "home",
    "like",
    "7",
    "0",
    "1",
    "-1",
    "18446744073709551615",
    "9223372036854775807",
    "1e-300",
    "nan",
    "",
    "*",
    "[a",
    "\\",
    "MATCH",
    "COUNT",
    "TYPE",
    "hash",
    "NX",
    "XX",
    "GET",
    "EX",
    "ITEMS",
    "ERROR",
    "CAPACITY",
    "MARK",
    "BINARY",
    "MIN",
    "SAT",
    "HELP",
    "LIST",
];

/// Source of choices; yields 0 after the end of the input.
pub(super) struct Choices<'a>(pub(super) &'a [u8]);

impl Choices<'_> {
    pub(super) fn byte(&mut self) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first)
    }

    pub(super) fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.byte() % from.len()]
    }

    fn id(&mut self) -> String {
        self.of(&IDS).to_string()
    }

    fn row(&mut self) -> String {
        format!("post:{}", self.id())
    }

    fn cell(&mut self) -> String {
        format!("post:{}:{}", self.id(), self.of(&FIELDS))
    }

    fn value(&mut self) -> String {
        self.of(&VALUES).to_owned()
    }

    fn token(&mut self) -> Vec<String> {
        vec!["TOKEN".to_owned(), self.of(&["a", "b"]).to_owned()]
    }

    fn many(&mut self, mut one: impl FnMut(&mut Self) -> Vec<String>) -> Vec<String> {
        (0..=self.byte() % 4).flat_map(|_| one(self)).collect()
    }

    // Long: this function is a `match` with a line or two for each command.
    pub(super) fn known(&mut self, kind: usize) -> Vec<String> {
        let word = |word: &str| vec![word.to_owned()];
        let field_value = |c: &mut Self| vec![c.of(&FIELDS).to_owned(), c.value()];
        let pairs = |c: &mut Self| format!("{}:{}", c.of(&FLAGS).0, c.id());
        match kind {
            0 => [word("HSET"), vec![self.row()], self.many(field_value)].concat(),
            1 => [word("HINCRBY"), vec![self.row()], field_value(self)].concat(),
            2 => [word("HGET"), vec![self.row(), self.of(&FIELDS).to_owned()]].concat(),
            3 => [word("HGETALL"), vec![self.row()]].concat(),
            4 => [word("HDEL"), vec![self.row()], self.many(|c| word(c.of(&FIELDS)))].concat(),
            5 => {
                [word(self.of(&["DEL", "UNLINK"])), self.many(|c| vec![c.row(), c.cell()])].concat()
            }
            6 => [word("EXISTS"), self.many(|c| vec![c.row(), c.cell()])].concat(),
            7 => [word(self.of(&["INCRBY", "DECRBY"])), vec![self.cell(), self.value()]].concat(),
            8 => [word(self.of(&["INCR", "DECR", "GET", "STRLEN"])), vec![self.cell()]].concat(),
            9 => [word(self.of(&["SET", "GETSET", "SETNX"])), vec![self.cell(), self.value()]]
                .concat(),
            10 => [word(self.of(&["MGET", "MINCR"])), self.many(|c| vec![c.cell()])].concat(),
            11 => [word("MSET"), self.many(|c| vec![c.cell(), c.value()])].concat(),
            12 => [word("HMGET"), vec![self.row()], self.many(|c| word(c.of(&FIELDS)))].concat(),
            13 => [word("CNT.GET"), word("post"), self.many(|c| vec![c.id()])].concat(),
            14 => {
                let bound = |c: &mut Self| match c.byte() % 5 {
                    4 => c.token(),
                    0 => vec!["MIN".to_owned(), c.value()],
                    1 => vec!["MAX".to_owned(), c.value()],
                    2 => word("SAT"),
                    _ => word("FAIL"),
                };
                [
                    word("CNT.INCRBY"),
                    word("post"),
                    vec![self.id()],
                    self.many(field_value),
                    self.many(bound),
                ]
                .concat()
            }
            15 => [word("CNT.SET"), word("post"), vec![self.id()], self.many(field_value)].concat(),
            16 => [word("CNT.DEL"), word("post"), self.many(|c| vec![c.id()])].concat(),
            17 => {
                let triple = |c: &mut Self| [vec![c.id()], field_value(c)].concat();
                let triples = self.many(triple);
                let token = if self.byte().is_multiple_of(2) { self.token() } else { vec![] };
                [word("CNT.MINCRBY"), word("post"), triples, token].concat()
            }
            18 => {
                let name = self.of(&["SADD", "SREM", "SMISMEMBER", "BF.MADD", "BF.MEXISTS"]);
                [word(name), vec![pairs(self)], self.many(|c| word(c.of(&MEMBERS)))].concat()
            }
            19 => {
                let name =
                    self.of(&["SISMEMBER", "BF.ADD", "BF.EXISTS", "CF.ADD", "CF.ADDNX", "CF.DEL"]);
                [word(name), vec![pairs(self)], word(self.of(&MEMBERS))].concat()
            }
            20 | 21 => {
                let name = self.of(&["PH.ADD", "PH.DEL", "PH.EXISTS"]);
                [
                    word(name),
                    word(self.of(&FLAGS).0),
                    word(self.of(&MEMBERS)),
                    self.many(|c| vec![c.id()]),
                ]
                .concat()
            }
            22 => {
                let mark = match self.byte() % 3 {
                    0 => vec!["MARK".to_owned(), self.of(&FLAGS).1.to_owned()],
                    _ => vec![],
                };
                [
                    word("FEED.GET"),
                    word("home"),
                    word(self.of(&MEMBERS)),
                    self.many(|c| vec![c.id()]),
                    mark,
                ]
                .concat()
            }
            23..=26 => {
                let name = self.of(&["FEED.ACT", "FEED.UNDO"]);
                [
                    word(name),
                    word(self.of(&FLAGS).1),
                    word(self.of(&MEMBERS)),
                    self.many(|c| vec![c.id()]),
                ]
                .concat()
            }
            27 => word(self.of(&["MULTI", "EXEC", "EXEC", "DISCARD"])),
            28 => [word("HSETNX"), vec![self.row()], field_value(self)].concat(),
            29 => [word("CNT.HINCRBY"), vec![self.row()], field_value(self), self.token()].concat(),
            30 => {
                let space = self.of(&["post", "liked", "read"]);
                [word("TM.FORGET"), word(space), self.many(|c| vec![c.id()])].concat()
            }
            _ => word("DBSIZE"),
        }
    }
}

/// Number of commands that [`Choices::known`] generates.
pub(super) const KNOWN: usize = 32;
