"""Read an HDF5 file in another process first, because libhdf5 crashes on some damaged ones."""

import subprocess
import sys
from pathlib import Path

from castwise.checkpoint._errors import FETCH, CheckpointError
from castwise.checkpoint.containers._hdf5_objects import (
    Window,
    blocks,
    check_storage,
    h5py_module,
    holds_numbers,
    open_hdf5,
    walk,
)

# libhdf5 crashes on some damaged files, which ends the process that reads them.
_PROGRAM = """
import sys
sys.path[:] = {path!r}
from castwise.checkpoint.containers._hdf5_trial import read
read({file!r}, {begin}, {size})
"""
# Python and h5py start within that on a slow machine; a loop in a damaged file has no end.
_SECONDS = 60
_SECONDS_PER_BYTE = 1e-7  # of a disk that reads 10 MB/s


def try_reading(path: Path, begin: int, size: int) -> None:
    """Read the HDF5 file that stands at `begin` in another, in a process of its own."""
    h5py_module()  # which the other process needs, too: without it no file is damaged
    program = _PROGRAM.format(path=sys.path, file=str(path), begin=begin, size=size)
    try:
        process = subprocess.run(  # noqa: S603  (this Python)
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS + size * _SECONDS_PER_BYTE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"the HDF5 file is damaged: libhdf5 never ends; {FETCH}") from error
    if process.returncode:
        raise CheckpointError(
            f"the HDF5 file is damaged: libhdf5 crashes on it (exit code {process.returncode}); "
            f"{FETCH}"
        )


def read(path: str, begin: int, size: int) -> None:
    """Read all that a conversion reads through h5py; errors are for the process that tries."""
    h5py = h5py_module()
    try:
        with open(path, "rb") as file, open_hdf5(Window(file, begin, size)) as tree:
            for name, item in walk(tree):
                for key in item.attrs:
                    _ = item.attrs.get_id(key).dtype, item.attrs[key]
                if not isinstance(item, h5py.Dataset) or item.shape is None:
                    continue
                check_storage(name, item, size)
                if not holds_numbers(item):
                    _ = item[()]
                elif item.id.get_offset() is None:
                    for _ in blocks(item, item.shape):
                        pass
    except Exception:  # noqa: S110
        pass
