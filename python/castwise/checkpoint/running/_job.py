"""The job of a run: all that decides its bytes, and how the jobs of two runs differ.

What a run leaves for another one, the parts of a conversion or the shards to resume from, has the
job beside it. A run with another job must not touch it.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from castwise._core import __version__
from castwise.checkpoint._errors import join_names
from castwise.checkpoint.containers.checkpoint import MAX_CONFIG_BYTES
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.files.source_files import open_file, read_file
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.planning.derived_reader import DerivedReader
from castwise.checkpoint.running.output_files import OutputFile
from castwise.quantization.producers.registry import CONFIGS
from castwise.text.wording import argument

# Plain values as JSON gives them back, by the keys below.
Job = dict[str, Any]

# As the caller gave them, by name; they explain a difference of all else.
ARGUMENTS = "arguments"

# What tells whether those were changed that are copied when parts are put together.
OTHER_FILES = "other files"

_TEXT_FILES = ("dtype_map", "policy")
_NUMBER_FILES = ("importance",)  # of any size
_PIECE_BYTES = 1 << 20
# Of a second: times of change are whole numbers of them, which a float64 would round.
_NANOSECONDS = 1_000_000_000


def job_of(
    sources: Mapping[str, Reader],
    options: CastOptions,
    targets: Sequence[OutputFile],
    arguments: Mapping[str, Any],
) -> Job:
    """Return all that decides the result; `arguments` are plain values by name."""
    plans = [
        [target.name, info.name, info.stored, info.shape, info.format, plan.target]
        for target in targets
        for plan in target.plans
        for info in [plan.info]
    ]
    job = {
        ARGUMENTS: dict(arguments),
        "options": options.to_dict(),
        "version": __version__,
        "source": {shard: reader.state[:2] for shard, reader in sources.items()},
        "configurations": _configurations(sources),
        "maps": _texts(arguments),
        "tensors": digest(
            json.dumps([plans, [reader.state[2:] for reader in sources.values()]]).encode()
        ),
    }
    return dict(json.loads(json.dumps(job)))


def differences(other_job: Mapping[str, Any], own_job: Mapping[str, Any]) -> str:
    """Say how the job of other runs differs from this one; empty if it does not."""
    if other_job == own_job:
        return ""
    texts = [*_differences("", other_job.get(ARGUMENTS), own_job[ARGUMENTS], _LABELS[""])]
    for key in (
        key for key in own_job if key not in {ARGUMENTS, "options", "tensors", OTHER_FILES}
    ):
        texts += _differences(key, other_job.get(key), own_job[key], _LABELS.get(key, str))
    if not texts:  # the rest follows from the arguments, but for a seed that was drawn
        texts += _differences("options", other_job.get("options"), own_job["options"], argument)
        others = other_job.get(OTHER_FILES), own_job.get(OTHER_FILES)
        texts += _differences(OTHER_FILES, *others, _LABELS["source"])
    return join_names(texts) or "the dtypes, the shapes or the files of the tensors"


_NAMES = {"": "arguments", "parts": "the number of parts", "version": "the version of castwise"}
# How an error calls what stands under a key of a job, where that is not its name.
_LABELS: dict[str, Callable[[str], str]] = {
    "": lambda name: "the command" if name == "command" else argument(name),
    "source": "{} of the source".format,
    "configurations": lambda path: path.removeprefix("/"),
}


def _differences(
    key: str,
    other_value: object,
    own_value: object,
    label: Callable[[str], str],
    name: str | None = None,
) -> Iterator[str]:
    """Say each difference of two values, of mappings by their names."""
    if other_value == own_value:
        return
    if isinstance(other_value, Mapping) and isinstance(own_value, Mapping):
        for one in dict.fromkeys((*other_value, *own_value)):
            entry_name = label(one) if name is None else name + f" {one!r}"
            yield from _differences(
                key, other_value.get(one), own_value.get(one), label, entry_name
            )
        return
    subject = name or _NAMES.get(key, key)
    if key in {"configurations", "maps"}:
        yield subject + " was changed"
    else:
        text_of = _file_text if key in {"source", OTHER_FILES} else _value_text
        yield subject + f" is {text_of(other_value)} there and {text_of(own_value)} here"


def _value_text(value: object) -> str:
    return "not given" if value is None else repr(value)


def _file_text(state: object) -> str:
    """Say the size of a file, and when it was changed, or the hash that its store has."""
    if not isinstance(state, list) or len(state) != 2:  # noqa: PLR2004
        return "missing"
    size, change = state
    if isinstance(change, int):
        seconds, rest = divmod(change, _NANOSECONDS)
        change = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
    return f"{size:,} bytes of {change}"


def _configurations(sources: Mapping[str, Reader]) -> dict[str, str]:
    """Return the checksums of what states how the tensors are stored that are made of others."""
    readers = (
        (path, reader) for path, reader in sources.items() if isinstance(reader, DerivedReader)
    )
    folders = {os.path.dirname(path): reader.path.parent for path, reader in readers}
    return {
        f"{prefix}/{name}": _digest_of_file(folder / name)
        for prefix, folder in folders.items()
        for name in CONFIGS
        if (folder / name).is_file()
    }


def _texts(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums of maps, policies and numbers that are files."""

    def paths(names: Sequence[str]) -> Iterator[str]:
        values = (arguments.get(name) for name in names)
        return (path for path in values if isinstance(path, str) and os.path.isfile(path))

    digests = {path: _digest_of_file(Path(path)) for path in paths(_TEXT_FILES)}
    return digests | {path: f"{checksum(Path(path)):08x}" for path in paths(_NUMBER_FILES)}


def _digest_of_file(path: Path) -> str:
    return digest(read_file(path, MAX_CONFIG_BYTES))


def digest(data: bytes) -> str:
    import hashlib  # noqa: PLC0415  (OpenSSL takes milliseconds, for resuming and parts alone)

    return hashlib.sha256(data).hexdigest()


def checksum(path: Path, begin: int = 0, end: int | None = None) -> int:
    """Return the CRC-32 of a span of a file, of all of it without `end`."""
    # CRC-32 finds accidents at the speed of memory: 3 to 4 GiB/s, where SHA-256 has 1.4.
    value, buffer = 0, memoryview(bytearray(_PIECE_BYTES))
    with open_file(path) as file:
        file.seek(begin)
        bytes_left = None if end is None else end - begin
        while bytes_left != 0:
            count = file.readinto(buffer if bytes_left is None else buffer[:bytes_left])
            if not count:
                break
            value = zlib.crc32(buffer[:count], value)
            bytes_left = None if bytes_left is None else bytes_left - count
    return value
