"""What the first bytes of a file tell of its container, whatever its name is."""

import re
import struct
from pathlib import Path

from castwise._options import SAFETENSORS
from castwise.checkpoint.containers.registry import STARTS
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.files.source_files import open_file, source_file

# Bytes of a file in which all that is looked for stands.
_COUNT = 512
# A pickle of the number with which files of torch before 1.6 begin.
_OLD_TORCH = re.compile(rb"\x80.(?:\x95.{8})?\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", re.DOTALL)

_HEADER = re.compile(rb"(.{8})\{[\"} \n]", re.DOTALL)
# That of the safetensors library, which refuses longer ones.
_MAX_HEADER_BYTES = 100_000_000

_ZIP_START = b"PK\3\4"
_NAME_LENGTH, _NAME = 26, 30  # where they stand in the header of a zip file's member
_OF_TORCH = re.compile(rb"[^/]+/data(?:\.pkl|/0)")  # the second begins what TorchScript saves
# The members of a Keras file, any of which may come first.
_OF_KERAS = (b"metadata.json", b"config.json", b"model.weights.h5")
# Of files so named the names decide, as either may begin with a member that the other has.
_ZIPS = (".npz", ".keras")


def suffix_of_contents(path: Path, suffix: str) -> str | None:
    """Return the suffix that files with such first bytes have; None if nothing is known of them.

    `suffix` is that of its name: a zip file may have members that others have as well.
    """
    if is_remote(path):
        source = source_file(path)
        first = source.read(0, min(source.size, _COUNT)) if source.size else b""
    else:
        with open_file(path) as file:
            first = file.read(_COUNT)
    for start, start_suffix in STARTS.items():
        if first.startswith(start):
            return start_suffix
    if first.startswith(_ZIP_START) and len(first) >= _NAME:
        (length,) = struct.unpack_from("<H", first, _NAME_LENGTH)
        return _suffix_of_zip(first[_NAME : _NAME + length], suffix)
    if _OLD_TORCH.match(first):
        return ".pt"
    header = _HEADER.match(first)
    if header and int.from_bytes(header[1], "little") <= _MAX_HEADER_BYTES:
        return SAFETENSORS
    return None


def _suffix_of_zip(member: bytes, suffix: str) -> str | None:
    """Return what a zip file is by the name of its first member."""
    if _OF_TORCH.fullmatch(member):
        return ".pt"
    if suffix in _ZIPS:
        return None
    if member.endswith(b".npy"):
        return ".npz"
    return ".keras" if member in _OF_KERAS else None
