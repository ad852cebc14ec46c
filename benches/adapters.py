"""Compare castwise.adapters.torch with torch and a copy: `python benches/adapters.py`.

README.md in this folder says how it is measured. Three parts:

    bridge      to_numpy and from_numpy, from one element to 64 Mi: nanoseconds, whatever the size
    state dict  100 million float32 parameters cast by map, to new tensors, against `Tensor.to`
                on each of them and against a copy of as many bytes into new arrays
    gradients   a train step whose gradients are surveyed, against one whose are not

Exit code 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import castwise
import files
import numpy as np
import torch
from castwise.adapters.torch import cast_state_dict, from_numpy, survey_gradients, to_numpy
from castwise.surveys import GradientLog
from measure import interleave, ratios

TARGETS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
MAP = {r".*\.norm\..*": "keep"}
PARAMETERS = 100_000_000
QUICK = 1_000_000

VERDICTS = {True: "correct", False: "WRONG", None: ""}


@dataclass(frozen=True)
class Row:
    """One peer in one case; `ratio` is its time over castwise's, `correct` judges castwise's."""

    part: str
    case: str
    peer: str
    us: float = field(metadata={"digits": 5})
    gb_per_s: float | None = field(default=None, metadata={"digits": 4})
    ratio: float | None = field(default=None, metadata={"digits": 4})
    correct: bool | None = None

    def __str__(self) -> str:
        rate = "" if self.gb_per_s is None else f"{self.gb_per_s:8.2f} GB/s"
        ratio = "" if self.ratio is None else f"  ratio {self.ratio:6.2f}"
        return (
            f"{self.part:<11} {self.case:<32} {self.peer:<17}{self.us:>13.3f} us{rate}{ratio}  "
            f"{VERDICTS[self.correct]}"
        )


def bridge(options: argparse.Namespace) -> Iterator[Row]:
    """The cost of looking at the other side's memory."""
    for dtype in ("float32", "bfloat16", "float8_e4m3fn"):
        for size in (1, 1 << 10, 1 << 20, 1 << (20 if options.quick else 26)):
            tensor = torch.zeros(size, dtype=getattr(torch, dtype))
            array = to_numpy(tensor)
            correct = array.ctypes.data == tensor.data_ptr() == from_numpy(array).data_ptr()
            calls: dict[str, Callable[[], object]] = {
                "to_numpy": partial(to_numpy, tensor),
                "from_numpy": partial(from_numpy, array),
            }
            if dtype == "float32":
                calls |= {
                    "torch .numpy": tensor.numpy,
                    "torch from_numpy": partial(torch.from_numpy, array),
                }
            times = interleave(list(calls.values()), options.repeats)
            for name, ns in zip(calls, np.median(times, axis=1), strict=True):
                own = not name.startswith("torch")
                verdict = correct if own else None
                case = f"{dtype}, {size} elements"
                yield Row("bridge", case, name, ns / 1e3, correct=verdict)


def state(parameters: int) -> dict[str, Any]:
    """A model's parameters: matrices of four sizes, a hundredth of them in norms that are kept."""
    rng = torch.Generator().manual_seed(0)
    layers = 24
    shares = {"attention.weight": 0.3, "mlp.up.weight": 0.4, "mlp.down.weight": 0.29}
    made = {}
    for layer in range(layers):
        for name, share in (*shares.items(), ("norm.weight", 0.01)):
            size = int(parameters / layers * share)
            made[f"layers.{layer}.{name}"] = torch.randn(size, generator=rng)
    return made


def torch_cast(state: dict[str, Any], target: Any) -> dict[str, Any]:
    """What one writes with torch."""
    return {
        name: tensor if ".norm." in name else tensor.to(target) for name, tensor in state.items()
    }


def copy(sizes: list[int]) -> Callable[[], object]:
    """Half as many bytes as are read and written together, into new arrays."""
    sources = [np.ones(size, np.uint8) for size in sizes]
    return lambda: [source.copy() for source in sources]


def state_dict(options: argparse.Namespace) -> Iterator[Row]:
    """A whole state dict by map."""
    source = state(QUICK if options.quick else PARAMETERS)
    for name in TARGETS:
        target = getattr(torch, name)
        cast = [tensor for key, tensor in source.items() if ".norm." not in key]
        total = sum(tensor.numel() * (4 + target.itemsize) for tensor in cast)
        calls: dict[str, Callable[[], object]] = {
            "castwise": partial(cast_state_dict, source, {**MAP, "default": name}),
            "torch": partial(torch_cast, source, target),
            "memcpy": copy([t.numel() * (4 + target.itemsize) // 2 for t in cast]),
        }
        correct = right(source, name)
        times = interleave(list(calls.values()), options.repeats)
        medians, relative = np.median(times, axis=1), ratios(times, reference=0)
        for peer, ns, ratio in zip(calls, medians, relative, strict=True):
            verdict = correct if peer == "castwise" else None
            yield Row("state dict", f"to {name}", peer, ns / 1e3, total / ns, ratio, verdict)


def right(source: dict[str, Any], name: str) -> bool:
    """Whether each tensor has the bits of castwise's own cast, or is the same object."""
    result = cast_state_dict(source, {**MAP, "default": name})
    return all(
        tensor is result[key]
        if ".norm." in key
        else np.array_equal(
            to_numpy(result[key]).view(f"u{result[key].itemsize}"),
            castwise.cast(tensor.numpy(), name).view(f"u{result[key].itemsize}"),
        )
        for key, tensor in source.items()
    )


def gradients(options: argparse.Namespace) -> Iterator[Row]:
    """A step of Adam on four layers of 1,024 numbers, in batches of 32 and 256."""
    width = 64 if options.quick else 1024
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.Tanh())))
    optimizer, log = torch.optim.Adam(model.parameters()), GradientLog(every=1)
    for size in (32, 256):
        x = torch.randn(size, width, generator=torch.Generator().manual_seed(0))

        def step(x: Any = x) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        def surveyed_step(step: Callable[[], None] = step) -> None:
            handle = survey_gradients(log, optimizer)
            step()
            handle.remove()

        times = interleave([surveyed_step, step], options.repeats)
        surveyed_step()
        parameters = [parameter.grad for parameter in model.parameters()]
        correct = log.at(0).total == sum(map(castwise.survey, parameters))
        medians, relative = np.median(times, axis=1), ratios(times, reference=0)
        for peer, ns, ratio in zip(("castwise", "torch"), medians, relative, strict=True):
            verdict = correct if peer == "castwise" else None
            yield Row("gradients", f"batch of {size}", peer, ns / 1e3, None, ratio, verdict)


def main() -> int:
    """Measure and print; --csv records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--threads", type=int, default=1, help="threads for castwise and torch (default 1)")
    add("--repeats", type=int, default=9, help="turns per case (default 9)")
    add("--quick", action="store_true", help="small tensors: does it work at all")
    add("--csv", type=Path, help="also write the rows to FILE")
    options = parser.parse_args()
    castwise.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    print(f"# level {castwise.cpu_level()}, threads {options.threads}; memcpy has one")
    print(f"# torch {torch.__version__}; ratio: the peer's time over castwise's")
    found: list[Row] = []
    for part in (bridge, state_dict, gradients):
        for each in part(options):
            found.append(each)
            print(each, flush=True)
    if options.csv:
        versions = {name: version(name) for name in ("castwise", "numpy", "ml_dtypes", "torch")}
        facts = files.environment(
            versions, level=castwise.cpu_level(), threads=str(options.threads)
        )
        files.write(options.csv, facts, found)
    return int(any(each.correct is False for each in found))


if __name__ == "__main__":
    sys.exit(main())
