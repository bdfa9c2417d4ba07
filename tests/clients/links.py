"""Cuts, resets, delays and half-closes links between a master and its replicas under load.

A master, two replicas, and a third replica chained behind the first one, each link through a proxy. About once per second, one link gets a fault. At the
end all nodes must be equal, and each replica must have done exactly one full sync, at its first connection.

    links.py --server PATH_TO_TIDEMARK [--seconds 20] [--seed 1]
"""
import argparse, random, threading, time

from nodes import Node, scratch, until
from proxy import Proxy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with scratch("links-") as folder:
        play(args, folder)


def play(args, folder):
    rng = random.Random(args.seed)
    nodes, links = [], []
    try:
        # Master of each node.
        for number, master in enumerate([None, 0, 0, 1]):
            node = Node(args.server, folder, number, timeout_s=3)
            nodes.append(node)
            if master is None:
                node.start()
                until("the master is up", lambda: node.client().ping())
            else:
                link = Proxy(nodes[master].port)
                links.append(link)
                node.start(link.port)
                until("a replica is up", node.is_up)
        clients = [n.client(timeout_s=10) for n in nodes]
        first = [c.info("replication")["repl_full_syncs"] for c in clients]
        stop, written = threading.Event(), [0]

        def load():
            master = nodes[0].client(timeout_s=60)
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
            elif what == "cut":
                link.cut()
            else:
                link.deaf = {0} if what == "half-open to the master" else {1}
            time.sleep(rng.uniform(0.2, 5 if "half" in what or what == "cut" else 1.5))
            if what == "cut" or rng.random() < 0.5:
                link.mend()
            else:
                # A replica that has lost data must detect it.
                link.deaf, link.delay_s = set(), 0.0
        stop.set()
        loader.join()
        clients[0].execute_command("WAITAOF", 1, 0, 5000)

        def in_step():
            infos = [c.info("replication") for c in clients]
            ends = {i.get("slave_repl_offset", i["master_repl_offset"]) for i in infos}
            return len(ends) == 1 and all(i.get("master_link_status", "up") == "up" for i in infos)

        until("all replicas have caught up", in_step)
        values = [c.execute_command("MGET", *[f"post:{n}:like" for n in range(5000)]) for c in clients]
        assert values[0] == values[1] == values[2] == values[3], "the nodes differ"
        assert sum(int(v or 0) for v in values[0]) == written[0], "increments were lost or counted twice"
        full = [c.info("replication")["repl_full_syncs"] for c in clients]
        print(f"{args.seconds:.0f} s, seed {args.seed}: {done}; {[l.opened for l in links]} links, {written[0]} writes; full syncs {full[1:]}, initially {first[1:]}")
        assert full == first == [0, 1, 1, 1], "more full syncs than initial ones"
        assert sum(l.opened for l in links) > len(links), "no link was ever lost"
    finally:
        for node in nodes:
            node.end()


main()
