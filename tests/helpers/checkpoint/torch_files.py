"""Files of torch for tests: what the recorded ones hold, and a writer of files that lie.

`python tests/checkpoint/test_torch_live.py` writes the recorded files anew.
"""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import castwise
import numpy as np
from checkpoint_samples import random_array
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[2] / "recorded" / "torch"

FORMATS = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
"""The formats that torch names as castwise does."""


def expected() -> dict[str, NDArray[Any]]:
    """Return the tensors of the recorded files `zip.pt` and `legacy.pt`."""
    tensors = {name: random_array(name, (2, 3)) for name in FORMATS}
    codes = np.arange(16, dtype=np.uint8).view(castwise.finfo("float4_e2m1fn").dtype)
    tensors["float4"] = codes.reshape(2, 8)
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return {
        **tensors,
        "whole": whole,
        "transposed": whole[0].T,
        "permuted": whole.transpose(2, 0, 1),
        "reversed axes": whole.transpose(2, 1, 0),
        "every second": whole[:, 1:, ::2],
        "expanded": np.broadcast_to(np.float32([1, 2, 3]), (4, 3)),
        "tied": whole,
        "scalar": whole[1, 2, 3],
        "empty": np.empty((0, 3), np.float32),
        "parameter": whole[0],
        "buffer": whole[1],
    }


def plain_zip(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip file as torch writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"archive/{name}", content)
    return buffer.getvalue()


class Global:
    """Something that a pickle names, and never is."""

    def __init__(self, name: str) -> None:
        self.name = name


class Call:
    """A call in a pickle; `state` and `items` are what is done to its result."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name = name
        self.arguments = arguments


class Storage:
    """A storage that a pickle refers to."""

    def __init__(self, kind: str, key: Any, size: Any, *view: Any) -> None:
        self.named = ("storage", Global(kind), key, "cpu", size, *view)


def tensor(shape: Any, strides: Any, offset: Any = 0, storage: Any = None, flags: Any = ()) -> Call:
    """Return a tensor as torch pickles it; its storage has eight float32 by default."""
    return Call(
        "torch._utils _rebuild_tensor_v2",
        Storage("torch FloatStorage", "0", 8) if storage is None else storage,
        *(offset, shape, strides, False, Call("collections OrderedDict"), *flags),
    )


def pickled(value: Any, protocol: int = 2) -> bytes:
    """Write a pickle with names of things that need not exist."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol)
    pickler.dump(value)
    return buffer.getvalue()


class _Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes calls and storages as torch does."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        match obj:
            case Global():
                self.write(b"c" + obj.name.replace(" ", "\n").encode() + b"\n")
            case Call():
                self.save(Global(obj.name))
                self.save(tuple(obj.arguments))
                self.write(b"R")
            case Storage():
                self.save(obj.named)
                self.write(b"Q")
            case _:
                super().save(obj, save_persistent_id)

    def memoize(self, obj: Any) -> None:
        """Keep no memo: objects here are made for one place."""


FLOATS = struct.pack("<8f", *range(8))


def torch_file(value: Any, **members: bytes) -> bytes:
    """Return a file of torch that holds a value, and one storage of eight float32."""
    content = value if isinstance(value, bytes) else pickled(value)
    others = {name.replace("__", "/"): data for name, data in members.items()}
    return plain_zip({"data.pkl": content, "byteorder": b"little", "data/0": FLOATS, **others})


def state_dict(**tensors: Call) -> OrderedDict[str, Any]:
    """Return a state dictionary."""
    return OrderedDict(tensors)


def write_tensors(path: Path, **tensors: NDArray[np.float32]) -> None:
    """Write a file of torch with these tensors, each in a storage of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    calls, members = {}, {}
    for number, (name, array) in enumerate(tensors.items()):
        storage = Storage("torch FloatStorage", str(number), array.size)
        calls[name] = tensor(array.shape, _strides(array), storage=storage)
        members[f"data__{number}"] = array.tobytes()
    path.write_bytes(torch_file(state_dict(**calls), **members))


def _strides(array: NDArray[Any]) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)
