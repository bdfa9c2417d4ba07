"""A feed page through redis-py, as an application would request it. Usage: redis_py.py PORT PROTOCOL

Prints "ok" and the version at the end; anything else is a failure.
"""

import asyncio
import sys
import threading

import redis
import redis.asyncio

port, protocol = int(sys.argv[1]), int(sys.argv[2])
r = redis.Redis(port=port, protocol=protocol, decode_responses=True)
# Different ids in each run against the same server, with the gaps of a microblog.
base = 3_631_614_501_919_378 + int(sys.argv[3] if len(sys.argv) > 3 else 0) * (1 << 30)
ids = [base + i * 4096 for i in range(20)]
viewer = 833_933_534_602


def expect(what, got, wanted):
    if got != wanted:
        raise SystemExit(f"{what}: got {got!r}, expected {wanted!r}")


def refused(what, text, *command):
    try:
        got = r.execute_command(*command)
    except redis.ResponseError as e:
        if text not in str(e):
            raise SystemExit(f"{what}: error {e!r} does not contain {text!r}")
        return
    raise SystemExit(f"{what}: got {got!r}, expected an error with {text!r}")


expect("ping", r.ping(), True)
expect("echo", r.echo("hello"), "hello")
expect("select", r.select(0), True)

# Counters by the hash commands.
with r.pipeline(transaction=False) as p:
    for i, post in enumerate(ids):
        p.hset(f"post:{post}", mapping={"like": i, "repost": 2 * i, "comment": 3 * i, "read": 100 * i})
    expect("hset", p.execute(), [4] * 20)
expect("hset again", r.hset(f"post:{ids[1]}", mapping={"like": 1, "read": 100}), 0)
expect("hgetall", r.hgetall(f"post:{ids[7]}"), {"like": "7", "repost": "14", "comment": "21", "read": "700"})
expect("hget", r.hget(f"post:{ids[7]}", "comment"), "21")
expect("hmget", r.hmget(f"post:{ids[7]}", "read", "like"), ["700", "7"])
expect("hincrby", r.hincrby(f"post:{ids[7]}", "like", 5_000_000_000), 5_000_000_007)
expect("hincrby back", r.hincrby(f"post:{ids[7]}", "like", -5_000_000_000), 7)
expect("exists", r.exists(f"post:{ids[0]}", f"post:{ids[1]}", "post:12"), 2)
expect("type", r.type(f"post:{ids[0]}"), "hash")
expect("type of nothing", r.type("post:12"), "none")

# Flags: one round trip to act, one to read the page.
expect("act", r.execute_command("FEED.ACT", "like", viewer, *ids[:3]), [1, 1, 1])
expect("act again", r.execute_command("FEED.ACT", "like", viewer, *ids[:3]), [0, 0, 0])
expect("undo", r.execute_command("FEED.UNDO", "like", viewer, ids[1]), [1])
expect("undo again", r.execute_command("FEED.UNDO", "like", viewer, ids[1]), [0])
page = r.execute_command("FEED.GET", "home", viewer, *ids)
expect("page", [len(row) for row in page], [6] * 20)
for i, row in enumerate(page):
    liked = 1 if i in (0, 2) else 0
    expect(f"row {i}", row, [i + liked, 2 * i, 3 * i, 100 * i, liked, 0])
expect("cnt.get", r.execute_command("CNT.GET", "post", ids[2], 12), [[3, 4, 6, 200], None])

# The same flags as Bloom filters, with redis-py's own module.
bf = r.bf()
expect("bf.exists", int(bf.exists(f"liked:{ids[0]}", viewer)), 1)
expect("bf.madd", [int(x) for x in bf.madd(f"read:{ids[0]}", viewer, viewer + 1)], [1, 1])
expect("bf.mexists", [int(x) for x in bf.mexists(f"read:{ids[0]}", viewer, viewer + 1, viewer + 2)], [1, 1, 0])
expect("del", r.delete(f"post:{ids[19]}"), 1)

# Errors name the problem in Redis's words, and the connection remains usable.
refused("no integer", "value is not an integer or out of range", "HINCRBY", f"post:{ids[0]}", "like", "ten")
refused("overflow", "increment or decrement would overflow", "HINCRBY", f"post:{ids[3]}", "like", 2**63 - 1)
refused("unknown field", "share", "HINCRBY", f"post:{ids[0]}", "share", 1)
refused("no pattern", "nonsense", "HINCRBY", "nonsense", "like", 1)
expect("nothing there", r.hgetall("nonsense"), {})
refused("id over 2^64-1", "exceeds", "HINCRBY", "post:18446744073709551616", "like", 1)
refused("arity", "wrong number of arguments for 'hget' command", "HGET", "x")
refused("unknown command", "unknown command 'FROBNICATE'", "FROBNICATE", "x")
refused("wrong type", "WRONGTYPE", "HGETALL", f"liked:{ids[0]}")

# Two connections send the same like concurrently, many times: each counts once.
for n in range(200):
    post, results, gate = base + (1 << 20) + n * 4096, [], threading.Barrier(2)

    def like():
        c = redis.Redis(port=port, protocol=protocol)
        c.ping()
        gate.wait()
        results.append(c.execute_command("FEED.ACT", "like", viewer, post)[0])

    threads = [threading.Thread(target=like) for _ in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    expect(f"concurrent like {n}", (sorted(results), r.hget(f"post:{post}", "like")), ([0, 1], "1"))


async def many():
    a = redis.asyncio.Redis(port=port, protocol=protocol, decode_responses=True)
    pages = await asyncio.gather(*(a.execute_command("FEED.GET", "home", viewer, *ids[:19]) for _ in range(50)))
    expect("async pages", all(p == pages[0] for p in pages) and pages[0] == page[:19] or pages[0], True)
    await a.aclose()


# The first post was marked as read after `page` was taken.
page[0][5] = 1
asyncio.run(many())
print("ok", redis.__version__)
