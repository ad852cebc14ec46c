"""What a producer states of one weight, and the forms of values in its statements.

Files are untrusted: a value of another type than its producer writes counts as if it were not
there.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from castwise._numbers import is_integer

# A block as compressed-tensors states it, such as 128x128.
_SIDES = r"(\d{1,9})x(\d{1,9})"

# The file of a model that states, among others, how it is quantized.
CONFIG = "config.json"

# The key under which a model, or the metadata of its file, states how it is quantized.
STATED_KEY = "quantization_config"

# The keys under which a model, or a part of one, states it.
SECTIONS = (STATED_KEY, "compression_config")

# The keys under which a section names its method: that of transformers, and that of others.
METHOD_KEYS = ("quant_method", "method")

# A state is a few fields of JSON in a tensor of bytes; a damaged header may claim any size.
_MAX_STATE_BYTES = 10_000


class Stated(NamedTuple):
    """What is stated of one weight, None if it is not."""

    scheme: str | None = None
    block: tuple[int, ...] | None = None
    needs: tuple[str, ...] = ()  # roles, or ends of the names, of tensors that must be beside it
    problem: str | None = None  # why it is not decoded, after the name of the file
    elsewhere: str | None = None  # the module of another prefix of which something is stated
    details: tuple[tuple[str, Any], ...] = ()  # what else must be stated alike


# From the module and the format of its payload to what is stated.
Describe = Callable[[str, str | None], Stated]

# From the section of a configuration to what it states.
StatementReader = Callable[[Mapping[str, Any]], Describe]


class Stored(Protocol):
    """A tensor of so many elements that numpy makes an array of."""

    @property
    def size(self) -> int: ...
    def __array__(self) -> NDArray[Any]: ...


def json_of(name: str, array: Stored) -> dict[str, Any]:
    """Parse the bytes of a tensor as JSON of an object."""
    if array.size > _MAX_STATE_BYTES:
        raise ValueError(f"{name!r} has more than {_MAX_STATE_BYTES:,} bytes.")
    try:
        state = json.loads(np.asarray(array).astype(np.uint8).tobytes())
        return dict(**state)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{name!r} is not JSON of an object.") from error


def parsed_object(text: str | None) -> dict[str, Any]:
    """Parse JSON of an object; of anything else nothing is left."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def object_at(section: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object of JSON under a key; one without members in the place of anything else."""
    value = section.get(key)
    return value if isinstance(value, dict) else {}


def objects_at(section: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the members of the object under a key that are objects, too."""
    return [member for member in object_at(section, key).values() if isinstance(member, dict)]


def positive_integer(value: object) -> int | None:
    """Return a value that is a positive integer, and None for any other."""
    return value if is_integer(value) and value > 0 else None


def sides_of(structure: object) -> object:
    """Return the block of weights as a list: files of 2025 and before have "128x128"."""
    if isinstance(structure, str) and (match := re.fullmatch(_SIDES, structure)) is not None:
        return [int(side) for side in match.groups()]
    return structure


def pair_of_sizes(value: object) -> tuple[int, int] | None:
    """Return a list of two positive integers as a tuple, and None for any other value."""
    if not isinstance(value, list) or len(value) != 2 or not all(map(positive_integer, value)):  # noqa: PLR2004
        return None
    high, wide = value
    return high, wide


def group_block(value: object) -> tuple[int, ...] | None:
    """Return the block of a stated size of groups; None if it is not a positive integer."""
    size = positive_integer(value)
    return None if size is None else (1, size)


def integer_scheme(bits: object, group_size: object) -> Stated:
    """Describe integers of some bits that share a scale in groups; in whole rows for -1."""
    block = group_block(group_size)
    number = positive_integer(bits)
    if number is None or (block is None and group_size != -1):
        return Stated(None, block)
    return Stated(f"int{number}_{'channel' if block is None else 'group'}", block)


def no_statements(section: Mapping[str, Any]) -> Describe:
    del section
    return lambda module, payload: Stated()


def constant_reader(scheme: str, block: tuple[int, ...] | None = None) -> StatementReader:
    return lambda section: lambda module, payload: Stated(scheme, block)


def unknown_key(entry: Mapping[str, Any], known_keys: Collection[str]) -> str | None:
    """Say which key of a layer is not known; None if all are. Values of None state nothing."""
    for key, value in entry.items():
        if key not in known_keys and value is not None:
            return f"states {key!r} of it, which castwise does not know"
    return None
