"""Two groups of stock Sentinels watch one node under different names and with different epochs. Then one group stops, and the node restarts.

    groups.py --server PATH_TO_TIDEMARK

The groups are independent: a stopped group must not keep a node fenced, and a group that returns with another epoch must not depose a master.
"""
import argparse, os, subprocess

import redis

from nodes import Node, scratch, until
from proxy import free_port


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    args = parser.parse_args()
    with scratch("groups-") as folder:
        play(args, folder)


def play(args, folder):
    nodes = [Node(args.server, folder, n) for n in range(2)]
    master, replica = nodes
    sentinels = {}

    def watch(name, epoch):
        port = free_port()
        conf = os.path.join(folder, f"{name}.conf")
        with open(conf, "w") as f:
            f.write(f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor {name} 127.0.0.1 {master.proxy.port} 1\n")
            # It must not fail over: the node is down for more than a second here.
            f.write(f"sentinel down-after-milliseconds {name} 600000\n")
            f.write(f"sentinel config-epoch {name} {epoch}\nsentinel current-epoch {epoch}\n")
        sentinels[name] = subprocess.Popen(["redis-sentinel", conf], stdout=open(conf + ".log", "w"), stderr=subprocess.STDOUT)

    def kept():
        with open(os.path.join(master.folder, "data", "tidemark.role")) as f:
            return {line.split()[2]: int(line.split()[1]) for line in f if line.startswith("sentinel ")}

    def like():
        return master.client().hincrby("post:1", "like", 1)

    def again():
        master.process.kill()
        master.process.wait()
        master.start()

    try:
        master.start()
        until("the master is up", lambda: master.client().ping())
        replica.start(master.proxy.port)
        until("the replica is up", replica.is_up)
        watch("old", 100)
        until("the old Sentinels have published", lambda: kept() == {"old": 100})
        watch("new", 5)
        until("the new Sentinels have published", lambda: kept() == {"old": 100, "new": 5})
        assert like() == 1, "the master was demoted"
        assert master.info()["repl_sentinel_groups"] == 2

        # The old group is stopped. Only the new group, with a lower epoch, names the master.
        old = sentinels.pop("old")
        old.kill()
        old.wait()
        again()
        until("the new Sentinels lift the fence", like)
        # The reverse: no node was promoted, so the higher epoch of one group does not affect the other.
        new = sentinels.pop("new")
        new.kill()
        new.wait()
        watch("old", 101)
        until("the old Sentinels have published again", lambda: kept() == {"old": 101, "new": 5})
        like()
        again()
        try:
            like()
            raise SystemExit("a restarted master accepted writes before a Sentinel confirmed its role")
        except redis.ConnectionError:
            until("the old Sentinels lift the fence", like)
        except redis.ResponseError as error:
            assert "fenced" in str(error), error
            until("the old Sentinels lift the fence", like)
        print("ok")
    finally:
        for process in sentinels.values():
            process.kill()
            process.wait()
        for node in nodes:
            node.end()


main()
