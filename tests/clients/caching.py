"""redis-py with client-side caching, as an application enables it. Usage: caching.py PORT

Prints "ok" and the version at the end; anything else is a failure. INFO commandstats shows which reads reached the server.
"""

import sys
import time

import redis
from redis.cache import CacheConfig

port = int(sys.argv[1])
cached = redis.Redis(port=port, protocol=3, cache_config=CacheConfig(), decode_responses=True)
other = redis.Redis(port=port, protocol=3, decode_responses=True)


def expect(what, got, wanted):
    if got != wanted:
        raise SystemExit(f"{what}: got {got!r}, expected {wanted!r}")


def calls(command):
    return int(other.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def read_by(what, command, read, wanted):
    """Reads twice; only one read reaches the server."""
    before = calls(command)
    for _ in range(2):
        expect(what, read(), wanted)
    expect(f"{what}: calls", calls(command) - before, 1)


def told(what, read, wanted):
    """A change by another client becomes visible soon."""
    for _ in range(200):
        if read() == wanted:
            return
        time.sleep(0.01)
    expect(what, read(), wanted)


other.hset("post:7", mapping={"like": 5})
row = {"like": "5", "repost": "0", "comment": "0", "read": "0"}
read_by("row", "hgetall", lambda: cached.hgetall("post:7"), row)
read_by("cell", "get", lambda: cached.get("post:7:like"), "5")
read_by("flag", "sismember", lambda: cached.sismember("liked:7", "42"), 0)
expect("keys", other.info("stats")["tracking_total_keys"], 3)
expect("clients", other.info("clients")["tracking_clients"], 1)

# One FEED.ACT changes all three.
expect("act", other.execute_command("FEED.ACT", "like", 42, 7), [1])
told("row", lambda: cached.hgetall("post:7")["like"], "6")
told("cell", lambda: cached.get("post:7:like"), "6")
told("flag", lambda: cached.sismember("liked:7", "42"), 1)
before = calls("hgetall")
expect("row", cached.hgetall("post:7"), row | {"like": "6"})
expect("row from memory: calls", calls("hgetall"), before)

# A change by this client, and a change of the schema.
expect("own", cached.hincrby("post:7", "like", 4), 10)
told("own change", lambda: cached.hget("post:7", "like"), "10")
told("row after it", lambda: cached.hgetall("post:7")["like"], "10")
other.execute_command("TM.SPACE", "ALTER", "post", "ADD", "share:8")
told("schema", lambda: cached.hgetall("post:7"), row | {"like": "10", "share": "0"})

# Many frequently read rows during writes: no stale value remains.
for n in range(300):
    other.hincrby(f"post:{1000 + n % 10}", "like", 1)
    cached.hget(f"post:{1000 + n % 7}", "like")
for n in range(10):
    told(f"hot row {n}", lambda: cached.hget(f"post:{1000 + n}", "like"), "30")
print("ok", redis.__version__)
