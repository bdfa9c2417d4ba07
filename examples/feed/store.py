"""All requests of the application to Tidemark, with a standard Redis client.

Text, author and time of a post belong in a database; this application has a list of posts instead."""

import itertools
from collections import namedtuple

import redis

# The columns of the default view `home`, then those of AMONG: how many followed users reposted the post, and the first
# of them. A flag is 1, 0, or None for a post below the horizon; so is the number of followed users.
Row = namedtuple("Row", "likes reposts comments reads liked read friends named")

PAGE_POSTS = 20
TOP_FRIENDS = 2


class Store:
    def __init__(self, url):
        self.redis = redis.Redis.from_url(url, decode_responses=True, socket_timeout=10)

    def check(self):
        """Raises redis.RedisError without a server, if it lacks AMONG, or if its view `home` lacks these columns."""
        [row] = self.redis.execute_command("FEED.GET", "home", 0, 0, "AMONG", "reposted", 0)
        if len(row) != len(Row._fields):
            raise redis.ResponseError(f"the view home has {len(row)} columns, but this example needs {Row._fields}")

    def unread(self, viewer, posts):
        """Returns the first posts that the viewer has not read, up to a page. Misses one unread post in 10,000."""
        if not posts:
            return []
        return self.redis.execute_command("PH.UNSEEN", "read", viewer, "LIMIT", PAGE_POSTS, *posts)

    def page(self, viewer, posts, authors, followed):
        """Returns a row for each post and the number of posts of each author; marks the posts as read by the viewer.

        Takes one round trip. The rows have the values before the marks, so a new post has read = 0.
        `followed` are the users whom the viewer follows, at most 2,000."""
        if not posts:
            return [], {}
        # AMONG needs at least one member. Without follows, that is user 0, which reposts nothing.
        among = "AMONG", "reposted", "TOP", TOP_FRIENDS, *(followed or [0])
        pipe = self.redis.pipeline(transaction=False)
        pipe.execute_command("FEED.GET", "home", viewer, *posts, "MARK", "read", *among)
        pipe.execute_command("CNT.GET", "user", *authors)
        rows, users = pipe.execute()
        if any(isinstance(row, redis.ResponseError) for row in rows):
            # The server could not set a mark, for example because the disk is full. Reads the page without marks.
            rows = self.redis.execute_command("FEED.GET", "home", viewer, *posts, *among)
        counts = {author: user[2] if user else 0 for author, user in zip(authors, users)}
        return [Row(*row) for row in rows], counts

    def like(self, viewer, post):
        """Sets the flag and increments the counter atomically. Returns 1 for a new like, None for a post below the horizon."""
        [new] = self.redis.execute_command("FEED.ACT", "like", viewer, post)
        return new

    def unlike(self, viewer, post):
        """Reverts a like. A repeated call changes nothing."""
        [taken] = self.redis.execute_command("FEED.UNDO", "like", viewer, post)
        return taken

    def load(self, posts, reposts):
        """Loads reposts, one per user and post, and the number of posts of each author. Repeating it changes nothing.

        `reposts` are pairs of post and user. Yields the number of loaded ones."""
        pipe = self.redis.pipeline(transaction=False)
        by_author = {}
        for post in posts:
            by_author[post.author] = by_author.get(post.author, 0) + 1
        for author, count in by_author.items():
            pipe.hset(f"user:{author}", "post", count)
        pipe.execute()
        done = 0
        reposts = iter(reposts)
        while chunk := list(itertools.islice(reposts, 2_000)):
            for post, user in chunk:
                pipe.execute_command("FEED.ACT", "repost", user, post)
            pipe.execute()
            done += len(chunk)
            yield done
