"""All that the application asks of Tidemark, by a stock Redis client.

What a post says, its author and its time belong in a database; the application has a list of them."""

import itertools
from collections import namedtuple

import redis

# The columns of the default view `home`. A flag is 1, 0, or None: unknown, as the post is below the horizon.
Row = namedtuple("Row", "likes reposts comments reads liked read")


class Store:
    def __init__(self, url):
        self.redis = redis.Redis.from_url(url, decode_responses=True, socket_timeout=10)

    def check(self):
        """Raises redis.RedisError if there is no server, or one that has no view `home` with these columns."""
        [row] = self.redis.execute_command("FEED.GET", "home", 0, 0)
        if len(row) != len(Row._fields):
            raise redis.ResponseError(f"the view home has {len(row)} columns, and this example wants {Row._fields}")

    def page(self, viewer, posts, authors):
        """A page: a row for each post, the number of posts of each author, and marks the posts as read by the viewer.

        Both requests go in one round trip. The rows show what held before the marks: a post that is new reads 0."""
        if not posts:
            return [], {}
        pipe = self.redis.pipeline(transaction=False)
        pipe.execute_command("FEED.GET", "home", viewer, *posts, "MARK", "read")
        pipe.execute_command("CNT.GET", "user", *authors)
        rows, users = pipe.execute()
        if any(isinstance(row, redis.ResponseError) for row in rows):
            # A mark was refused, by a full disk for example. The page itself is answered all the same.
            rows = self.redis.execute_command("FEED.GET", "home", viewer, *posts)
        counts = {author: user[2] if user else 0 for author, user in zip(authors, users)}
        return [Row(*row) for row in rows], counts

    def like(self, viewer, post):
        """Sets the heart and counts it, both or neither. True: it is new. None: the post is too old to tell."""
        [new] = self.redis.execute_command("FEED.ACT", "like", viewer, post)
        return new

    def unlike(self, viewer, post):
        """Takes it back. Sent twice it takes one like back, as a like that is sent twice counts once."""
        [taken] = self.redis.execute_command("FEED.UNDO", "like", viewer, post)
        return taken

    def load(self, posts, reposts):
        """Reposts by user, once per user, and how many posts an author has. Loading again changes nothing.

        `reposts` are pairs of post and user. Yields how many of them are loaded."""
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
