"""Compare castwise.loss_scale.unscale with numpy, torch and a copy: `python benches/unscale.py`.

README.md in this folder says how it is measured. A row is one list of gradients in one dtype, one
call for the whole list (numpy and the copy: one per array):

    in place    each gradient is divided where it stands
    to float32  into existing float32 arrays, as a step with float16 gradients needs them
    norm        the latter, with the norm

Exit code 1 if a result is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import castwise
import command
import files
import numpy as np
from castwise.loss_scale import unscale
from measure import interleave, ratios
from numpy.typing import NDArray

DTYPES = ("float32", "float16", "bfloat16")
CALLS = ("in place", "to float32", "norm")
# In place, call after call must change nothing.
SCALE = 1.0

VERDICTS = {True: "correct", False: "WRONG", None: ""}
MARKER = "unscale"
PEERS = ("numpy", "torch", "memcpy")

Arrays = list[NDArray[Any]]

torch: Any = import_module("torch") if find_spec("torch") else None


def eight() -> list[int]:
    """Eight gradients of 1 Mi elements."""
    return [1 << 20] * 8


def small() -> list[int]:
    """Eight gradients of 64 Ki elements."""
    return [1 << 16] * 8


def model() -> list[int]:
    """300 gradients from 256 to 4 Mi elements, log-uniform."""
    return [int(size) for size in np.geomspace(256, 4 << 20, 300)]


LISTS: dict[str, Callable[[], list[int]]] = {"8 x 1 Mi": eight, "300, 256 to 4 Mi": model}


@dataclass(frozen=True)
class Row:
    """One peer on one list of gradients; `ratio` is its time over castwise's.

    `correct` judges castwise's results; None for the others.
    """

    gradients: str
    dtype: str
    call: str
    peer: str
    ms: float = field(metadata={"digits": 4})
    gb_per_s: float = field(metadata={"digits": 4})
    ratio: float = field(metadata={"digits": 4})
    correct: bool | None


class Case(NamedTuple):
    """What is timed: arrays and where they go."""

    sources: Arrays
    targets: Arrays
    call: str


class Peer(NamedTuple):
    """A competitor: its name and its call on a case."""

    name: str
    run: Callable[[], object]


def gradients(sizes: list[int], dtype: str) -> Arrays:
    """Normal values, with a fixed seed."""
    target, rng = castwise.finfo(dtype).dtype, np.random.default_rng(0)
    return [castwise.cast(rng.standard_normal(size, np.float32), target) for size in sizes]


def numpy_unscale(sources: Arrays, targets: Arrays) -> bool:
    """What one writes with numpy: look for what is not finite, then multiply."""
    finite, factor = True, np.float32(1 / SCALE)
    for source, target in zip(sources, targets, strict=True):
        finite = bool(np.isfinite(source).all()) and finite
        np.multiply(source, factor, out=target, casting="unsafe")
    return finite


def numpy_norm(sources: Arrays, targets: Arrays) -> tuple[bool, float]:
    """The same, then the norm."""
    finite = numpy_unscale(sources, targets)
    squares = sum(float(np.dot(target.ravel(), target.ravel())) for target in targets)
    return finite, squares**0.5


def copy(pairs: list[tuple[Any, Any]]) -> None:
    """As many bytes, read and written."""
    for source, target in pairs:
        np.copyto(target, source)


def peers(case: Case) -> Iterator[Peer]:
    """Castwise first; torch where it is installed and can do it."""
    sources, targets, name = case
    norm = name == "norm"
    yield Peer("castwise", partial(unscale, sources, SCALE, targets, norm=norm))
    yield Peer("numpy", partial(numpy_norm if norm else numpy_unscale, sources, targets))
    if name == "in place" and torch is not None:
        with_data = [torch_copy(array) for array in sources]
        found, factor = torch.zeros(1), torch.full((1,), 1 / SCALE)
        check = torch._amp_foreach_non_finite_check_and_unscale_
        yield Peer("torch", partial(check, with_data, found, factor))
    sizes = [(s.nbytes + t.nbytes) // 2 for s, t in zip(sources, targets, strict=True)]
    pairs = [(np.ones(size, np.uint8), np.empty(size, np.uint8)) for size in sizes]
    yield Peer("memcpy", partial(copy, pairs))


def torch_copy(array: NDArray[Any]) -> Any:
    """The same values as a tensor; by their codes, since torch reads no ml_dtypes."""
    codes = torch.from_numpy(array.view(f"i{array.itemsize}").copy())
    return codes.view(getattr(torch, array.dtype.name))


def right(case: Case) -> bool:
    """Whether castwise gives what numpy gives, bit for bit, and finds one infinity."""
    sources = [array.copy() for array in case.sources[:4]]
    wanted = [np.empty_like(target) for target in case.targets[:4]]
    got = [np.empty_like(target) for target in case.targets[:4]]
    numpy_unscale(sources, wanted)
    finite = unscale(sources, SCALE, got)[1]
    equal = all(a.tobytes() == b.tobytes() for a, b in zip(got, wanted, strict=True))
    sources[-1][-1] = np.inf
    return equal and finite and not unscale(sources, SCALE, got)[1]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Measure everything asked for."""
    lists = {"8 x 64 Ki": small} if options.quick else LISTS
    for title, sizes in lists.items():
        for dtype in DTYPES:
            sources = gradients(sizes(), dtype)
            singles = [np.empty(array.shape, np.float32) for array in sources]
            for call in CALLS:
                case = Case(sources, sources if call == "in place" else singles, call)
                found = list(peers(case))
                times = interleave([peer.run for peer in found], options.repeats)
                medians, relative = np.median(times, axis=1), ratios(times, reference=0)
                pairs = zip(case.sources, case.targets, strict=True)
                total = sum(source.nbytes + target.nbytes for source, target in pairs)
                correct = right(case)
                for peer, ns, ratio in zip(found, medians, relative, strict=True):
                    yield Row(
                        title,
                        dtype,
                        call,
                        peer.name,
                        ms=float(ns / 1e6),
                        gb_per_s=float(total / ns),
                        ratio=float(ratio),
                        correct=correct if peer.name == "castwise" else None,
                    )


def line(row: Row) -> str:
    """One row for the terminal."""
    return (
        f"{row.gradients:<18} {row.dtype:<9} {row.call:<11} {row.peer:<9}"
        f"{row.ms:>10.3f} ms {row.gb_per_s:>7.1f} GB/s  ratio {row.ratio:>6.2f}"
        f"  {VERDICTS[row.correct]}"
    )


def environment(threads: int) -> dict[str, str]:
    """Machine, level and versions; numpy and memcpy have one thread whatever is asked for."""
    names = ["numpy", "ml_dtypes", "castwise", *(["torch"] if torch is not None else [])]
    versions = {name: version(name) for name in names}
    return files.environment(versions, level=castwise.cpu_level(), threads=str(threads))


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    """Measure everything, printing each row as it is done."""
    castwise.set_num_threads(options.threads)
    if torch is not None:
        torch.set_num_threads(options.threads)
    facts = environment(options.threads)
    for name, value in facts.items():
        print(f"# {name}: {value}")
    print("# ratio: the peer's time over castwise's; above 1 castwise is faster")
    return facts, command.print_rows(rows(options), line)


def markdown(facts: dict[str, str], found: list[Row]) -> str:
    """Format the README's table: a line for each list, dtype and call."""
    groups: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in found:
        groups.setdefault((row.gradients, row.dtype, row.call), {})[row.peer] = row
    lines = [
        f"Ratios are times over castwise's. {facts['cpu']}, {facts['level']}, threads: "
        f"{facts['threads']} (numpy and memcpy: 1); {facts['versions']}; {facts['date']}.",
        "",
        f"| gradients | dtype | call | castwise | {' | '.join(PEERS)} | bits right |",
        f"|---|---|---|--:|{'--:|' * len(PEERS)}---|",
    ]
    for key, peers in groups.items():
        own = peers["castwise"]
        gains = (f"{peers[name].ratio:.2f}x" if name in peers else "" for name in PEERS)
        right = "yes" if own.correct else "NO"
        cells = [*key, f"{own.ms:.3g} ms", *gains, right]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure or load, then report as asked."""
    return command.carry_out(
        command.parser(__doc__).parse_args(),
        Row,
        run,
        line,
        lambda facts, found: [(MARKER, markdown(facts, found))],
    )


if __name__ == "__main__":
    sys.exit(main())
