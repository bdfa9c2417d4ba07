"""Kills a master and its replica at random moments under random writes, and compares them with a model in Python.

Four workers write, each to its own ids, so the model knows each cell: a counter (space, id, field) or a flag (space, id, member). Concurrently, an operator
alters spaces, spills, rolls, rebuilds filters and takes snapshots. Each round ends with one event: kill -9 or SIGTERM of a node, FAILOVER, or the loss of a
replica's data. With fsync = always, an acknowledged write must survive. A write without a reply may be present or not, but only as a whole. A write with a
token is sent again and must count once. Then the script reads all cells from both nodes:
- counters, and members of spaces with a ledger, equal the model;
- the counter of an action with a ledger is the number of its members;
- filters without a ledger contain all set pairs that were not recycled; false positives are counted;
- two counters that only transactions change in opposite directions have the sum 0.

    kill_loops.py --server PATH_TO_TIDEMARK [--minutes 5] [--seed 1] [--keep]

The first difference ends the run and keeps the folders of both nodes.
"""
import argparse, collections, random, shutil, signal, struct, subprocess, threading, time
from typing import NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from nodes import Node, scratch, until

WORKERS, BATCH, MEMBERS = 4, 16, 8
# Maximum number of ids in a page with AMONG.
MAX_IDS = 1024
# Ids: a growing range, and some distant ones.
DENSE, WINDOW, USERS = 1500, 100, 40
FAR = [base + n for base in (2**40, 2**60, 2**64 - 16) for n in range(16)]
FIELDS = ("seen", "hits", "score")
EXACT, FILTERS = ("liked", "tag"), ("liked", "tag", "seen", "mark")
# Small tables, so that they roll and spill all the time.
CONFIG = """
counter = [{ name = "post", fields = "like:4 seen:4 hits:6 score:8", rows = "post:{id}", rows_per_table = 64 },
           { name = "user", fields = "once:4 balance:4", rows = "user:{id}", rows_per_table = 64, spill = false }]
existence = [{ name = "liked", pairs = "liked:{id}", pairs_per_table = 256, ledger = "exact" },
             { name = "tag", pairs = "tag:{id}", pairs_per_table = 256, ledger = "exact" },
             { name = "seen", pairs = "seen:{id}", pairs_per_table = 256 },
             { name = "mark", pairs = "mark:{id}", pairs_per_table = 256, spill = false, max_tables = 2 }]
view = [{ name = "home", counters = ["post.like", "post.seen", "post.hits", "post.score"], flags = ["liked", "tag", "seen", "mark"] }]
action = [{ name = "like", flag = "liked", counter = "post.like" }, { name = "see", flag = "seen", counter = "post.seen" }]
[server]
port = %d
workers = 2
memory = 67108864
[durability]
dir = "%s/data"
fsync = "always"
snapshot_log = 1048576
"""


class Member(Node):
    address = property(lambda self: self.port)

    def config(self, follows):
        return CONFIG % (self.port, self.folder) + (f'[replication]\nreplicaof = "127.0.0.1 {follows}"\n' if follows else "")


class Op(NamedTuple):
    """Commands with one common reply: their effects on cells and the valid replies of the last one."""
    commands: list
    effects: list
    right: list
    token: bool = False


def after(value, kind, by):
    """Returns the value of a cell after an effect. An action does not decrement a counter below 0."""
    return by if kind == "set" else value + by if kind == "add" else max(0, value + by)


class Worker:
    def __init__(self, number, rng, totals):
        self.number, self.rng, self.totals = number, rng, totals
        self.dense, self.tokens, self.cells = WINDOW, 0, {}
        # Possible values of cells after writes without a reply, and those of these writes that have a token.
        self.open, self.resend = {}, []
        self.wrong = []

    def value(self, *cell):
        return self.cells.get(cell, 0)

    def some_id(self):
        """Returns a new id most of the time, often an old one."""
        kind = self.rng.random()
        if kind < 0.15:
            choice = self.rng.choice(FAR)
        elif kind < 0.4:
            choice = self.rng.randrange(WORKERS, self.dense)
        else:
            self.dense = min(DENSE, self.dense + (self.rng.random() < 0.04))
            choice = self.rng.randrange(max(WORKERS, self.dense - WINDOW), self.dense)
        return choice - choice % WORKERS + self.number

    def some_op(self):
        id, member, delta = self.some_id(), self.rng.randrange(MEMBERS), self.rng.choice((1, 1, 3, -2, 1000, 1 << 33))
        user, other = (n * WORKERS + self.number for n in self.rng.sample(range(USERS), 2))
        is_set = lambda space: self.value(space, id, member)
        kind = self.rng.choices(("hincrby", "hset", "both", "like", "see", "tag", "mark", "forget", "token", "move"), (3, 2, 2, 6, 4, 5, 3, 0.3, 2, 2))[0]
        if kind == "hincrby":
            hits = self.value("post", id, "hits") + delta
            return Op([["HINCRBY", f"post:{id}", "hits", delta]], [(("post", id, "hits"), "add", delta)], [hits])
        if kind == "hset":
            return Op([["HSET", f"post:{id}", "score", delta]], [(("post", id, "score"), "set", delta)], [0, 1])
        if kind == "both":
            sums = [self.value("post", id, "hits") + 1, self.value("post", id, "score") + delta]
            return Op([["CNT.INCRBY", "post", id, "hits", 1, "score", delta]],
                      [(("post", id, "hits"), "add", 1), (("post", id, "score"), "add", delta)], [sums])
        if kind in ("like", "see"):
            space, sets = {"like": "liked", "see": "seen"}[kind], self.rng.random() < 0.65
            right = [[int(is_set(space) != sets)]]
            effects = [((space, id, member), "set", int(sets))]
            if kind == "see":
                # The filter may have a false positive, and the counter follows the filter.
                right += [[1 - right[0][0]]] if not is_set(space) else []
                effects.append((("post", id, "seen"), "by reply", 1 if sets else -1))
            return Op([["FEED.ACT" if sets else "FEED.UNDO", kind, member, id]], effects, right)
        if kind == "tag":
            sets = self.rng.random() < 0.65
            return Op([["SADD" if sets else "SREM", f"tag:{id}", member]], [(("tag", id, member), "set", int(sets))], [int(is_set("tag") != sets)])
        if kind == "mark":
            sets = self.rng.random() < 0.8
            right = [[None], [int(is_set("mark") != sets)]] + ([] if is_set("mark") else [[0], [1]])
            return Op([["PH.ADD" if sets else "PH.DEL", "mark", member, id]], [(("mark", id, member), "set", int(sets))], right)
        if kind == "forget":
            flags = [(space, id, member) for space in FILTERS for member in range(MEMBERS)]
            return Op([["TM.FORGET", "post", id]], [(cell, "set", 0) for cell in flags + [("post", id, field) for field in FIELDS]], [0, 1])
        if kind == "token":
            self.tokens += 1
            return Op([["CNT.INCRBY", "user", user, "once", delta, "TOKEN", f"{self.number}.{self.tokens}"]],
                      [(("user", user, "once"), "add", delta)], [[self.value("user", user, "once") + delta]], token=True)
        sums = [self.value("user", user, "balance") + delta, self.value("user", other, "balance") - delta]
        return Op([["MULTI"], ["HINCRBY", f"user:{user}", "balance", delta], ["HINCRBY", f"user:{other}", "balance", -delta], ["EXEC"]],
                  [(("user", user, "balance"), "add", delta), (("user", other, "balance"), "add", -delta)], [sums])

    def answered(self, op, reply):
        self.totals["ops"] += 1
        # In a command for several ids, the error replaces the reply of the refused id.
        refusal = reply[0] if isinstance(reply, list) else reply
        if isinstance(refusal, redis.ResponseError):
            self.totals[f"refused: {str(refusal)[:70]}"] += 1
            return
        if reply not in op.right:
            self.wrong.append(f"{op.commands} answered {reply}, not {op.right}")
        for cell, kind, by in op.effects:
            if kind != "by reply" or reply == [1]:
                self.cells[cell] = after(self.value(*cell), kind, by)

    def unanswered(self, ops):
        """Records writes without a reply: each was executed after the previous ones or not at all."""
        last = {}
        for op in ops:
            if op.token:
                self.resend.append(op)
                continue
            for cell, kind, by in op.effects:
                now = last.get(cell, {self.value(*cell)})
                last[cell] = {after(value, kind, by) for value in now} | (now if kind == "by reply" else set())
                self.open[cell] = self.open.get(cell, now) | last[cell]
        self.totals["unanswered"] += len(ops)

    def work(self, port, stop):
        """Writes batches of distinct ids until it is stopped or the node is down."""
        connection, ops = None, []
        try:
            connection = redis.Connection(port=port, socket_timeout=60, retry=Retry(NoBackoff(), 0), decode_responses=True)
            connection.connect()
            while not stop.is_set():
                touched = set()
                for op in [self.some_op() for _ in range(self.rng.randrange(1, BATCH))]:
                    ids = {cell[1] for cell, *_ in op.effects}
                    if not ids & touched:
                        ops.append(op)
                        touched |= ids
                connection.send_packed_command(connection.pack_commands([words for op in ops for words in op.commands]))
                while ops:
                    for _ in ops[0].commands:
                        try:
                            reply = connection.read_response()
                        except redis.ResponseError as error:
                            reply = error
                    self.answered(ops.pop(0), reply)
                if isinstance(reply, redis.ResponseError) and "READONLY" in str(reply):
                    return
        except (redis.RedisError, OSError):
            self.unanswered(ops)
        finally:
            if connection:
                connection.disconnect()

    def send_again(self, client):
        while self.resend:
            client.execute_command(*self.resend[0].commands[0])
            for cell, _, by in self.resend.pop(0).effects:
                self.cells[cell] = self.value(*cell) + by
        return True

    def compare(self, cells, says, likes, where):
        """Compares the content of a node with the model, which then adopts unknown values."""
        for cell, flag in says.items():
            known = self.open.get(cell, {self.value(*cell)})
            if cell[0] == "mark" and flag < 0:
                self.totals["recycled"] += self.value(*cell)
                self.cells.pop(cell, None)
                self.open.pop(cell, None)
                continue
            # A filter may have false positives, but never false negatives.
            if flag == 1 and (cells[cell] == 0 if cell in cells else known == {0}):
                self.totals["false positives"] += 1
            elif cells.setdefault(cell, flag) != flag:
                self.wrong.append(f"{where}: the filter says {flag} to {cell}, which is {cells[cell]}")
        members = collections.Counter(id for (space, id, _), flag in cells.items() if space == "liked" and flag)
        self.wrong += [f"{where}: post:{id} has {like} likes and {members[id]} members" for id, like in likes.items() if like != members[id]]
        if total := sum(value for cell, value in cells.items() if cell[2] == "balance"):
            self.wrong.append(f"{where}: half of a transaction: the sum is {total}")
        for cell, value in cells.items():
            right = self.open.get(cell, {self.value(*cell)})
            if value not in right:
                self.wrong.append(f"{where}: {cell} is {value}, not {sorted(right)}: {'lost' if value < min(right) else 'wrong'}")
            elif value or cell in self.cells:
                self.cells[cell] = value
        self.totals["compared"] += len(cells)
        self.open = {}


def compare(node, workers, where):
    """Reads all cells of a node, its filters, and the likes of each post. Each worker compares its own part."""
    client = redis.Redis(port=node.port, socket_timeout=60)
    ids, users = range(1, max(worker.dense for worker in workers) + WORKERS), range(USERS * WORKERS)
    cells, says, likes = {}, {}, {}
    for some in (ids, FAR):
        for member in range(MEMBERS):
            page = client.execute_command("FEED.GET", "home", member, *some, "BINARY")
            for id, (like, *values) in zip(some, struct.iter_unpack("<4q4b", page)):
                likes[id] = like
                cells |= {("post", id, field): value for field, value in zip(FIELDS, values)}
                says |= {(space, id, member): flag for space, flag in zip(FILTERS, values[len(FIELDS):])}
    for space in EXACT:
        cells |= {(space, id, member): 0 for id in (*ids, *FAR) for member in range(MEMBERS)}
        cursor = 0
        while True:
            cursor, pairs = client.execute_command("PH.SCAN", space, cursor, "COUNT", 10000)
            cells |= {(space, int(id), int(member)): 1 for id, member in zip(pairs[::2], pairs[1::2])}
            if int(cursor) == 0:
                break
        # AMONG finds the same members.
        for at in range(0, len(ids), MAX_IDS):
            for some in (ids[at:at + MAX_IDS], FAR):
                page = client.execute_command("FEED.GET", "home", 0, *some, "BINARY", "AMONG", space, "TOP", MEMBERS, *range(MEMBERS))
                for id, (count, *found) in zip(some, struct.iter_unpack(f"<36xq{MEMBERS}Q", page)):
                    if found[:count] != [member for member in range(MEMBERS) if cells[space, id, member]]:
                        workers[0].wrong.append(f"{where}: AMONG finds {count} of {found} in {space}:{id}")
    for user, row in zip(users, client.execute_command("CNT.GET", "user", *users)):
        cells |= {("user", user, field): value for field, value in zip(("once", "balance"), row or (0, 0))}
    for worker in workers:
        own = lambda of: {key: value for key, value in of.items() if (key[1] if isinstance(key, tuple) else key) % WORKERS == worker.number}
        worker.compare(own(cells), own(says), own(likes), where)


class Operator:
    """Changes where the nodes store data, but not the data."""

    def __init__(self, rng, totals):
        self.rng, self.totals, self.added = rng, totals, 0

    def some_words(self, is_master):
        choice = self.rng.choice
        words = [["SAVE"], ["BGSAVE"], ["TM.REBUILD", choice(EXACT)]]
        if not is_master:
            return choice(words)
        existence = choice(FILTERS)
        words += [["TM.SPILL", choice(("post", "liked", "tag", "seen")), self.rng.randrange(1, 9)]] * 4
        words += [["TM.ROLL", choice(("post", "user", existence, "mark"))]] * 2
        words += [["TM.SPACE", "ALTER", "post", choice(("WIDEN", "NARROW")), f"{choice(FIELDS)}:{self.rng.randrange(1, 40)}"]] * 2
        words += [["TM.SPACE", "ALTER", "post", "SET", "rows_per_table", choice((32, 64, 300))]]
        words += [["TM.SPACE", "ALTER", existence, "SET", "pairs_per_table", choice((256, 512))]]
        words += [["TM.SPACE", "ALTER", choice(EXACT), "SET", "false_positive_rate", choice((0.01, 0.001, 0.0001))]]
        if self.added < 50:
            words += [["TM.SPACE", "ALTER", "post", "DROP", f"more{self.added}"], ["TM.SPACE", "ALTER", "post", "ADD", f"more{self.added + 1}:5"]]
        return choice(words)

    def work(self, node, is_master, stop):
        client = node.client(timeout_s=30)
        while not stop.wait(self.rng.uniform(0, 0.3)):
            words = self.some_words(is_master)
            self.added += "ADD" in words
            try:
                client.execute_command(*words)
                self.totals["operator"] += 1
            except redis.ResponseError as error:
                self.totals[f"operator refused: {' '.join(map(str, words[:3]))}: {str(error)[:60]}"] += 1
            except redis.RedisError:
                pass


def disturb(event, master, replica, rng):
    """Ends a round with an event. Returns the new master and the new replica."""
    if event == "failover":
        master.client().execute_command("FAILOVER", "TO", "127.0.0.1", replica.port, "TIMEOUT", 20000)
        until("the roles are switched", lambda: (replica.info().get("role"), master.info().get("role")) == ("master", "slave"))
        return replica, master
    victims = {"master": [master], "replica": [replica], "both": [master, replica]}[event.split()[1]]
    for node in victims:
        node.process.send_signal(signal.SIGTERM if event.startswith("term") else signal.SIGKILL)
    for node in victims:
        assert node.process.wait() == (0 if event.startswith("term") else -signal.SIGKILL), f"node {node.number} ended with {node.process.returncode}"
        if rng.random() < 0.1:
            subprocess.run([node.server, "check", f"{node.folder}/data"], check=True, stdout=subprocess.DEVNULL)
    for node in victims:
        if event == "wipe replica":
            shutil.rmtree(f"{node.folder}/data")
        node.start()
        if event.startswith("again"):
            # Kill it again during startup.
            time.sleep(rng.uniform(0, 0.2))
            node.process.kill()
            node.process.wait()
            node.start()
    if event == "wipe replica":
        until("the replica is connected again", lambda: replica.client().execute_command("REPLICAOF", "127.0.0.1", master.port))
    return master, replica


def in_step(master, replica):
    ends = master.info().get("master_repl_offset"), replica.info().get("slave_repl_offset")
    return replica.is_up() and replica.info().get("role") == "slave" and ends[0] == ends[1]


def play(args, folder):
    rng, totals = random.Random(args.seed), collections.Counter()
    master, replica = nodes = [Member(args.server, folder, n) for n in range(2)]
    workers = [Worker(n, random.Random(args.seed * 1000 + n), totals) for n in range(WORKERS)]
    operators = [Operator(random.Random(args.seed * 1000 + 100 + n), totals) for n in range(2)]
    events = {"kill master": 5, "kill replica": 3, "kill both": 1, "again master": 1, "again replica": 1, "wipe replica": 1,
              "term master": 1, "term replica": 1, "failover": 2}
    try:
        master.start()
        until("the master is up", lambda: master.client().ping())
        replica.start(master.port)
        until("the replica is connected", replica.is_up)
        end, round = time.time() + 60 * args.minutes, 0
        while time.time() < end:
            round += 1
            event, stop = rng.choices(list(events), list(events.values()))[0], threading.Event()
            threads = [threading.Thread(target=worker.work, args=(master.port, stop)) for worker in workers]
            threads += [threading.Thread(target=operators[node is replica].work, args=(node, node is master, stop)) for node in (master, replica)]
            for thread in threads:
                thread.start()
            time.sleep(rng.uniform(0.2, 3))
            master, replica = disturb(event, master, replica, rng)
            stop.set()
            for thread in threads:
                thread.join()
            until("the master is up", lambda: master.client().ping())
            for worker in workers:
                # A restarted master accepts no writes until a replica follows it.
                until("the master accepts writes", lambda: worker.send_again(master.client(timeout_s=30)))
            compare(master, workers, f"round {round}, {event}, master {master.number}")
            until("the replica has caught up", lambda: in_step(master, replica))
            compare(replica, workers, f"round {round}, {event}, replica {replica.number}")
            totals[event] += 1
            wrong = [text for worker in workers for text in worker.wrong]
            kills = sum(count * (2 if name in ("kill both", "again master", "again replica") else 1)
                        for name, count in totals.items() if name.startswith(("kill", "again", "wipe")))
            lost = sum(text.endswith("lost") for text in wrong)
            print(f"round {round}: {event}; so far {kills} kills, {totals['ops']} ops, {totals['unanswered']} without a reply, "
                  f"{totals['operator']} by the operator, {totals['compared']} values compared, {lost} lost, {len(wrong) - lost} wrong, "
                  f"{totals['false positives']} false positives, {totals['recycled']} recycled", flush=True)
            assert not wrong, "\n".join(wrong[:40])
        print(f"seed {args.seed}, {round} rounds: {dict(sorted(totals.items()))}")
    finally:
        for node in nodes:
            node.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("kill-loops-", args.keep) as folder:
        play(args, folder)


main()
