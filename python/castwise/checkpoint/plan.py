"""What becomes of each tensor, decided from names and formats before any data is read.

- A tensor that a key of the map matches becomes what the key says, whatever its kind.
- Any other floating tensor becomes the default, if there is one.
- Everything else (integers, bools, complex numbers, text) stays as it is, byte for byte.
"""

from collections.abc import Iterable

from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.tensor_info import OTHER, UNKNOWN, Planned, TensorInfo, format_info
from castwise.dtype_map import DtypeMap


def plan(tensors: Iterable[TensorInfo], dtypes: DtypeMap) -> list[Planned]:
    """Decide for every tensor.

    Raises
    ------
    CheckpointError
        Two keys match one tensor; a tensor is to be cast whose format nobody
        knows or that holds no numbers; or complex numbers would become real ones.

    """
    return [_plan_one(info, dtypes) for info in tensors]


def unused_patterns(planned: Iterable[Planned], dtypes: DtypeMap) -> list[str]:
    """Patterns of the map that matched no tensor: as often as not a slip."""
    used = {plan.pattern for plan in planned}
    return [pattern.pattern for pattern in dtypes.patterns if pattern.pattern not in used]


def _plan_one(info: TensorInfo, dtypes: DtypeMap) -> Planned:
    found = dtypes.find(info.name)
    if found is not None:
        pattern, target = found
        if target is not None:
            _check(info, target, f"key {pattern!r} of {dtypes.origin}")
        return Planned(info, target, pattern)
    if dtypes.default is None or info.kind not in {"float", UNKNOWN}:
        return Planned(info)
    _check(info, dtypes.default, dtypes.origin)
    return Planned(info, dtypes.default)


def _check(info: TensorInfo, target: str, reason: str) -> None:
    if info.kind == UNKNOWN:
        raise CheckpointError(
            f"tensor {info.name!r} is stored as {info.stored}, a format that the file does not "
            f"tell or castwise cannot unpack, so {reason} cannot make it {target}; say what it is "
            "(assume, --assume), or map its name to 'keep'"
        )
    if info.kind == OTHER:
        raise CheckpointError(
            f"tensor {info.name!r} is stored as {info.stored}, which holds no numbers; "
            f"{reason} cannot make it {target}"
        )
    if info.kind == "complex" and format_info(target).kind != "complex":
        raise CheckpointError(
            f"tensor {info.name!r} is {info.format}; {reason} would drop its imaginary parts by "
            f"making it {target}; choose a complex format or 'keep'"
        )
