"""Nodes of a cluster, and a controller of it (CLUSTERX): shard n has the nodes 2n and 2n + 1, or as many as it is made of."""
import os, threading, time

import redis

from nodes import Node, until

LEASE_MS = 1500


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
    """The first node of each shard is its master at first."""

    def __init__(self, nodes, shards):
        self.nodes, self.version, self.shards, self.elections = nodes, 0, shards, [1] * shards
        self.each = len(nodes) // shards
        self.masters = [nodes[self.each * n] for n in range(shards)]
        self.away, self.stopped = set(), threading.Event()

    def shard_of(self, slot):
        return next(n for n in range(self.shards) if slot < 16384 * (n + 1) // self.shards)

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
            master, first, last = self.masters[shard], 16384 * shard // self.shards, 16384 * (shard + 1) // self.shards - 1
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
        """Its master does not answer any more: when the last lease is over, the other node is the master. Gives the old one."""
        old = self.masters[shard]
        self.away.add(old)
        time.sleep(LEASE_MS / 1000 + 0.1)
        self.masters[shard] = next(n for n in self.nodes if n.number // self.each == shard and n is not old)
        self.elections[shard] += 1
        self.publish()
        return old
