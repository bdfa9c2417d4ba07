"""Stock clients of Redis Cluster, unmodified, with a cluster of three shards of two nodes. This script is the controller (CLUSTERX).

First, redis-py, ioredis, go-redis and redis-cli -c like posts and read pages, also in pipelines. Once they know the slots, no request is redirected.
Then masters are taken away (kill -9, SIGSTOP) under writers with redis-py, and their replicas are promoted after the lease. The script checks that
no write acknowledged by WAIT 1 is lost, and that a frozen master accepts no writes after it wakes up.

    cluster.py --server PATH_TO_TIDEMARK [--rounds 2] [--keep]
"""
import argparse, os, signal, statistics, subprocess, threading, time

import redis
from redis.cluster import ClusterNode, RedisCluster

from nodes import freeze, scratch, until
from shards import LEASE_MS, Controller, Member, Writers

SHARDS = 3
TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def clients(nodes):
    """Runs the stock clients. Returns the number of redirections by client after it knew the slots."""
    # Redirections, and requests that a node had to forward.
    moved, counts = lambda: sum(node.moved() + node.asked_others() for node in nodes), {}
    cluster = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", nodes[0].port)], decode_responses=True)
    posts = range(1000, 1300)
    before = moved()
    for post in posts:
        assert cluster.execute_command("FEED.ACT", "like", 7, post) == [1]
        assert cluster.execute_command("FEED.ACT", "like", 7, post) == [0]
        assert cluster.hincrby(f"post:{{{post}}}", "read", 2) == 2
        page = cluster.execute_command("FEED.GET", "home", 7, post)[0]
        assert (page[0], page[3], page[4]) == (1, 2, 1), page
    with cluster.pipeline() as pipe:
        for post in posts:
            pipe.hget(f"post:{{{post}}}", "like")
            pipe.sismember(f"liked:{{{post}}}", 7)
            pipe.execute_command("FEED.GET", "home", 7, post)
            pipe.execute_command("FEED.ROW", f"post:{{{post}}}", "home", 7)
        replies = pipe.execute()
    assert len(replies) == 4 * len(posts) and all(r == "1" for r in replies[::4]) and all(replies[1::4]), replies[:8]
    assert all(r[0][0] == 1 for r in replies[2::4]), replies[2]
    assert all(page[0] == row for page, row in zip(replies[2::4], replies[3::4])), replies[2:4]
    counts["redis-py"] = moved() - before
    # A page of all shards from one node.
    assert [row[0] for row in cluster.execute_command("FEED.GET", "home", 7, *posts)] == [1] * len(posts)

    before = moved()
    script = """
        const library = require(process.argv[1] + "/ioredis"), Redis = library.Redis ?? library;
        (async () => {
            const cluster = new Redis.Cluster([{ host: "127.0.0.1", port: Number(process.argv[2]) }]);
            await new Promise((ready) => cluster.once("ready", ready));
            let read = 0;
            for (let post = 1000; post < 1300; post++) {
                await cluster.hincrby(`post:{${post}}`, "read", 1);
                read += Number(await cluster.hget(`post:{${post}}`, "read"));
                read += await cluster.sismember(`liked:{${post}}`, 7);
            }
            const page = await cluster.call("FEED.GET", "home", "7", "1001");
            console.log(JSON.stringify([read, page[0][0]]));
            cluster.disconnect();
        })();
    """
    modules = os.path.join(TOP, "target/clients/node/node_modules")
    said = subprocess.run(["node", "-e", script, modules, str(nodes[2].port)], capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "[1200,1]", said
    # ioredis does not know the keys of FEED.GET, so it may ask another node first.
    counts["ioredis"] = max(0, moved() - before - 1)

    before = moved()
    go = dict(os.environ, GO111MODULE="off", GOPATH="/usr/share/gocode", GOFLAGS="-p=1", CGO_ENABLED="0")
    ports = ",".join(str(node.port) for node in nodes)
    said = subprocess.run(["go", "run", os.path.join(TOP, "tests/clients/cluster.go"), ports, "2000", "2300"], env=go, capture_output=True, text=True, timeout=240)
    assert said.stdout.strip() == "ok", said
    # This generation of go-redis cannot read COMMAND of Redis 6.0 and later, so it learns no slots. It asks any node and follows
    # redirections.
    print(f"go-redis: {moved() - before} redirections")

    for post in posts[:20]:
        command = ["redis-cli", "-c", "-p", str(nodes[4].port), "FEED.GET", "home", "7", str(post)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.split("\n")
        said = [line for line in said if line.isdigit()]
        assert said[0] == "1" and said[3] == "3", said
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    with scratch("cluster-", args.keep) as folder:
        play(args, [Member(args.server, folder, n) for n in range(2 * SHARDS)])


def play(args, nodes):
    controller = Controller(nodes, SHARDS)
    shard_of = controller.shard_of
    try:
        controller.start()
        for node in nodes:
            controller.beat(node)
            threading.Thread(target=controller.beats, args=(node,), daemon=True).start()
        counts = clients(nodes)
        assert set(counts.values()) == {0}, f"redirected: {counts}"
        print(f"redirections after the slots were known: {counts}", flush=True)

        writers = Writers(nodes, SHARDS)
        time.sleep(1)
        times = []
        for round in range(args.rounds):
            shard, frozen = round % SHARDS, round % 2 == 1
            began, old = time.time(), controller.masters[shard]
            if frozen:
                freeze(old.process)
            else:
                old.process.kill()
                old.process.wait()
            assert controller.fail_over(shard) is old
            times.append(writers.go_on(shard, began, LEASE_MS / 1000))
            if frozen:
                old.process.send_signal(signal.SIGCONT)
            else:
                old.start()
            until("the old master is up", lambda: old.client().ping())
            # It has received no new topology, and in its own one it is the master.
            post = next(p for p in range(1000, 2000) if shard_of(old.ask("CLUSTER", "KEYSLOT", p)) == shard)
            try:
                old.ask("HINCRBY", f"post:{{{post}}}", "comment", 1)
                raise AssertionError("a master without a lease accepted a write")
            except redis.ResponseError as error:
                assert "lease expired" in str(error) or "fenced" in str(error), error
            controller.tell(old)
            controller.away.discard(old)
            until("the old master is a connected replica", old.is_up)
            print(f"round {round + 1}: {'frozen' if frozen else 'killed'}: writes again after {times[-1]:.2f} s", flush=True)
            time.sleep(1)
        posts, lost = writers.end()
        print(f"{args.rounds} failovers by CLUSTERX, {len(posts)} writes acknowledged by WAIT 1, {len(lost)} of them lost; "
              f"writes again after {statistics.median(times):.2f} s, of which the lease is {LEASE_MS / 1000} s")
        assert len(posts) > 100 * args.rounds, "too few writes"
        assert not lost, f"acknowledged writes are lost: {lost[:20]}"
    finally:
        controller.stopped.set()
        for node in nodes:
            node.end()


main()
