#!/usr/bin/env python3
"""A feed in the browser: python3 examples/feed/app.py. README.md says what to look at.

This file has the HTTP side; store.py has the requests to Tidemark, view.py the pages, events.py the data."""

import argparse
import bisect
import hashlib
import hmac
import os
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
from store import Store

PAGE_POSTS = 20
MAX_VIEWER_CHARS = 64
MAX_FORM_BYTES = 4_096

Post = namedtuple("Post", "id author at")


class Refused(Exception):
    """An answer that is not a page: a status and what to tell the user."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Feed:
    """The posts, as the application's database has them, and the store of what moves."""

    def __init__(self, posts, store):
        self.posts = sorted(posts)
        self.by_id = {post.id: post for post in self.posts}
        self.store = store
        # Signs the cookie that says who is reading. A real application has it in its configuration.
        self.secret = secrets.token_bytes(32)

    def newest(self, author, before):
        """A page of posts, newest first, and whether there are older ones."""
        posts = self.posts if author is None else [post for post in self.posts if post.author == author]
        end = len(posts) if before is None else bisect.bisect_left(posts, (before,))
        start = max(0, end - PAGE_POSTS)
        return posts[start:end][::-1], start > 0

    def seal(self, viewer):
        text = quote(viewer, safe="")
        return f"{text}.{hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()}"

    def viewer(self, cookie):
        """The viewer of a cookie that this application has made, or None."""
        viewer = unquote(cookie.rpartition(".")[0])
        return viewer if viewer and hmac.compare_digest(self.seal(viewer).encode(), cookie.encode()) else None


class Handler(BaseHTTPRequestHandler):
    timeout = 10  # seconds for a request to arrive
    feed: Feed

    def do_GET(self):
        self.answer(self.get)

    def do_POST(self):
        self.answer(self.post)

    def get(self, path, author, before):
        if path == "/feed.css":
            return self.send(HTTPStatus.OK, view.CSS, "text/css")
        if path != "/":
            raise Refused(HTTPStatus.NOT_FOUND, "There is no such page.")
        viewer = self.viewer()
        if viewer is None:
            return self.send(HTTPStatus.OK, view.sign_in())
        posts, has_older = self.feed.newest(author, before)
        if author is not None and not posts:
            raise Refused(HTTPStatus.NOT_FOUND, "There is no such author.")
        authors = sorted({post.author for post in posts})
        started = time.perf_counter()
        rows, counts = self.feed.store.page(viewer, [post.id for post in posts], authors)
        took_s = time.perf_counter() - started
        self.send(HTTPStatus.OK, view.timeline(viewer, posts, rows, counts, author, before, has_older, took_s))

    def post(self, path, author, before):
        form = self.form()
        # A page of another site can make a browser send a form here. The browser says where it comes from;
        # a request that says neither is not a browser's, and has no user's cookie.
        site, origin = self.headers["Sec-Fetch-Site"], self.headers["Origin"]
        is_ours = site == "same-origin" if site else not origin or urlsplit(origin).netloc == self.headers["Host"]
        if not is_ours:
            raise Refused(HTTPStatus.FORBIDDEN, "This form comes from another site.")
        if path == "/viewer":
            viewer = form.get("viewer", [""])[0].strip()
            if not 0 < len(viewer) <= MAX_VIEWER_CHARS:
                raise Refused(HTTPStatus.BAD_REQUEST, f"A viewer is 1 to {MAX_VIEWER_CHARS} characters.")
            cookie = f"viewer={self.feed.seal(viewer)}; HttpOnly; SameSite=Lax; Path=/"
            return self.redirect("/", cookie)
        change = {"/like": self.feed.store.like, "/unlike": self.feed.store.unlike}.get(path)
        post = number(form.get("post", [""])[0])
        viewer = self.viewer()
        if change is None or post not in self.feed.by_id:
            raise Refused(HTTPStatus.NOT_FOUND, "There is no such post.")
        if viewer is None:
            return self.redirect("/")
        change(viewer, post)
        # Back to the page that had the button, by a GET: a reload likes nothing again.
        self.redirect(view.address(author, before, post))

    def answer(self, handle):
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        path, author, before = url.path, number(query.get("author", [""])[0]), number(query.get("before", [""])[0])
        try:
            handle(path, author, before)
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
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "This form is too large.")
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
            # No scripts at all, nothing from elsewhere, in no frame.
            "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'",
            **(headers or {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Says nothing of requests."""


def number(text):
    """An id of 64 bits, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else None


def server_or_exit(store, url, folder):
    """Checks that there is a Tidemark; starts one in a folder of its own if there is none and a program is at hand."""
    try:
        return store.check()
    except redis.RedisError as error:
        # A wrong password is a ConnectionError, too.
        if not isinstance(error, redis.ConnectionError) or isinstance(error, redis.AuthenticationError):
            sys.exit(f"The server cannot serve this example: {error}")
        refusal = error
    address = urlsplit(url)
    built = Path(__file__).parents[2] / "target/release/tidemark"
    program = os.environ.get("TIDEMARK") or shutil.which("tidemark") or (built if built.exists() else None)
    if program is None or address.hostname not in ("127.0.0.1", "localhost"):
        sys.exit(
            f"{refusal}\nThere is no server, and no program to start one. Start `./run` or `tidemark serve` first, "
            "or name the program: TIDEMARK=target/release/tidemark"
        )
    port = str(address.port or 6379)
    try:
        server = subprocess.Popen([program, "serve", "--port", port, "--dir", folder], stderr=subprocess.DEVNULL)
    except OSError as error:
        sys.exit(f"{refusal}\nThere is no server, and {program} does not start: {error}")
    print(f"Started {program} on port {port}; its data go when this program ends.", flush=True)
    deadline = time.monotonic() + 20
    while True:
        try:
            store.check()
            return server
        except redis.RedisError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                sys.exit(f"{program} does not serve: {error}")
            time.sleep(0.05)


def load(store, source):
    """Puts the events into the store; the posts of them."""
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
    return posts


def main():
    parser = argparse.ArgumentParser(description="A feed in the browser, on Tidemark.")
    parser.add_argument("--data", help="a CSV file of repost events, gzipped or not (without it, a generated week)")
    parser.add_argument("--url", default="redis://127.0.0.1:6399", help="the Tidemark server (%(default)s)")
    parser.add_argument("--port", type=int, default=8399, help="where the pages are served; 0: any free port")
    args = parser.parse_args()
    store = Store(args.url)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as ctrl-C
    with tempfile.TemporaryDirectory(prefix="tidemark-feed-") as folder:
        server = server_or_exit(store, args.url, folder)
        try:
            posts = load(store, events.read(args.data) if args.data else events.generated())
            Handler.feed = Feed(posts, store)
            http = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
            print(f"The feed: http://127.0.0.1:{http.server_port}/ (ctrl-C ends it)", flush=True)
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
