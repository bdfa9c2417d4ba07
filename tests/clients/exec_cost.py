"""Cost of EXEC: pages and increments per second of the server's CPU time, plain and in transactions. python3 exec_cost.py PORT

All requests of a kind are sent in one pipeline, so the network costs almost nothing."""
import random
import re
import socket
import sys
import threading

POSTS = [3_631_614_501_919_378 + i * 4194 for i in range(200_000)]
COUNT = 40_000


def request(*words):
    words = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def page():
    return request("FEED.GET", "home", random.randrange(10**6), *random.sample(POSTS, 20))


def add():
    return request("HINCRBY", f"post:{random.choice(POSTS)}", "like", 1)


def together(one, many):
    return request("MULTI") + b"".join(one() for _ in range(many)) + request("EXEC")


def run(link, requests):
    """Sends the requests and reads until the reply to the final ECHO."""
    sender = threading.Thread(target=link.sendall, args=(requests + request("ECHO", "the mark"),))
    sender.start()
    tail = b""
    while not tail.endswith(b"the mark\r\n"):
        tail = (tail + link.recv(1 << 20))[-20:]
    sender.join()


def cpu_s(link):
    link.sendall(request("INFO", "cpu"))
    text = link.recv(1 << 16).decode()
    return sum(float(x) for x in re.findall(r"used_cpu_(?:sys|user):([\d.]+)", text))


random.seed(1)
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
run(link, b"".join(request("CNT.SET", "post", post, "like", random.randrange(100)) for post in POSTS))
for what, one in [("pages", page), ("additions", add)]:
    plain = None
    for how, requests in [
        ("plain", lambda: b"".join(one() for _ in range(COUNT))),
        ("each in a transaction", lambda: b"".join(together(one, 1) for _ in range(COUNT))),
        ("ten in a transaction", lambda: b"".join(together(one, 10) for _ in range(COUNT // 10))),
    ]:
        requests, best = requests(), 0.0
        for _ in range(5):
            before = cpu_s(link)
            run(link, requests)
            best = max(best, COUNT / max(cpu_s(link) - before, 0.01))
        plain = plain or best
        print(f"{what}, {how}: {best:,.0f} per CPU second, {best / plain:.2f} of plain")
