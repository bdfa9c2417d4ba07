"""A feed page with redis-py: python3 feed_page.py PORT FIRST_ID"""
import sys

import redis

port, first = int(sys.argv[1]), int(sys.argv[2])
viewer, posts = 7, [first, first + 1]
r = redis.Redis(port=port)

# Likes the first post. The reply is 1 for a new like; a repeated one gets 0 and changes nothing.
r.execute_command("FEED.ACT", "like", viewer, first)
# Increments a single counter, as a field of a hash.
r.hincrby(f"post:{first}", "comment", 1)
# The page: for each post the counters of the view, then the viewer's flags.
page = r.execute_command("FEED.GET", "home", viewer, *posts)

for post, (like, repost, comment, read, liked, seen) in zip(posts, page):
    print(f"post {post}: {like} likes, {comment} comments; liked by me: {'yes' if liked else 'no'}")
