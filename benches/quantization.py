"""What decoding and encoding of quantized arrays cost: `python benches/quantization.py`.

README.md in this folder says how it is measured. A row is one scheme decoded to bfloat16, or
encoded from it, beside the plain cast of as many elements (float8_e4m3fn to bfloat16, and back) and
its peer, if that is installed, in the same turns. A result is right if the `portable` level and the
peer give the same bits.

Rows `best` and `weighted` are encodings with searched scales, without and with importance; their
peer is the encoding with `scales="amax"`. Times are the least CPU times, as other programs
interrupt searches of milliseconds more than short calls. A result is right if the `portable` level
gives the same bits and the (weighted) squared error is not larger than the peer's.

Exit code 1 if a result is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from time import process_time_ns
from typing import Any

import avx2
import castwise
import command
import files
import numpy as np
from castwise import _core
from castwise._options import Recipe, SchemeName
from castwise.quantization import QuantizedArray, dequantize, quantize
from measure import Call, interleave, ratios
from peers import Library, installed
from quantization_peers import LIBRARIES, PEERS, Array

WORK = ("decode", "encode")
SEARCHES = ("best", "weighted")
SEARCHED: tuple[SchemeName, ...] = (
    *("nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxint8"),
    *("int4_group", "int4_channel", "int8_group", "int8_channel"),
)
MOST_SEARCHED = 1 << 20
SIZES = (65_536, 1 << 20, 1 << 24)


@dataclass(frozen=True)
class Row:
    """One scheme; `share` is its elements per second over the plain cast's."""

    work: str
    scheme: str
    recipe: str
    size: int
    us: float = field(metadata={"digits": 4})
    share: float = field(metadata={"digits": 3})
    peer: str
    """Whose code is run beside it, if it is installed."""
    ratio: float | None = field(metadata={"digits": 3})
    """The peer's time over castwise's."""
    correct: bool


def weights(size: int) -> Any:
    """Normal weights as bfloat16, a matrix with 512 columns."""
    rng = np.random.default_rng(0)
    return castwise.cast(rng.standard_normal((size // 512, 512), np.float32) * 0.02, "bfloat16")


def on_portable(call: Callable[[], Any]) -> Any:
    """Run on the portable level."""
    level = castwise.cpu_level()
    _core.set_cpu_level("portable")
    try:
        return call()
    finally:
        _core.set_cpu_level(level)


def same(one: QuantizedArray, other: QuantizedArray) -> bool:
    """Whether all parts are the same bytes."""
    pairs = ((one.data, other.data), (one.scale, other.scale))
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def is_equal(ours: Array, theirs: Array) -> bool:
    """Whether two arrays have the same bytes, whatever axes of one element they have."""
    return ours.size == theirs.size and ours.tobytes() == theirs.tobytes()


def measured(
    work: str, key: tuple[SchemeName, Recipe], size: int, repeats: int, libraries: Sequence[Library]
) -> Row:
    """Measure one scheme."""
    scheme, recipe = key
    x, peer = weights(size), PEERS[key]
    make = partial(quantize, x, scheme, recipe=recipe)
    q, out = make(), np.empty_like(x)
    narrow, parts, library = castwise.cast(x, "float8_e4m3fn"), q.parts(), peer.library
    calls: list[Call]
    if work == "decode":
        calls = [partial(dequantize, q, out=out), partial(castwise.cast, narrow, out=out)]
        correct = dequantize(q).tobytes() == on_portable(partial(dequantize, q)).tobytes()
    else:
        calls = [make, partial(castwise.cast, x, out=narrow)]
        correct = same(q, on_portable(make))
    pairs: list[tuple[Array, Any]] = []
    if library in libraries:
        tensors = {
            name: library.tensor(np.require(part, requirements=["C", "W"]))
            for name, part in parts.items()
        }
        values = library.tensor(x)
        if work == "decode":
            decode = partial(peer.decode, library.module, tensors, x.shape)
            pairs.append((dequantize(q), decode()))
            calls.append(decode)
        else:
            encode = partial(peer.encode, library.module, values)
            pairs += [(parts[name], found) for name, found in encode().items()]
            calls.append(encode)
        correct &= all(is_equal(ours, library.array(found, ours.dtype)) for ours, found in pairs)
    times = interleave(calls, repeats)
    relative = ratios(times, reference=0)
    ratio = float(relative[2]) if library in libraries else None
    us, share = float(np.median(times[0]) / 1e3), float(relative[1])
    return Row(work, *key, size, us, share, library.name, ratio, correct)


def squared_error(x: Array, q: QuantizedArray, importance: Array) -> float:
    """Add the squares of what an encoding loses, times the importance of their columns."""
    lost = dequantize(q, np.float64) - x.astype(np.float64)
    return float((lost * lost * importance).sum())


def cpu_ns(call: Call) -> int:
    """Nanoseconds of the CPU for a call."""
    start = process_time_ns()
    call()
    return process_time_ns() - start


def searched(work: str, scheme: SchemeName, size: int, repeats: int) -> Row:
    """Measure the search of scales of one scheme."""
    x = weights(size)
    numbers = np.random.default_rng(1).lognormal(0, 1, x.shape[1]).astype(np.float32)
    importance = numbers if work == "weighted" else None
    make = partial(quantize, x, scheme, scales="best", importance=importance)
    usual = partial(quantize, x, scheme, scales="amax")
    q, out = make(), castwise.cast(x, "float8_e4m3fn")
    each = np.ones_like(numbers) if importance is None else importance
    correct = same(q, on_portable(make))
    correct &= squared_error(x, q, each) <= squared_error(x, usual(), each)
    calls: list[Call] = [make, partial(castwise.cast, x, out=out), usual]
    turns = [[cpu_ns(call) for call in calls] for _ in range(repeats)]
    search, cast, amax = map(min, zip(*turns, strict=True))
    us, share = search / 1e3, cast / search
    return Row(work, scheme, str(q.recipe), size, us, share, "amax", amax / search, bool(correct))


def rows(options: argparse.Namespace, libraries: Sequence[Library]) -> Iterator[Row]:
    """Measure everything asked for."""
    for size in options.sizes or (SIZES[:1] if options.quick else SIZES):
        if not options.searches:
            for work in WORK:
                for key in PEERS:
                    yield measured(work, key, size, options.repeats, libraries)
        if size <= MOST_SEARCHED:
            for work in SEARCHES:
                for scheme in SEARCHED:
                    yield searched(work, scheme, size, options.repeats)


def line(row: Row) -> str:
    """One row for the terminal."""
    digits = 3 if row.work in SEARCHES else 1
    peer = "" if row.ratio is None else f"{row.peer} {row.ratio:.{digits}f}x"
    return (
        f"{row.work:<9}{row.scheme:<13}{row.recipe:<19}{row.size:>9}{row.us:>12.1f} us"
        f"{row.size / row.us / 1e3:>8.2f} G/s  of the cast {row.share:>5.2f}  {peer:<20}"
        f"{'correct' if row.correct else 'WRONG'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    """Measure everything, printing each row as it is done."""
    castwise.set_num_threads(options.threads)
    libraries = [] if options.searches else installed(LIBRARIES, options.threads)
    versions = {name: version(name) for name in ("numpy", "ml_dtypes", "castwise")}
    for library in libraries:
        versions |= library.versions()
    facts = files.environment(versions, level=castwise.cpu_level(), threads=str(options.threads))
    for name, value in facts.items():
        print(f"# {name}: {value}")
    print("# of the cast: elements per second over those of float8_e4m3fn to bfloat16, or back")
    return facts, command.print_rows(rows(options, libraries), line)


def markdown(facts: dict[str, str], found: list[Row]) -> str:
    """Format the README's table: a line for each scheme."""
    lines = [
        "Elements per second over those of the plain cast, and a peer's time over castwise's. "
        f"{facts['cpu']}, {facts['level']}, threads: {facts['threads']}; {facts['versions']}; "
        f"{facts['date']}.",
        "",
        "| elements | scheme | recipe | peer | decode | peer | encode | peer | bits right |",
        "|--:|---|---|---|--:|--:|--:|--:|---|",
    ]
    by_key = {
        (row.size, row.scheme, row.recipe, row.work): row for row in found if row.work in WORK
    }
    for size, scheme, recipe in dict.fromkeys(key[:3] for key in by_key):
        cells = [by_key[size, scheme, recipe, work] for work in WORK]
        texts = [
            text
            for row in cells
            for text in (f"{row.share:.2f}", "" if row.ratio is None else f"{row.ratio:.1f}")
        ]
        correct = "yes" if all(row.correct for row in cells) else "NO"
        shown = (f"{size:,}", scheme, recipe, cells[0].peer, *texts, correct)
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def search_table(facts: dict[str, str], found: list[Row]) -> str:
    """Format the table of searched scales: a line for each scheme."""
    times = {(row.scheme, row.work): 1 / row.ratio for row in found if row.ratio}
    lines = [
        'Least CPU times over that of the encoding with `scales="amax"`, of '
        f"{max(row.size for row in found):,} elements of bfloat16. {facts['cpu']}, "
        f"{facts['level']}, threads: {facts['threads']}; {facts['date']}.",
        "",
        '| scheme | `scales="best"` | with importance |',
        "|---|--:|--:|",
    ]
    lines += [
        f"| `{scheme}` | {times[scheme, 'best']:.1f} | {times[scheme, 'weighted']:.1f} |"
        for scheme in dict.fromkeys(row.scheme for row in found)
    ]
    return "\n".join(lines)


def tables(facts: dict[str, str], found: list[Row]) -> Iterator[tuple[str, str]]:
    """Format the table of benches/README.md, or of searches alone that of `quantized.md`."""
    if all(row.work in SEARCHES for row in found):
        yield "searches", search_table(facts, found)
    else:
        yield f"quantization-{facts['level']}", markdown(facts, found)


def main() -> int:
    """Measure or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--avx2", action="store_true", help="hold castwise and peers to AVX2")
    parser.add_argument("--searches", action="store_true", help="measure searched scales alone")
    options = parser.parse_args()
    if options.avx2:
        avx2.hold()
    return command.carry_out(options, Row, run, line, tables)


if __name__ == "__main__":
    sys.exit(main())
