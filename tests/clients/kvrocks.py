"""Simulates Kvrocks' controller with a real etcd: two shards of three nodes, and two controllers, one of them elected by etcd.

The controller here sends, reads and stores the same as kvrocks-controller: PING, CLUSTER INFO, INFO, CLUSTERX setnodeid and setnodes, and the cluster
as JSON at /kvrocks/metadata/NAMESPACE/cluster/NAME. It updates nodes with an older epoch. After MAX_PINGS failed pings, it fails a node over to the
replica with the largest slave_repl_offset. Only its timeouts are shorter. Masters are killed or frozen under writers with redis-py, and in every third
round the leading controller is killed, too. No write acknowledged by WAIT for all replicas may be lost. (A write with fewer acknowledgements may be:
there is no lease here, so an old master continues with replicas that have not learned of the new one yet.)

    kvrocks.py --server PATH_TO_TIDEMARK [--rounds 3] [--keep]
"""
import argparse, base64, json, os, signal, statistics, subprocess, sys, threading, time, urllib.request

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from nodes import freeze, scratch, until
from proxy import free_port
from shards import Member, Writers, slots_of

SHARDS, EACH = 2, 3
CLUSTER = "/kvrocks/metadata/feeds/cluster/posts"
LEADER = "/kvrocks/controller/leader"
# The real controller's values are 3 s, 5 and 6 s.
PING_S, MAX_PINGS, SESSION_S = 0.25, 3, 3


class Etcd:
    """Client of etcd's JSON gateway."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/v3/"

    def post(self, path, timeout_s=5, **body):
        encoded = {key: base64.b64encode(v.encode()).decode() if isinstance(v, str) else v for key, v in body.items()}
        request = urllib.request.Request(self.url + path, json.dumps(encoded).encode())
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return json.load(reply)

    def cluster(self):
        return json.loads(base64.b64decode(self.post("kv/range", key=CLUSTER)["kvs"][0]["value"]))

    def put(self, cluster):
        self.post("kv/put", key=CLUSTER, value=json.dumps(cluster))

    def is_up(self):
        try:
            return "members" in self.post("cluster/member/list")
        except OSError:
            return False

    def campaign(self, name):
        """Waits for the leadership. Returns an event that is set when its lease is over."""
        lease, over = int(self.post("lease/grant", TTL=SESSION_S)["ID"]), threading.Event()
        threading.Thread(target=self.keep, args=(lease, over), daemon=True).start()
        self.post("election/campaign", 3600, name=LEADER, lease=lease, value=name)
        return over

    def keep(self, lease, over):
        while not over.wait(SESSION_S / 6):
            try:
                if "TTL" not in self.post("lease/keepalive", ID=lease)["result"]:
                    over.set()
            except OSError:
                over.set()

    def leader(self):
        return base64.b64decode(self.post("election/leader", name=LEADER)["kv"]["value"]).decode()


def slot_string(cluster):
    """Returns the topology in the format of setnodes."""
    lines = []
    for shard in cluster["shards"]:
        master = next(node for node in shard["nodes"] if node["role"] == "master")
        for node in shard["nodes"]:
            role = f"master - {' '.join(shard['slot_ranges'])}" if node is master else f"slave {master['id']}"
            lines.append(f"{node['id']} {node['addr'].replace(':', ' ', 1)} {role}\n")
    return "".join(lines)


def parsed(text):
    """Parses CLUSTER NODES like the controller. Returns the version, and roles and slots by id."""
    nodes, version = {}, -1
    for line in text.rstrip("\n").split("\n"):
        fields = line.split(" ")
        assert len(fields) >= 7, line
        role = fields[2].split(",")[1] if "," in fields[2] else fields[2]
        assert role in ("master", "slave") and (role == "slave" or len(fields) >= 9), line
        version = int(fields[6])
        nodes[fields[0]] = (fields[1].split("@")[0], role, fields[8] if role == "master" else fields[3])
    return version, nodes


class Controller:
    """A leading controller."""

    def __init__(self, etcd, name):
        self.etcd, self.name, self.failures, self.tasks = etcd, name, {}, []

    def ask(self, node, *words):
        host, port = node["addr"].split(":")
        limits = {"socket_timeout": 1, "socket_connect_timeout": 1, "retry": Retry(NoBackoff(), 0)}
        with redis.Redis(host=host, port=int(port), decode_responses=True, **limits) as client:
            return client.execute_command(*words)

    def epoch(self, node):
        fields = dict(line.split(":") for line in self.ask(node, "CLUSTER", "INFO").split())
        return int(fields["cluster_current_epoch"])

    def sync(self, node, cluster):
        self.ask(node, "CLUSTERX", "setnodeid", node["id"])
        self.ask(node, "CLUSTERX", "setnodes", slot_string(cluster), cluster["version"])

    def sync_all(self, cluster):
        for shard in cluster["shards"]:
            for node in shard["nodes"]:
                try:
                    self.sync(node, cluster)
                except redis.RedisError as error:
                    print(f"{self.name}: {node['addr']} did not receive the topology: {error}", flush=True)

    def probe(self, cluster):
        for at, shard in enumerate(cluster["shards"]):
            for node in shard["nodes"]:
                try:
                    if self.epoch(node) < cluster["version"]:
                        self.sync(node, cluster)
                    self.failures[node["addr"]] = 0
                except redis.exceptions.ClusterDownError:
                    self.sync(node, cluster)
                except redis.RedisError:
                    self.failures[node["addr"]] = self.failures.get(node["addr"], 0) + 1
                    if self.failures[node["addr"]] % MAX_PINGS == 0:
                        self.tasks.append((at, node))

    def fail_over(self):
        for at, node in self.tasks:
            try:
                self.ask(node, "PING")
            except redis.RedisError:
                if node["role"] == "master":
                    self.promote(at, node)
        self.tasks = []

    def promote(self, at, old):
        cluster = self.etcd.cluster()
        nodes, offsets = cluster["shards"][at]["nodes"], {}
        for node in nodes:
            if node["id"] != old["id"]:
                try:
                    offsets[node["id"]] = int(self.ask(node, "INFO")["slave_repl_offset"])
                except (redis.RedisError, KeyError) as error:
                    print(f"{self.name}: {node['addr']} does not reply: {error!r}", flush=True)
        if not offsets:
            return
        fastest = max(offsets, key=lambda id: offsets[id])
        for node in nodes:
            node["role"] = "master" if node["id"] == fastest else "slave"
        cluster["version"] += 1
        self.etcd.put(cluster)
        print(f"{self.name}: {fastest[-1]} instead of {old['id'][-1]} is a master by version {cluster['version']}", flush=True)
        self.sync_all(cluster)

    def run(self):
        while True:
            over = self.etcd.campaign(self.name)
            print(f"{self.name} is the leader", flush=True)
            while not over.wait(PING_S):
                self.probe(self.etcd.cluster())
                self.fail_over()
            print(f"{self.name}: the lease has expired", flush=True)


class Controllers:
    """Controller processes, one of which leads."""

    def __init__(self, etcd, port):
        self.etcd, self.port, self.processes, self.count = etcd, port, {}, 0

    def add(self):
        self.count += 1
        name = f"controller-{self.count}"
        self.processes[name] = subprocess.Popen([sys.executable, __file__, "--controller", name, "--etcd", str(self.port)], start_new_session=True)

    def kill(self, name):
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end(self):
        for name in list(self.processes):
            self.kill(name)


def begin(nodes):
    """Creates the cluster, like a user of the controller."""
    shards = []
    role = lambda node: "master" if node.number % EACH == 0 else "slave"
    for shard in range(SHARDS):
        some = nodes[EACH * shard :][:EACH]
        members = [{"id": n.id, "addr": f"127.0.0.1:{n.port}", "role": role(n), "password": "", "created_at": 1} for n in some]
        first, last = slots_of(shard, SHARDS)
        shards.append({"nodes": members, "slot_ranges": [f"{first}-{last}"], "import_slot": -1, "migrating_slot": -1})
    return {"name": "posts", "version": 1, "shards": shards, "config": {"name": "", "heartbeat_interval": 0, "heartbeat_retries": 0}}


def play(args, folder):
    nodes = [Member(args.server, folder, n) for n in range(SHARDS * EACH)]
    port, peers = free_port(), free_port()
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    command = ["etcd", "--data-dir", f"{folder}/etcd", "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer_url,
               "--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}"]
    with open(f"{folder}/etcd.log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    etcd = Etcd(port)
    controllers = Controllers(etcd, port)
    try:
        until("etcd is up", etcd.is_up)
        for node in nodes:
            node.start()
        for node in nodes:
            until("a node is up", lambda: node.client().ping())
        etcd.put(begin(nodes))
        controllers.add(), controllers.add()
        masters = lambda: [next(n for n in s["nodes"] if n["role"] == "master")["id"] for s in etcd.cluster()["shards"]]
        in_step = lambda: all(n.is_up() for n in nodes if n.id not in masters())
        until("replicas are up", in_step)
        writers = Writers(nodes, SHARDS, EACH - 1)
        time.sleep(1)
        times = []
        for round in range(args.rounds):
            shard, before = round % SHARDS, masters()
            old = next(n for n in nodes if n.id == before[shard])
            began, frozen = time.time(), round % 2 == 1
            if frozen:
                freeze(old.process)
            else:
                old.process.kill()
                old.process.wait()
            if round % 3 == 2:
                controllers.kill(etcd.leader())
                controllers.add()
            until("another node is the master", lambda: masters()[shard] != old.id)
            times.append(writers.go_on(shard, began, time.time() - began))
            if frozen:
                old.process.send_signal(signal.SIGCONT)
            else:
                old.start()
            until("the old master is a connected replica", old.is_up)
            until("all replicas have caught up", in_step)
            version = etcd.cluster()["version"]
            told = [parsed(node.ask("CLUSTER", "NODES")) for node in nodes]
            assert all(one == told[0] for one in told) and told[0][0] == version, told
            print(f"round {round + 1}: {'frozen' if frozen else 'killed'}: writes again after {times[-1]:.2f} s", flush=True)
        posts, lost = writers.end()
        print(f"{args.rounds} failovers by Kvrocks' controller, {len(posts)} writes acknowledged by WAIT {EACH - 1}, {len(lost)} of them lost; "
              f"writes again after {statistics.median(times):.2f} s, {max(times):.2f} s at most", flush=True)
        assert not lost, f"acknowledged writes are lost: {lost[:20]}"
        assert len(posts) > 100 * args.rounds, "too few writes"
    finally:
        controllers.end()
        for node in nodes:
            node.end()
        server.kill()
        server.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--controller", help="be the controller of this name, beside the etcd of this port")
    parser.add_argument("--etcd", type=int)
    args = parser.parse_args()
    if args.controller:
        Controller(Etcd(args.etcd), args.controller).run()
    with scratch("kvrocks-", args.keep) as folder:
        play(args, folder)


main()
