"""Failovers by the stock redis-sentinel, under the load of a Sentinel-aware redis-py client with WAIT 1.

Three sentinels, one master, two replicas, each node behind a small TCP proxy of ours, so that its link can be cut. Each round takes the master away
(kill -9, SIGSTOP, a cut link), waits until a write is accepted again, brings the old master back and waits until it follows. Then it is checked that
no increment that was acknowledged by WAIT 1 is missing, and that all nodes are equal.

    failover.py --server PATH_TO_TIDEMARK [--rounds 3] [--causes kill,stop,cut] [--redis]

--redis: the same with redis-server in the nodes' place, to compare the times.
"""
import argparse, os, random, shutil, signal, socket, subprocess, sys, tempfile, threading, time

import redis
from redis.sentinel import Sentinel


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """Forwards a port to another; cut: nobody gets through, in either direction."""

    def __init__(self, target):
        self.target, self.is_cut, self.pairs = target, False, set()
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            a, _ = self.listener.accept()
            if self.is_cut:
                a.close()
                continue
            try:
                b = socket.create_connection(("127.0.0.1", self.target), timeout=2)
                b.settimeout(None)
            except OSError:
                a.close()
                continue
            for s in (a, b):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.pairs.add((a, b))
            for x, y in ((a, b), (b, a)):
                threading.Thread(target=self.pump, args=(x, y, (a, b)), daemon=True).start()

    def pump(self, x, y, pair):
        try:
            while True:
                data = x.recv(65536)
                if not data:
                    break
                # A cut link swallows what is on its way.
                if not self.is_cut:
                    y.sendall(data)
        except OSError:
            pass
        for s in pair:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.pairs.discard(pair)

    def cut(self):
        self.is_cut = True

    def mend(self):
        for a, b in list(self.pairs):
            for s in (a, b):
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.is_cut = False


class Node:
    def __init__(self, args, folder, number):
        self.args, self.number = args, number
        self.folder = os.path.join(folder, f"node{number}")
        os.mkdir(self.folder)
        self.port = free_port()
        self.proxy = Proxy(self.port)
        self.process = None

    def start(self, master=None):
        log = open(os.path.join(self.folder, "log"), "a")
        if self.args.redis:
            conf = os.path.join(self.folder, "redis.conf")
            if not os.path.exists(conf):
                with open(conf, "w") as f:
                    f.write(f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nsave ''\nappendonly yes\n")
                    f.write(f"replica-announce-ip 127.0.0.1\nreplica-announce-port {self.proxy.port}\nrepl-diskless-sync-delay 0\n")
                    if master:
                        f.write(f"replicaof 127.0.0.1 {master.proxy.port}\n")
            command = ["redis-server", conf]
        else:
            conf = os.path.join(self.folder, "tidemark.toml")
            if not os.path.exists(conf):
                with open(conf, "w") as f:
                    f.write(f'[server]\nport = {self.port}\nworkers = 1\n[durability]\ndir = "{self.folder}/data"\n[replication]\n')
                    f.write(f'replica_announce_ip = "127.0.0.1"\nreplica_announce_port = {self.proxy.port}\n')
                    if master:
                        f.write(f'replicaof = "127.0.0.1 {master.proxy.port}"\n')
            command = [self.args.server, "serve", "--config", conf]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def client(self):
        return redis.Redis(port=self.port, socket_timeout=3, decode_responses=True)

    def info(self):
        try:
            return self.client().info("replication")
        except redis.RedisError:
            return {}


def until(what, done, seconds=90):
    end = time.time() + seconds
    while time.time() < end:
        try:
            if done():
                return
        except redis.RedisError:
            pass
        time.sleep(0.02)
    raise SystemExit(f"not in {seconds} s: {what}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--causes", default="kill,stop,cut")
    parser.add_argument("--down-after", type=int, default=1000)
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="failover-")
    nodes = [Node(args, folder, n) for n in range(3)]
    sentinels = []
    ok = False
    try:
        nodes[0].start()
        until("the master is up", lambda: nodes[0].client().ping())
        for node in nodes[1:]:
            node.start(nodes[0])
        until("replicas are up", lambda: all(n.info().get("master_link_status") == "up" for n in nodes[1:]))
        ports = []
        for n in range(3):
            port = free_port()
            ports.append(port)
            conf = os.path.join(folder, f"sentinel{n}.conf")
            with open(conf, "w") as f:
                f.write(f"port {port}\nbind 127.0.0.1\ndir {folder}\n")
                f.write(f"sentinel monitor m 127.0.0.1 {nodes[0].proxy.port} 2\n")
                f.write(f"sentinel down-after-milliseconds m {args.down_after}\nsentinel failover-timeout m 10000\nsentinel parallel-syncs m 2\n")
            sentinels.append(subprocess.Popen(["redis-sentinel", conf], stdout=open(conf + ".log", "w"), stderr=subprocess.STDOUT))
        watch = [redis.Redis(port=p, decode_responses=True, socket_timeout=3) for p in ports]
        until("sentinels know each other", lambda: all(
            len(w.sentinel_sentinels("m")) == 2 and len(w.sentinel_slaves("m")) == 2 for w in watch))

        sentinel = Sentinel([("127.0.0.1", p) for p in ports], socket_timeout=1, decode_responses=True)
        stop, lock, acked, sent = threading.Event(), threading.Lock(), {}, {}
        accepted = []

        def load(worker):
            rng = random.Random(worker)
            master = sentinel.master_for("m", socket_timeout=1)
            while not stop.is_set():
                post = worker * 1000 + rng.randrange(20)
                with lock:
                    sent[post] = sent.get(post, 0) + 1
                try:
                    # One connection for both: WAIT speaks of what this client wrote.
                    with master.pipeline(transaction=False) as pipe:
                        pipe.hincrby(f"post:{post}", "like", 1)
                        pipe.execute_command("WAIT", 1, 500)
                        value, replicas = pipe.execute()
                    accepted.append(time.time())
                    if replicas >= 1:
                        with lock:
                            acked[post] = acked.get(post, 0) + 1
                except (redis.RedisError, OSError):
                    time.sleep(0.01)

        def named():
            return next(n for n in nodes if n.proxy.port == sentinel.discover_master("m")[1])

        threads = [threading.Thread(target=load, args=(w,), daemon=True) for w in range(4)]
        for t in threads:
            t.start()
        time.sleep(1)
        times, causes = [], args.causes.split(",")
        for round in range(args.rounds):
            cause = causes[round % len(causes)]
            address = sentinel.discover_master("m")
            old = next(n for n in nodes if n.proxy.port == address[1])
            time.sleep(random.uniform(0.2, 1.0))
            began = time.time()
            if cause == "kill":
                old.process.kill()
                old.process.wait()
            elif cause == "stop":
                old.process.send_signal(signal.SIGSTOP)
            else:
                old.proxy.cut()
            until("Sentinel has another master", lambda: sentinel.discover_master("m")[1] != address[1])
            until("writes are accepted", lambda: any(t > began + args.down_after / 1000 for t in accepted[-50:]))
            first = next(t for t in accepted if t > began + args.down_after / 1000)
            times.append(first - began)
            time.sleep(0.5)
            if cause == "kill":
                old.start()
            elif cause == "stop":
                old.process.send_signal(signal.SIGCONT)
            else:
                old.proxy.mend()
            until("the old master follows", lambda: old.info().get("master_link_status") == "up")
            # Whom a Sentinel names may change meanwhile: under load it may find the new master silent, and have another one promoted.
            until("both replicas are online", lambda: sum(
                1 for i in range(5) if named().info().get(f"slave{i}", {}).get("state") == "online") == 2)
            until("sentinels agree", lambda: len({w.sentinel_get_master_addr_by_name("m")[1] for w in watch}) == 1 and all(
                all(not s["is_sdown"] and not s["is_disconnected"] for s in w.sentinel_slaves("m")) for w in watch))
            print(f"round {round + 1}: {cause}: writes again after {times[-1]:.2f} s", flush=True)
        stop.set()
        for t in threads:
            t.join()
        new = named()
        until("all are in step", lambda: len({n.info().get("slave_repl_offset", n.info().get("master_repl_offset")) for n in nodes}) == 1
              and new.client().execute_command("WAIT", 2, 1000) == 2)
        lost, values = 0, []
        for node in nodes:
            client = node.client()
            values.append({p: int(client.hget(f"post:{p}", "like") or 0) for p in sent})
        for post, count in acked.items():
            lost += max(0, count - values[nodes.index(new)][post])
            assert values[nodes.index(new)][post] <= sent[post], f"post {post} counts too much"
        assert values[0] == values[1] == values[2], "the nodes differ"
        total = sum(acked.values())
        print(f"{args.rounds} failovers, {total} writes acknowledged by WAIT 1, {lost} of them lost; "
              f"first accepted write after {min(times):.2f} to {max(times):.2f} s, mean {sum(times) / len(times):.2f} s "
              f"({'redis-server' if args.redis else 'tidemark'}, down-after {args.down_after} ms)")
        assert total > 50 * args.rounds, "hardly anything was written"
        if not args.redis:
            assert lost == 0, f"{lost} acknowledged writes are lost"
        ok = True
    finally:
        for p in sentinels + [n.process for n in nodes if n.process]:
            try:
                p.send_signal(signal.SIGCONT)
                p.kill()
                p.wait()
            except OSError:
                pass
        if ok and not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept: {folder}", file=sys.stderr)


main()
