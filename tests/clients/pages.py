"""Pages of all shards from any node: four shards, each a process, and clients that are not aware of the cluster.

A shard is stopped (SIGSTOP), killed, and loses its slots, while clients read pages and like posts. The script checks that a page is never refused: posts
of the missing shard have an error in their places, within the deadline. Likes with an unknown outcome are sent again; at the end, each counts once.

    pages.py --server PATH_TO_TIDEMARK [--shards 4] [--keep]
"""
import argparse, signal, struct, threading, time

import redis

from nodes import freeze, scratch, until
from shards import Controller, Member, is_error

DEADLINE_MS, SLACK_S, STALE_MS = 300, 0.7, 2500
POSTS = range(1000, 1040)


class Peer(Member):
    more = f"peer_timeout = \"{DEADLINE_MS}ms\"\nread_from = \"master\""


class Reader(Member):
    more = f"peer_timeout = \"{DEADLINE_MS}ms\"\nread_from = \"replica\"\nmax_staleness = \"{STALE_MS}ms\""


def connect(node, protocol=2):
    return redis.Redis(port=node.port, protocol=protocol, socket_timeout=10, decode_responses=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("pages-", args.keep) as folder:
        nodes = [Peer(args.server, folder, n) for n in range(args.shards)]
        readers = [Reader(args.server, folder, args.shards + n) for n in range(4)]
        try:
            play(Controller(nodes, args.shards))
            for node in nodes:
                node.end()
            for number, node in enumerate(readers):
                node.number, node.id = number, f"{number:040x}"
            from_replicas(Controller(readers, 2))
        finally:
            for node in nodes + readers:
                node.end()


def play(controller):
    nodes = controller.nodes
    controller.start()
    shard = {post: controller.shard_of(nodes[0].ask("CLUSTER", "KEYSLOT", post)) for post in POSTS}
    assert len(set(shard.values())) == len(nodes), "posts of all shards"
    whole(nodes, shard)
    stopped(nodes, shard)
    killed(nodes, shard)
    moved(controller)
    likes(nodes)


def whole(nodes, shard):
    """Compares pages and likes by any node, in all forms, with the replies of each shard."""
    for viewer, node in enumerate(nodes):
        assert connect(node).execute_command("FEED.ACT", "like", viewer, *POSTS) == [1] * len(POSTS)
        assert connect(node).execute_command("FEED.ACT", "like", viewer, *POSTS) == [0] * len(POSTS)
    alone = {post: connect(nodes[shard[post]]).execute_command("FEED.GET", "home", 1, post)[0] for post in POSTS}
    assert {row[0] for row in alone.values()} == {len(nodes)}
    for node in nodes:
        for protocol in (2, 3):
            page = connect(node, protocol).execute_command("FEED.GET", "home", 1, *POSTS)
            assert page == [alone[post] for post in POSTS], page
        raw = redis.Redis(port=node.port)
        packed = raw.execute_command("FEED.GET", "home", 1, *POSTS, "BINARY")
        assert [list(row) for row in struct.iter_unpack("<4q2b", packed)] == [alone[post] for post in POSTS]
        assert connect(node).execute_command("CNT.GET", "post", *POSTS) == [alone[post][:4] for post in POSTS]
        # A request in a pipeline sees the effects of earlier ones.
        with connect(node).pipeline(transaction=False) as pipe:
            for post in POSTS:
                pipe.execute_command("FEED.ACT", "like", 100 + node.number, post)
                pipe.execute_command("FEED.GET", "home", 100 + node.number, post)
            replies = pipe.execute()
        assert replies[::2] == [[1]] * len(POSTS)
        assert [row[0][4] for row in replies[1::2]] == [1] * len(POSTS), replies[1::2]
        assert connect(node).execute_command("FEED.UNDO", "like", 100 + node.number, *POSTS) == [1] * len(POSTS)


def timed(client, *words):
    began = time.time()
    return client.execute_command(*words), time.time() - began


def check_partial(page, shard, away):
    for post, row in zip(POSTS, page):
        assert is_error(row) == (shard[post] == away), (post, shard[post], row)


def stopped(nodes, shard):
    """A hanging shard makes only its own posts fail. It delays a page by at most the deadline, and after a while not
    any more."""
    away = len(nodes) - 1
    client, other = connect(nodes[0]), connect(nodes[0])
    freeze(nodes[away].process)
    try:
        first = []
        waits = threading.Thread(target=lambda: first.append(timed(client, "FEED.GET", "home", 1, *POSTS)))
        waits.start()
        # Other clients of the same worker are served.
        mine = [post for post in POSTS if shard[post] == 0]
        assert timed(other, "FEED.GET", "home", 1, *mine)[1] < DEADLINE_MS / 1000 * 0.9
        waits.join()
        check_partial(first[0][0], shard, away)
        slowest = first[0][1]
        for _ in range(20):
            page, took = timed(client, "FEED.GET", "home", 1, *POSTS)
            check_partial(page, shard, away)
            assert all(isinstance(row, redis.exceptions.ClusterDownError) for row in page if is_error(row)), page
            slowest = max(slowest, took)
        acts = client.execute_command("FEED.ACT", "like", 500, *POSTS)
        check_partial(acts, shard, away)
        packed = redis.Redis(port=nodes[0].port).execute_command("FEED.GET", "home", 1, *POSTS, "BINARY")
        rows = list(struct.iter_unpack("<4q2b", packed[0]))
        assert [row == (-1,) * 6 for row in rows] == [shard[post] == away for post in POSTS], rows
        assert is_error(packed[1])
        assert slowest < DEADLINE_MS / 1000 + SLACK_S, slowest
        print(f"with a stopped shard: partial pages within {slowest * 1000:.0f} ms (the deadline is {DEADLINE_MS} ms)")
    finally:
        nodes[away].process.send_signal(signal.SIGCONT)
    until("pages are complete again", lambda: not any(map(is_error, client.execute_command("FEED.GET", "home", 1, *POSTS))), 10)
    # Both the likes that failed without a change and those with an unknown outcome are sent again.
    client.execute_command("FEED.ACT", "like", 500, *POSTS)
    assert client.execute_command("FEED.UNDO", "like", 500, *POSTS) == [1] * len(POSTS)


def killed(nodes, shard):
    away = len(nodes) - 1
    client = connect(nodes[1])
    # With everysec a kill may lose the last second, including an UNDO.
    connect(nodes[away]).execute_command("WAITAOF", 1, 0, 0)
    nodes[away].process.kill()
    nodes[away].process.wait()
    for _ in range(20):
        page, took = timed(client, "FEED.GET", "home", 1, *POSTS)
        check_partial(page, shard, away)
        assert took < DEADLINE_MS / 1000 + SLACK_S, took
    nodes[away].start()
    # Each node reconnects by itself.
    for node in nodes:
        until("pages are complete again", lambda: not any(map(is_error, connect(node).execute_command("FEED.GET", "home", 1, *POSTS))), 20)
    # The kill may have lost the last second (everysec), so repeat the likes.
    for viewer in range(len(nodes)):
        client.execute_command("FEED.ACT", "like", viewer, *POSTS)
    assert [row[0] for row in client.execute_command("FEED.GET", "home", 1, *POSTS)] == [len(nodes)] * len(POSTS)


def moved(controller):
    """Slots move to another node, but not all nodes know."""
    nodes = controller.nodes
    first, second = nodes[0], nodes[1]
    slots, version = "0-16383", controller.version + 1
    for node in nodes[1:]:
        node.ask("CLUSTERX", "SETSLOT", slots, "NODE", nodes[-1].id, version)
    # The first node has an older topology: other nodes tell it where the ids are.
    fresh = range(2000, 2020)
    own = [post for post in fresh if controller.shard_of(first.ask("CLUSTER", "KEYSLOT", post)) == 0]
    acts = connect(first).execute_command("FEED.ACT", "like", 1, *fresh)
    assert acts == [1] * len(fresh), acts
    held = connect(nodes[-1]).execute_command("CNT.GET", "post", *fresh)
    assert [row is None for row in held] == [post in own for post in fresh], held
    # Two nodes that redirect ids to each other: an error, and no loop.
    first.ask("CLUSTERX", "SETSLOT", slots, "NODE", second.id, version)
    for node in nodes[1:]:
        node.ask("CLUSTERX", "SETSLOT", slots, "NODE", first.id, version + 1)
    rows = connect(first).execute_command("CNT.GET", "post", *POSTS)
    assert all(isinstance(row, redis.exceptions.MovedError) for row in rows), rows
    controller.version += 2
    controller.publish()
    page = connect(first).execute_command("FEED.GET", "home", 1, *POSTS)
    assert not any(map(is_error, page)), page


def from_replicas(controller):
    """Two shards of two nodes: pages are read from the replica of the other shard while it is in sync."""
    nodes = controller.nodes
    controller.start()
    shard = {post: controller.shard_of(nodes[0].ask("CLUSTER", "KEYSLOT", post)) for post in POSTS}
    client = connect(nodes[0])
    assert client.execute_command("FEED.ACT", "like", 1, *POSTS) == [1] * len(POSTS)
    until("replicas have the writes", lambda: all(connect(node).execute_command("WAIT", 1, 1000) == 1 for node in (nodes[0], nodes[2])))
    calls = lambda: [node.client().info("commandstats").get("cmdstat_feed.get", {"calls": 0})["calls"] for node in nodes]
    before = calls()
    for _ in range(50):
        assert client.execute_command("FEED.GET", "home", 1, *POSTS) == [[1, 0, 0, 0, 1, 0]] * len(POSTS)
    # The replica of the asked node is not read, but the replica of the other shard is.
    asked = [now - then for now, then in zip(calls(), before)]
    assert asked[0] == 50 and asked[1] == 0 and asked[2] + asked[3] == 50 and asked[3] >= 45, asked
    # A replica as the coordinator also serves its own shard; changes go to the masters.
    assert connect(nodes[1]).execute_command("FEED.GET", "home", 1, *POSTS) == [[1, 0, 0, 0, 1, 0]] * len(POSTS)
    assert connect(nodes[1]).execute_command("FEED.ACT", "like", 2, *POSTS) == [1] * len(POSTS)
    # Its master is down: the replica serves until it exceeds the maximum staleness.
    freeze(nodes[2].process)
    stopped = time.time()
    try:
        page = client.execute_command("FEED.GET", "home", 1, *POSTS)
        assert not any(map(is_error, page)), page
        until("a stale replica returns errors", lambda: any(map(is_error, client.execute_command("FEED.GET", "home", 1, *POSTS))), 20)
        took = time.time() - stopped
        assert STALE_MS / 1000 - 1.5 < took < STALE_MS / 1000 + 2, took
        check_partial(client.execute_command("FEED.GET", "home", 1, *POSTS), shard, 1)
        print(f"a replica without its master replies for {took:.1f} s (max_staleness is {STALE_MS})")
    finally:
        nodes[2].process.send_signal(signal.SIGCONT)
    until("pages are complete again", lambda: not any(map(is_error, client.execute_command("FEED.GET", "home", 1, *POSTS))), 20)
    controller.stopped.set()


def likes(nodes):
    """Likes through all nodes while one of them is repeatedly stopped and resumed."""
    posts, viewers = range(3000, 3030), range(1000, 1300)
    stop, unknown = threading.Event(), []

    def disturb():
        while not stop.is_set():
            freeze(nodes[-1].process)
            time.sleep(DEADLINE_MS / 1000 * 1.5)
            nodes[-1].process.send_signal(signal.SIGCONT)
            time.sleep(0.2)

    def like(number):
        client = connect(nodes[number])
        for viewer in viewers[number::3]:
            left, first = list(posts), True
            while left:
                acts = client.execute_command("FEED.ACT", "like", viewer, *left)
                failed = [post for post, act in zip(left, acts) if is_error(act)]
                unknown.extend(act for act in acts if is_error(act) and "UNKNOWN outcome" in str(act))
                assert not first or all(is_error(act) or act == 1 for act in acts), acts
                left, first = failed, False
                if left:
                    time.sleep(0.02)

    disturber = threading.Thread(target=disturb, daemon=True)
    threads = [threading.Thread(target=like, args=(number,), daemon=True) for number in range(3)]
    for thread in [disturber] + threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    disturber.join()
    until("pages are complete", lambda: not any(map(is_error, connect(nodes[0]).execute_command("CNT.GET", "post", *posts))), 10)
    counts = [row[0] for row in connect(nodes[0]).execute_command("CNT.GET", "post", *posts)]
    assert counts == [len(viewers)] * len(posts), counts
    assert unknown, "no outcome was unknown"
    print(f"{len(posts) * len(viewers)} likes, {len(unknown)} of them with unknown outcome and repeated: each counts once")


main()
