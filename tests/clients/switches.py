"""Planned switches beside three stock redis-sentinels, under writers that never pause.

Each round exchanges the roles by one order. Four writers ask Sentinel for the master as clients do, and note each write that was acknowledged.
At the end every acknowledged write must be there. No node may acknowledge a write that was sent after another node had acknowledged one.

    switches.py --server PATH_TO_TIDEMARK [--by sentinel,failover,replicaof,upgrade] [--rounds 3] [--replicas 1] [--min-replicas 0] [--redis] [--keep]

--redis: the same with redis-server in the nodes' place, to compare.
"""
import argparse, os, subprocess, threading, time

import redis

from nodes import Node, scratch, until
from proxy import free_port

WRITERS, DOWN_AFTER_MS = 4, 1000
# One row that all writers increment, and rows of their own behind it.
SHARED, FIRST = 1, 1000


class Direct(Node):
    """A node without a proxy, with default settings."""

    min_replicas = 0

    def config(self, follows):
        lines = ["[server]", f"port = {self.port}", "[durability]", f'dir = "{self.folder}/data"', "[replication]"]
        lines += [f"min_replicas_to_write = {self.min_replicas}"] if self.min_replicas else []
        return "\n".join(lines + ([f'replicaof = "127.0.0.1 {follows}"'] if follows else [])) + "\n"

    def redis_config(self, follows):
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", "save ''", "appendonly yes", "repl-diskless-sync-delay 0"]
        lines += [f"min-replicas-to-write {self.min_replicas}"] if self.min_replicas else []
        return "\n".join(lines + ([f"replicaof 127.0.0.1 {follows}"] if follows else [])) + "\n"


class Writers:
    def __init__(self, sentinels):
        self.stop, self.lock = threading.Event(), threading.Lock()
        # Acknowledged writes: when sent, when answered, by which port, and the row.
        self.acked, self.shared, self.errors = [], 0, {}
        self.sentinels = sentinels
        self.threads = [threading.Thread(target=self.write, args=(n,), daemon=True) for n in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def write(self, number):
        finders = [redis.Redis(port=port, decode_responses=True, socket_timeout=1) for port in self.sentinels]
        client, sent, port, asked = None, 0, None, number
        while not self.stop.is_set():
            try:
                if client is None:
                    # As most clients do. redis-py asks SENTINEL MASTERS, where the leader names the old master until all replicas have moved.
                    asked += 1
                    port = int(finders[asked % 3].sentinel_get_master_addr_by_name("m")[1])
                    client = redis.Redis(port=port, socket_timeout=30)
                sent += 1
                row = FIRST + number + WRITERS * sent
                began = time.monotonic()
                client.hincrby(f"post:{row}", "like", 1)
                with self.lock:
                    self.acked.append((began, time.monotonic(), port, row))
                client.hincrby(f"post:{SHARED}", "read", 1)
                with self.lock:
                    self.shared += 1
            except (redis.RedisError, OSError) as error:
                with self.lock:
                    said = str(error)[:60]
                    self.errors[said] = self.errors.get(said, 0) + 1
                client = None
                time.sleep(0.01)

    def answered_since(self, moment):
        with self.lock:
            return [ack for ack in self.acked if ack[0] > moment]

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def start_sentinels(folder, master):
    ports, processes = [free_port() for _ in range(3)], []
    for n, port in enumerate(ports):
        conf = os.path.join(folder, f"sentinel{n}.conf")
        with open(conf, "w") as f:
            f.write(f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor m 127.0.0.1 {master} 2\n")
            f.write(f"sentinel down-after-milliseconds m {DOWN_AFTER_MS}\nsentinel failover-timeout m 6000\n")
        processes.append(subprocess.Popen(["redis-sentinel", conf], stdout=open(conf + ".log", "w"), stderr=subprocess.STDOUT))
    return ports, processes


def longest_gap(acks):
    times = sorted(ack[1] for ack in acks)
    return max((b - a for a, b in zip(times, times[1:])), default=0)


def overlapping(acks, switches):
    """Writes that an old master acknowledged although they were sent after the new one had acknowledged one."""
    wrong = []
    for (began, old, new), after in zip(switches, [began for began, *_ in switches[1:]] + [float("inf")]):
        first = min(ack[1] for ack in acks if ack[2] == new and ack[0] > began)
        wrong += [ack for ack in acks if ack[2] == old and first < ack[0] < after]
    return wrong


def play(args, folder):
    Direct.min_replicas = args.min_replicas
    nodes = [Direct(None if args.redis else args.server, folder, n) for n in range(1 + args.replicas)]
    sentinels = []
    try:
        nodes[0].start()
        until("the master is up", lambda: nodes[0].client().ping())
        for node in nodes[1:]:
            node.start(nodes[0].port)
        until("the replicas follow", lambda: all(node.is_up() for node in nodes[1:]))
        ports, sentinels = start_sentinels(folder, nodes[0].port)
        watch = [redis.Redis(port=port, decode_responses=True, socket_timeout=3) for port in ports]
        until("the Sentinels know all", lambda: all(
            len(w.sentinel_sentinels("m")) == 2 and len(w.sentinel_slaves("m")) == args.replicas for w in watch))
        named = lambda: {int(w.sentinel_get_master_addr_by_name("m")[1]) for w in watch}
        if not args.redis:
            until("each node is watched", lambda: all(node.info().get("repl_sentinels") == 3 for node in nodes))
        writers, gaps, agreed, switches = Writers(ports), {}, {}, []
        until("writes are acknowledged", lambda: len(writers.acked) > 50)
        for round in range(args.rounds):
            by = args.by.split(",")[round % len(args.by.split(","))]
            until("the Sentinels agree", lambda: len(named()) == 1)
            old = next(node for node in nodes if node.port in named())
            others = [node for node in nodes if node is not old]
            until("the others follow", lambda: all(node.info().get("master_port") == old.port and node.is_up() for node in others))
            if by == "sentinel":
                # It chooses from what it has heard last, up to ten seconds ago.
                until("the Sentinels see them", lambda: all(
                    len([s for s in w.sentinel_slaves("m") if s["master-link-status"] == "ok" and not s["is_sdown"]]) == args.replicas for w in watch))
            if by == "failover":
                # FAILOVER is refused until two Sentinels have published a hello; `tidemark upgrade` waits for that itself.
                until("the Sentinels have published", lambda: old.info().get("repl_sentinels") == 3)
            time.sleep(0.3)
            began = time.monotonic()
            if by == "sentinel":
                watch[round % 3].execute_command("SENTINEL", "FAILOVER", "m")
            elif by == "upgrade":
                subprocess.run([args.server, "upgrade", "-p", str(old.port), "--to", f"127.0.0.1:{others[0].port}", "--timeout", "10"],
                               check=True, stdout=subprocess.DEVNULL)
            elif by == "failover":
                old.client().execute_command("FAILOVER", "TO", "127.0.0.1", others[0].port, "TIMEOUT", 5000)
            else:
                others[0].client().execute_command("REPLICAOF", "NO", "ONE")
            until("another master", lambda: named() and old.port not in named() and len(named()) == 1)
            agreed.setdefault(by, []).append(time.monotonic() - began)
            new = named().pop()
            switches.append((began, old.port, new))
            until("it acknowledges writes", lambda: any(ack[2] == new for ack in writers.answered_since(began)))
            until("the old master follows", lambda: old.info().get("role") == "slave" and old.is_up())
            until("one is the master", lambda: [node.port for node in nodes if node.info().get("role") == "master"] == [new])
            time.sleep(0.3)
            gap = longest_gap([ack for ack in list(writers.acked) if ack[1] > began - 0.2])
            gaps.setdefault(by, []).append(gap)
            print(f"round {round + 1}: {by}: Sentinels agree after {agreed[by][-1]:.2f} s, {gap:.2f} s without an acknowledged write", flush=True)
        writers.end()
        new = next(node for node in nodes if node.port in named())
        client, lost = new.client(timeout_s=60), []
        acks = writers.acked
        for first in range(0, len(acks), 1000):
            pipe = client.pipeline(transaction=False)
            for ack in acks[first:first + 1000]:
                pipe.hget(f"post:{ack[3]}", "like")
            lost += [ack for ack, held in zip(acks[first:first + 1000], pipe.execute()) if held is None or int(held) != 1]
        shared = int(client.hget(f"post:{SHARED}", "read") or 0)
        print(f"{args.rounds} switches, {args.replicas} replicas: {len(acks) + writers.shared} writes acknowledged, {len(lost)} rows and "
              f"{max(0, writers.shared - shared)} increments lost; longest time without one: "
              + ", ".join(f"{by} {max(all):.2f} s" for by, all in gaps.items())
              + "; Sentinels agree after " + ", ".join(f"{by} {max(all):.2f} s" for by, all in agreed.items()))
        print(f"errors: {writers.errors}")
        assert len(acks) > 100, "hardly anything was written"
        if not args.redis:
            overlaps = overlapping(acks, switches)
            assert not overlaps, f"two masters acknowledged: {overlaps[:5]}"
            assert not lost and shared >= writers.shared, f"acknowledged writes are lost: {lost[:5]}, {writers.shared - shared} increments"
    finally:
        for sentinel in sentinels:
            sentinel.kill()
            sentinel.wait()
        for node in nodes:
            node.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--by", default="sentinel,failover,replicaof")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--min-replicas", type=int, default=0)
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("switches-", args.keep) as folder:
        play(args, folder)


main()
