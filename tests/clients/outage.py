"""Measures how long writes fail, by client library. A process of each client writes continuously with the default options of its library. Three cases:
- a planned SENTINEL FAILOVER: three stock Sentinels, a master and a replica; clients ask the Sentinels for the master;
- kill -9 of the master in the same setup;
- kill -9 of a single node, which restarts immediately; the cluster clients of the libraries treat it as a cluster.

    outage.py --server PATH_TO_TIDEMARK --modules NODE_MODULES_FOLDER --python OLD,NEW --programs NAME=PATH[,NAME=PATH] [--redis]

The longest window without an acknowledged write must be at most LIMIT_S + SLACK_S seconds. --redis: the same with redis-server.
"""
import argparse, os, subprocess, sys, threading, time

import redis

from nodes import Node, scratch, start_sentinels, until

# The promised limit.
LIMIT_S = 3.0
# Tolerance for a busy machine: dozens of processes connect at the same moment.
SLACK_S = float(os.environ.get("TIDEMARK_OUTAGE_SLACK_S", "2"))
# Time until a Sentinel considers a silent node down.
DOWN_AFTER_MS = 1000


class Writer:
    """A client process, and the times of its acknowledged writes."""

    def __init__(self, name, command, mode, ports, post):
        self.name, self.mode, self.times, self.errors = f"{name}, {mode}", mode, [], []
        command = command + [mode, ",".join(map(str, ports)), str(post)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "ok":
                self.times.append(float(rest))
            else:
                self.errors.append(line.strip())

    def writes_since(self, moment):
        return sum(1 for t in self.times[-50:] if t > moment)

    def outage(self, began, ended):
        """Returns the longest time between two acknowledged writes."""
        before = max((t for t in self.times if t < began), default=began)
        times = [before] + [t for t in self.times if began <= t <= ended] + [ended]
        return max(b - a for a, b in zip(times, times[1:]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--modules")
    parser.add_argument("--python", required=True)
    parser.add_argument("--programs", default="")
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("outage-", args.keep) as folder:
        play(args, folder)


def clients(args):
    """Returns name and command of each available library."""
    here = os.path.dirname(os.path.abspath(__file__))
    found = [(f"redis-py {os.path.basename(os.path.dirname(os.path.dirname(p)))}", [p, "-B", os.path.join(here, "writer.py")])
             for p in args.python.split(",")]
    if args.modules:
        found += [(library, ["node", os.path.join(here, "writer.js"), args.modules, library]) for library in ("ioredis", "node-redis")]
    for program in filter(None, args.programs.split(",")):
        name, _, path = program.partition("=")
        found.append((name, path.split(" ")))
    return found


def play(args, folder):
    # The last node is a single one without a replica.
    nodes = [Node(None if args.redis else args.server, folder, n) for n in range(3)]
    alone = nodes[2]
    sentinels, writers = [], []
    try:
        nodes[0].start()
        until("the master is up", lambda: nodes[0].client().ping())
        nodes[1].start(nodes[0].proxy.port)
        until("the replica is up", nodes[1].is_up)
        if not args.redis:
            alone.start()
            until("the single node is up", lambda: alone.client().ping())
        ports, sentinels = start_sentinels(folder, {"m": nodes[0].proxy.port}, down_after_ms=DOWN_AFTER_MS)
        watch = [redis.Redis(port=p, decode_responses=True, socket_timeout=3) for p in ports]
        until("sentinels know each other", lambda: all(
            len(w.sentinel_sentinels("m")) == 2 and len(w.sentinel_slaves("m")) == 1 for w in watch))
        for name, command in clients(args):
            for mode, places in (("sentinel", ports), ("cluster", [alone.proxy.port])):
                if mode == "cluster" and args.redis:
                    continue
                writers.append(Writer(name, command, mode, places, 1000 + len(writers)))
        began = time.time()
        try:
            until("all clients write", lambda: all(w.writes_since(began) >= 20 for w in writers), 60)
        except SystemExit:
            print([(w.name, w.times[-1:], w.errors[-3:]) for w in writers if w.writes_since(began) < 20], file=sys.stderr)
            raise
        worst = {}

        def note(what, mode, began):
            ended = time.time()
            for writer in [w for w in writers if w.mode == mode]:
                worst[writer.name, what] = writer.outage(began, ended)
                print(f"  {writer.name:40} {worst[writer.name, what]:6.2f} s without a write; {len(writer.errors)} errors, last: "
                      f"{(writer.errors or ['none'])[-1][:90]}", flush=True)
                writer.errors.clear()

        if not args.redis:
            time.sleep(1)
            began = time.time()
            alone.process.kill()
            alone.process.wait()
            alone.start()
            time.sleep(6)
            print("kill -9 of a single node and immediate restart:")
            note("kill -9 of a single node", "cluster", began)
        for what in ("planned failover", "kill -9"):
            named = {w.sentinel_get_master_addr_by_name("m")[1] for w in watch}
            assert len(named) == 1, named
            address = named.pop()
            old = next(n for n in nodes if n.proxy.port == int(address))
            time.sleep(1)
            began = time.time()
            if what == "kill -9":
                old.process.kill()
                old.process.wait()
            else:
                watch[0].execute_command("SENTINEL", "FAILOVER", "m")
            until("Sentinels have another master", lambda: all(w.sentinel_get_master_addr_by_name("m")[1] != address for w in watch))
            switched = time.time() - began
            # Sentinel turns the old master into a replica ten seconds later.
            time.sleep(12)
            print(f"{what}: all Sentinels named the new master after {switched:.2f} s")
            note(what, "sentinel", began)
            if what == "kill -9":
                break
            until("the old master is a connected replica", old.is_up)
            until("Sentinels see a replica to promote", lambda: all(
                [s["flags"] == "slave" and s["master-link-status"] == "ok" for s in w.sentinel_slaves("m")] == [True] for w in watch))
        late = {name: round(seconds, 2) for name, seconds in worst.items() if seconds > LIMIT_S + SLACK_S}
        assert args.redis or not late, f"writes failed for longer than {LIMIT_S} + {SLACK_S} s: {late}"
    finally:
        for process in [writer.process for writer in writers] + sentinels:
            process.kill()
            process.wait()
        for node in nodes:
            node.end()


main()
