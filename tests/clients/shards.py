"""Nodes of a cluster, its controller (CLUSTERX), and writers. With two nodes per shard, shard n has the nodes 2n and 2n + 1."""
import os, threading, time

import redis
from redis.cluster import ClusterNode, RedisCluster

from nodes import Node, until

LEASE_MS = 1500


def slots_of(shard, shards):
    """Returns the first and the last slot of a shard."""
    return 16384 * shard // shards, 16384 * (shard + 1) // shards - 1


def shard_of(slot, shards):
    return next(n for n in range(shards) if slot <= slots_of(n, shards)[1])


def is_error(row):
    return isinstance(row, redis.ResponseError)


class Writers:
    """Threads that write posts with redis-py's RedisCluster and WAIT, while masters may fail."""

    def __init__(self, nodes, shards, replicas=1, count=3):
        self.nodes, self.shards, self.replicas, self.stop = nodes, shards, replicas, threading.Event()
        # Posts acknowledged by WAIT, by thread; time and shard of each accepted write.
        self.acked, self.accepted = [[] for _ in range(count)], []
        self.threads = [threading.Thread(target=self.load, args=(worker,), daemon=True) for worker in range(count)]
        for thread in self.threads:
            thread.start()

    def cluster(self, **options):
        return RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", n.port) for n in self.nodes], decode_responses=True, **options)

    def load(self, worker):
        cluster, post = self.cluster(socket_timeout=1), 10_000 + worker
        while not self.stop.is_set():
            post += len(self.acked)
            key = f"post:{{{post}}}"
            try:
                node = cluster.get_node_from_key(key)
                with cluster.get_redis_connection(node).pipeline(transaction=False) as pipe:
                    pipe.hset(key, "like", post % 4000 + 1)
                    pipe.execute_command("WAIT", self.replicas, 300)
                    _, replicas = pipe.execute()
                self.accepted.append((time.time(), shard_of(cluster.keyslot(key), self.shards)))
                if replicas == self.replicas:
                    self.acked[worker].append(post)
            except (redis.RedisError, OSError):
                time.sleep(0.02)
                try:
                    cluster.nodes_manager.initialize()
                except redis.RedisError:
                    pass

    def go_on(self, shard, began, after_s):
        """Waits for a write to the shard that is accepted at least `after_s` seconds after `began`. Returns its delay after
        `began`."""
        late = lambda some: (t for t, s in some if t > began + after_s and s == shard)
        until("writes are accepted", lambda: any(late(self.accepted[-200:])))
        return next(late(self.accepted)) - began

    def end(self):
        """Stops the threads. Returns all posts acknowledged by WAIT, and the missing ones."""
        self.stop.set()
        for thread in self.threads:
            thread.join()
        cluster, posts = self.cluster(), [post for worker in self.acked for post in worker]
        return posts, [post for post in posts if cluster.hget(f"post:{{{post}}}", "like") != str(post % 4000 + 1)]


class Member(Node):
    more = ""

    def __init__(self, server, folder, number):
        super().__init__(server, folder, number)
        self.id = f"{number:040x}"

    def config(self, follows):
        return "\n".join(["[server]", f"port = {self.port}", "workers = 1", "[durability]", f'dir = "{self.folder}/data"', "[cluster]", "enabled = true", self.more]) + "\n"

    def ask(self, *words, timeout_s=1):
        with redis.Redis(port=self.port, socket_timeout=timeout_s, decode_responses=True) as client:
            return client.execute_command(*words)

    def moved(self):
        return self.client().info("errorstats").get("errorstat_MOVED", {"count": 0})["count"]

    def asked_others(self):
        return self.client().info("cluster")["cluster_peer_requests"]


class Controller:
    """A controller. The first node of each shard is its first master."""

    def __init__(self, nodes, shards):
        self.nodes, self.version, self.shards, self.elections = nodes, 0, shards, [1] * shards
        self.each = len(nodes) // shards
        self.masters = [nodes[self.each * n] for n in range(shards)]
        self.away, self.stopped = set(), threading.Event()

    def shard_of(self, slot):
        return shard_of(slot, self.shards)

    def start(self):
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            until("a node is up", lambda: node.client().ping())
            node.ask("CLUSTERX", "SETNODEID", node.id)
        self.publish()
        until("replicas are up", lambda: all(n.is_up() for n in self.nodes if n not in self.masters))

    def text(self):
        lines = []
        for node in self.nodes:
            shard = node.number // self.each
            master, (first, last) = self.masters[shard], slots_of(shard, self.shards)
            role = f"master - {first}-{last}" if node is master else f"slave {master.id}"
            lines.append(f"{node.id} 127.0.0.1 {node.port} {role}")
        return "\n".join(lines)

    def publish(self):
        self.version += 1
        for node in self.nodes:
            if node not in self.away:
                self.tell(node)

    def tell(self, node):
        assert node.ask("CLUSTERX", "SETNODES", self.text(), self.version, timeout_s=30) == "OK"

    def beat(self, node):
        shard = node.number // self.each
        node.ask("CLUSTERX", "HEARTBEAT", self.masters[shard].id, LEASE_MS, self.elections[shard])

    def beats(self, node):
        while not self.stopped.is_set():
            if node not in self.away:
                try:
                    self.beat(node)
                except redis.RedisError:
                    pass
            time.sleep(LEASE_MS / 5000)

    def fail_over(self, shard):
        """Promotes the other node of a shard when the last lease is over. Returns the old master."""
        old = self.masters[shard]
        self.away.add(old)
        time.sleep(LEASE_MS / 1000 + 0.1)
        self.masters[shard] = next(n for n in self.nodes if n.number // self.each == shard and n is not old)
        self.elections[shard] += 1
        self.publish()
        return old
