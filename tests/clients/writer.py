"""Writes continuously with redis-py, like an application: after an error, it waits 20 ms and continues. Prints "ok" and the time for each
acknowledged write, "no" and the error for each failed one.

    writer.py sentinel|cluster PORTS POST
"""
import sys, time

import redis
from redis.sentinel import Sentinel

mode, ports, post = sys.argv[1], [int(port) for port in sys.argv[2].split(",")], sys.argv[3]


def connect():
    if mode == "sentinel":
        return Sentinel([("127.0.0.1", port) for port in ports]).master_for("m")
    return redis.RedisCluster(startup_nodes=[redis.cluster.ClusterNode("127.0.0.1", port) for port in ports])


client = connect()
while True:
    try:
        client.hincrby(f"post:{post}", "like", 1)
        print("ok", time.time(), flush=True)
    # RedisClusterException is not a subclass of RedisError.
    except (redis.RedisError, OSError, redis.exceptions.RedisClusterException) as error:
        print("no", repr(error)[:200].replace("\n", " "), flush=True)
    time.sleep(0.02)
