"""A proxy between Tidemark and a test suite written for Redis.

Tidemark's keys contain numbers: `post:17`, never `myhash`. The suites use any text as a key, a field or a value. The proxy replaces
each text by a number in requests, and restores the text in replies:

    SET foo bar      ->   SET foo:900000000000001:v 4611686018500000001
    HSET h f 1       ->   HSET hash:900000000000002 f0 1
    SADD s m         ->   SADD set:900000000000003 m

A name that begins with one of `PREFIXES` keeps that prefix, so that patterns of ACL rules, of SCAN and of CLIENT TRACKING
still match. The numbers occur nowhere else, so the proxy translates a reply token by token, without knowing its command.

The proxy itself answers unsupported commands that would end a suite early: FLUSHALL (it deletes the known keys), FUNCTION FLUSH,
SCRIPT FLUSH, and CONFIG SET of the parameters in `ABSENT_PARAMETERS`. Every other reply comes from the server.
"""

import asyncio
import re
import socket

# Prefixes of the keys of the cell spaces of the server under test.
PREFIXES = [
    "a", "added", "b", "bar", "baz", "c", "deny", "foo", "k", "key", "mylist", "object", "other", "prefix", "r", "read", "read:",
    "readwrite", "rw", "set", "str", "v", "w", "write", "write:", "x",
]
FIRST_ID = 900_000_000_000_000
FIRST_VALUE = 4_611_686_018_500_000_000
FIELDS = 60
FIELD = "f%dq"
TOKEN = re.compile(rb"([A-Za-z]+:?):(9000000\d{8})(:v)?|\b(46116860185\d{8})\b|\b(f\d{1,2}q)\b")
# Longer parts of a request or a reply are forwarded unchanged.
LONG = 1 << 20
# Time after which an incomplete request is forwarded unchanged, because the suites test the reaction of a server.
PATIENCE_S = 0.15

HASH = {
    "HSET", "HMSET", "HSETNX", "HINCRBY", "HINCRBYFLOAT", "HGET", "HMGET", "HGETALL", "HEXISTS", "HLEN", "HKEYS", "HVALS",
    "HSTRLEN", "HDEL", "HSCAN", "HRANDFIELD", "HGETDEL", "HGETEX",
}
SETS = {
    "SADD", "SREM", "SISMEMBER", "SMISMEMBER", "SCARD", "SMEMBERS", "SPOP", "SRANDMEMBER", "SSCAN", "SINTER", "SINTERCARD",
    "SUNION", "SDIFF", "SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE", "SMOVE",
}
WRITES_STRINGS = {"SET", "SETNX", "SETEX", "PSETEX", "GETSET", "MSET", "MSETNX", "INCR", "DECR", "INCRBY", "DECRBY", "APPEND"}
# Parameters that Redis's suite sets before its tests and that Tidemark does not have. Tests that depend on them cannot pass here.
ABSENT_PARAMETERS = {
    "save", "appendonly", "appendfsync", "auto-aof-rewrite-percentage", "aof-use-rdb-preamble", "list-max-ziplist-size",
    "list-max-listpack-size", "hash-max-listpack-entries", "hash-max-listpack-value", "hash-max-ziplist-entries",
    "hash-max-ziplist-value", "set-max-intset-entries", "set-max-listpack-entries", "set-max-listpack-value",
    "zset-max-listpack-entries", "zset-max-listpack-value", "stream-node-max-entries", "activedefrag", "rdbcompression",
    "rdb-key-save-delay", "key-load-delay", "lua-time-limit", "busy-reply-threshold", "active-expire-effort",
}
ANSWER_OK = [b"SELECT", b"0"]


def is_integer(text):
    return re.fullmatch(rb"0|-?[1-9]\d{0,18}", text) is not None and -(1 << 63) <= int(text) < 1 << 63


def space_of(prefix):
    return "s_" + prefix.replace(":", "_")


def encode(words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Names:
    """The numbers of texts, and the texts of numbers."""

    def __init__(self):
        self.keys = {}  # name -> (kind, id)
        self.texts = {}  # id -> name
        self.values = {}  # text -> number
        self.value_texts = {}
        self.fields = {}  # text -> field of the schema
        self.field_texts = {}
        self.absent = set()  # names that no command has written since they got their key, so their type may change
        self.next_id = FIRST_ID

    def key(self, name, kind=None, writes=False):
        """Returns the key for a name. `kind` is the type that the command needs, if any; it determines the type of a new key."""
        known = self.keys.get(name)
        if known is None or (name in self.absent and kind and kind != known[0]):
            self.next_id += 1
            known = self.keys[name] = (kind or "string", self.next_id)
            self.texts[self.next_id] = name
            self.absent.add(name)
        if writes:
            self.absent.discard(name)
        kind, number = known
        if kind == "string":
            return b"%s:%d:v" % (self.prefix(name).encode(), number)
        return b"%s:%d" % (kind.encode(), number)

    @staticmethod
    def prefix(name):
        return max((prefix for prefix in PREFIXES if name.startswith(prefix.encode())), key=len, default="str")

    def delete(self, name):
        """Records that a command deletes this key, so its type may change. Pairs of an id cannot be deleted, so a set gets a new id."""
        if self.keys.get(name, ("",))[0] == "set":
            del self.keys[name]
        else:
            self.absent.add(name)

    def value(self, text):
        if is_integer(text) or len(text) > 65536:
            return text
        number = self.values.setdefault(text, FIRST_VALUE + len(self.values))
        self.value_texts[b"%d" % number] = text
        return b"%d" % number

    def field(self, text):
        if text not in self.fields and len(self.fields) < FIELDS:
            name = (FIELD % len(self.fields)).encode()
            self.fields[text], self.field_texts[name] = name, text
        return self.fields.get(text, text)

    def flush(self):
        """Forgets the names and returns the ids of their rows by space. Pairs stay, but their ids are not reused."""
        rows = {}
        for name, (kind, number) in self.keys.items():
            if kind == "string":
                rows.setdefault(space_of(self.prefix(name)), []).append(number)
            elif kind == "hash":
                rows.setdefault("hash", []).append(number)
        self.keys.clear()
        self.absent.clear()
        self.fields.clear()
        return rows

    def back(self, text):
        """Replaces numbers by texts."""

        def one(match):
            whole, number, value, field = match[0], match[2], match[4], match[5]
            if number:
                return self.texts.get(int(number), whole)
            if value:
                return self.value_texts.get(value, whole)
            return self.field_texts.get(field, whole)

        return TOKEN.sub(one, text)


class Commands:
    """Positions of the keys in commands, from COMMAND of the server."""

    def __init__(self, reply):
        self.keys = {}
        self.add(reply)

    def add(self, entries):
        for entry in entries:
            name = entry[0].decode().upper().replace("|", " ")
            self.keys[name] = (entry[3], entry[4], entry[5], {flag.decode() for flag in entry[2]})
            if len(entry) > 9:
                self.add(entry[9])

    def positions(self, words):
        name = words[0].decode("latin1").upper()
        if name in ("SINTERCARD", "ZUNION", "ZINTER", "ZDIFF", "LMPOP", "ZMPOP"):
            return list(range(2, len(words)))[: int(words[1])] if len(words) > 1 and words[1].isdigit() else []
        if name in ("EVAL", "EVALSHA", "FCALL"):
            return list(range(3, len(words)))[: int(words[2])] if len(words) > 2 and words[2].isdigit() else []
        found = self.keys.get(name)
        if len(words) > 1:
            found = self.keys.get(f"{name} {words[1].decode('latin1').upper()}", found)
        if not found or found[0] <= 0 or found[2] <= 0:
            return []
        first, last, step, _ = found
        return list(range(first, min(last if last >= 0 else len(words) + last, len(words) - 1) + 1, step))


class Link:
    """One connection through the proxy."""

    def __init__(self):
        # The client is a replica: the server sends its log instead of replies.
        self.replicates = False


class Proxy:
    def __init__(self, server_port, names):
        self.server_port = server_port
        self.names = names
        self.commands = None
        self.control = None

    async def start(self, port):
        reply = await self.ask(b"COMMAND")
        self.commands = Commands(reply)
        return await asyncio.start_server(self.client, "127.0.0.1", port, limit=1 << 16)

    async def ask(self, *words):
        """Sends a command on the proxy's own connection, which CLIENT LIST does not show to the suite."""
        for attempt in (1, 2):
            try:
                if self.control is None:
                    self.control = await asyncio.open_connection("127.0.0.1", self.server_port)
                    self.control[1].write(encode([b"CLIENT", b"SETNAME", b"rename-proxy"]))
                    await read_reply(self.control[0])
                self.control[1].write(encode(list(words)))
                return await read_reply(self.control[0])
            except (OSError, asyncio.IncompleteReadError):
                self.control = None
                if attempt == 2:
                    raise

    async def client(self, reader, writer):
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self.server_port, limit=1 << 16)
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        for stream in (writer, upstream[1]):
            stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link()
        there = asyncio.create_task(self.requests(reader, upstream[1], link))
        back = asyncio.create_task(self.replies(upstream[0], writer, link))
        try:
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            if there.done() and not back.done():
                # The client has closed its side; the remaining replies still reach it.
                upstream[1].write_eof()
                await asyncio.wait([back], timeout=2)
        except (OSError, asyncio.CancelledError):
            pass
        for task in (there, back):
            task.cancel()
        for stream in (writer, upstream[1]):
            stream.close()

    # From the client to the server.

    async def requests(self, reader, writer, link):
        buffer = bytearray()
        passed = 0  # number of bytes of the first request in the buffer that were forwarded unchanged
        while True:
            try:
                timeout = PATIENCE_S if len(buffer) > passed else None
                more = await asyncio.wait_for(reader.read(1 << 16), timeout)
                if not more:
                    writer.write(bytes(buffer[passed:]))
                    return
                buffer += more
                if link.replicates:
                    writer.write(bytes(buffer[passed:]))
                    buffer.clear()
                    passed = 0
            except asyncio.TimeoutError:
                writer.write(bytes(buffer[passed:]))
                passed = len(buffer)
            except OSError:
                return
            while buffer:
                length, words = parse_request(buffer)
                if length is None:
                    # Malformed: the server returns an error and closes the connection.
                    writer.write(bytes(buffer[passed:]))
                    buffer.clear()
                    passed = 0
                elif length == 0:
                    if len(buffer) - passed > LONG:
                        writer.write(bytes(buffer[passed:]))
                        passed = len(buffer)
                    break
                elif passed:
                    writer.write(bytes(buffer[passed:length]))
                    del buffer[:length]
                    passed = 0
                else:
                    request = bytes(buffer[:length])
                    del buffer[:length]
                    if words and words[0].upper() in (b"TM.REPLICATE", b"PSYNC", b"SYNC"):
                        link.replicates = True
                    writer.write(await self.request(words, request) if words else request)
            try:
                await writer.drain()
            except OSError:
                return

    async def request(self, words, request):
        name = words[0].decode("latin1").upper()
        sub = words[1].decode("latin1").upper() if len(words) > 1 else ""
        if name in ("FLUSHALL", "FLUSHDB") and (len(words) == 1 or sub in ("ASYNC", "SYNC")):
            for space, ids in self.names.flush().items():
                for begin in range(0, len(ids), 1000):
                    some = (b"%d" % number for number in ids[begin : begin + 1000])
                    await self.ask(b"CNT.DEL", space.encode(), *some)
            return encode(ANSWER_OK)
        if name in ("FUNCTION", "SCRIPT") and sub == "FLUSH":
            return encode(ANSWER_OK)
        if name == "CONFIG" and sub == "SET" and len(words) == 4:
            if words[2].decode("latin1").lower() in ABSENT_PARAMETERS:
                return encode(ANSWER_OK)
        if name == "ACL" and sub == "SETUSER":
            return encode(words[:3] + [self.rule(word) for word in words[3:]])
        if name == "ACL" and sub == "DRYRUN" and len(words) > 3:
            # DRYRUN executes nothing, so the type does not matter, only whether the key matches the user's patterns.
            return encode(words[:3] + self.renamed(words[3:], of_any_type=True))
        return request if name == "COMMAND" else encode(self.renamed(words))

    def rule(self, rule):
        """Translates a rule for ACL SETUSER. A pattern without wildcards becomes the key; one with wildcards becomes a pattern of its prefix."""

        def one(match):
            return match[1] + self.names.key(match[2])

        return re.sub(rb"((?:^|[ (])(?:%[RWrw]+)?~)([^ ()*?\[\\]+)(?=$|[ )])", one, rule)

    def renamed(self, words, of_any_type=False):
        """Returns the words of a command with names replaced by numbers."""
        name = words[0].decode("latin1").upper()
        positions = self.commands.positions(words)
        if not positions:
            return words
        names = self.names
        if of_any_type:
            return [names.key(word) if at in positions else word for at, word in enumerate(words)]
        kind = None
        if name in HASH:
            kind = "hash"
        elif name in SETS or name.startswith(("BF.", "CF.")):
            kind = "set"
        elif name in WRITES_STRINGS:
            kind = "string"
        writes = "write" in self.commands.keys.get(name, (0, 0, 0, set()))[3] and kind is not None
        if name in ("DEL", "UNLINK"):
            for at in positions:
                names.delete(words[at])
        out = list(words)
        for at in positions:
            out[at] = names.key(words[at], kind, writes)
        if name in ("SET", "SETNX", "GETSET", "APPEND") and len(words) > 2:
            out[2] = names.value(words[2])
        elif name in ("MSET", "MSETNX"):
            out[2::2] = [names.value(word) for word in words[2::2]]
        elif name in ("HSET", "HMSET", "HSETNX"):
            out[2::2] = [names.field(word) for word in words[2::2]]
            out[3::2] = [names.value(word) for word in words[3::2]]
        elif name in ("HGET", "HMGET", "HDEL", "HEXISTS", "HSTRLEN"):
            out[2:] = [names.field(word) for word in words[2:]]
        elif name in ("HINCRBY", "HINCRBYFLOAT") and len(words) > 2:
            out[2] = names.field(words[2])
        return out

    # From the server to the client.

    async def replies(self, reader, writer, link):
        buffer = bytearray()
        raw = 0  # remaining bytes of a long string, which are forwarded unchanged
        while True:
            try:
                more = await reader.read(1 << 16)
            except OSError:
                return
            if not more:
                writer.write(bytes(buffer))
                return
            buffer += more
            out = bytearray()
            at = 0
            if link.replicates:
                out, at = bytearray(buffer), len(buffer)
            while at < len(buffer):
                if raw:
                    part = buffer[at : at + raw]
                    out += part
                    at += len(part)
                    raw -= len(part)
                    continue
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    break
                line = bytes(buffer[at:end])
                if line[:1] in b"$!=" and line[1:].isdigit():
                    length = int(line[1:])
                    if length > LONG:
                        out += line + b"\r\n"
                        raw = length + 2
                        at = end + 2
                        continue
                    if len(buffer) < end + 4 + length:
                        break
                    text = self.back(bytes(buffer[end + 2 : end + 2 + length]))
                    out += line[:1] + b"%d\r\n" % len(text) + text + b"\r\n"
                    at = end + 4 + length
                else:
                    out += (self.names.back(line) if line[:1] in b"+-" else line) + b"\r\n"
                    at = end + 2
            del buffer[:at]
            writer.write(bytes(out))
            try:
                await writer.drain()
            except OSError:
                return

    def back(self, text):
        if b"name=rename-proxy" in text:
            lines = text.split(b"\n")
            text = b"\n".join(line for line in lines if b"name=rename-proxy" not in line)
        return self.names.back(text)


def parse_request(buffer):
    """Returns (bytes, words) of the first request; (0, _) if it is incomplete, (None, _) if it is malformed."""
    end = buffer.find(b"\n")
    if end < 0:
        return 0, None
    if buffer[:1] != b"*":
        line = bytes(buffer[:end]).strip()
        return end + 1, (line.split() if b'"' not in line and b"'" not in line else None)
    count = bytes(buffer[1 : end]).strip()
    if not re.fullmatch(rb"-?\d{1,7}", count):
        return None, None
    words, at = [], end + 1
    for _ in range(int(count)):
        end = buffer.find(b"\n", at)
        if end < 0:
            return 0, None
        length = bytes(buffer[at + 1 : end]).strip()
        if buffer[at : at + 1] != b"$" or not re.fullmatch(rb"\d{1,9}", length):
            return None, None
        at = end + 1 + int(length) + 2
        if at > len(buffer):
            return 0, None
        words.append(bytes(buffer[end + 1 : at - 2]))
    return at, words


async def read_reply(reader):
    line = (await reader.readuntil(b"\r\n"))[:-2]
    kind, rest = line[:1], line[1:]
    if kind == b"$":
        return None if rest == b"-1" else (await reader.readexactly(int(rest) + 2))[:-2]
    if kind == b"*":
        return [await read_reply(reader) for _ in range(int(rest))]
    return int(rest) if kind == b":" else rest


def configuration(tidemark_default, port, folder):
    """Returns the configuration of a server for the suites: the default one, with small spaces for the keys of the proxy."""
    text = tidemark_default.replace("port = 6399", f"port = {port}", 1).replace('dir = "data"', f'dir = "{folder}"', 1)
    small = "rows_per_table = 65536\nmemory_limit = 67108864\n"
    for prefix in PREFIXES:
        text += f'[[counter]]\nname = "{space_of(prefix)}"\nfields = "v:64"\nrows = ""\ncells = "{prefix}:{{id}}:{{field}}"\n{small}'
    fields = " ".join(f"{FIELD % number}:8" for number in range(FIELDS))
    text += f'[[counter]]\nname = "hash"\nfields = "{fields}"\nrows = "hash:{{id}}"\ncells = ""\n{small}'
    text += '[[existence]]\nname = "pairs"\npairs = "set:{id}"\npairs_per_table = 65536\n'
    return text
