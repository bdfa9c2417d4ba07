"""Splits a shard and moves another one under load, with `tidemark cluster` and with stock tools. Nodes are killed at each step.

Two shards of one master each, and a spare node. Writers like posts and increment counters of all shards through any node, and record acknowledged writes.
At the end each like counts once, each increment is present, and no slot was ever served by two nodes: a node that gave a slot away always answers MOVED.

    split.py --server PATH_TO_TIDEMARK [--posts 2000] [--fill 10_000] [--kills 2] [--keep]
"""
import argparse, binascii, collections, os, random, re, signal, subprocess, threading, time

import redis

from nodes import freeze, scratch, until
from shards import Controller, Member, is_error, shard_of

PATIENCE_S = 60
# Constant pairs of a space with a ledger.
FANS, FAN_POSTS = range(3), range(1000, 1400)


class Peer(Member):
    more = 'peer_timeout = "1s"'

    def config(self, follows):
        # Acknowledged writes must be on disk, because nodes are killed.
        return super().config(follows).replace("[durability]", '[durability]\nfsync = "always"')


class Cluster:
    """Runs `tidemark cluster` like an operator."""

    def __init__(self, server, nodes, patience_s):
        self.server, self.nodes, self.patience_s = server, nodes, patience_s

    def begin(self, *words, at=None):
        at = at or self.nodes[0]
        command = [self.server, "cluster", words[0], "--port", str(at.port), *map(str, words[1:])]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *words, at=None, fails=False):
        process = self.begin(*words, at=at)
        out, _ = process.communicate(timeout=self.patience_s)
        assert fails == (process.returncode != 0), out
        return out


def address(node):
    return f"127.0.0.1:{node.port}"


class Load:
    """Writers through any node, each with its own posts: a counter without a flag, and likes with one."""

    def __init__(self, nodes, posts):
        self.nodes, self.stop = nodes, threading.Event()
        self.posts = range(1000, 1000 + posts)
        self.added = {post: 0 for post in self.posts}
        self.unknown = {post: 0 for post in self.posts}
        self.liked = {post: set() for post in self.posts}
        # Number of likes that were new. A false positive of the filter makes a like not new.
        self.counted = {post: 0 for post in self.posts}
        self.longest, self.done, self.refusals = 0, 0, collections.Counter()
        self.threads = [threading.Thread(target=self.run, args=(n,), daemon=True) for n in range(3)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        rng, viewer = random.Random(number), number
        mine = self.posts[number::3]
        client = None
        while not self.stop.is_set():
            viewer += 3
            some = rng.sample(mine, 20)
            try:
                if client is None or rng.random() < 0.05:
                    # Without redis-py's retries, which would count an increment twice.
                    once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
                    client = redis.Redis(port=rng.choice(self.nodes).port, socket_timeout=3, decode_responses=True, retry=once)
                began = time.time()
                acts = client.execute_command("FEED.ACT", "like", viewer, *some)
                for post, act in zip(some, acts):
                    if not is_error(act):
                        self.liked[post].add(viewer)
                        self.counted[post] += act
                    else:
                        self.note(post, act)
                adds = client.execute_command("CNT.MINCRBY", "post", *[word for post in some for word in (post, "repost", 1)])
                for post, row in zip(some, adds):
                    if not is_error(row):
                        self.added[post] += 1
                    else:
                        self.note(post, row)
                self.longest = max(self.longest, time.time() - began)
                self.done += 1
            except (redis.RedisError, OSError):
                for post in some:
                    self.unknown[post] += 1
                client = None
                time.sleep(0.02)

    def note(self, post, error):
        self.refusals[re.sub(r"[0-9]+", "N", str(error))] += 1
        if "UNKNOWN" in str(error):
            self.unknown[post] += 1

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        print(f"refusals: {dict(self.refusals)}")

    def check(self, node):
        """Checks that acknowledged writes are present and nothing counts twice."""
        client = redis.Redis(port=node.port, socket_timeout=30, decode_responses=True)
        for first in range(0, len(self.posts), 50):
            some = self.posts[first:first + 50]
            until("pages are complete", lambda: not any(map(is_error, client.execute_command("CNT.GET", "post", *some))))
            rows = client.execute_command("CNT.GET", "post", *some)
            for post, row in zip(some, rows):
                like, repost = (row[0], row[1]) if row else (0, 0)
                added, unknown = self.added[post], self.unknown[post]
                assert added <= repost <= added + unknown, f"post {post}: {repost} reposts, {added} acknowledged, {unknown} unknown"
                liked = self.counted[post]
                assert liked <= like <= liked + unknown, f"post {post}: {like} likes of {liked}, {unknown} unknown"
        viewers = random.sample(sorted({viewer for some in self.liked.values() for viewer in some}), 30)
        for viewer in viewers:
            liked = [post for post in self.posts if viewer in self.liked[post]]
            answers = client.execute_command("PH.EXISTS", "liked", viewer, *liked)
            assert answers == [1] * len(liked), (viewer, answers)


def slot_of(post):
    return binascii.crc_hqx(str(post).encode(), 0) % 16384


class Fill:
    """Posts that exist while slots move: each has a like with its flag, and reposts."""

    FIRST, PER_REQUEST = 1_000_000, 500

    def __init__(self, shards, posts):
        """`shards`: nodes in the order of their slot ranges."""
        self.posts = range(self.FIRST, self.FIRST + posts)
        began = time.time()
        for shard, node in enumerate(shards):
            for some in self.requests(lambda post: shard_of(slot_of(post), len(shards)) == shard, 20):
                pipe = node.client(60).pipeline(transaction=False)
                for ids in some:
                    pipe.execute_command("FEED.ACT", "like", self.viewer(ids), *ids)
                    pipe.execute_command("CNT.MINCRBY", "post", *[word for post in ids for word in (post, "repost", 1 + post % 7)])
                assert not any(map(is_error, pipe.execute())), "a post of the fill was rejected"
        print(f"{posts} posts, each with a like and its flag, in {time.time() - began:.0f} s")

    @staticmethod
    def viewer(ids):
        return 1_000_000 + ids[0] % 1000

    def requests(self, chosen, together):
        """Returns the posts that match, as lists of `together` requests."""
        ids = [post for post in self.posts if chosen(post)]
        requests = [ids[at:at + self.PER_REQUEST] for at in range(0, len(ids), self.PER_REQUEST)]
        return [requests[at:at + together] for at in range(0, len(requests), together)]

    def check(self, shards, node):
        """Checks that every post and every flag exists on its current node."""
        client = node.client(60)
        for shard in range(shards):
            for some in self.requests(lambda post: shard_of(slot_of(post), shards) == shard, 4):
                pipe = client.pipeline(transaction=False)
                for ids in some:
                    pipe.execute_command("FEED.GET", "home", self.viewer(ids), *ids)
                for ids, page in zip(some, pipe.execute()):
                    for post, row in zip(ids, page):
                        assert not is_error(row) and row[:5] == [1, 1 + post % 7, 0, 0, 1], (post, row)


def owners(node, nodes):
    """Returns the node that serves each slot, according to one node."""
    by_port = {n.port: n.number for n in nodes}
    owner = [None] * 16384
    for first, last, master, *_ in node.client().execute_command("CLUSTER", "SLOTS"):
        for slot in range(first, last + 1):
            owner[slot] = by_port[master[1] if isinstance(master, list) else master["port"]]
    return owner


def served(nodes, post):
    """Returns the nodes that serve a post themselves."""
    found = []
    for node in nodes:
        try:
            node.client().execute_command("HGET", f"post:{{{post}}}", "like")
            found.append(node.number)
        except (redis.exceptions.MovedError, redis.exceptions.ClusterDownError):
            pass
    return found


def check_slots(nodes, asked):
    """Checks that all nodes have the same topology and that one node serves each slot."""
    until("nodes have the same topology", lambda: len({tuple(owners(node, nodes)) for node in nodes}) == 1)
    owner = owners(nodes[0], nodes)
    for post in asked:
        slot = nodes[0].ask("CLUSTER", "KEYSLOT", post)
        assert served(nodes, post) == [owner[slot]], (post, slot, served(nodes, post), owner[slot])
    return owner


class Watch:
    """Asks the nodes directly, without READONLY, all the time: two nodes that serve one post at the same time are a defect.

    A stale node would return an old value. So this reads a number that only grows."""

    def __init__(self, nodes, posts):
        self.nodes, self.posts, self.stop, self.wrong, self.looks = nodes, posts, threading.Event(), [], 0
        self.highest = {}
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        highest = self.highest
        while not self.stop.is_set():
            post = random.choice(self.posts)
            for node in self.nodes:
                try:
                    now = int(node.client(1).hincrby(f"post:{{{post}}}", "comment", 1))
                except (redis.RedisError, OSError):
                    continue
                if now <= highest.get(post, 0):
                    self.wrong.append((post, node.number, now, highest[post]))
                highest[post] = now
                self.looks += 1

    def end(self):
        self.stop.set()
        self.thread.join()
        assert not self.wrong, f"two nodes served a post: {self.wrong[:5]}"
        assert self.looks > 100


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--posts", type=int, default=2000)
    parser.add_argument("--fill", type=int, default=10_000, help="posts, and as many flags, that lie there before")
    parser.add_argument("--kills", type=int, default=2, help="kills of each of: the old master, the new one, the command")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("split-", args.keep) as folder:
        nodes = [Peer(args.server, folder, n) for n in range(3)]
        try:
            play(args, nodes)
        finally:
            for node in nodes:
                node.end()


def play(args, nodes):
    a, b, spare = nodes
    controller = Controller([a, b], 2)
    controller.start()
    spare.start()
    until("the spare node is up", lambda: spare.client().ping())
    # The time to copy depends on the number of posts.
    cluster = Cluster(args.server, nodes, PATIENCE_S + args.fill / 100_000)
    refusals(cluster, a, b, spare)
    for node in (a, b):
        node.ask("TM.SPACE", "CREATE", "fans", "existence", "ledger", "exact", "spill", "true")
    for member in FANS:
        assert a.ask("PH.ADD", "fans", member, *FAN_POSTS) == [1] * len(FAN_POSTS)
    fill = Fill([a, b], args.fill)
    load = Load(nodes[:2], args.posts)
    watch = Watch(nodes, range(100_000, 100_050))
    until("there are rows", lambda: load.done > 100)
    plan = cluster.run("split", "--from", address(a), "--to", address(spare), "--plan")
    assert "master of 4096 slots" in plan and spare.ask("CLUSTERX", "VERSION") == "-1", plan
    # A quarter of the slots goes to the spare node.
    # Two operators at once: one succeeds; the other one gets the message that it was already done, or an error that asks to repeat the command.
    both = [cluster.begin("split", "--from", address(a), "--to", address(spare)) for _ in range(2)]
    said = [(process.communicate(timeout=cluster.patience_s)[0].strip(), process.returncode) for process in both]
    print(*(out.splitlines()[-1] for out, _ in said), sep="\n")
    assert [code for _, code in said].count(0) >= 1 and all("master of 4096 slots" in out or "again" in out for out, _ in said), said
    load.nodes = nodes
    print(f"a write during the split took {load.longest * 1000:.0f} ms at most")
    owner = check_slots(nodes, range(1000, 1100))
    assert [owner.count(n) for n in range(3)] == [4096, 8192, 4096]
    again = cluster.run("split", "--from", address(a), "--to", address(spare))
    assert "already" in again, again
    status = cluster.run("status")
    assert status.count(" up") == 3, status
    before = load.done
    until("writes continue", lambda: load.done > before + 50)
    kills(args, cluster, load, nodes)
    watch.end()
    load.end()
    for node in nodes:
        load.check(node)
    fill.check(2, nodes[0])
    trimmed(cluster, load, watch, nodes)
    restarted(nodes, range(1000, 1100))
    fill.check(2, nodes[1])
    print(f"{load.done} rounds of writes, the longest {load.longest * 1000:.0f} ms; {watch.looks} checks for two masters: none")


def trimmed(cluster, load, watch, nodes):
    """Trim deletes rows of foreign slots on masters and their replicas; all other rows remain."""
    rows = lambda: [node.client().dbsize() for node in nodes]
    owner = owners(nodes[0], nodes)
    masters = [node for node in nodes if node.number in owner]
    written = {post for post in load.posts if load.added[post] or load.liked[post]} | set(watch.highest)
    before = sum(node.client().dbsize() for node in masters)
    out = cluster.run("trim")
    assert out.count("post: ") == len(masters), out
    for node in masters:
        own = {post for post in written if owner[nodes[0].ask("CLUSTER", "KEYSLOT", post)] == node.number}
        found = {int(key.split("{")[1].strip("}")) for key in node.client(30).scan_iter("post:*", count=1000)}
        # A write without a reply may have created a row.
        assert own <= found and all(owner[slot_of(post)] == node.number for post in found), (node.number, rows())
    assert before > sum(node.client().dbsize() for node in masters), "nothing was trimmed"
    for node in masters:
        _, pairs = node.client(30).execute_command("PH.SCAN", "fans", 0, "COUNT", 100_000)
        own = [post for post in FAN_POSTS if owner[nodes[0].ask("CLUSTER", "KEYSLOT", post)] == node.number]
        wanted = [(str(post), str(member)) for post in own for member in FANS]
        assert list(zip(pairs[::2], pairs[1::2])) == wanted, (node.number, len(pairs), len(wanted))
    until("replicas are trimmed like their masters", lambda: len(set(rows())) <= len(masters) + 1)
    again = cluster.run("trim")
    assert again.count(" 0 rows deleted") == again.count("rows deleted"), again
    for node in nodes:
        load.check(node)


def restarted(nodes, posts):
    """Kills and restarts all nodes: without a controller, their topologies say that they are masters."""
    for node in nodes:
        node.process.kill()
        node.process.wait()
    for node in nodes:
        node.start()
    def writes():
        acts = nodes[0].client().execute_command("FEED.ACT", "like", 7, *posts)
        return not any(map(is_error, acts))
    until("all shards accept writes again", writes)


def refusals(cluster, a, b, spare):
    """Commands that cannot succeed are refused before anything changes."""
    for words, why in [
        (("split", "--from", address(b), "--to", address(spare), "--slots", "0-5"), "slot 0 is not served by"),
        (("split", "--from", address(a), "--to", address(spare), "--slots", "0-8191"), "tidemark cluster move"),
        (("split", "--from", address(spare), "--to", address(a)), "is not a node of the cluster"),
        (("split", "--from", address(a), "--to", address(b)), "already"),
    ]:
        out = cluster.run(*words, fails=why != "already")
        assert why in out, out
    topology = "\n".join(f"{n.id} 127.0.0.1 {n.port} master - {slots}" for n, slots in ((a, "0-99"), (b, "100-16383")))
    # A node of another cluster is refused.
    spare.ask("CLUSTERX", "SETNODEID", spare.id)
    spare.ask("CLUSTERX", "SETNODES", f"{spare.id} 127.0.0.1 {spare.port} master - 0-16383", 9)
    out = cluster.run("split", "--from", address(a), "--to", address(spare), fails=True)
    assert "is not empty" in out, out
    spare.ask("CLUSTER", "RESET")
    for node, version, option, why in (
        (a, 2, ["HANDOVER"], "which is not a replica of this node"),
        (b, 2, ["HANDOVER"], "only its master can hand it over"),
        (a, 1, [], "this node has a different topology 1"),
        (a, 0, ["CHECK"], "Invalid cluster version"),
    ):
        try:
            node.ask("CLUSTERX", "SETNODES", topology, version, *option)
            raise SystemExit("slots went to a node without the rows")
        except redis.ResponseError as error:
            assert why in str(error), error
    assert a.ask("CLUSTERX", "VERSION") == "1"


def kills(args, cluster, load, nodes):
    """Slots move back and forth between b and the shard of the spare node, while the old master, the new one or the command is killed, or the old
    master is frozen."""
    a, b, spare = nodes
    rng = random.Random(7)
    # The spare node's shard moves to an empty node, which needs a replica first. So whole shards move between two nodes.
    first, second = spare, Peer(spare.server, os.path.dirname(spare.folder), len(nodes))
    nodes.append(second)
    second.start()
    until("another node is up", lambda: second.client().ping())
    for number in range(4 * args.kills):
        victim = ("the old master", "the new master", "the command", "standing still")[number % 4]
        command = cluster.begin("move", "--from", address(first), "--to", address(second))
        time.sleep(rng.uniform(0, 0.6))
        if victim == "the command":
            command.kill()
            command.communicate()
        elif victim == "standing still":
            freeze(first.process)
            time.sleep(1.6)
            first.process.send_signal(signal.SIGCONT)
            command.communicate(timeout=cluster.patience_s)
        else:
            node = first if victim == "the old master" else second
            node.process.kill()
            node.process.wait()
            time.sleep(0.2)
            node.start()
            until("the node is up again", lambda: node.client().ping())
            command.communicate(timeout=cluster.patience_s)
        # An operator repeats the command until it reports success.
        def is_done():
            process = cluster.begin("move", "--from", address(first), "--to", address(second))
            out, _ = process.communicate(timeout=cluster.patience_s)
            return process.returncode == 0
        until(f"the shard has moved despite: {victim}", is_done, 90)
        owner = check_slots(nodes, range(1000, 1040))
        assert owner.count(second.number) == 4096 and owner.count(first.number) == 0, [owner.count(n) for n in range(4)]
        first, second = second, first
    print(f"{4 * args.kills} moves, each with a node or the command killed or stopped: no slot had two masters")


if __name__ == "__main__":
    main()
