"""Renders pages as HTML. All external text is escaped or a number."""

from collections import namedtuple
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from store import PAGE_POSTS, TOP_FRIENDS

# The address of a page: the posts of all authors or of one, those older than `before`, only the unread ones.
Query = namedtuple("Query", "author before unread", defaults=(None, None, None))

CSS = Path(__file__).with_name("feed.css").read_text(encoding="utf-8")

ICONS = {
    "heart": "M12 20.5 4.6 13a4.9 4.9 0 0 1 7-6.9l.4.5.4-.5a4.9 4.9 0 0 1 7 6.9z",
    "repost": "M4 10V9a3 3 0 0 1 3-3h12m-3-3 3 3-3 3M20 14v1a3 3 0 0 1-3 3H5m3 3-3-3 3-3",
    "comment": "M4 5h16v11H11l-5 4v-4H4z",
    "read": "M2 12c5-8 15-8 20 0-5 8-15 8-20 0zm10 3a3 3 0 1 0 0-6 3 3 0 0 0 0 6z",
}


def icon(name):
    return f'<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d="{ICONS[name]}"/></svg>'


def address(query, post=None, path="/"):
    """Returns the URL of a page, and of a post on it."""
    fields = urlencode({name: value for name, value in query._asdict().items() if value is not None})
    return f"{path}{'?' if fields else ''}{fields}{f'#p{post}' if post is not None else ''}"


def link(text, query, attributes=""):
    return f'<a href="{escape(address(query))}"{attributes}>{text}</a>'


def document(title, content, viewer=None):
    who = f'<p class="viewer">Reading as <b>{escape(viewer)}</b>, <a href="#viewer">change</a></p>' if viewer else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/feed.css">
</head>
<body>
<a class="skip" href="#main">Skip to the posts</a>
<header class="top"><h1><a href="/">Feed</a></h1>{who}</header>
<main id="main">
{content}
</main>
</body>
</html>
"""


def viewer_form(label):
    return f"""<form class="choose" method="post" action="/viewer">
<label>{label} <input id="viewer" name="viewer" required maxlength="64" autocomplete="off" placeholder="7"></label>
<button>Read</button>
</form>"""


def sign_in():
    note = "Any number or name works; this example has no passwords."
    return document("Feed", f"<h2>Who is reading?</h2>\n{viewer_form('Viewer')}\n<p class='note'>{note}</p>")


def message(text):
    return document("Feed", f'<p class="alert" role="alert">{escape(text)}</p>\n<p><a href="/">To the feed</a></p>')


def timeline(viewer, posts, rows, counts, query, older, sizes, took_s):
    """`older` is the query of the next page, if any. `sizes` are the numbers of candidates and of followed users."""
    title = "Unread posts" if query.unread else "Newest posts" if query.author is None else "Posts"
    if query.author is not None:
        title += f" of user {query.author}"
    cards = [card(post, row, counts[post.author], query) for post, row in zip(posts, rows)]
    links = []
    if query.author is not None:
        links.append(link("All authors", query._replace(author=None, before=None)))
    if query.before is not None:
        links.append(link("Newest", query._replace(before=None)))
    if older:
        links.append(link("Older posts", older, " rel='next'"))
    modes = [
        link(text, query._replace(before=None, unread=unread), " aria-current='true'" if bool(query.unread) == bool(unread) else "")
        for text, unread in (("All posts", None), ("Unread only", 1))
    ]
    note = "Showing these posts has marked them as read, so a reload shows the next ones." if posts else "No unread posts here."
    candidates, followed = sizes
    requests = []
    if query.unread:
        requests.append(f"PH.UNSEEN read {escape(viewer)} LIMIT {PAGE_POSTS} &lt;{plural(candidates, 'id')}&gt;")
    if posts:
        requests.append(
            f"FEED.GET home {escape(viewer)} &lt;{plural(len(posts), 'id')}&gt; MARK read "
            f"AMONG reposted TOP {TOP_FRIENDS} &lt;{plural(followed, 'user')}&gt;"
        )
    content = f"""<div class="title"><h2>{title}</h2>
<nav class="modes" aria-label="Posts to show">{" ".join(modes)}</nav></div>
{f"<p class='note'>{note}</p>" if query.unread else ""}
{"".join(cards)}
<nav class="pages" aria-label="Pages">{" ".join(links)}</nav>
<footer>
<p>{"<br>".join(f"<code>{request}</code>" for request in requests)}<br>
{"PH.UNSEEN returns the unread posts. " if query.unread else ""}One FEED.GET returns all hearts, counts, read marks and reposts by
followed users, in one round trip with the authors' counters. Duration: {took_s * 1000:.1f} ms.</p>
{viewer_form("Read as another viewer")}
</footer>"""
    return document(title, content, viewer)


def card(post, row, author_posts, query):
    heart = row.liked == 1
    action = address(query, path="/unlike" if heart else "/like")
    label = f"{'Unlike' if heart else 'Like'} post {post.id}, {plural(row.likes, 'like')}"
    # None: the flags of this old post were discarded, so a like would not count.
    off = " disabled title='too old to be liked'" if row.liked is None else ""
    seen = "<span class='seen'>read before</span>" if row.read else "<span class='seen new'>new</span>"
    return f"""<article id="p{post.id}" class="post" data-post="{post.id}" aria-label="Post {post.id}">
<header>{avatar(post.author)}
<p><a class="author" href="{escape(address(Query(post.author, unread=query.unread)))}">user {post.author}</a>
<small>{plural(author_posts, "post")}</small><br>
<small><time datetime="{post.at.isoformat()}">{post.at:%d %b %Y, %H:%M}</time> {seen}</small></p></header>
<p class="text">Post {post.id}</p>
{friends(row)}
<div class="counts">
<form method="post" action="{escape(action)}"><input type="hidden" name="post" value="{post.id}">
<button class="like" aria-pressed="{"true" if heart else "false"}" aria-label="{label}"{off}>{icon("heart")} {row.likes:,}</button></form>
{count("repost", row.reposts)} {count("comment", row.comments)} {count("read", row.reads)}
</div>
</article>
"""


def count(name, value):
    return f'<span class="count" data-count="{name}">{icon(name)} {value:,}<span class="unseen"> {name}s</span></span>'


def friends(row):
    """Says which followed users reposted the post, and how many others did."""
    names = " and ".join(f"<b>user {user}</b>" for user in row.named)
    others = (row.friends or 0) - len(row.named)
    rest = f", and {plural(others, 'other')} you follow" if others else ""
    return f'<p class="friends">{icon("repost")} <span>{names} reposted{rest}</span></p>' if names else ""


def plural(number, word):
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def avatar(author):
    """Returns a disc in the author's color, set by an attribute because the page forbids inline styles."""
    return (
        f'<svg class="avatar" viewBox="0 0 40 40" aria-hidden="true"><circle cx="20" cy="20" r="20" '
        f'fill="hsl({author * 47 % 360} 45% 45%)"/><text x="20" y="26" text-anchor="middle">{author % 100:02}</text></svg>'
    )
