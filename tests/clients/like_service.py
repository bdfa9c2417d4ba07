"""A small like service written for stock Redis with RedisBloom: redis-py's hash, string and Bloom commands, pipelines, a transaction and a channel.
It runs on Tidemark after a change of the port.

like_service.py PORT sets|bloom: likers are stored in sets, or in Bloom filters (Redis needs the module). Prints the results for users."""

import asyncio
import sys

import redis
import redis.asyncio


class Likes:
    """Counts in hashes, members in sets or filters."""

    def __init__(self, client, filters):
        self.client, self.filters = client, filters

    def like(self, post, user):
        """Likes a post, once per user. Returns whether the like counted."""
        key = f"liked:{post}"
        new = self.client.bf().add(key, user) if self.filters else self.client.sadd(key, user)
        if not new:
            return False
        with self.client.pipeline(transaction=True) as pipe:
            pipe.hincrby(f"post:{post}", "like", 1)
            pipe.hincrby(f"post:{post}", "read", 1)
            pipe.publish("likes", post)
            pipe.execute()
        return True

    def page(self, user, posts):
        """Returns the likes of each post, and whether the user has liked it."""
        with self.client.pipeline(transaction=False) as pipe:
            for post in posts:
                pipe.hget(f"post:{post}", "like")
                pipe.bf().exists(f"liked:{post}", user) if self.filters else pipe.sismember(f"liked:{post}", user)
            answers = pipe.execute()
        return [(int(likes or 0), bool(liked)) for likes, liked in zip(answers[::2], answers[1::2])]

    def correct(self, post, by):
        """Changes a count relative to its value with WATCH. Retries after conflicts."""
        with self.client.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(f"post:{post}")
                    now = int(pipe.hget(f"post:{post}", "like") or 0)
                    pipe.multi()
                    pipe.hset(f"post:{post}", "like", max(0, now + by))
                    return pipe.execute()
                except redis.WatchError:
                    continue


async def views(port, posts):
    """Many clients count views concurrently."""
    client = redis.asyncio.Redis(port=port, decode_responses=True)

    async def one(post):
        return await client.incr(f"post:{900 + post}:read")

    await asyncio.gather(*(one(post) for post in posts for _ in range(5)))
    seen = await client.mget(f"post:{900 + post}:read" for post in posts)
    await client.aclose()
    return seen


def main():
    port, filters = int(sys.argv[1]), sys.argv[2] == "bloom"
    client = redis.Redis(port=port, decode_responses=True)
    service = Likes(client, filters)
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("likes")
    listener.get_message(timeout=1)
    for user in range(100, 140):
        for post in range(1, 21):
            if (user * post) % 7 < 3:
                service.like(post, user)
    print("again", service.like(1, 100 if (100 * 1) % 7 < 3 else 105))
    for user in (100, 123, 999):
        print(user, service.page(user, range(1, 25)))
    print(service.correct(3, -5), service.correct(23, 2), client.hget("post:3", "like"), client.hget("post:23", "like"))
    print(client.hmget("post:1", "like", "read"), client.exists("post:1", "post:24"), client.type("post:1"), client.ttl("post:1"))
    print(asyncio.run(views(port, range(1, 6))))
    client.set("post:950:like", 7)
    print(client.get("post:950:like"), client.incrby("post:950:like", 3), client.decr("post:950:like"), client.delete("post:1"))
    heard = 0
    while listener.get_message(timeout=1):
        heard += 1
    print("heard", heard)


main()
