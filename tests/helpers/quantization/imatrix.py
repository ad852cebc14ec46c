"""Write files of importance as llama-imatrix of llama.cpp does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def write_imatrix(
    gguf: ModuleType, path: Path, numbers: Mapping[str, Array], counts: Any = 512
) -> Path:
    """Write means by the names of weights, of so many inputs of each expert."""
    tensors = {}
    for name, rows in numbers.items():
        means = np.atleast_2d(rows)
        shape = len(means), 1
        of_rows = np.broadcast_to(np.asarray(counts, np.float32).reshape(-1, 1), shape).copy()
        tensors |= {f"{name}.in_sum2": means * of_rows, f"{name}.counts": of_rows}
    return write_sums(gguf, path, tensors)


def write_sums(gguf: ModuleType, path: Path, tensors: Mapping[str, Array]) -> Path:
    """Write tensors of sums and counts; the writer states no architecture."""

    class Writer(gguf.GGUFWriter):  # type: ignore[name-defined, misc]
        def add_architecture(self) -> None:
            pass

    writer = Writer(path, "")
    writer.add_type(gguf.GGUFType.IMATRIX)
    writer.add_array(gguf.Keys.IMatrix.DATASETS, ["text.txt"])
    writer.add_uint32(gguf.Keys.IMatrix.CHUNK_COUNT, 1)
    writer.add_uint32(gguf.Keys.IMatrix.CHUNK_SIZE, 512)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    for part in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{part}")()
    writer.close()
    return path
