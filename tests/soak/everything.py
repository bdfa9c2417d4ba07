#!/usr/bin/env python3
"""Soak test with all kinds of faults, for hours: three nodes and three stock Sentinels, each node behind a proxy with faulty links.

Worker processes write and read posts through redis-py's Sentinel client and track the possible values (world.py). Concurrently, at random:
kill -9, SIGSTOP, links that are cut, half-open, slow or reset, planned failovers, failed syncs (EIO), a full disk (ENOSPC), slow syncs (a
third of a second), wall clock jumps by hours, thousands of connections, incomplete requests, half-closed connections, and clients that do
not read. The test also runs TM.ROLL, TM.SPILL and BGSAVE, and alters spaces. It monitors memory, descriptors and the duration of event-loop iterations.

At the end, it compares all rows and members on each node.

    cargo xtask soak --hours 2 --folder F       continues with the data in F, if any

Writes F/report.html. The exit code is 1 if anything was lost or wrong, or if a node has 30 MiB of unaccounted memory after a quiet minute.
"""
import argparse, collections, multiprocessing, os, pickle, random, resource, signal, socket, subprocess, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))

import redis
from redis.sentinel import Sentinel

import report
from nodes import Node, freeze, until
from proxy import Proxy, free_port
from world import GROUP, Worker

NODES, WORKERS = 3, 3
QUIET_S, MOST_MIB = 60, 30
# Faults come within seconds, and Sentinel needs about twenty seconds to recover.
MOST_QUIET_S = 300
CONFIG = """
[server]
port = {port}
workers = 2
memory = 134217728
[admin]
port = 0
[durability]
dir = "{folder}/data"
fsync = "always"
[replication]
timeout = 5
replica_announce_ip = "127.0.0.1"
replica_announce_port = {announced}
[[counter]]
name = "post"
fields = "like:16 repost:8 comment:8 read:16"
rows = "post:{{id}}"
cells = "post:{{id}}:{{field}}"
rows_per_table = 16384
[[existence]]
name = "liked"
pairs = "liked:{{id}}"
ledger = "exact"
pairs_per_table = 131072
[[view]]
name = "home"
counters = ["post.like", "post.repost", "post.comment", "post.read"]
flags = ["liked"]
[[action]]
name = "like"
flag = "liked"
counter = "post.like"
"""
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"


class SoakNode(Node):
    """A node whose folder outlives the test, with an adjustable wall clock."""

    def __init__(self, server, folder, number):
        self.server, self.number, self.folder = server, number, os.path.join(folder, f"node{number}")
        os.makedirs(self.folder, exist_ok=True)
        self.port = free_port()
        self.proxy, self.process = Proxy(self.port), None
        self.clock = os.path.join(self.folder, "clock")
        self.set_clock(0)
        with open(os.path.join(self.folder, "conf"), "w") as file:
            file.write(CONFIG.format(port=self.port, folder=self.folder, announced=self.proxy.port))

    def start(self, follows=None):
        faked = {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": self.clock, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_CACHE_DURATION": "1"}
        env = dict(os.environ, **faked) if os.path.exists(FAKETIME) else None
        with open(os.path.join(self.folder, "log"), "a") as log:
            self.process = subprocess.Popen([self.server, "serve", "--config", os.path.join(self.folder, "conf")], stdout=log, stderr=log, env=env)

    def set_clock(self, seconds):
        with open(self.clock, "w") as file:
            file.write(f"{seconds:+d}\n")

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def watched(self):
        """Returns resident MiB (without the mapped binary), accounted MiB, open descriptors, and the longest event-loop iteration
        of the last minute in ms."""
        with open(f"/proc/{self.process.pid}/status") as file:
            resident = next(int(line.split()[1]) / 1024 for line in file if line.startswith("RssAnon"))
        info = self.client(timeout_s=5).info("everything")
        files = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return resident, info["used_memory_dataset"] / 2**20, files, info["longest_turn_last_minute_usec"] / 1000


def work(number, ports, nodes, seed, state, stop, rest, found):
    """Runs a worker process until `stop`. Pauses while `rest` is set. Sends its errors and counts to `found`."""
    worker = Worker(number, WORKERS, ports, seed)
    if os.path.exists(state):
        with open(state, "rb") as file:
            worker.posts = pickle.load(file)
    suspects, told = {}, time.time()
    while not stop.is_set():
        if rest.is_set():
            time.sleep(0.2)
            continue
        worker.step()
        if worker.posts and worker.counts["requests"] % 3 == 0:
            try:
                took, wrong = worker.page()
                found.put(("page", number, time.time(), took))
                for what in wrong:
                    suspects.setdefault(what.split(":")[0], (time.time(), what))
            except (redis.RedisError, OSError):
                pass
        # A frozen master may answer before it learns that it is a replica, so only persistent errors count.
        for post, (since, what) in list(suspects.items()):
            if time.time() > since + 20:
                del suspects[post]
                at = ((int(post.split()[1]) - worker.id(0)) // (worker.id(1) - worker.id(0)))
                try:
                    for still in worker.check([at]):
                        found.put(("wrong", number, time.time(), f"{what}; 20 s later: {still}"))
                except (redis.RedisError, OSError):
                    suspects[post] = (time.time(), what)
        if time.time() > told + 2:
            told = time.time()
            found.put(("counts", number, told, dict(worker.counts)))
    # Final check without other activity: the first node determines values in doubt.
    for port in nodes:
        node = redis.Redis(port=port, socket_timeout=60, decode_responses=True)
        try:
            wrong = worker.check(range(len(worker.posts)), node, draw=True)
        except (redis.RedisError, OSError) as error:
            wrong = [f"{error!r}"]
        for what in wrong:
            found.put(("wrong", number, time.time(), f"at the end, port {port}: {what}"))
    with open(state + ".new", "wb") as file:
        pickle.dump(worker.posts, file)
    os.replace(state + ".new", state)
    found.put(("counts", number, time.time(), dict(worker.counts)))
    found.put(("done", number, time.time(), None))


class Soak:
    def __init__(self, args):
        self.args, self.random = args, random.Random(args.seed)
        self.nodes = [SoakNode(args.server, args.folder, n) for n in range(NODES)]
        self.sentinels, self.ports = [], []
        # Events: (seconds, event, node). Measurements: (seconds, ...).
        self.began, self.faults, self.watched, self.pages, self.wrong = time.time(), [], [], collections.deque(), []
        self.counts, self.done, self.over = {}, set(), threading.Event()
        self.moves = [self.kill, self.stop, self.link, self.link, self.failover, self.disk, self.clock, self.storm, self.hang, self.operate, self.operate]

    def start(self):
        first, rest = self.nodes[0], self.nodes[1:]
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            until("a node is up", lambda: node.client().ping(), 300)
        # All nodes were in sync at the end of the previous run.
        first.client().execute_command("REPLICAOF", "NO", "ONE")
        for node in rest:
            node.client().execute_command("REPLICAOF", "127.0.0.1", first.proxy.port)
        until("replicas are up", lambda: all(node.is_up() for node in rest), 300)
        for n in range(3):
            port = free_port()
            conf = os.path.join(self.args.folder, f"sentinel{n}.conf")
            with open(conf, "w") as file:
                file.write(f"port {port}\nbind 127.0.0.1\ndir {self.args.folder}\nsentinel monitor {GROUP} 127.0.0.1 {first.proxy.port} 2\n"
                           f"sentinel down-after-milliseconds {GROUP} 2000\nsentinel failover-timeout {GROUP} 10000\nsentinel parallel-syncs {GROUP} 2\n")
            with open(conf + ".log", "a") as log:
                self.sentinels.append(subprocess.Popen(["redis-sentinel", conf], stdout=log, stderr=log))
            self.ports.append(port)
        self.sentinel = Sentinel([("127.0.0.1", port) for port in self.ports], socket_timeout=3)
        until("Sentinels name a master", self.named)

    def named(self):
        """Returns the node that a Sentinel names as the master."""
        try:
            port = self.sentinel.discover_master(GROUP)[1]
        except redis.RedisError:
            return None
        return next((node for node in self.nodes if node.proxy.port == port), None)

    def note(self, what, node=None):
        self.faults.append((time.time() - self.began, what, node.number if node else None))

    # Faults.

    def kill(self):
        node = self.random.choice(self.nodes)
        self.note("kill -9", node)
        node.process.kill()
        node.process.wait()
        self.over.wait(self.random.uniform(0.2, 8))
        node.start()

    def stop(self):
        node = self.random.choice(self.nodes)
        self.note("SIGSTOP", node)
        freeze(node.process)
        self.over.wait(self.random.uniform(0.5, 8))
        node.process.send_signal(signal.SIGCONT)

    def link(self):
        node, what = self.random.choice(self.nodes), self.random.choice(["cut", "half-open in", "half-open out", "slow link", "reset"])
        self.note(what, node)
        if what == "cut":
            node.proxy.cut()
        elif what == "slow link":
            node.proxy.delay_s = self.random.uniform(0.01, 0.2)
        elif what == "reset":
            node.proxy.reset()
        else:
            node.proxy.deaf = {0} if what == "half-open in" else {1}
        self.over.wait(self.random.uniform(0.5, 8))
        node.proxy.mend()

    def failover(self):
        self.note("SENTINEL FAILOVER")
        port = self.random.choice(self.ports)
        try:
            redis.Redis(port=port, socket_timeout=3).execute_command("SENTINEL", "FAILOVER", GROUP)
        except redis.RedisError:
            pass

    def disk(self):
        """Injects errors with strace into the running threads. Restarts a node that then accepts no writes, as its log advises."""
        node = self.random.choice(self.nodes)
        what, call, how = self.random.choice([
            ("EIO", "fdatasync,fsync", "error=EIO:when=1..3"), ("ENOSPC", "write,pwrite64,pwritev,fallocate", "error=ENOSPC:when=1..40"),
            ("slow syncs", "fdatasync,fsync", "delay_enter=300000")])
        self.note(what, node)
        # Sockets use other calls: sendto, writev.
        command = ["strace", "-f", "-q", "-o", "/dev/null", "-p", str(node.process.pid), "-e", f"trace={call}", "-e", f"inject={call}:{how}"]
        tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.over.wait(self.random.uniform(2, 6))
        tracer.terminate()
        tracer.wait()
        self.over.wait(3)
        if what == "EIO" and node.is_running():
            self.note("start after EIO", node)
            node.process.kill()
            node.process.wait()
        if not node.is_running():
            node.start()

    def clock(self):
        node = self.random.choice(self.nodes)
        seconds = self.random.choice([-86_400, -3_600, -5, 5, 3_600, 30 * 86_400])
        self.note(f"clock {seconds:+d} s", node)
        node.set_clock(seconds)
        self.over.wait(self.random.uniform(1, 10))
        node.set_clock(0)

    def storm(self):
        """Opens more connections than the server allows; some send an incomplete request."""
        node, sockets = self.random.choice(self.nodes), []
        self.note("10,000 connections", node)
        for n in range(10_050):
            try:
                one = socket.create_connection(("127.0.0.1", node.port), timeout=2)
                if n % 20 == 0:
                    one.sendall(b"*3\r\n$7\r\nHINCRBY\r\n$400\r\nhalf a requ")
                if n % 50 == 1:
                    one.shutdown(socket.SHUT_WR)
                sockets.append(one)
            except OSError:
                break
        self.over.wait(self.random.uniform(1, 5))
        for one in sockets:
            one.close()

    def hang(self):
        """Connects clients that request much and do not read it."""
        node, sockets = self.random.choice(self.nodes), []
        self.note("200 clients that do not read", node)
        for _ in range(200):
            try:
                one = socket.create_connection(("127.0.0.1", node.port), timeout=2)
                one.settimeout(1)
                sockets.append(one)
                one.sendall(b"*4\r\n$8\r\nFEED.GET\r\n$4\r\nhome\r\n$1\r\n7\r\n$4\r\n1001\r\n" * 20_000)
            except OSError:
                continue
        self.over.wait(self.random.uniform(1, 5))
        for one in sockets:
            one.close()

    def operate(self):
        """Runs a command of an operator on the master."""
        rate = self.random.choice(["0.0001", "0.001"])
        words = self.random.choice([
            ["TM.ROLL", "post"], ["TM.ROLL", "liked"], ["TM.SPILL", "post"], ["TM.SPILL", "liked"], ["BGSAVE"], ["TM.ADVISE", "post"],
            ["TM.SPACE", "ALTER", "liked", "SET", "false_positive_rate", rate], ["CLIENT", "KILL", "TYPE", "normal"], ["DEBUG", "SLEEP", "0"], ["INFO", "everything"],
            ["SLOWLOG", "GET"], ["TM.TABLES", "liked"]])
        self.note(" ".join(words[:3]))
        node = self.named()
        try:
            node and node.client(timeout_s=20).execute_command(*words)
        except (redis.RedisError, OSError):
            pass

    def break_things(self):
        while not self.over.wait(self.random.uniform(1, 12)):
            try:
                self.random.choice(self.moves)()
            except OSError as error:
                self.note(f"not done: {error}")
            # Restart a node that has exited by itself, like systemd.
            for node in self.nodes:
                if not node.is_running():
                    self.note("ended by itself", node)
                    node.start()

    # Monitoring.

    def watch(self):
        while not self.over.wait(5):
            for node in self.nodes:
                try:
                    self.watched.append((time.time() - self.began, node.number, *node.watched()))
                except (redis.RedisError, OSError, StopIteration, KeyError):
                    pass

    def collect(self, found, until_done):
        """Collects the workers' messages, for a moment or until all are done."""
        end = time.time() + (600 if until_done else 0.5)
        while time.time() < end and not (until_done and len(self.done) == WORKERS):
            try:
                what, number, at, value = found.get(timeout=0.5)
            except Exception:
                continue
            if what == "page":
                self.pages.append((at - self.began, value))
            elif what == "wrong":
                self.wrong.append(value)
                print(f"WRONG: {value}", flush=True)
            elif what == "counts":
                self.counts[number] = value
            else:
                self.done.add(number)
        if until_done and len(self.done) < WORKERS:
            self.wrong.append(f"only the workers {sorted(self.done)} have compared everything in 600 s")

    def total(self, what):
        return sum(counts[what] for counts in self.counts.values())

    def come_to_rest(self):
        """Waits until all nodes run, follow one master, and are equal."""
        for node in self.nodes:
            node.proxy.mend()
            node.set_clock(0)

        def in_step():
            master, infos = self.named(), [node.info() for node in self.nodes]
            ends = {info.get("slave_repl_offset", info.get("master_repl_offset")) for info in infos}
            follow = [info.get("role") == "slave" and info.get("master_link_status") == "up" for info in infos]
            return master is not None and len(ends) == 1 and all(ok or node is master for ok, node in zip(follow, self.nodes))

        until("all replicas have caught up", in_step, 300)

    def run(self):
        self.start()
        stop, rest, found = multiprocessing.Event(), multiprocessing.Event(), multiprocessing.Queue()
        states = [os.path.join(self.args.folder, f"worker{n}") for n in range(WORKERS)]
        seeds = [self.random.random() for _ in states]
        workers = [multiprocessing.Process(target=work, args=(n, self.ports, [node.port for node in self.nodes], seeds[n], states[n], stop, rest, found), daemon=True) for n in range(WORKERS)]
        for worker in workers:
            worker.start()
        threads = [threading.Thread(target=call, daemon=True) for call in (self.break_things, self.watch)]
        for thread in threads:
            thread.start()
        end, said = self.began + self.args.hours * 3600, time.time()
        best, grown = 0, time.time()
        while time.time() < end and all(worker.is_alive() for worker in workers):
            self.collect(found, False)
            if self.total("acknowledged") > best:
                best, grown = self.total("acknowledged"), time.time()
            elif time.time() > grown + MOST_QUIET_S:
                self.wrong.append(f"replicas have acknowledged nothing for {MOST_QUIET_S} s")
                print(f"WRONG: {self.wrong[-1]}", flush=True)
                break
            if time.time() > said + 60:
                said = time.time()
                print(f"{(said - self.began) / 60:.0f} min: {self.total('requests')} changes, {self.total('acknowledged')} acknowledged, "
                      f"{self.total('pages')} pages, {len(self.faults)} faults, {len(self.wrong)} wrong", flush=True)
        self.over.set()
        for thread in threads:
            thread.join(60)
        rest.set()
        self.come_to_rest()
        time.sleep(self.args.quiet)
        gaps = {}
        for node in self.nodes:
            resident, accounted, *_ = node.watched()
            gaps[node.number] = resident - accounted
            if gaps[node.number] > MOST_MIB:
                self.wrong.append(f"node {node.number} holds {resident:.0f} MiB and accounts for {accounted:.0f}")
        stop.set()
        self.collect(found, True)
        for worker in workers:
            worker.join(10)
        totals = {what: self.total(what) for what in next(iter(self.counts.values()))}
        report.write(self, totals, gaps, os.path.join(self.args.folder, "report.html"))
        print(f"{totals['requests']} changes, {totals['acknowledged']} acknowledged by WAIT 2, {totals['checks']} posts compared, {len(self.faults)} faults: "
              f"{len(self.wrong)} lost or wrong; MiB beyond what is accounted: {', '.join(f'{gap:.0f}' for gap in gaps.values())}")
        return not self.wrong

    def end(self):
        self.over.set()
        for sentinel in self.sentinels:
            sentinel.kill()
            sentinel.wait()
        for node in self.nodes:
            if node.is_running():
                node.process.send_signal(signal.SIGCONT)
                node.process.terminate()
                node.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--quiet", type=float, default=QUIET_S)
    args = parser.parse_args()
    args.folder = os.path.abspath(args.folder)
    os.makedirs(args.folder, exist_ok=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"seed {args.seed}", flush=True)
    soak = Soak(args)
    try:
        return 0 if soak.run() else 1
    finally:
        soak.end()


if __name__ == "__main__":
    sys.exit(main())
