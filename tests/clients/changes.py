"""redis-py's own stream readers on tm:changes, with both protocols. Arguments: the port."""

import sys
import threading

import redis

STREAM = "tm:changes:post"


def read(answer):
    """Returns the entries of the only stream in a reply: a list in RESP2, a map in RESP3."""
    if isinstance(answer, dict):
        [entries] = answer[STREAM]
        return entries
    [[stream, entries]] = answer
    assert stream == STREAM, stream
    return entries


def consume(server, group):
    first = server.incrby("post:1:like", 1)
    entries = read(server.xread({STREAM: "0"}))
    assert all(int(a[0].split("-")[1]) < int(b[0].split("-")[1]) for a, b in zip(entries, entries[1:]))
    last, fields = entries[-1]
    assert fields["space"] == "post" and fields["id"] == "1" and fields["like"] == str(first), fields
    assert server.xrevrange(STREAM, count=1) == [(last, fields)]
    assert server.xrange(STREAM, min=last) == [(last, fields)]
    assert server.xlen(STREAM) == len(entries)
    about = server.xinfo_stream(STREAM)
    assert about["last-generated-id"] == last and about["last-entry"][1] == fields, about
    assert server.type(STREAM) == "stream" and server.exists(STREAM) == 1

    # A blocking read with a result, and one that times out.
    threading.Timer(0.2, lambda: server.incrby("post:2:like", 1)).start()
    [(_, fields)] = read(server.xread({STREAM: "$"}, block=20_000))
    assert fields["id"] == "2", fields
    assert not server.xread({STREAM: "$"}, block=10)

    # A group with two consumers.
    assert server.xgroup_create(STREAM, group, "$")
    for row in (3, 4):
        server.incrby(f"post:{row}:like", 1)
    [(third, fields)] = read(server.xreadgroup(group, "anna", {STREAM: ">"}, count=1))
    assert fields["id"] == "3", fields
    [(fourth, _)] = read(server.xreadgroup(group, "ben", {STREAM: ">"}, block=1000))
    assert not server.xreadgroup(group, "ben", {STREAM: ">"})
    pending = server.xpending(STREAM, group)
    assert (pending["pending"], pending["min"], pending["max"]) == (2, third, fourth), pending
    [one] = server.xpending_range(STREAM, group, "-", "+", 10, consumername="anna")
    assert (one["message_id"], one["times_delivered"]) == (third, 1), one
    assert server.xclaim(STREAM, group, "ben", 0, [third]) == [(third, fields)]
    assert server.xautoclaim(STREAM, group, "carl", 0)[1][1][0] == fourth
    assert server.xack(STREAM, group, third, fourth) == 2
    [found] = [one for one in server.xinfo_groups(STREAM) if one["name"] == group]
    assert (found["pending"], found["lag"], found["last-delivered-id"]) == (0, 0, fourth), found
    assert {one["name"] for one in server.xinfo_consumers(STREAM, group)} == {"anna", "ben", "carl"}

    # In a pipeline.
    server.incrby("post:5:like", 1)
    [(fifth, _)] = read(server.xreadgroup(group, "anna", {STREAM: ">"}))
    with server.pipeline() as pipe:
        pipe.xack(STREAM, group, fifth).incrby("post:5:like", 1)
        assert pipe.execute() == [1, server.hget("post:5", "like") and int(server.hget("post:5", "like"))]
    assert server.xgroup_delconsumer(STREAM, group, "ben") == 0
    assert server.xgroup_destroy(STREAM, group) == 1
    for refused in (lambda: server.xadd(STREAM, {"a": 1}), lambda: server.xread({STREAM: "7-7000"})):
        try:
            refused()
        except redis.ResponseError:
            continue
        raise AssertionError("the command did not fail")


for protocol in (2, 3):
    consume(redis.Redis(port=int(sys.argv[1]), protocol=protocol, decode_responses=True), f"group-{protocol}")
print("done")
