"""How results are shown: lines while running, a summary after, and the README's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cases import Case
from competitors import LIMIT
from peers import CALLS, Astype, Castwise
from record import Record, Row

MARKER = "benchmark"
README_SIZE = 65_536
README_FORMAT = "float32"


def heading(others: Iterable[str]) -> str:
    """Column titles of `line`."""
    columns = "".join(f"{name:>10} {'ratio':>8}" for name in others)
    titles = f"{'size':>9} {'layout':<10} {'call':<5} {'ns':>12} {'GB/s':>7}"
    return f"{'pair':<36}{titles}{columns}  correct"


def line(case: Case, call: str, peers: Mapping[str, Row], others: Iterable[str]) -> str:
    """One case and call: castwise's time and GB/s, then each peer's GB/s and time ratio."""
    own = peers["castwise"]
    columns = ""
    for name in others:
        row = peers.get(name)
        columns += f"{row.gb_per_s:>10.2f} {row.ratio:>7.2f}x" if row else f"{'-':>10} {'-':>8}"
    return (
        f"{case.pair:<36}{case.size:>9} {case.layout:<10} {call:<5} {own.ns:>12,.0f} "
        f"{own.gb_per_s:>7.2f}{columns}  {verdict(peers)}"
    )


def verdict(peers: Mapping[str, Row]) -> str:
    """`yes`, or who got how many elements wrong."""
    own = peers["castwise"].wrong
    if own is None:
        return "not judged"
    failed = [f"{name}: {row.wrong} wrong" for name, row in peers.items() if row.wrong]
    if own:
        return "NO, " + ", ".join(failed)
    return "yes" + "".join(f" ({text})" for text in failed)


def summary(record: Record) -> str:
    """Say what to look at: wrong results, and everything that a peer does faster."""
    groups = record.by_peer()
    wrong = [key for key, peers in groups.items() if peers["castwise"].wrong]
    best = {key: best_peer(peers) for key, peers in groups.items()}
    behind = sorted(
        (row.ratio, f"{row.peer}: {name(key)}")
        for key, row in best.items()
        if row and row.ratio < 1
    )
    lines = [f"{len(groups)} measured, {len(wrong)} wrong, {len(behind)} slower than some peer"]
    lines += [f"  wrong: {name(key)}" for key in wrong]
    lines += [f"  {ratio:.2f}x {what}" for ratio, what in behind]
    return "\n".join(lines)


def best_peer(peers: Mapping[str, Row]) -> Row | None:
    """The fastest row that is neither castwise's nor the limit."""
    rows = [row for name, row in peers.items() if name not in (Castwise.name, LIMIT)]
    return min(rows, key=lambda row: row.ratio, default=None)


def name(key: tuple[Case, str]) -> str:
    """Put a case and call in words."""
    case, call = key
    return f"{case.pair} {case.size} {case.layout} {call}"


def markdown(record: Record) -> str:
    """Format the README's table: every measured pair with float32, in cache, contiguous."""
    facts = record.environment
    lines = [
        f"GB/s read and written, {README_SIZE:,} elements, contiguous; ratios are times over "
        f"castwise's. {facts['cpu']}, {facts['level']}, threads: {facts['threads']}; "
        f"{facts['versions']}; {facts['date']}.",
        "",
        "| from | to | castwise | memcpy | astype | new array | into `out` | next best, new "
        "| next best, `out` | bits right |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    groups = record.by_peer()
    for case, call in groups:
        if call != CALLS[0] or (case.size, case.layout) != (README_SIZE, "contiguous"):
            continue
        fresh, out = groups[case, "fresh"], groups[case, "out"]
        if README_FORMAT not in (case.source, case.target) or "astype" not in fresh:
            continue
        speeds = " | ".join(
            f"{out[peer].gb_per_s:.1f}" for peer in ("castwise", "memcpy", "astype")
        )
        gains = " | ".join(f"{calls['astype'].ratio:.1f}x" for calls in (fresh, out))
        nearest = " | ".join(next_best(calls) for calls in (fresh, out))
        right = verdict(out) if verdict(out) != "yes" else verdict(fresh)
        lines.append(
            f"| {case.source} | {case.target} | {speeds} | {gains} | {nearest} | {right} |"
        )
    return "\n".join(lines)


def next_best(peers: Mapping[str, Row]) -> str:
    """The fastest library besides numpy with ml_dtypes, and castwise's gain over it."""
    row = best_peer({name: row for name, row in peers.items() if name != Astype.name})
    return f"{row.peer} {row.ratio:.1f}x" if row else ""
