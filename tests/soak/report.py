"""The report of a soak test: faults, results, and plots of the measurements."""
import statistics
from html import escape

WIDTH, HEIGHT, LEFT = 900, 180, 60
STYLE = """
body { font: 15px system-ui, sans-serif; max-width: 960px; margin: 24px auto; padding: 0 16px; color: #16191d; background: #fff; }
table { border-collapse: collapse; } td, th { padding: 3px 12px 3px 0; text-align: left; } td:nth-child(n+2) { font-variant-numeric: tabular-nums; }
svg text { font: 12px system-ui, sans-serif; fill: #5a6472; } .bad { color: #b3261e; font-weight: 600; } h2 { margin-top: 32px; }
"""
COLOURS = ["#1f66b8", "#b06000", "#2e7d4f"]


def plot(title, unit, series, seconds, faults):
    """Draws lines over the minutes of a soak test. `series`: (name, [(second, value)]). Grey lines mark faults."""
    most = max((value for _, points in series for _, value in points), default=1) * 1.05 or 1
    x = lambda second: LEFT + (WIDTH - LEFT - 10) * second / seconds
    y = lambda value: HEIGHT - 24 - (HEIGHT - 44) * value / most
    parts = [f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="20" y2="{HEIGHT - 24}" stroke="#e3e6ea"/>' for at, _, _ in faults]
    for part in (0, 0.5, 1):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(most * part):.1f}" y2="{y(most * part):.1f}" stroke="#c9ced5"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(most * part) + 4:.1f}" text-anchor="end">{most * part:,.{0 if most > 100 else 1}f}</text>')
    for minute in range(0, int(seconds / 60) + 1, max(1, int(seconds / 600))):
        parts.append(f'<text x="{x(minute * 60):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{minute} min</text>')
    for (name, points), colour in zip(series, COLOURS):
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    names = "".join(f'<tspan fill="{colour}" dx="12">{escape(name)}</tspan>' for (name, _), colour in zip(series, COLOURS))
    parts.append(f'<text x="{LEFT}" y="12">{escape(unit)}{names}</text>')
    return f'<h2>{escape(title)}</h2><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%">{"".join(parts)}</svg>'


def by_window(points, seconds, share, width=15):
    """Returns the quantile of each window of `width` seconds."""
    windows = {}
    for at, value in points:
        windows.setdefault(int(at / width), []).append(value)
    return [(window * width, sorted(values)[min(len(values) - 1, int(len(values) * share))]) for window, values in sorted(windows.items())]


def table(rows):
    return "<table>" + "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows) + "</table>"


def write(soak, totals, gaps, path):
    seconds = max(at for at, *_ in soak.watched) if soak.watched else 1
    of_node = lambda column: [(f"node {n}", [(row[0], row[column]) for row in soak.watched if row[1] == n]) for n in sorted({row[1] for row in soak.watched})]
    pages = [(at, took * 1000) for at, took in soak.pages if at <= seconds]
    sorted_ms = sorted(took for _, took in pages) or [0]
    kinds = {}
    for _, what, _ in soak.faults:
        kinds[what] = kinds.get(what, 0) + 1
    verdict = f'<p class="bad">{len(soak.wrong)} lost or wrong</p>' if soak.wrong else "<p>Nothing was lost, nothing was wrong.</p>"
    quantile = lambda share: f"{sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))]:.1f}"
    parts = [
        f"<title>Soak</title><style>{STYLE}</style><h1>Soak of {seconds / 60:.0f} minutes, seed {soak.args.seed}</h1>{verdict}",
        table([(escape(why),) for why in soak.wrong[:50]]),
        "<h2>What clients did</h2>", table(totals.items()),
        table([("page of 20 as a client waits for it, ms, faults included", f"median {statistics.median(sorted_ms):.1f}, p99 {quantile(0.99)}, p99.9 {quantile(0.999)}, most {sorted_ms[-1]:.0f}")]),
        "<h2>What was done to it</h2>", table(sorted(kinds.items(), key=lambda kind: -kind[1])),
        "<h2>Memory after a quiet minute</h2>", table([(f"node {n}", f"{gap:.1f} MiB resident beyond what it accounts for") for n, gap in gaps.items()]),
        plot("Resident memory", "MiB", of_node(2), seconds, soak.faults),
        plot("Memory that it accounts for", "MiB", of_node(3), seconds, soak.faults),
        plot("Open descriptors", "", of_node(4), seconds, soak.faults),
        plot("Longest turn of a worker in the last minute", "ms", of_node(5), seconds, soak.faults),
        plot("A page of 20 as a client waits for it", "ms", [("median", by_window(pages, seconds, 0.5)), ("p99", by_window(pages, seconds, 0.99))], seconds, soak.faults),
    ]
    with open(path, "w", encoding="utf-8") as file:
        file.write("<!doctype html><meta charset=utf-8>" + "\n".join(parts))
