"""What a run says: ratios, means, limits, and what changed since an earlier run.

A run is `{"machine", "versions", "settings", "rows"}`; a row `{"id", "title", "bytes", "flops",
"times": {engine: [seconds of each round]}, "differ": [engines], "missing": {engine: reason},
"loads": [share of the machine that others used before each round]}`.
"""

import math
import statistics

from case import GROUPS
from engines import OURS

# A row is marked when others used more than this share of the machine before a round, or when the
# quarters of an engine's rounds lie further apart than this factor.
BUSY, SPREAD = 0.1, 1.3
#: A change is told from noise where it is larger than this and than the spread of its rounds.
CHANGE = 1.1
# Rows that show what the machine can do: products, and sums of vectors in memory and in cache.
PRODUCTS, MEMORY, CACHE = ("C1_1024", "C1_2048"), ("F3_10000000", "B1"), ("F3_30000",)
PROBES = ("C1_1024", "F3_10000000", "F3_30000")


def median(row, engine):
    times = row["times"].get(engine)
    return statistics.median(times) if times else None


def ours(row):
    """Our better time: eager or compiled."""
    return min((t for t in (median(row, e) for e in OURS) if t), default=None)


def best_peer(row):
    """The fastest peer whose results agree, and its time."""
    peers = [(median(row, e), e) for e in row["times"] if e not in OURS and e not in row["differ"]]
    return min(((t, e) for t, e in peers if t), default=(None, None))[::-1]


def ratio(theirs, own):
    """How many times faster than they we are."""
    return theirs / own if theirs and own else None


def geometric(values):
    values = [v for v in values if v]
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def spread(times):
    """The upper quarter of rounds over the lower one."""
    times = sorted(times)
    return times[-1 - len(times) // 4] / times[len(times) // 4]


def unsteady(row):
    """Whether the figures of a row should not be relied on."""
    loads = any(load is not None and load > BUSY for load in row["loads"])
    return loads or any(spread(times) > SPREAD for times in row["times"].values())


def limits(run):
    """What the machine was seen to do in this run, whichever engine did it: floating point
    operations and bytes a second, the latter from memory and from cache."""
    def most(ids, what):
        found = [row[what] / t for row in run["rows"] if row["id"] in ids
                 for t in (median(row, e) for e in row["times"]) if t]
        return max(found, default=None)

    return {"flops": most(PRODUCTS, "flops"), "memory": most(MEMORY, "bytes"),
            "cache": most(CACHE, "bytes"), "cache bytes": cache_bytes(run)}


def cache_bytes(run):
    """What lies in a core's own cache: the second level where it is known."""
    return run["machine"]["caches"].get("L2", 1 << 18)


def share_of_limit(row, limit):
    """Our speed as a share of what bytes and operations allow; None where neither is declared."""
    bandwidth = limit["cache"] if row["bytes"] <= limit["cache bytes"] else limit["memory"]
    least = [row["flops"] / limit["flops"] if limit["flops"] else 0,
             row["bytes"] / bandwidth if bandwidth else 0]
    own = ours(row)
    return max(least) / own if own and max(least) else None


def pretty(seconds):
    if seconds is None:
        return ""
    units = (("ns", 1e9), ("µs", 1e6), ("ms", 1e3), ("s", 1.0))
    unit, scale = next((u, s) for u, s in units if seconds * s < 1000 or u == "s")
    return f"{seconds * scale:.3g} {unit}"


def shown(value, form=".2f"):
    return "" if value is None else format(value, form)


def table(run):
    """Markdown: a line for each row, with our times, the best peer, ratios and the limit."""
    limit = limits(run)
    lines = ["| row | | eager | compiled | best peer | | ratio | of torch | of the limit |",
             "|---|---|---:|---:|---|---:|---:|---:|---:|"]
    for row in run["rows"]:
        peer, theirs = best_peer(row)
        mark = " (unsteady)" if unsteady(row) else ""
        mark += f" (differs: {', '.join(row['differ'])})" if row["differ"] else ""
        near = share_of_limit(row, limit)
        cells = [row["id"], row["title"] + mark, *(pretty(median(row, e)) for e in OURS),
                 peer or "", pretty(theirs), shown(ratio(theirs, ours(row))),
                 shown(ratio(median(row, "torch"), ours(row))), shown(near, ".0%")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(run):
    """Markdown: geometric means by group and over all, and how many rows are at or ahead."""
    lines = ["| group | rows | of the best peer | of torch | at or ahead | lowest |",
             "|---|---:|---:|---:|---:|---|"]
    groups = {**{g: [r for r in run["rows"] if r["id"][0] == g] for g in GROUPS}, "": run["rows"]}
    for group, rows in groups.items():
        ratios = {row["id"]: ratio(best_peer(row)[1], ours(row)) for row in rows}
        ratios = {id: r for id, r in ratios.items() if r}
        if not ratios:
            continue
        least = min(ratios, key=ratios.get)
        torch = geometric(ratio(median(row, "torch"), ours(row)) for row in rows)
        ahead = sum(r >= 1 for r in ratios.values())
        lines.append(f"| {GROUPS.get(group, 'all')} | {len(ratios)} | "
                     f"{shown(geometric(ratios.values()))} | {shown(torch)} | "
                     f"{ahead} of {len(ratios)} | {least} {ratios[least]:.2f} |")
    return "\n".join(lines)


def changes(before, now):
    """Rows whose time changed by more than noise since an earlier run: {id: times faster}. Across
    machines it is the ratio to the best peer that is compared."""
    same = before["machine"] == now["machine"]
    earlier = {row["id"]: row for row in before["rows"]}
    found = {}
    for row in now["rows"]:
        old = earlier.get(row["id"])
        if old is None or not ours(old) or not ours(row):
            continue
        if same:
            change = ours(old) / ours(row)
        else:
            then, today = (ratio(best_peer(r)[1], ours(r)) for r in (old, row))
            if not then or not today:
                continue
            change = today / then
        noise = max(spread(r["times"][e]) for r in (old, row) for e in OURS if r["times"].get(e))
        if max(change, 1 / change) > max(CHANGE, noise):
            found[row["id"]] = change
    return found


def changed(before, now):
    """Markdown of the changes, worst first."""
    found = changes(before, now)
    if not found:
        return "Nothing changed by more than noise."
    titles = {row["id"]: row["title"] for row in now["rows"]}
    lines = ["| row | | times faster |", "|---|---|---:|"]
    lines += [f"| {id} | {titles[id]} | {found[id]:.2f} |" for id in sorted(found, key=found.get)]
    return "\n".join(lines)
