"""Failovers by the stock redis-sentinel, under the load of a Sentinel-aware redis-py client with WAIT 1.

Three sentinels, one master, two replicas, each node behind a small TCP proxy of ours, so that its link can be cut. Each round takes the master away
(kill -9, SIGSTOP, a cut link), waits until a write is accepted again, brings the old master back and waits until it follows. Each write has a row of its
own. At the end it is checked that no row is missing whose write was acknowledged by WAIT 1, that none holds anything else than what was
written into it, and that all nodes are equal.

    failover.py --server PATH_TO_TIDEMARK [--rounds 3] [--causes kill,stop,cut] [--redis]

--redis: the same with redis-server in the nodes' place, to compare the times.
"""
import argparse, os, random, signal, statistics, subprocess, threading, time

import redis
from redis.sentinel import Sentinel

from nodes import Node, freeze, scratch, until
from proxy import free_port


WORKERS = 4
# Rows of writers that do not know the master.
STRAY, ALONE = 0, 1


def likes(post):
    """What is written into a row: known again whatever happens to it."""
    return post * 7919 % 4093 + 1


def read(node, posts):
    """The rows that there are."""
    client, held = node.client(timeout_s=60), {}
    for first in range(0, len(posts), 1000):
        some = posts[first:first + 1000]
        pipe = client.pipeline(transaction=False)
        for post in some:
            pipe.hget(f"post:{post}", "like")
        held |= {post: int(value) for post, value in zip(some, pipe.execute()) if value is not None}
    return held


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--causes", default="kill,stop,cut")
    parser.add_argument("--down-after", type=int, default=1000)
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("failover-", args.keep) as folder:
        play(args, folder)


def play(args, folder):
    nodes = [Node(None if args.redis else args.server, folder, n) for n in range(3)]
    sentinels = []
    try:
        nodes[0].start()
        until("the master is up", lambda: nodes[0].client().ping())
        for node in nodes[1:]:
            node.start(nodes[0].proxy.port)
        until("replicas are up", lambda: all(n.is_up() for n in nodes[1:]))
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
        stop, accepted = threading.Event(), []
        # Posts, by worker: those that were sent, and those of which a replica has said that it has them.
        sent, acked = [0] * WORKERS, [[] for _ in range(WORKERS)]

        def load(worker):
            master = sentinel.master_for("m", socket_timeout=1)
            while not stop.is_set():
                sent[worker] += 1
                post = worker + WORKERS * sent[worker]
                try:
                    # One connection for both: WAIT speaks of what this client wrote.
                    with master.pipeline(transaction=False) as pipe:
                        pipe.hset(f"post:{post}", "like", likes(post))
                        pipe.execute_command("WAIT", 1, 500)
                        _, replicas = pipe.execute()
                    accepted.append(time.time())
                    if replicas >= 1:
                        acked[worker].append(post)
                except (redis.RedisError, OSError):
                    time.sleep(0.01)

        def named():
            # Asked once: two Sentinels may name different ones at the same moment.
            port = sentinel.discover_master("m")[1]
            return next(n for n in nodes if n.proxy.port == port)

        def strays(old, back):
            """A client that knows nothing of Sentinel writes to the old master until it is a replica. Gives how long it did, in seconds."""
            last = back
            while time.time() < back + 60:
                try:
                    old.client().hincrby(f"post:{STRAY}", "like", 1)
                    last = time.time()
                except redis.ResponseError:
                    if old.info().get("role") == "slave":
                        break
                except redis.RedisError:
                    pass
                time.sleep(0.01)
            return last - back

        def given_up(old):
            """What the old master had alone is in files, and its log says where. Gives the folder."""
            with open(os.path.join(old.folder, "log")) as log:
                said = [line for line in log if "is dropped" in line and "kept in " in line]
            assert said, f"node {old.number} does not say what it has dropped"
            folder = said[-1].split("kept in ")[1].split(";")[0].strip()
            dumps = [subprocess.run([args.server, "dump", os.path.join(folder, name)], capture_output=True, text=True) for name in os.listdir(folder)]
            assert dumps and all(d.returncode == 0 and d.stdout for d in dumps), [d.stderr for d in dumps]
            return folder

        threads = [threading.Thread(target=load, args=(w,), daemon=True) for w in range(WORKERS)]
        for t in threads:
            t.start()
        time.sleep(1)
        times, taken, kept, causes = [], [], [], args.causes.split(",")
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
                freeze(old.process)
            else:
                old.proxy.cut()
                # A client on its side of the cut goes on writing: changes that it has alone, and will give up.
                for _ in range(10):
                    old.client().hincrby(f"post:{ALONE}", "like", 1)
            until("Sentinel has another master", lambda: sentinel.discover_master("m")[1] != address[1])
            until("writes are accepted", lambda: any(t > began + args.down_after / 1000 for t in accepted[-50:]))
            first = next(t for t in accepted if t > began + args.down_after / 1000)
            times.append(first - began)
            time.sleep(0.5)
            back = time.time()
            if cause == "kill":
                old.start()
            elif cause == "stop":
                old.process.send_signal(signal.SIGCONT)
            else:
                old.proxy.mend()
            stray = strays(old, back)
            until("the old master follows", old.is_up)
            if cause == "cut" and not args.redis:
                kept.append(given_up(old))
            # Whom a Sentinel names may change meanwhile: under load it may find the new master silent, and have another one promoted.
            until("both replicas are online", lambda: sum(
                1 for i in range(5) if named().info().get(f"slave{i}", {}).get("state") == "online") == 2)
            until("sentinels agree", lambda: len({w.sentinel_get_master_addr_by_name("m")[1] for w in watch}) == 1 and all(
                all(not s["is_sdown"] and not s["is_disconnected"] for s in w.sentinel_slaves("m")) for w in watch))
            taken.append(stray)
            print(f"round {round + 1}: {cause}: writes again after {times[-1]:.2f} s; the old master, back, took writes for {stray:.2f} s", flush=True)
        stop.set()
        for t in threads:
            t.join()
        new = named()
        until("all are in step", lambda: len({n.info().get("slave_repl_offset", n.info().get("master_repl_offset")) for n in nodes}) == 1
              and new.client().execute_command("WAIT", 2, 1000) == 2)
        # Every row of each node, those of strays aside.
        values = [read(node, range(WORKERS, WORKERS * (max(sent) + 1))) for node in nodes]
        assert values[0] == values[1] == values[2], "the nodes differ"
        there = values[nodes.index(new)]
        wrong = {post: held for post, held in there.items() if held != likes(post) or post // WORKERS > sent[post % WORKERS]}
        assert not wrong, f"what was never written: {wrong}"
        total = sum(map(len, acked))
        missing = sorted(post for posts in acked for post in posts if post not in there)
        lost = len(missing)
        print(f"{args.rounds} failovers, {total} writes acknowledged by WAIT 1, {lost} of them lost; "
              f"first accepted write after {min(times):.2f} to {max(times):.2f} s, median {statistics.median(times):.2f} s, mean {statistics.mean(times):.2f} s; "
              f"the old master took writes for at most {max(taken):.2f} s, mean {statistics.mean(taken):.2f} s "
              f"({'redis-server' if args.redis else 'tidemark'}, down-after {args.down_after} ms)")
        assert len(set(kept)) == len(kept), "what was dropped is kept once for each time"
        assert total > 50 * args.rounds, "hardly anything was written"
        if not args.redis:
            assert lost == 0, f"{lost} acknowledged writes are lost: {missing[:20]}"
    finally:
        for sentinel in sentinels:
            sentinel.kill()
            sentinel.wait()
        for node in nodes:
            node.end()


main()
