"""jmp's policies: three dtypes, for parameters, computation and outputs."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, defaultdict
from typing import Any, TypeVar

import numpy as np

from castwise._core import cast, dtype_word, finfo, parse_assignment, parse_dtype
from castwise._numbers import is_floating
from castwise._trees import map_leaves
from castwise.text.wording import rename_arguments

Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes of parameters, of computations, and of outputs.

    The three are numpy dtypes, made from what `castwise.finfo` takes; TypeError for anything else.
    Equal policies have equal hashes.
    """

    param_dtype: Any
    compute_dtype: Any
    output_dtype: Any

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            with rename_arguments(dtype=field.name):
                object.__setattr__(self, field.name, _dtype(getattr(self, field.name)))

    def cast_to_param(self, x: Tree) -> Tree:
        """Cast the floating arrays of a tree to the param dtype."""
        return _cast_floating(x, self.param_dtype)

    def cast_to_compute(self, x: Tree) -> Tree:
        """Cast the floating arrays of a tree to the compute dtype."""
        return _cast_floating(x, self.compute_dtype)

    def cast_to_output(self, x: Tree) -> Tree:
        """Cast the floating arrays of a tree to the output dtype."""
        return _cast_floating(x, self.output_dtype)

    def with_output_dtype(self, output_dtype: Any) -> Policy:
        """Return the same policy with another output dtype."""
        return dataclasses.replace(self, output_dtype=output_dtype)

    def __str__(self) -> str:
        names = (self.param_dtype.name, self.compute_dtype.name, self.output_dtype.name)
        params, compute, output = (dtype_word(name, "jmp") for name in names)
        return f"p={params},c={compute},o={output}"


def get_policy(policy_name: str) -> Policy:
    """Parse the text of a policy.

    Parameters
    ----------
    policy_name : str
        One dtype for all three, or assignments with commas between: ``p`` or ``params`` (else
        float32), ``c`` or ``compute`` (else as params), ``o`` or ``output`` (else as compute).
        Dtypes are ``float16 f16 bfloat16 bf16 float32 f32 full float64 f64 half``.

    Raises
    ------
    ValueError
        The text has another form.
    TypeError
        `policy_name` is not a str.

    """
    if not isinstance(policy_name, str):
        raise TypeError(
            f"policy_name={policy_name!r} must be a str, such as 'params=full,compute=half'"
        )
    with rename_arguments(policy="policy_name", dtype=f"policy_name={policy_name!r}: dtype"):
        return Policy(*parse_assignment(policy_name, half_dtype().name))


def cast_to_full(tree: Tree) -> Tree:
    """Cast the floating arrays of a tree to float32."""
    return _cast_floating(tree, _dtype(parse_dtype("full", "jmp")))


def cast_to_half(tree: Tree) -> Tree:
    """Cast the floating arrays of a tree to `half_dtype`."""
    return _cast_floating(tree, half_dtype())


def half_dtype() -> np.dtype[Any]:
    """Return the 16-bit float of the machine: bfloat16 if jax uses a TPU, else float16."""
    jax = sys.modules.get("jax")
    on_tpu = jax is not None and jax.local_devices()[0].platform == "tpu"
    return _dtype(parse_dtype("bf16" if on_tpu else "f16", "jmp"))


def _dtype(value: Any) -> np.dtype[Any]:
    """Return a dtype, or the name of a format."""
    row = finfo(value)
    if row.dtype is None:
        raise TypeError(
            f"dtype={row.name!r} has no numpy dtype in the installed ml_dtypes; use another."
        )
    return row.dtype


def _cast_floating(tree: Tree, dtype: np.dtype[Any]) -> Tree:
    """Cast floating arrays to new ones; as in jmp, numpy's scalars are not arrays."""
    jax = sys.modules.get("jax")

    def convert(leaf: Any) -> Any:
        is_array = isinstance(leaf, np.ndarray) or (jax is not None and isinstance(leaf, jax.Array))
        if not is_array or not _is_float(leaf.dtype):
            return leaf
        # Subclasses, jax's arrays, and dtypes without a format are cast by their own `astype`.
        is_plain = type(leaf) is np.ndarray and leaf.dtype != np.longdouble
        return cast(leaf, dtype) if is_plain else leaf.astype(dtype)

    result: Tree
    if jax is not None:
        result = jax.tree_util.tree_map(convert, tree)
    else:
        result = map_leaves(tree, lambda leaf, path: convert(leaf), is_node=_is_node)
    return result


def _is_node(tree: Any) -> bool:
    """Tell whether a value is structure by jax's rules, which do not include subclasses."""
    return type(tree) in _NODES or (isinstance(tree, tuple) and hasattr(tree, "_fields"))


# By exact type, as in jax: instances of subclasses are leaves, but for named tuples.
_NODES = (dict, list, tuple, OrderedDict, defaultdict)


def _is_float(dtype: Any) -> bool:
    """Tell whether a dtype is a real float; some of jax's dtypes are unknown to numpy."""
    return isinstance(dtype, np.dtype) and is_floating(dtype)
