"""Links between a master and its replicas, cut, reset, delayed and half-open under load, for as long as wanted.

A master, two replicas and a third one chained behind the first, each link through a proxy of ours. Every second or so one link is treated badly. At the end all
nodes must be equal, and each replica must have fetched everything just once: when it was first attached.

    links.py --server PATH_TO_TIDEMARK [--seconds 20] [--seed 1]
"""
import argparse, os, random, shutil, socket, subprocess, sys, tempfile, threading, time

import redis


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Link:
    """Forwards a port to another. `deaf`: directions (0: to the master, 1: to the replica) in which bytes are swallowed; `delay_s` holds them back."""

    def __init__(self, target):
        self.target, self.deaf, self.delay_s, self.pairs, self.opened = target, set(), 0.0, set(), 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            a, _ = self.listener.accept()
            try:
                b = socket.create_connection(("127.0.0.1", self.target), timeout=2)
                b.settimeout(None)
            except OSError:
                a.close()
                continue
            self.opened += 1
            self.pairs.add((a, b))
            for x, y, way in ((a, b, 0), (b, a, 1)):
                threading.Thread(target=self.pump, args=(x, y, way, (a, b)), daemon=True).start()

    def pump(self, x, y, way, pair):
        # Bytes that were swallowed leave a hole in the stream: nothing behind it may come through on this connection, as on a real one.
        broken = False
        try:
            while data := x.recv(65536):
                broken = broken or way in self.deaf
                if self.delay_s:
                    time.sleep(self.delay_s)
                if not broken:
                    y.sendall(data)
        except OSError:
            pass
        self.close(pair)

    def close(self, pair):
        for s in pair:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.pairs.discard(pair)

    def reset(self):
        for pair in list(self.pairs):
            self.close(pair)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    folder = tempfile.mkdtemp(prefix="links-")
    ports, links, processes, ok = [], [], [], False
    try:
        # Whom each follows.
        for number, master in enumerate([None, 0, 0, 1]):
            port = free_port()
            home = os.path.join(folder, f"node{number}")
            os.mkdir(home)
            follows = ""
            if master is not None:
                link = Link(ports[master])
                links.append(link)
                follows = f'replicaof = "127.0.0.1 {link.port}"\n'
            ports.append(port)
            conf = os.path.join(home, "tidemark.toml")
            with open(conf, "w") as f:
                f.write(f'[server]\nport = {port}\nworkers = 1\n[durability]\ndir = "{home}/data"\n[replication]\ntimeout_s = 3\n{follows}')
            out = open(os.path.join(home, "log"), "w")
            processes.append(subprocess.Popen([args.server, "serve", "--config", conf], stdout=out, stderr=out))
            end = time.time() + 60
            while time.time() < end:
                try:
                    info = redis.Redis(port=port, decode_responses=True).info("replication")
                    if master is None or info.get("master_link_status") == "up":
                        break
                except redis.RedisError:
                    pass
                time.sleep(0.05)
            else:
                raise SystemExit(f"node {number} is not up")
        clients = [redis.Redis(port=p, decode_responses=True, socket_timeout=10) for p in ports]
        first = [c.info("replication")["repl_full_syncs"] for c in clients]
        stop, written = threading.Event(), [0]

        def load():
            master = redis.Redis(port=ports[0])
            while not stop.is_set():
                pipe = master.pipeline(transaction=False)
                for _ in range(50):
                    pipe.hincrby(f"post:{rng.randrange(5000)}", "like", 1)
                pipe.execute()
                written[0] += 50
                time.sleep(0.005)

        loader = threading.Thread(target=load)
        loader.start()
        end, done = time.time() + args.seconds, {}
        while time.time() < end:
            link, what = rng.choice(links), rng.choice(["reset", "cut", "half-open to the master", "half-open to the replica", "delayed"])
            done[what] = done.get(what, 0) + 1
            if what == "reset":
                link.reset()
            elif what == "delayed":
                link.delay_s = rng.uniform(0.01, 0.3)
            else:
                link.deaf = {"cut": {0, 1}, "half-open to the master": {0}, "half-open to the replica": {1}}[what]
            time.sleep(rng.uniform(0.2, 5 if "half" in what or what == "cut" else 1.5))
            link.deaf, link.delay_s = set(), 0.0
            if rng.random() < 0.5:
                link.reset()
        stop.set()
        loader.join()
        clients[0].execute_command("WAITAOF", 1, 0, 5000)
        until = time.time() + 60
        while time.time() < until:
            infos = [c.info("replication") for c in clients]
            ends = {i.get("slave_repl_offset", i["master_repl_offset"]) for i in infos}
            if len(ends) == 1 and all(i.get("master_link_status", "up") == "up" for i in infos):
                break
            time.sleep(0.1)
        else:
            raise SystemExit(f"not in step: {ends}")
        values = [c.execute_command("MGET", *[f"post:{n}:like" for n in range(5000)]) for c in clients]
        assert values[0] == values[1] == values[2] == values[3], "the nodes differ"
        assert sum(int(v or 0) for v in values[0]) == written[0], "increments were lost, or counted twice"
        full = [c.info("replication")["repl_full_syncs"] for c in clients]
        print(f"{args.seconds:.0f} s, seed {args.seed}: {done}; {[l.opened for l in links]} links, {written[0]} writes; full syncs {full[1:]}, at first {first[1:]}")
        assert full == first == [0, 1, 1, 1], "more full syncs than first attachments"
        assert sum(l.opened for l in links) > len(links), "no link was ever lost"
        ok = True
    finally:
        for p in processes:
            p.kill()
            p.wait()
        if ok:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept: {folder}", file=sys.stderr)


main()
