"""Test accuracy of digits checkpoints of any dtype: `python benches/digits/score.py FILE...`.

Each file is read with castwise, decoded if it is quantized, brought to float32 with castwise.cast
(which loses nothing, since the weights were float32 to begin with) and run on the 599 test images:
what differs between the rows is what storing the weights so has cost.

`--json` prints the same as a list of objects. Exit code 2 if a file cannot be read or is not a
digits model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import network
import numpy as np
from castwise import cast, checkpoint


class NotADigitsModelError(ValueError):
    """The file is readable, but does not hold the tensors of network.py."""


def float_tensors(tensors: network.Model) -> network.Model:
    """Pick the tensors that a cast may touch; the integer class labels are not among them."""
    return {name: tensor for name, tensor in tensors.items() if name != "classes"}


def upcast(tensors: network.Model) -> network.Model:
    """Bring a model to float32, once its names and shapes are seen to be those of network.py."""
    for name, shape in network.shapes().items():
        if name not in tensors:
            raise NotADigitsModelError(f"no tensor {name!r}")
        if tensors[name].shape != shape:
            raise NotADigitsModelError(f"{name!r} is {tensors[name].shape}, expected {shape}")
    model = {name: cast(tensor, np.float32) for name, tensor in float_tensors(tensors).items()}
    return {**model, "classes": tensors["classes"]}


def load(path: Path) -> tuple[network.Model, list[str]]:
    """Read the tensors of a file, decoded to float32, and the schemes of its weights if any."""
    quantization = checkpoint.inspect(path).quantization
    if quantization is None:
        return checkpoint.load(path), []
    with tempfile.TemporaryDirectory() as folder:
        decoded = Path(folder) / "decoded.safetensors"
        checkpoint.dequantize_file(path, decoded, "float32")
        return checkpoint.load(decoded), sorted({str(one.scheme) for one in quantization.weights})


def score(path: Path) -> dict[str, object]:
    """One row of the table: what the file holds and how well it reads digits."""
    tensors, schemes = load(path)
    model = upcast(tensors)
    _, _, images, labels = network.split()
    right = network.correct(model, images, labels)
    dtypes = sorted({tensor.dtype.name for tensor in float_tensors(tensors).values()})
    return {
        "file": str(path),
        "dtype": "+".join(schemes or dtypes),
        "bytes": path.stat().st_size,
        "correct": right,
        "images": len(labels),
        "accuracy": right / len(labels),
    }


def table(rows: list[dict[str, object]]) -> str:
    """Format the rows as aligned text."""
    width = max(len(str(row["file"])) for row in rows)
    dtype_width = max(len("dtype"), *(len(str(row["dtype"])) for row in rows))
    lines = [f"{'file':<{width}}  {'dtype':<{dtype_width}}  {'bytes':>8}  correct  accuracy"]
    for row in rows:
        lines.append(
            f"{row['file']:<{width}}  {row['dtype']:<{dtype_width}}  {row['bytes']:>8,}  "
            f"{row['correct']}/{row['images']}  {row['accuracy']:>8.2%}"
        )
    return "\n".join(lines)


def main() -> int:
    """Score every file named; errors go to standard error and name their file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    arguments = parser.parse_args()
    rows = []
    for path in arguments.files:
        try:
            rows.append(score(path))
        except (OSError, ValueError) as error:
            print(f"score.py: {path}: {error}", file=sys.stderr)
            return 2
    print(json.dumps(rows, indent=2) if arguments.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
