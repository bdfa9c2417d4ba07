"""Switches of the master with three stock redis-sentinels, under four continuous writers.

Planned switches exchange the roles by a command: sentinel (SENTINEL FAILOVER), failover (FAILOVER TO), replicaof (REPLICAOF NO ONE), upgrade
(tidemark upgrade). Unplanned ones take the master away for at least five seconds, until another one exists: kill (kill -9), stop (SIGSTOP),
cut (its link, while a client on its side keeps writing to it).

The writers ask Sentinel for the master, like clients. With --wait N, a write is acknowledged when WAIT has found it on N replicas, otherwise at its
reply. The script checks that
- each acknowledged write is on the new master after each switch, and on all nodes once the old master follows;
- no node acknowledges a write that was sent after its successor had accepted one;
- the values of a row that all writers increment are distinct, and increase in the order of acknowledgements and requests;
- at the end all nodes are equal, and no row holds anything except the written values.

    switches.py --server PATH_TO_TIDEMARK [--by sentinel,failover,...] [--rounds 3] [--replicas 1] [--wait N] [--min-replicas 0] [--redis] [--keep]

--wait: default all replicas for unplanned switches, else 0. --redis: uses redis-server as the nodes, for comparison.
"""
import argparse, collections, itertools, os, signal, statistics, subprocess, threading, time
from typing import NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from nodes import Node, freeze, scratch, start_sentinels, until

UNPLANNED = {"kill", "stop", "cut"}
WRITERS, WAIT_MS, AWAY_S = 4, 500, 5
# A row that all writers increment, a row to measure the lag of replicas, and from FIRST on one row per write.
SHARED, MARKER, FIRST = 1, 2, 1000


class Direct(Node):
    """A node without a proxy and with default settings."""

    min_replicas = 0

    @property
    def address(self):
        return self.port

    def config(self, follows):
        lines = ["[server]", f"port = {self.port}", "[durability]", f'dir = "{self.folder}/data"', "[replication]"]
        lines += [f"min_replicas_to_write = {self.min_replicas}"] if self.min_replicas else []
        return "\n".join(lines + ([f'replicaof = "127.0.0.1 {follows}"'] if follows else [])) + "\n"

    def redis_config(self, follows):
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", "save ''", "appendonly yes", "repl-diskless-sync-delay 0"]
        lines += [f"min-replicas-to-write {self.min_replicas}"] if self.min_replicas else []
        return "\n".join(lines + ([f"replicaof 127.0.0.1 {follows}"] if follows else [])) + "\n"


def likes(row):
    """Returns the increment of a row, different for each row, so that a misplaced value is recognizable."""
    return 1 if row == SHARED else row * 7919 % 4093 + 1


class Accepted(NamedTuple):
    """A write with a reply."""
    at: float
    port: int
    is_stray: bool


class Ack(NamedTuple):
    """An acknowledged write with its reply."""
    began: float
    at: float
    port: int
    row: int
    value: int


class Writers:
    def __init__(self, sentinels, wait, timeout_s):
        self.wait, self.timeout_s = wait, timeout_s
        self.accepted, self.acked, self.errors = [], [], []
        self.sentinels, self.rows, self.stop = sentinels, itertools.count(FIRST), threading.Event()
        self.threads = [threading.Thread(target=self.follow_sentinels, args=(n,), daemon=True) for n in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def follow_sentinels(self, number):
        finders = itertools.cycle([redis.Redis(port=port, decode_responses=True, socket_timeout=1) for port in self.sentinels])
        # Like most clients. redis-py asks SENTINEL MASTERS, where the leader names the old master until all replicas have moved.
        master = lambda: int(next(finders).sentinel_get_master_addr_by_name("m")[1])
        self.write(lambda: (port := master(), port), self.stop)

    def stray(self, node):
        """Starts a writer that knows only one node and bypasses its proxy. Returns the event that stops it."""
        stop = threading.Event()
        threading.Thread(target=self.write, args=(lambda: (node.port, node.address), stop, True), daemon=True).start()
        return stop

    def write(self, find, stop, is_stray=False):
        client = None
        while not stop.is_set():
            try:
                if client is None:
                    port, address = find()
                    # A single connection, because WAIT covers the writes of its connection.
                    client = redis.Redis(port=port, socket_timeout=self.timeout_s, single_connection_client=True, retry=Retry(NoBackoff(), 0))
                for row in (next(self.rows), SHARED):
                    began = time.monotonic()
                    value = client.hincrby(f"post:{row}", "like", likes(row))
                    self.accepted.append(Accepted(time.monotonic(), address, is_stray))
                    if not self.wait or client.wait(self.wait, WAIT_MS) >= self.wait:
                        self.acked.append(Ack(began, time.monotonic(), address, row, value))
            except (redis.RedisError, OSError) as error:
                if not is_stray:
                    self.errors.append(str(error)[:60])
                client = None
                time.sleep(0.01)

    def accepted_by(self, port, since):
        return any(write.port == port and write.at > since for write in self.accepted[-1000:])

    def gaps(self, since):
        """Returns the longest times without an accepted write and without an acknowledged write."""
        accepted = [write.at for write in self.accepted if not write.is_stray and write.at > since]
        acked = [ack.at for ack in self.acked if ack.at > since]
        return [max((b - a for a, b in zip(times, times[1:])), default=0) for times in (sorted(accepted), sorted(acked))]

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        return next(self.rows)


def overlapping(writers, switches):
    """Returns writes that an old master acknowledged before the next switch, although they were sent after another node had accepted one."""
    wrong = []
    for (began, old, new), after in zip(switches, [began for began, *_ in switches[1:]] + [float("inf")]):
        first = min(write.at for write in writers.accepted if write.port != old and write.at > began)
        wrong += [ack for ack in writers.acked if ack.port == old != new and first < ack.began < after]
    return wrong


def out_of_order(acks):
    """Returns increments of the shared row with a duplicate value, or a value not above one that was acknowledged before they were sent."""
    shared = [ack for ack in acks if ack.row == SHARED]
    count = collections.Counter(ack.value for ack in shared)
    wrong = [ack for ack in shared if count[ack.value] > 1]
    earlier, highest = iter(sorted(shared, key=lambda ack: ack.at)), 0
    before = next(earlier, None)
    for ack in sorted(shared, key=lambda ack: ack.began):
        while before and before.at < ack.began:
            highest, before = max(highest, before.value), next(earlier, None)
        wrong += [ack] if ack.value <= highest else []
    return wrong


def read(node, rows):
    """Returns the values of rows, 0 for missing rows."""
    client, held = node.client(timeout_s=60), {}
    for first in range(0, len(rows), 1000):
        pipe = client.pipeline(transaction=False)
        for row in rows[first:first + 1000]:
            pipe.hget(f"post:{row}", "like")
        held |= {row: int(value or 0) for row, value in zip(rows[first:], pipe.execute())}
    return held


def lost(node, acks):
    """Returns the acknowledged writes that the node lacks."""
    held = read(node, [ack.row for ack in acks])
    return [ack for ack in acks if held[ack.row] < ack.value]


def given_up(args, old):
    """Checks that the log of an old master names the files with its unique data. Returns their folder."""
    with open(os.path.join(old.folder, "log")) as log:
        said = [line for line in log if "is dropped" in line and "kept in " in line]
    assert said, f"node {old.number} does not log the dropped writes"
    folder = said[-1].split("kept in ")[1].split(";")[0].strip()
    dumps = [subprocess.run([args.server, "dump", os.path.join(folder, name)], capture_output=True, text=True) for name in os.listdir(folder)]
    assert dumps and all(dump.returncode == 0 and dump.stdout for dump in dumps), [dump.stderr for dump in dumps]
    return folder


class Play:
    def __init__(self, args, folder):
        self.args, self.folder, self.orders = args, folder, args.by.split(",")
        is_unplanned = bool(UNPLANNED & set(self.orders))
        self.wait = args.wait if args.wait is not None else args.replicas if is_unplanned else 0
        self.timeout_s = 1 if is_unplanned else 30
        Direct.min_replicas = args.min_replicas
        kind = Node if is_unplanned else Direct
        self.nodes = [kind(None if args.redis else args.server, folder, n) for n in range(1 + args.replicas)]
        self.sentinels, self.switches, self.dropped, self.second_failovers = [], [], [], 0
        self.figures = collections.defaultdict(lambda: collections.defaultdict(list))

    def start(self):
        nodes = self.nodes
        nodes[0].start()
        until("the master is up", lambda: nodes[0].client().ping())
        for node in nodes[1:]:
            node.start(nodes[0].address)
        until("the replicas are connected", lambda: all(node.is_up() for node in nodes[1:]))
        ports, self.sentinels = start_sentinels(self.folder, {"m": nodes[0].address}, failover_timeout_ms=6000)
        self.watch = [redis.Redis(port=port, decode_responses=True, socket_timeout=3) for port in ports]
        until("the Sentinels list all nodes", lambda: all(
            len(w.sentinel_sentinels("m")) == 2 and len(w.sentinel_slaves("m")) == self.args.replicas for w in self.watch))
        if not self.args.redis:
            until("each node is watched", lambda: all(node.info().get("repl_sentinels") == 3 for node in nodes))
        self.writers = Writers(ports, self.wait, self.timeout_s)
        until("writes are acknowledged", lambda: len(self.writers.acked) > 50)

    def named(self):
        return {int(w.sentinel_get_master_addr_by_name("m")[1]) for w in self.watch}

    def settled(self):
        """Returns the node that all name as the master and all others follow, or None."""
        masters = [node for node in self.nodes if node.info().get("role") == "master"]
        is_settled = len(masters) == 1 and self.named() == {masters[0].address} and self.others_follow(masters[0])
        return masters[0] if is_settled else None

    def in_step(self):
        """Whether all replicas have all data of the master."""
        master = until("the nodes and Sentinels agree", self.settled)
        client = redis.Redis(port=master.port, socket_timeout=3, single_connection_client=True)
        client.hincrby(f"post:{MARKER}", "like", 1)
        return client.wait(self.args.replicas, 1000) == self.args.replicas

    def others_follow(self, master):
        return all(node.info().get("master_port") == master.address and node.is_up() for node in self.nodes if node is not master)

    def sentinels_see_replicas(self):
        good = lambda replica: replica["master-link-status"] == "ok" and not replica["is_sdown"] and not replica["is_disconnected"]
        return all(sum(map(good, w.sentinel_slaves("m"))) == self.args.replicas for w in self.watch)

    def round(self, number):
        by = self.orders[number % len(self.orders)]
        old = until("the nodes and Sentinels agree", self.settled)
        if by == "sentinel" or by in UNPLANNED:
            # A Sentinel chooses by its last information, which may be ten seconds old.
            until("the Sentinels see the replicas", self.sentinels_see_replicas)
        if by == "failover":
            # FAILOVER is refused until two Sentinels have published a hello; `tidemark upgrade` waits for that.
            until("the Sentinels have published", lambda: old.info().get("repl_sentinels") == 3)
        time.sleep(0.3)
        seen, began = len(self.writers.acked), time.monotonic()
        bring_back = self.take_away(by, old) if by in UNPLANNED else self.order(by, old, number)
        # A client that knows no other node.
        stray = self.writers.stray(old) if bring_back else None
        until("there is a new master", lambda: self.named() and old.address not in self.named() and len(self.named()) == 1)
        agreed = time.monotonic() - began
        new = next(node for node in self.nodes if node.address in self.named())
        until("a new master accepts writes", lambda: any(self.writers.accepted_by(node.address, began) for node in self.nodes if node is not old))
        missing = lost(new, [ack for ack in self.writers.acked[:] if ack.at < began][-1000:])
        if bring_back:
            time.sleep(max(0, began + AWAY_S - time.monotonic()))
            bring_back()
        back = time.monotonic()
        until("the old master is a connected replica", lambda: old.info().get("role") == "slave" and old.is_up())
        if stray:
            stray.set()
        settled = until("the switch is complete", self.settled)
        # On a busy machine, Sentinels may consider the new master down and promote another node, even the old master.
        self.switches.append((began, old.address, settled.address))
        self.second_failovers += settled is not new
        since = time.monotonic()
        until("writes are acknowledged", lambda: self.writers.acked[-1].began > since)
        time.sleep(0.3)
        acks = self.writers.acked[max(0, seen - 1000):]
        until("the replicas have caught up", self.in_step)
        missing += [ack for node in self.nodes for ack in lost(node, acks)]
        if by == "cut" and not self.args.redis:
            self.dropped.append(given_up(self.args, old))
        gaps = self.writers.gaps(began - 0.2)
        took = max((write.at - back for write in self.writers.accepted if write.is_stray and write.at > began), default=0)
        for name, seconds in zip(("Sentinels agree", "no write accepted", "no write acknowledged", "old master took writes"), (agreed, *gaps, max(0, took))):
            self.figures[by][name].append(seconds)
        print(f"round {number + 1}: {by}: " + ", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in self.figures[by].items())
              + f"; {len(self.writers.acked) - seen} acknowledged, {len(missing)} missing", flush=True)
        assert self.args.redis or not missing, f"acknowledged writes are missing: {missing[:5]}"

    def order(self, by, old, number):
        replica = next(node for node in self.nodes if node is not old)
        if by == "sentinel":
            self.watch[number % 3].execute_command("SENTINEL", "FAILOVER", "m")
        elif by == "upgrade":
            subprocess.run([self.args.server, "upgrade", "-p", str(old.port), "--to", f"127.0.0.1:{replica.address}", "--timeout", "10"],
                           check=True, stdout=subprocess.DEVNULL)
        elif by == "failover":
            old.client().execute_command("FAILOVER", "TO", "127.0.0.1", replica.address, "TIMEOUT", 5000)
        else:
            replica.client().execute_command("REPLICAOF", "NO", "ONE")

    def take_away(self, by, old):
        """Takes the master away. Returns the function that restores it."""
        if by == "kill":
            old.process.kill()
            old.process.wait()
            return old.start
        if by == "stop":
            freeze(old.process)
            return lambda: old.process.send_signal(signal.SIGCONT)
        old.proxy.cut()
        return old.proxy.mend

    def check(self):
        writers = self.writers
        end, acks = writers.end(), writers.acked
        new = until("the nodes and Sentinels agree", self.settled)
        until("the replicas have caught up", self.in_step)
        held = [read(node, [SHARED, *range(FIRST, end)]) for node in self.nodes]
        gone = [ack for ack in acks if held[self.nodes.index(new)][ack.row] < ack.value]
        wrong = {row: value for row, value in held[0].items() if row != SHARED and value not in (0, likes(row))}
        overlaps, disorder = overlapping(writers, self.switches), out_of_order(acks)
        print(f"{self.args.rounds} switches, {self.args.replicas} replicas: {len(acks)} writes acknowledged"
              f"{f' by WAIT {self.wait}' if self.wait else ''} of {len(writers.accepted)} accepted; {len(gone)} lost, {len(wrong)} wrong, "
              f"{len(overlaps)} by two masters, {len(disorder)} out of order; "
              f"{self.second_failovers} times another failover followed ({'redis-server' if self.args.redis else 'tidemark'})")
        for by, figures in self.figures.items():
            print(f"  {by}, {len(next(iter(figures.values())))} times: " + ", ".join(
                f"{name} median {statistics.median(seconds):.2f} max {max(seconds):.2f} s" for name, seconds in figures.items()))
        print(f"errors: {dict(collections.Counter(writers.errors))}")
        assert len(acks) > 100 * min(self.args.rounds, 10), "too few writes"
        assert len(set(self.dropped)) == len(self.dropped), "dropped writes were saved twice"
        if not self.args.redis:
            assert not gone, f"acknowledged writes are lost: {gone[:5]}"
            assert not wrong, f"rows have values that were never written: {wrong}"
            assert not overlaps, f"two masters acknowledged: {overlaps[:5]}"
            assert not disorder, f"increments are out of order: {disorder[:5]}"
            assert all(rows == held[0] for rows in held), "the nodes differ"

    def end(self):
        for sentinel in self.sentinels:
            sentinel.kill()
            sentinel.wait()
        for node in self.nodes:
            node.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--by", default="sentinel,failover,replicaof")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--wait", type=int)
    parser.add_argument("--min-replicas", type=int, default=0)
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("switches-", args.keep) as folder:
        play = Play(args, folder)
        try:
            play.start()
            for number in range(args.rounds):
                play.round(number)
            play.check()
        finally:
            play.end()


main()
