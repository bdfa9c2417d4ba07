"""A cluster with a topology from Sentinel: three shards of two nodes, three stock redis-sentinels, and stock clients.

Masters are killed under the load of redis-py's RedisCluster with WAIT 1, while a client that is not aware of the cluster reads pages of all shards. The
script checks that no write acknowledged by WAIT is lost, and that pages are partial no longer than writes to that shard fail. It also checks that a
Sentinel with stale data reverts nothing, even if it is the only source of a restarted node.

    sentinels.py --server PATH_TO_TIDEMARK [--rounds 2] [--keep]
"""
import argparse, os, signal, statistics, subprocess, threading, time

import redis

from nodes import Node, scratch, start_sentinels, until
from proxy import free_port
from shards import Writers, is_error, shard_of, slots_of

SHARDS, DOWN_AFTER_MS = 3, 1000
POSTS = range(1000, 1040)


class Member(Node):
    sentinels = []

    def config(self, follows):
        lines = ["[server]", f"port = {self.port}", "workers = 1", "[durability]", f'dir = "{self.folder}/data"', "[replication]", f"timeout = {self.timeout_s}"]
        lines += [f'replicaof = "127.0.0.1 {follows}"'] if follows else []
        lines += ["[cluster]", "enabled = true", 'peer_timeout = "300ms"', "sentinels = [%s]" % ", ".join(f'"127.0.0.1:{port}"' for port in self.sentinels)]
        for n in range(SHARDS):
            first, last = slots_of(n, SHARDS)
            lines += ["[[shard]]", f'name = "{n}"', f'master = "shard{n}"', f'slots = "{first}-{last}"']
        return "\n".join(lines) + "\n"

    def masters(self):
        """Returns the ports of the masters by shard, and the number of nodes."""
        slots = sorted(redis.Redis(port=self.port, socket_timeout=2).execute_command("CLUSTER SLOTS"), key=lambda range: range[0])
        return [range[2][1] for range in slots], sum(len(range) - 2 for range in slots)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("sentinels-", args.keep) as folder:
        Member.sentinels = [free_port() for _ in range(3)]
        nodes, sentinels = [Member(args.server, folder, n) for n in range(2 * SHARDS)], []
        try:
            start(nodes, sentinels, folder)
            play(args, nodes, sentinels)
            away(nodes, sentinels)
        finally:
            for sentinel in sentinels:
                sentinel.send_signal(signal.SIGCONT)
                sentinel.kill()
                sentinel.wait()
            for node in nodes:
                node.end()


def start(nodes, sentinels, folder):
    for n in range(SHARDS):
        nodes[2 * n].start()
    until("masters are up", lambda: all(node.client().ping() for node in nodes[::2]))
    for n in range(SHARDS):
        nodes[2 * n + 1].start(nodes[2 * n].port)
    until("replicas are up", lambda: all(node.is_up() for node in nodes[1::2]))
    masters = {f"shard{n}": nodes[2 * n].port for n in range(SHARDS)}
    sentinels += start_sentinels(folder, masters, Member.sentinels, DOWN_AFTER_MS)[1]
    whole = ([node.port for node in nodes[::2]], len(nodes))
    until("all nodes know all nodes", lambda: all(node.masters() == whole for node in nodes))
    watch = [redis.Redis(port=port, decode_responses=True, socket_timeout=3) for port in Member.sentinels]
    until("sentinels know each other", lambda: all(len(w.sentinel_sentinels(f"shard{n}")) == 2 for w in watch for n in range(SHARDS)))
    try:
        nodes[0].client().execute_command("CLUSTERX", "SETNODES", f"{'a' * 40} 127.0.0.1 {nodes[0].port} master - 0-16383", 99)
        raise AssertionError("the topology has two sources")
    except redis.ResponseError as error:
        assert "Sentinel" in str(error), error


def play(args, nodes, sentinels):
    pages = []

    def read(port):
        """Reads pages from one node. Records the time and the missing shards."""
        client = redis.Redis(port=port, decode_responses=True, socket_timeout=5)
        while not writers.stop.is_set():
            page = client.execute_command("FEED.GET", "home", 7, *POSTS)
            pages.append((time.time(), {shard_of(slots[post], SHARDS) for post, row in zip(POSTS, page) if is_error(row)}))
            time.sleep(0.01)

    slots = {post: nodes[0].client().execute_command("CLUSTER", "KEYSLOT", post) for post in POSTS}
    acts = nodes[1].client().execute_command("FEED.ACT", "like", 7, *POSTS)
    assert acts == [1] * len(POSTS), acts
    # The node that serves the pages survives: shards 0 and 1 lose their masters.
    reader = nodes[2 * (SHARDS - 1)]
    writers, reads = Writers(nodes, SHARDS), threading.Thread(target=read, args=(reader.port,), daemon=True)
    reads.start()
    time.sleep(1)
    writes, partial = [], []
    for round in range(args.rounds):
        shard = round % (SHARDS - 1)
        port = reader.masters()[0][shard]
        old = next(node for node in nodes if node.port == port)
        began = time.time()
        old.process.kill()
        old.process.wait()
        until("there is a new master", lambda: reader.masters()[0][shard] != port)
        writes.append(writers.go_on(shard, began, DOWN_AFTER_MS / 1000))
        time.sleep(0.5)
        missing = [t for t, away in pages if t > began and away]
        assert all(away <= {shard} for t, away in pages if t > began), "ids of another shard were missing"
        assert not pages[-1][1], "pages are still partial"
        partial.append(max(missing, default=began) - began)
        old.start()
        until("the old master is a connected replica", old.is_up)
        until("all nodes know all nodes", lambda: all(node.masters() == (reader.masters()[0], len(nodes)) for node in nodes))
        print(f"round {round + 1}: writes again after {writes[-1]:.2f} s, pages partial until {partial[-1]:.2f} s", flush=True)
    posts, lost = writers.end()
    reads.join()
    print(f"{args.rounds} failovers by Sentinel, {len(posts)} writes acknowledged by WAIT 1, {len(lost)} of them lost; writes again after "
          f"{statistics.median(writes):.2f} s, {len(pages)} pages, partial until {max(partial):.2f} s at most")
    assert not lost, f"acknowledged writes are lost: {lost[:20]}"
    assert len(posts) > 100 * args.rounds, "too few writes"
    assert all(p < w + 0.5 for p, w in zip(partial, writes)), (partial, writes)


def away(nodes, sentinels):
    """A Sentinel misses a failover and then is the only one that answers."""
    reader = nodes[2 * (SHARDS - 1)]
    before = reader.masters()[0]
    old = next(node for node in nodes if node.port == before[0])
    sentinels[0].kill()
    sentinels[0].wait()
    old.process.kill()
    old.process.wait()
    until("there is a new master", lambda: reader.masters()[0][0] != before[0])
    after = reader.masters()[0]
    for sentinel in sentinels[1:]:
        sentinel.send_signal(signal.SIGSTOP)
    # The restarted Sentinel knows only its file; a frozen one would find messages in its sockets.
    sentinels[0] = subprocess.Popen(sentinels[0].args, stdout=subprocess.DEVNULL)
    stale = redis.Redis(port=Member.sentinels[0], decode_responses=True)
    until("the Sentinel replies", stale.ping)
    # A node that has no other source since its start.
    restarted = nodes[2 * (SHARDS - 1) + 1]
    restarted.process.kill()
    restarted.process.wait()
    restarted.start()
    until("the node is up", lambda: restarted.client().ping())
    end = time.time() + 3
    while time.time() < end:
        assert int(stale.sentinel_get_master_addr_by_name("shard0")[1]) == before[0], "the Sentinel is not stale"
        for node in (reader, restarted):
            assert node.masters()[0] == after, "a stale Sentinel reverted the topology"
        time.sleep(0.2)
    for sentinel in sentinels[1:]:
        sentinel.send_signal(signal.SIGCONT)
    print("a stale Sentinel reverts nothing")


main()
