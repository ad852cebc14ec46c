"""What becomes of each tensor, decided from names and formats before any data is read.

- A tensor that a key of the map matches becomes what the key says, whatever its kind.
- Any other floating tensor becomes the default, if there is one.
- Everything else (integers, bools, complex numbers, text) stays as it is, byte for byte.
"""

from collections.abc import Iterable

from castwise._dtype_map import DtypeMap
from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.tensor_info import OTHER, UNKNOWN, Planned, TensorInfo, format_info


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
    return [key for key, _ in dtypes.keys.items() if key not in used]


def _plan_one(info: TensorInfo, dtypes: DtypeMap) -> Planned:
    # A format that nobody knows may be a float: asking for it to be cast is refused below.
    target, key = dtypes.decide(info.name, info.kind in {"float", UNKNOWN})
    if target is not None:
        reason = dtypes.origin if key is None else f"key {key!r} of {dtypes.origin}"
        _check(info, target, reason)
    return Planned(info, target, key)


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
