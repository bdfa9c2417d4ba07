"""Sends every command that both Tidemark and Redis have to both servers. The replies must be equal, in RESP2 and RESP3, or on_purpose.py must give a
reason for the difference.

verbs.py TIDEMARK-PORT REDIS-PORT: two servers without other clients. Redis's COMMAND DOCS provides the commands and their arguments, so that none is
omitted. Each command is called correctly, with too few and too many arguments, and on keys of each type and on missing keys. Numbers are replaced by
non-numbers, and options are unknown, duplicated or incomplete. in_rows.txt has tests with several calls or several clients. They also run through
redis-cli, whose output is compared."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from on_purpose import LACKING, OTHER_ARGUMENTS, OTHER_CATEGORIES, PURPOSE
from resp import TIMEOUT, Client, Closed, parse, plain

# ---- Calls generated from Redis's description of its commands.

# Keys of each type and missing keys, recreated before each call.
ROW, CELL, PAIRS = "post:11", "post:12:like", "liked:13"
MADE = [
    ["FLUSHALL"],  # for Redis; refused here
    ["CONFIG", "SET", "slowlog-log-slower-than", "-1"],  # on a busy machine any command is slow
    ["SLOWLOG", "RESET"],
    ["DEL", ROW, "post:12", "post:14"],
    ["SREM", PAIRS, "a", "x", "NOPE", "", "1"],
    ["SREM", "liked:14", "a", "x", "NOPE", "", "1"],
    ["HSET", ROW, "like", "5", "repost", "6", "comment", "7", "read", "8"],
    ["SET", CELL, "5"],
    ["SADD", PAIRS, "a", "b"],
]
# Keys by group of commands, the last ones missing; then keys of other types.
RIGHT = {
    "hash": [ROW, "post:14"],
    "string": [CELL, "post:14:like"],
    "set": [PAIRS, "liked:14"],
}
ALL_KEYS = [ROW, CELL, PAIRS, "post:14", "post:14:like"]
WORDS = {"field": "like", "member": "a", "value": "3", "pattern": "*", "cursor": "0", "type": "string", "category": "read"}
NO_NUMBERS = ["x", "", "1.5", "-1", "0", " 1", "01", "+1", "1e3", "9223372036854775807", "9223372036854775808", "-9223372036854775809"]
# Not called by the generator: commands that end the connection or the server, never end, or are in the list below.
BY_HAND = {
    "shutdown", "replicaof", "slaveof", "failover", "debug", "monitor", "sync", "psync", "replconf", "subscribe", "psubscribe",
    "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "client|reply", "client|pause", "config|set", "quit", "reset", "wait", "bgsave",
}


def word(argument, key):
    """Returns a valid value of a single-word argument."""
    kind, name = argument["type"], argument["name"]
    if kind == "key":
        return key
    if kind == "pure-token":
        return argument["token"]
    return WORDS.get(name, "1")


def words(argument, key):
    """Returns a valid value of any argument."""
    kind = argument["type"]
    token = [argument["token"]] if "token" in argument and kind != "pure-token" else []
    if kind == "oneof":
        return token + words(argument["arguments"][0], key)
    if kind == "block":
        inner = [item for item in argument["arguments"] if "optional" not in item.get("flags", [])]
        return token + [item for each in inner for item in words(each, key)]
    return token + [word(argument, key)]


def numbers(argument):
    """Whether an argument is a number."""
    return argument["type"] in ("integer", "double", "unix-time")


def variants(name, spec, arity):
    """Generates the calls of a command."""
    name = name.split("|")
    arguments = spec.get("arguments", [])
    needed = [a for a in arguments if "optional" not in a.get("flags", [])]
    options = [a for a in arguments if "optional" in a.get("flags", [])]
    takes_keys = any(a["type"] == "key" or any(b["type"] == "key" for b in a.get("arguments", [])) for a in arguments)
    keys = ALL_KEYS + RIGHT.get(spec["group"], [])[1:] if takes_keys else ["-"]
    right = RIGHT.get(spec["group"], [ROW])[0] if takes_keys else "-"

    def call(*parts):
        return name + [item for part in parts for item in part]

    def base(key):
        return [words(argument, key) for argument in needed]

    # Arity.
    least = abs(arity) - len(name)
    if least > 0:
        yield call(["x"] * (least - 1))
    if arity > 0:
        yield call(["x"] * (least + 1))
    # Valid calls and wrong types.
    for key in keys:
        yield call(*base(key))
        for option in options:
            yield call(*base(key), words(option, key))
    # Repeated arguments.
    yield call(*base(right), *base(right)[-1:])
    # Invalid numbers.
    for at, argument in enumerate(needed):
        if numbers(argument):
            for number in NO_NUMBERS:
                parts = base(right)
                parts[at] = parts[at][:-1] + [number]
                yield call(*parts)
    for option in options:
        if numbers(option):
            for number in NO_NUMBERS:
                yield call(*base(right), words(option, right)[:-1] + [number])
    # Non-numeric values for a counter.
    for at, argument in enumerate(needed):
        inner = [b["name"] for b in argument.get("arguments", [])] or [argument["name"]]
        if inner[-1] == "value":
            for number in NO_NUMBERS:
                parts = base(right)
                parts[at] = parts[at][:-1] + [number]
                yield call(*parts)
    # Options: unknown, duplicated, incomplete, all together.
    yield call(*base(right), ["NOPE"])
    yield call(*base(right), ["NOPE", "1"])
    yield call(*base(right), [""])
    for option in options:
        written = words(option, right)
        yield call(*base(right), written, written)
        if len(written) > 1:
            yield call(*base(right), written[:-1])
        for choice in option.get("arguments", []) if option["type"] == "oneof" else []:
            yield call(*base(right), words(choice, right))
    yield call(*base(right), *[words(option, right) for option in options])


def table(ports):
    """Returns the name, Redis's description and the arity of each command and subcommand that both servers have."""
    ours, theirs = (Client(port, 3) for port in ports)
    docs = plain(theirs.ask("COMMAND", "DOCS"))
    infos = plain(theirs.ask("COMMAND"))
    known = {info[0] for info in plain(ours.ask("COMMAND"))}
    for info in infos:
        if info[0] in known:
            sub = {each[0]: each for each in info[9]}
            mine = {each[0] for each in plain(ours.ask("COMMAND", "INFO", info[0]))[0][9]}
            if not sub:
                yield info[0], docs[info[0]], info[1]
            for name in sorted(set(sub) & mine):
                yield name, docs[info[0]]["subcommands"][name], sub[name][1]


def answered(client, call):
    """Returns the reply to a call on recreated keys, and then resets the connection."""
    after = [["RESET"]] + [["HELLO", "3"]] * (client.protocol == 3)
    client.send(*MADE, call, *after)
    try:
        for _ in MADE:
            client.read()
        reply = client.read()
        for _ in after:
            client.read()
        return reply
    except Closed:
        client.connect()
        return "closed", ""
    except TimeoutError:
        raise SystemExit(f"no reply on port {client.port} to {call}") from None


# ---- Comparing.

# Calls whose replies vary, so that only their shapes are compared.
SHAPES = re.compile(r"(acl (genpass|log)|client id|hello|lastsave|time|role|latency (history|latest)|slowlog (get|len))\b.*")
# Calls that return ACL rules. Redis 7.0 orders them by a hash table, differently after each start.
RULES = re.compile(r"acl (getuser|list)\b.*")
# Calls that return named values: Tidemark must return all names that Redis returns.
NAMED = re.compile(r"(info|client (info|list)|memory stats)\b.*")
def names(reply):
    """Returns the names in lines name=value or name:value, the titles of sections, and the keys of maps."""
    kind, value = reply
    if kind == "%":
        return {key[1] for key, _ in value}
    if isinstance(value, list):
        return {item[1] for item in value if isinstance(item[1], str) and re.match("[a-z]", item[1])}
    return set(re.findall(r"^(# \w+|[\w|]+(?=:))", value, re.MULTILINE) or re.findall(r"(?:^| )([a-z-]+)=", value))


def shape(reply):
    """Returns types, lengths and words; for maps the keys."""
    kind, value = reply
    if kind == "%":
        return kind, sorted((key[1], shape(item)) for key, item in value)
    if isinstance(value, list):
        return kind, [shape(item) for item in value]
    return kind, value if kind in "-+" or re.fullmatch("[a-z|-]{4,}", value) else ""


def unordered(reply, words=False):
    """Sorts sets, and with `words` also the words of texts."""
    kind, value = reply
    if kind == "%":
        return kind, [(unordered(key, words), unordered(item, words)) for key, item in value]
    if isinstance(value, list):
        items = [unordered(item, words) for item in value]
        return kind, sorted(items, key=str) if kind == "~" else items
    return (kind, sorted(value.split())) if words and isinstance(value, str) else reply


class Comparison:
    """Counts of equal replies and of intended and unintended differences."""

    def __init__(self):
        self.equal, self.meant, self.wrong = 0, Counter(), []

    def add(self, call, ours, theirs):
        if NAMED.fullmatch(call) and theirs[0] != "-":
            lacking = {name for name in names(theirs) - names(ours) if not LACKING.fullmatch(name)}
            if not lacking:
                self.equal += 1
            else:
                self.wrong.append(f"{call!r} lacks {sorted(lacking)}")
            return
        rules = bool(RULES.fullmatch(call.lower()))
        compared = shape if SHAPES.fullmatch(call) else unordered
        if compared(ours) == compared(theirs) or rules and unordered(ours, True) == unordered(theirs, True):
            self.equal += 1
            return
        text = ours[1] if isinstance(ours[1], str) else str(ours[1])
        for pattern, reply, reason in PURPOSE:
            if pattern.fullmatch(call) and reply.search(text):
                self.meant[reason] += 1
                return
        self.wrong.append(f"{call!r}\n    ours   {str(ours)[:300]}\n    Redis  {str(theirs)[:300]}")


def generated(ports, protocol, comparison):
    ours, theirs = (Client(port, protocol) for port in ports)
    covered = 0
    for name, spec, arity in table(ports):
        if name in BY_HAND:
            continue
        covered += 1
        seen = set()
        for call in variants(name, spec, arity):
            if tuple(call) not in seen:
                seen.add(tuple(call))
                comparison.add(" ".join(call), answered(ours, call), answered(theirs, call))
    return covered


# ---- COMMAND DOCS and ACL categories.

# History and deprecation.
OLD = {"history", "doc_flags", "deprecated_since", "replaced_by"}


def arguments(described):
    """Returns the arguments without their history and without the names of groups."""
    found = []
    for argument in described:
        one = {name: argument.get(name) for name in ("type", "token", "key_spec_index")}
        one["name"] = None if argument["type"] in ("oneof", "block", "pure-token") else argument["name"]
        one["flags"] = sorted(argument.get("flags", []))
        one["parts"] = arguments(argument.get("arguments", []))
        if argument["type"] == "block" and len(one["parts"]) == 1:
            inner = one["parts"][0]  # a block with one part is that part
            one = inner | {"flags": sorted(inner["flags"] + one["flags"]), "token": one["token"] or inner["token"]}
        found.append(one)
    return found


def documented(ports, comparison):
    """Compares COMMAND DOCS of all common commands."""

    def all_docs(port):
        found = {}

        def add(docs):
            for name, doc in docs.items():
                found[name] = doc
                add(doc.get("subcommands", {}))

        add(plain(Client(port, 3).ask("COMMAND", "DOCS")))
        return found

    ours, theirs = (all_docs(port) for port in ports)
    for name in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[name], theirs[name]
        same = arguments(mine.get("arguments", [])) == arguments(other.get("arguments", []))
        assert not (same and name in OTHER_ARGUMENTS), f"{name} is no longer an exception"
        comparison.add(f"docs of {name}", *[(doc["since"], doc["group"]) for doc in (mine, other)])
        if name in OTHER_ARGUMENTS:
            comparison.meant[OTHER_ARGUMENTS[name]] += 1
        else:
            comparison.add(f"arguments of {name}", *[("", arguments_text(doc)) for doc in (mine, other)])
            lacking = other.keys() - mine.keys() - OLD
            comparison.add(f"keys of the docs of {name}", ("", str(sorted(lacking))), ("", "[]"))
    return len(ours.keys() & theirs.keys())


def categorised(ports, comparison):
    """Compares the ACL categories of all common commands."""

    def all_categories(port):
        found = {}

        def add(info):
            found[info[0]] = sorted(set(info[6]) - {"@fast", "@slow"})
            for sub in info[9]:
                add(sub)

        for info in plain(Client(port, 3).ask("COMMAND")):
            add(info)
        return found

    ours, theirs = (all_categories(port) for port in ports)
    for name in ours.keys() & theirs.keys():
        if name in OTHER_CATEGORIES and ours[name] != theirs[name]:
            comparison.meant[OTHER_CATEGORIES[name]] += 1
        else:
            assert name not in OTHER_CATEGORIES, f"{name} is no longer an exception"
            comparison.add(f"categories of {name}", ("", str(ours[name])), ("", str(theirs[name])))


def arguments_text(doc):
    return str(arguments(doc.get("arguments", [])))


# ---- Tests with several calls. `B> ` is another client of the same server.


# Prefix of a line of MONITOR before the command: time and address.
SHOWN = re.compile(r"\d+\.\d+ \[\d+ [^\]]*\] ")


def is_message(frame):
    """Whether a frame is a push message to a subscriber or a MONITOR client."""
    kind, value = frame
    if isinstance(value, list):
        return bool(value) and value[0][1] in ("message", "pmessage", "smessage")
    return kind == "+" and SHOWN.match(value) is not None


def sequences():
    """Returns the titles and the lines of the sequences."""
    for block in Path(__file__).with_name("in_rows.txt").read_text().strip().split("\n# "):
        title, *lines = block.removeprefix("# ").split("\n")
        yield title, lines


class Played:
    """A client in a sequence, which separates push messages from replies."""

    def __init__(self, port, protocol):
        self.client, self.messages, self.closed = Client(port, protocol), [], False

    def reply(self):
        while is_message(frame := self.client.read()):
            self.messages.append(frame if isinstance(frame[1], list) else (frame[0], SHOWN.sub("", frame[1])))
        return frame

    def ask(self, words):
        """Returns all replies to a request; there are several if it names several channels."""
        if self.closed:
            return [("closed", "")]
        self.client.send(words)
        several = len(words) - 1 if "SUBSCRIBE" in words[0].upper() else 1
        replies = []
        try:
            while len(replies) < max(several, 1):
                replies.append(self.reply())
                if replies[-1][0] in "-+":
                    break
        except Closed:
            self.closed = True
            replies.append(("closed", ""))
        except TimeoutError:
            raise SystemExit(f"no reply on port {self.client.port} to {words}") from None
        return replies


def played(port, protocol, lines):
    """Returns the replies of each line, and finally the push messages."""
    clients = {"A": Played(port, protocol), "B": Played(port, protocol)}
    for made in MADE:
        clients["A"].ask(made)
    heard = [clients["B" if line.startswith("B> ") else "A"].ask(parse(line.removeprefix("B> "))) for line in lines]
    for client in clients.values():
        heard.append(client.ask(["RESET"]))
        heard.append(client.messages)
        client.client.socket.close()
    return heard


def in_rows(ports, protocol, comparison):
    """Compares all sequences."""
    for title, lines in sequences():
        ours, theirs = (played(port, protocol, lines) for port in ports)
        for line, mine, other in zip(lines + [f"{title}: what came by itself"] * 4, ours, theirs, strict=True):
            call = line.removeprefix("B> ").lower()
            one = len(mine) == len(other) == 1
            comparison.add(call, *((mine[0], other[0]) if one else (("*", mine), ("*", other))))


def through_cli(ports, comparison):
    """Compares the output of redis-cli for sequences with one client. Skips intended differences and lines that redis-cli treats differently."""
    left_out = re.compile(r"(quit|subscribe|psubscribe|ssubscribe|monitor|hello 3|reset|shutdown|client kill|client reply|acl|auth).*", re.IGNORECASE)
    for flag in ("-2", "-3"):
        for title, lines in sequences():
            if any(line.startswith("B> ") or left_out.fullmatch(line) for line in lines):
                continue
            lines = [line for line in lines if not meant(line)]
            printed = []
            for port in ports:
                answered(Client(port, 2), ["PING"])  # recreates the keys
                command = ["redis-cli", "-p", str(port), flag, "--no-raw"]
                done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=TIMEOUT)
                printed.append(done.stdout + done.stderr)
            comparison.add(f"redis-cli {flag}: {title}", *[("", text) for text in printed])


def meant(line):
    """Whether the replies to a line may differ."""
    return any(pattern.fullmatch(line.lower()) for pattern in (SHAPES, NAMED)) or any(
        pattern.fullmatch(line) and pattern.pattern != ".*" for pattern, _, _ in PURPOSE
    )


def main():
    ports, comparison = [int(port) for port in sys.argv[1:3]], Comparison()
    described = documented(ports, comparison)
    categorised(ports, comparison)
    for protocol in (2, 3):
        called = generated(ports, protocol, comparison)
        in_rows(ports, protocol, comparison)
    through_cli(ports, comparison)
    for wrong in comparison.wrong:
        print(wrong)
    for reason, times in comparison.meant.most_common():
        print(f"{times:5} on purpose: {reason}")
    unused = {reason for _, _, reason in PURPOSE} - comparison.meant.keys()
    if comparison.wrong or unused:
        sys.exit(f"{len(comparison.wrong)} replies differ; reasons that nothing needs: {sorted(unused)}")
    print(f"ok: {called} verbs called, {described} described, {comparison.equal} replies equal")


if __name__ == "__main__":
    main()
