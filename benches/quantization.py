"""What decoding and encoding of quantised arrays cost: `python benches/quantization.py`.

README.md in this folder says how it is measured. A row is one scheme decoded to bfloat16, or
encoded from it, beside the plain cast of as many elements (float8_e4m3fn to bfloat16, and back) in
the same turns, and beside torch's arithmetic as producers run it, if torch is installed. A result
is right if the `portable` level gives the same bits, and torch the same values.

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
from typing import Any

import castwise
import command
import files
import ml_dtypes
import numpy as np
from castwise import _core
from castwise.quantization import QuantizedArray, dequantize, quantize
from measure import Call, interleave, ratios

WORK = ("decode", "encode")
SCHEMES = (
    ("fp8_block", "deepseek"),
    ("fp8_channel", "compressed-tensors"),
    ("mxfp8_e4m3", "modelopt"),
    ("mxfp4", "gpt-oss"),
    ("nvfp4", "modelopt"),
    ("nvfp4", "compressed-tensors"),
    ("int4_group", "compressed-tensors"),
    ("int8_channel", "compressed-tensors"),
    ("int4_group", "mlx"),
    ("bnb_nf4", "bitsandbytes"),
)
SIZES = (65_536, 1 << 20, 1 << 24)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
Torch = Any


@dataclass(frozen=True)
class Row:
    """One scheme; `share` is its elements per second over the plain cast's."""

    work: str
    scheme: str
    recipe: str
    size: int
    us: float = field(metadata={"digits": 4})
    share: float = field(metadata={"digits": 3})
    torch: float | None = field(metadata={"digits": 3})
    """torch's time over castwise's."""
    correct: bool


def weights(size: int) -> Any:
    """Normal weights as bfloat16, a matrix with 512 columns."""
    rng = np.random.default_rng(0)
    return castwise.cast(rng.standard_normal((size // 512, 512), np.float32) * 0.02, "bfloat16")


def codes(torch: Torch, q: QuantizedArray) -> Torch:
    """View the payload in torch."""
    data = np.ascontiguousarray(q.data)
    return torch.from_numpy(data if data.dtype.itemsize > 1 else data.view(np.uint8))


def as_torch(torch: Torch, x: Any) -> Torch:
    """View an array in torch."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    if x.dtype.itemsize == 1 and x.dtype != np.uint8:
        return torch.from_numpy(x.view(np.uint8))
    return torch.from_numpy(x)


def torch_decode(torch: Torch, q: QuantizedArray) -> Callable[[], Torch] | None:
    """Return what a producer runs in torch to decode, for the schemes that are read most."""
    data = codes(torch, q)
    table = torch.tensor((*E2M1, *(-v for v in E2M1)))
    if q.scheme == "fp8_block":
        scale = as_torch(torch, q.scale)

        def fp8() -> Torch:
            wide = data.view(torch.float8_e4m3fn).to(torch.float32)
            tiles = wide.unflatten(-1, (-1, 128)).unflatten(0, (-1, 128))
            return (tiles * scale[:, None, :, None]).reshape(data.shape).to(torch.bfloat16)

        return fp8
    if q.scheme in ("mxfp4", "nvfp4"):
        scale = as_torch(torch, q.scale)
        size = 32 if q.scheme == "mxfp4" else 16
        level = None if q.global_scale is None else as_torch(torch, q.global_scale)

        def fp4() -> Torch:
            flat = data.reshape(data.shape[0], -1)
            both = torch.stack([flat & 15, flat >> 4], dim=-1).reshape(flat.shape[0], -1)
            values = table[both.long()].unflatten(-1, (-1, size))
            if size == 32:
                factor = torch.exp2(scale.float() - 127)
            else:
                factor = scale.view(torch.float8_e4m3fn).float()
                divides = q.recipe == "compressed-tensors"
                factor = factor / level if divides else factor * level
            return (values * factor.unsqueeze(-1)).flatten(1).to(torch.bfloat16)

        return fp4
    if q.scheme == "int4_group" and q.recipe == "compressed-tensors":
        scale = as_torch(torch, q.scale)

        def int4() -> Torch:
            shifts = torch.arange(0, 32, 4, dtype=torch.int32)
            fields = (data.unsqueeze(-1) >> shifts) & 15
            signed = (fields.flatten(1) - 8).to(torch.int8)
            grouped = signed.unflatten(-1, (scale.shape[1], -1)).to(torch.bfloat16)
            return (grouped * scale.unsqueeze(-1)).flatten(1)

        return int4
    return None


def torch_encode(torch: Torch, q: QuantizedArray, x: Any) -> Callable[[], Torch] | None:
    """Return what a producer runs in torch to encode, without packing."""
    weight = as_torch(torch, x)
    if q.scheme == "fp8_block":

        def fp8() -> Torch:
            tiles = weight.float().unflatten(-1, (-1, 128)).unflatten(0, (-1, 128))
            scale = tiles.abs().amax((1, 3)) / 448.0
            scaled = (tiles / scale[:, None, :, None]).clamp(-448, 448)
            return scaled.to(torch.float8_e4m3fn).reshape(weight.shape)

        return fp8
    if q.scheme == "nvfp4" and q.recipe == "modelopt":
        bounds = torch.tensor(BOUNDS)

        def fp4() -> Torch:
            groups = weight.unflatten(-1, (-1, 16))
            level = weight.abs().amax().float() / 2688.0
            scale = (groups.abs().amax(-1).float() / (6 * level)).clamp(2**-9, 448)
            scale = scale.to(torch.float8_e4m3fn)
            scaled = groups / (scale.float() * level).unsqueeze(-1)
            found = torch.searchsorted(bounds, scaled.abs(), out_int32=True).to(torch.uint8)
            found = (found + ((scaled < 0).to(torch.uint8) << 3)).flatten(1)
            return found[:, ::2] | (found[:, 1::2] << 4)

        return fp4
    return None


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


def measured(work: str, scheme: str, recipe: str, size: int, repeats: int) -> Row:
    """Measure one scheme."""
    x = weights(size)
    make = partial(quantize, x, scheme, recipe=recipe)
    q, out = make(), np.empty_like(x)
    narrow = castwise.cast(x, "float8_e4m3fn")
    torch: Torch = import_module("torch") if find_spec("torch") is not None else None
    if torch is not None:
        torch.set_num_threads(castwise.get_num_threads())
    timed: list[Call]
    peer: Callable[[], Torch] | None
    if work == "decode":
        timed = [lambda: castwise.cast(narrow, out=out), lambda: dequantize(q, out=out)]
        peer = None if torch is None else torch_decode(torch, q)
        correct = dequantize(q).tobytes() == on_portable(lambda: dequantize(q)).tobytes()
        if peer is not None:
            theirs = peer().float().numpy().reshape(x.shape)
            correct &= bool((theirs == dequantize(q, "bfloat16").astype(np.float32)).all())
    else:
        timed = [lambda: castwise.cast(x, out=narrow), make]
        peer = None if torch is None else torch_encode(torch, q, x)
        correct = same(q, on_portable(make))
        if peer is not None:
            theirs, ours = peer().view(torch.uint8).numpy(), q.data.view(np.uint8)
            correct &= bool((theirs == ours).all()) or scheme == "nvfp4"
    with_peer = [*timed, peer] if peer is not None else timed
    times = interleave(with_peer, repeats)
    medians, over = np.median(times, axis=1), ratios(times, 1)
    torch_ratio = float(over[2]) if peer is not None else None
    return Row(work, scheme, recipe, size, medians[1] / 1e3, float(over[0]), torch_ratio, correct)


def rows(sizes: list[int], repeats: int) -> Iterator[Row]:
    """Measure everything asked for."""
    for size in sizes:
        for work in WORK:
            for scheme, recipe in SCHEMES:
                yield measured(work, scheme, recipe, size, repeats)


def line(row: Row) -> str:
    """One row for the terminal."""
    torch = "" if row.torch is None else f"torch {row.torch:>6.1f}x"
    return (
        f"{row.work:<7}{row.scheme:<13}{row.recipe:<19}{row.size:>9}{row.us:>12.1f} us"
        f"{row.size / row.us / 1e3:>8.2f} G/s  of the cast {row.share:>5.2f}  {torch:<14}"
        f"{'correct' if row.correct else 'WRONG'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    """Measure everything, printing each row as it is done."""
    castwise.set_num_threads(options.threads)
    names = ("numpy", "ml_dtypes", "castwise")
    versions = {name: version(name) for name in names if find_spec(f"{name}") is not None}
    if find_spec("torch") is not None:
        versions["torch"] = version("torch")
    facts = files.environment(versions, level=castwise.cpu_level(), threads=str(options.threads))
    for name, value in facts.items():
        print(f"# {name}: {value}")
    print("# of the cast: elements per second over those of float8_e4m3fn to bfloat16, or back")
    found = []
    for row in rows(options.sizes or ([65_536] if options.quick else list(SIZES)), options.repeats):
        print(line(row), flush=True)
        found.append(row)
    return facts, found


def markdown(facts: dict[str, str], found: list[Row]) -> str:
    """Format the README's table: a line for each scheme."""
    lines = [
        "Elements per second over those of the plain cast, and torch's time over castwise's. "
        f"{facts['cpu']}, {facts['level']}, threads: {facts['threads']}; {facts['versions']}; "
        f"{facts['date']}.",
        "",
        "| elements | scheme | recipe | decode | torch | encode | torch | bits right |",
        "|--:|---|---|--:|--:|--:|--:|---|",
    ]
    by_key = {(row.size, row.scheme, row.recipe, row.work): row for row in found}
    for size, scheme, recipe in dict.fromkeys(key[:3] for key in by_key):
        cells = [by_key[size, scheme, recipe, work] for work in WORK]
        texts = [
            text
            for row in cells
            for text in (f"{row.share:.2f}", "" if row.torch is None else f"{row.torch:.1f}")
        ]
        correct = "yes" if all(row.correct for row in cells) else "NO"
        lines.append(f"| {' | '.join([f'{size:,}', scheme, recipe, *texts, correct])} |")
    return "\n".join(lines)


def main() -> int:
    """Measure or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    return command.carry_out(
        parser.parse_args(),
        Row,
        run,
        line,
        lambda facts, found: [("quantization", markdown(facts, found))],
    )


if __name__ == "__main__":
    sys.exit(main())
