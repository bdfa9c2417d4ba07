#!/usr/bin/env python3
"""A feed in the browser: python3 examples/feed/app.py. See README.md.

This file serves HTTP; store.py has the requests to Tidemark, view.py the pages, events.py the data."""

import argparse
import bisect
import hashlib
import hmac
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

try:
    import redis
except ImportError:
    sys.exit("This example needs redis-py: apt install python3-redis, or pip install redis")

import events
import view
from store import PAGE_POSTS, Store
from view import Query

MAX_CANDIDATES = 1_000
MAX_FOLLOWED = 200
MAX_VIEWER_CHARS = 64
MAX_FORM_BYTES = 4_096

Post = namedtuple("Post", "id author at")


class Refused(Exception):
    """An HTTP error: the status and the message for the user."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Feed:
    """The posts, which a real application keeps in a database, and the store of their counters and flags."""

    def __init__(self, posts, reposters, store):
        self.posts = sorted(posts)
        self.by_id = {post.id: post for post in self.posts}
        self.reposters = sorted(reposters)
        self.store = store
        # Signs the viewer cookie. A real application reads this key from its configuration.
        self.secret = secrets.token_bytes(32)

    def newest(self, query, size):
        """Returns this many posts, newest first, and whether older ones exist."""
        author, before = query.author, query.before
        posts = self.posts if author is None else [post for post in self.posts if post.author == author]
        end = len(posts) if before is None else bisect.bisect_left(posts, (before,))
        start = max(0, end - size)
        if author is not None and end == 0:
            raise Refused(HTTPStatus.NOT_FOUND, "Author not found.")
        return posts[start:end][::-1], start > 0

    def followed(self, viewer):
        """Returns the users whom the viewer follows: always the same ones, so that the example needs no database."""
        users = random.Random(viewer).sample(self.reposters, min(MAX_FOLLOWED, len(self.reposters)))
        return [user for user in users if str(user) != viewer]

    def seal(self, viewer):
        text = quote(viewer, safe="")
        return f"{text}.{hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()}"

    def viewer(self, cookie):
        """Returns the viewer of a cookie with a valid signature, or None."""
        viewer = unquote(cookie.rpartition(".")[0])
        return viewer if viewer and hmac.compare_digest(self.seal(viewer).encode(), cookie.encode()) else None


class Handler(BaseHTTPRequestHandler):
    timeout = 10  # seconds for a request to arrive
    feed: Feed

    def do_GET(self):
        self.answer(self.get)

    def do_POST(self):
        self.answer(self.post)

    def get(self, path, query):
        if path == "/feed.css":
            return self.send(HTTPStatus.OK, view.CSS, "text/css")
        if path != "/":
            raise Refused(HTTPStatus.NOT_FOUND, "Page not found.")
        viewer = self.viewer()
        if viewer is None:
            return self.send(HTTPStatus.OK, view.sign_in())
        posts, has_older = self.feed.newest(query, MAX_CANDIDATES if query.unread else PAGE_POSTS)
        candidates, followed = [post.id for post in posts], self.feed.followed(viewer)
        oldest = candidates[-1] if candidates else None
        started = time.perf_counter()
        if query.unread:
            posts = [self.feed.by_id[post] for post in self.feed.store.unread(viewer, candidates)]
            if len(posts) == PAGE_POSTS:
                has_older, oldest = has_older or posts[-1].id != oldest, posts[-1].id
        authors = sorted({post.author for post in posts})
        rows, counts = self.feed.store.page(viewer, [post.id for post in posts], authors, followed)
        took_s = time.perf_counter() - started
        older = query._replace(before=oldest) if has_older else None
        sizes = len(candidates), len(followed)
        self.send(HTTPStatus.OK, view.timeline(viewer, posts, rows, counts, query, older, sizes, took_s))

    def post(self, path, query):
        form = self.form()
        # Rejects forms that a page of another site submits. Browsers send one of these headers; a client
        # that sends none is not a browser, so it has no cookie of a user.
        site, origin = self.headers["Sec-Fetch-Site"], self.headers["Origin"]
        is_ours = site == "same-origin" if site else not origin or urlsplit(origin).netloc == self.headers["Host"]
        if not is_ours:
            raise Refused(HTTPStatus.FORBIDDEN, "The form was sent by another site.")
        if path == "/viewer":
            viewer = form.get("viewer", [""])[0].strip()
            if not 0 < len(viewer) <= MAX_VIEWER_CHARS:
                raise Refused(HTTPStatus.BAD_REQUEST, f"The viewer must have 1 to {MAX_VIEWER_CHARS} characters.")
            cookie = f"viewer={self.feed.seal(viewer)}; HttpOnly; SameSite=Lax; Path=/"
            return self.redirect("/", cookie)
        change = {"/like": self.feed.store.like, "/unlike": self.feed.store.unlike}.get(path)
        post = number(form.get("post", [""])[0])
        viewer = self.viewer()
        if change is None or post not in self.feed.by_id:
            raise Refused(HTTPStatus.NOT_FOUND, "Post not found.")
        if viewer is None:
            return self.redirect("/")
        change(viewer, post)
        # Redirects to the page with the button, so that a reload does not repeat the like. The unread posts are
        # read by now, so a like of one of them leads to the page of all posts that starts with it.
        self.redirect(view.address(Query(query.author, post + 1) if query.unread else query, post))

    def answer(self, handle):
        url = urlsplit(self.path)
        fields = parse_qs(url.query)
        query = Query(*(number(fields.get(name, [""])[0]) for name in Query._fields))
        try:
            handle(url.path, query)
        except Refused as refused:
            self.send(refused.status, view.message(str(refused)))
        except redis.RedisError as error:
            self.send(HTTPStatus.SERVICE_UNAVAILABLE, view.message(f"Tidemark: {error}"))

    def viewer(self):
        try:
            cookie = SimpleCookie(self.headers["Cookie"] or "").get("viewer")
        except CookieError:
            return None
        return self.feed.viewer(cookie.value) if cookie else None

    def form(self):
        length = number(self.headers["Content-Length"] or "") or 0
        if length > MAX_FORM_BYTES:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The form is too large.")
        return parse_qs(self.rfile.read(length).decode("utf-8", "replace"))

    def redirect(self, location, cookie=None):
        headers = {"Location": location}
        if cookie:
            headers["Set-Cookie"] = cookie
        self.send(HTTPStatus.SEE_OTHER, "", headers=headers)

    def send(self, status, text, media="text/html", headers=None):
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{media}; charset=utf-8",
            "Content-Length": len(body),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            # Forbids scripts, external content and frames.
            "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'",
            **(headers or {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Does not log requests."""


def number(text):
    """Returns a 63-bit id, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else None


def server_or_exit(store, url, folder):
    """Checks the server. If none runs, starts one in a temporary folder, or exits if there is no binary to start."""
    try:
        return store.check()
    except redis.RedisError as error:
        # AuthenticationError is a subclass of ConnectionError.
        if not isinstance(error, redis.ConnectionError) or isinstance(error, redis.AuthenticationError):
            sys.exit(f"This example cannot use the server: {error}")
        refusal = error
    address = urlsplit(url)
    built = Path(__file__).parents[2] / "target/release/tidemark"
    program = os.environ.get("TIDEMARK") or shutil.which("tidemark") or (built if built.exists() else None)
    if program is None or address.hostname not in ("127.0.0.1", "localhost"):
        sys.exit(
            f"{refusal}\nNo server is running, and the tidemark program was not found. Start `./run` or `tidemark serve` first, "
            "or set its path: TIDEMARK=target/release/tidemark"
        )
    port = str(address.port or 6379)
    try:
        server = subprocess.Popen([program, "serve", "--port", port, "--dir", folder], stderr=subprocess.DEVNULL)
    except OSError as error:
        sys.exit(f"{refusal}\nNo server is running, and {program} cannot be started: {error}")
    print(f"Started {program} on port {port}; its data is deleted when this program exits.", flush=True)
    deadline = time.monotonic() + 20
    while True:
        try:
            store.check()
            return server
        except redis.RedisError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                sys.exit(f"{program} is not ready: {error}")
            time.sleep(0.05)


def load(store, source):
    """Loads the events into the store and returns the posts and the users that repost."""
    posts, reposts = [], []
    for event in source:
        if event.origin is None:
            posts.append(Post(event.post, event.user, event.at))
        else:
            reposts.append((event.origin, event.user))
    for done in store.load(posts, reposts):
        if sys.stdout.isatty():
            print(f"\r{done:,} of {len(reposts):,} reposts", end="\r", flush=True)
    print(f"{len(posts):,} posts and {len(reposts):,} reposts are loaded.", flush=True)
    return posts, {user for _, user in reposts}


def main():
    parser = argparse.ArgumentParser(description="A feed in the browser, on Tidemark.")
    parser.add_argument("--data", help="CSV file of repost events, plain or gzip (default: a generated week)")
    parser.add_argument("--url", default="redis://127.0.0.1:6399", help="URL of the Tidemark server (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8399, help="HTTP port; 0 selects a free port (default: %(default)s)")
    args = parser.parse_args()
    store = Store(args.url)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like ctrl-C
    with tempfile.TemporaryDirectory(prefix="tidemark-feed-") as folder:
        server = server_or_exit(store, args.url, folder)
        try:
            posts, reposters = load(store, events.read(args.data) if args.data else events.generated())
            Handler.feed = Feed(posts, reposters, store)
            http = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
            print(f"The feed: http://127.0.0.1:{http.server_port}/ (press ctrl-C to stop)", flush=True)
            http.serve_forever()
        except (OSError, ValueError, redis.RedisError) as error:
            sys.exit(str(error))
        except KeyboardInterrupt:
            pass
        finally:
            if server:
                server.terminate()
                server.wait()


if __name__ == "__main__":
    main()
