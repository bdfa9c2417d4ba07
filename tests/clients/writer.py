"""Writes all the time by redis-py, as an application would: on an error it waits for 20 ms and goes on. Prints "ok" and the time for each write that
was acknowledged, "no" and the error for each that was not.

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
    # The last is no RedisError.
    except (redis.RedisError, OSError, redis.exceptions.RedisClusterException) as error:
        print("no", repr(error)[:200].replace("\n", " "), flush=True)
    time.sleep(0.02)
