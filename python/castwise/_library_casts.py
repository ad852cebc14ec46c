"""How other libraries cast: a table, from which `like=` and the page of conformance derive.

Each row says which recipe gives a library's bits. Where none does, it says why: then a recipe that
raises refuses the values that differ, and a row without recipe the pair. A test proves every row
beside the libraries. NaN stays NaN in all of them; which one of several it becomes is castwise's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo, formats
from castwise._options import Like
from castwise._recipe import Recipe
from castwise._spelling import suggestion

Formats = tuple[str, ...]
"""Names of formats, and kinds of them."""

PLAIN = Recipe(rounding=None)
"""A cast of castwise without options."""


class Rule(NamedTuple):
    """How a library casts some formats to some others.

    Attributes
    ----------
    sources, targets
        Names of formats, or kinds of them.
    recipe
        What gives its bits; None if nothing does.
    reason
        Why the recipe raises, or why there is none.
    unsettled
        Magnitudes, from one up to another, for which the library has no single answer.

    """

    sources: Formats
    targets: Formats
    recipe: Recipe | None
    reason: str = ""
    unsettled: tuple[float, float] | None = None


@dataclass(frozen=True)
class Library:
    """How one library casts.

    Attributes
    ----------
    name
        As `like=` takes it.
    call
        The cast that is meant.
    formats
        Those that it has.
    rules
        The first that is about a pair holds; without one, castwise casts as it does without
        options.
    lacks
        Pairs of its formats that it does not cast: sources and targets.

    """

    name: Like
    call: str
    formats: Formats
    rules: tuple[Rule, ...]
    lacks: tuple[tuple[Formats, Formats], ...] = ()

    def rule(self, source: str, target: str) -> Rule | None:
        """Return the rule about a pair of formats; None if the library does not cast it."""
        if source not in self.formats or target not in self.formats:
            return None
        if source == target:
            return Rule((source,), (target,), PLAIN)
        if any(_among(source, left) and _among(target, right) for left, right in self.lacks):
            return None
        for rule in self.rules:
            if _among(source, rule.sources) and _among(target, rule.targets):
                return rule
        return Rule((source,), (target,), PLAIN)


def _among(name: str, group: Formats) -> bool:
    return name in group or finfo(name).kind in group


_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NARROW_INTS = ("int1", "int2", "int4", "uint1", "uint2", "uint4")
_WIDE_INTS = ("int32", "int64", "uint32", "uint64")
_WIDE = (*_WIDE_INTS, "float64")
"""What float32 does not hold exactly."""

_OCP = ("float8_e4m3fn", "float8_e5m2")
_FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_OTHER_FLOAT8 = ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz")
_FLOAT6 = ("float6_e2m3fn", "float6_e3m2fn")
_FLOAT4, _SCALE = "float4_e2m1fn", "float8_e8m0fnu"
_SMALL = (*_OCP, *_FNUZ, *_OTHER_FLOAT8, *_FLOAT6, _FLOAT4)
_NUMPY_FLOATS = ("float64", "float32", "float16")
_NUMPY_COMPLEX = ("complex128", "complex64")
_SMALL_COMPLEX = ("complex32", "bcomplex32")

_BY_FLOAT32 = replace(PLAIN, through="float32")
_SATURATED = replace(PLAIN, overflow="saturate")
_SATURATED_BY_FLOAT32 = replace(_SATURATED, through="float32")
_WITHIN = replace(PLAIN, overflow="raise", nan="raise")
_NUMBERS = replace(PLAIN, nan="raise")

_UNDEFINED = (
    "C leaves floats beyond the range of an integer undefined, and NaN, so what becomes of them "
    "depends on the machine, the compiler and the place of the element"
)
_LOW_BITS = "it converts to int32 first, keeps the low bits, and of what an int32 lacks anything"

_TO_INTEGERS = Rule(("float",), ("int", "uint"), _WITHIN, _UNDEFINED)
_BY_COMPLEX64 = Rule(("float64", "complex128"), _SMALL_COMPLEX, replace(PLAIN, through="complex64"))
_INTS_BY_COMPLEX64 = Rule(_WIDE_INTS, ("bcomplex32",), replace(PLAIN, through="complex64"))

_SCALE_PAST_NEAREST = "it takes 2**-127 to 1.5 * 2**-127 up to 2**-126, past the nearest"
_NUMPY = Library(
    "numpy",
    "`ndarray.astype`, with ml_dtypes",
    tuple(name for name in formats() if finfo(name).dtype is not None),
    (
        Rule(("float",), _NARROW_INTS, _WITHIN, _LOW_BITS),
        _TO_INTEGERS,
        Rule(
            ("float64", "float32", "bfloat16"),
            (_SCALE,),
            None,
            _SCALE_PAST_NEAREST,
        ),
        Rule(("float64",), ("bfloat16", *_SMALL), _BY_FLOAT32),
        Rule(_WIDE_INTS, ("bfloat16", _SCALE), _BY_FLOAT32),
        Rule(("complex32",), ("bcomplex32",), None, "it gives 1 for all but 0"),
        Rule(("bcomplex32",), ("complex32",), None, "it gives 1 for all but 0"),
        _BY_COMPLEX64,
        _INTS_BY_COMPLEX64,
    ),
    lacks=(
        ((_SCALE,), (*_NARROW_INTS, *_SMALL, *_SMALL_COMPLEX)),
        ((*_NARROW_INTS, *_SMALL), (_SCALE,)),
        (("int2", "int4", "uint1", "uint2", "uint4"), ("int1",)),
        (("int4", "uint1", "uint2", "uint4"), ("int2",)),
        (("uint1", "uint2", "uint4", "float6_e2m3fn"), ("int4",)),
        (("int1", "int2", "int4", "uint2", "uint4"), ("uint1",)),
        (("int1", "int2", "int4", "uint4"), ("uint2",)),
        (("int1", "int2", "int4", "float6_e2m3fn"), ("uint4",)),
        (("int4", "uint4"), ("float6_e2m3fn",)),
    ),
)

_SIGN_DROPPED = "it drops the sign, and has a rounding of its own"
_TORCH_RULES = (
    _TO_INTEGERS,
    Rule(("uint32", "uint64"), (_SCALE,), _SATURATED_BY_FLOAT32),
    Rule(("bool", "uint"), (_SCALE,), _SATURATED),
    Rule(("int", "float"), (_SCALE,), None, _SIGN_DROPPED),
    Rule(("float64",), ("float16", "bfloat16", "float8_e5m2", *_FNUZ), _BY_FLOAT32),
    Rule(_WIDE_INTS, ("bfloat16",), _BY_FLOAT32),
    _BY_COMPLEX64,
)
_TORCH = Library(
    "torch",
    "`Tensor.to` on a CPU, from torch 2.12 on",
    (
        *("bool", *_INTS, *_NUMPY_FLOATS, "bfloat16", *_OCP, *_FNUZ, _SCALE),
        *(*_NUMPY_COMPLEX, *_SMALL_COMPLEX),
    ),
    (
        Rule(("float64",), ("float8_e4m3fn",), _SATURATED_BY_FLOAT32),
        Rule(("int", "uint", "float"), ("float8_e4m3fn",), _SATURATED),
        _INTS_BY_COMPLEX64,
        *_TORCH_RULES,
    ),
)
_TORCH_BEFORE_2_12 = Library(
    "torch<2.12",
    "`Tensor.to` on a CPU, before torch 2.12",
    tuple(name for name in _TORCH.formats if name != "bcomplex32"),
    (Rule(("float64",), ("float8_e4m3fn",), _BY_FLOAT32), *_TORCH_RULES),
)

_SHORT_INTS = ("int2", "int4", "uint2", "uint4")
_ONNX = Library(
    "onnx",
    "the operator Cast with saturate=1 and round_mode=up, its defaults, in onnxruntime",
    (
        "bool",
        *_SHORT_INTS,
        *_INTS,
        *_NUMPY_FLOATS,
        "bfloat16",
        *_OCP,
        *_FNUZ,
        _SCALE,
    ),
    (
        Rule(
            (*_OCP, _SCALE),
            ("bool",),
            None,
            "it looks at the code: -0 is True, and the least number of float8_e8m0fnu False",
        ),
        Rule(
            ("float",),
            _SHORT_INTS,
            replace(_WITHIN, rounding="nearest-away"),
            "it converts to an integer of 32 bits first, which C leaves undefined beyond that",
        ),
        _TO_INTEGERS,
        Rule(
            _WIDE,
            (_SCALE,),
            replace(_SATURATED_BY_FLOAT32, rounding="towards-positive"),
        ),
        Rule(
            ("bool", "int", "uint", "float"),
            (_SCALE,),
            replace(_SATURATED, rounding="towards-positive"),
        ),
        Rule(("float64",), (*_OCP, *_FNUZ), _SATURATED_BY_FLOAT32),
        Rule(("int", "uint", "float"), (*_OCP, *_FNUZ), _SATURATED),
        Rule(("float64",), ("float16",), _BY_FLOAT32),
        Rule(_WIDE, ("bfloat16",), _BY_FLOAT32),
    ),
)

_NEXT_TO_NORMAL = (2.0**-126 - 2.0**-150, 2.0**-126)
_BESIDE_NORMAL = (
    "it makes 0 of subnormals of float32, and of what float32 rounds up to its smallest normal "
    "number 0 or that number: processors detect subnormals before rounding, or after"
)
_SOURCE_FLUSHED = replace(PLAIN, flushed="source")
_SINGLES_FLUSHED = Rule(
    ("float64", "complex128"),
    ("float32", "complex64"),
    replace(PLAIN, flushed="result"),
    _BESIDE_NORMAL,
    _NEXT_TO_NORMAL,
)
_DOUBLES_OF_FLUSHED = Rule(
    ("float32", "bfloat16", "complex64"), ("float64", "complex128"), _SOURCE_FLUSHED
)
_TENSORFLOW = Library(
    "tensorflow",
    "`tf.cast` on a CPU",
    (
        "bool",
        "int4",
        "uint4",
        *_INTS,
        *_NUMPY_FLOATS,
        "bfloat16",
        *_OCP,
        *_NUMPY_COMPLEX,
    ),
    (
        _TO_INTEGERS,
        _SINGLES_FLUSHED,
        Rule(
            ("float64",),
            ("bfloat16",),
            replace(_BY_FLOAT32, flushed="step"),
            _BESIDE_NORMAL,
            _NEXT_TO_NORMAL,
        ),
        _DOUBLES_OF_FLUSHED,
        Rule(("float64", "float32"), ("bool",), _SOURCE_FLUSHED),
        Rule(("float64",), ("float16",), _BY_FLOAT32),
        Rule(_WIDE_INTS, ("bfloat16",), _BY_FLOAT32),
    ),
    lacks=(
        (("bool", "int", "uint"), _OCP),
        (("int4", "uint4"), ("bool", "float", "complex")),
        (("bool", "float"), ("int4", "uint4")),
    ),
)

_JAX = Library(
    "jax",
    "`Array.astype` on a CPU, not traced, with 64-bit types",
    tuple(
        name for name in _NUMPY.formats if name not in ("int1", "uint1", *_FLOAT6, *_SMALL_COMPLEX)
    ),
    (
        Rule((_FLOAT4,), ("int", "uint"), None, "it takes 6, the largest number, for an infinity"),
        Rule(("float",), ("int", "uint"), _SATURATED),
        Rule(("float64", "float32"), ("bool",), _SOURCE_FLUSHED),
        _SINGLES_FLUSHED,
        Rule(
            ("float64",),
            ("float16", "bfloat16"),
            replace(_BY_FLOAT32, flushed="step"),
            _BESIDE_NORMAL,
            _NEXT_TO_NORMAL,
        ),
        Rule(_WIDE_INTS, ("bfloat16", _SCALE), _BY_FLOAT32),
        Rule(("float64", "float32", "bfloat16"), (_SCALE,), None, _SCALE_PAST_NEAREST),
        _DOUBLES_OF_FLUSHED,
        Rule(("float",), (_FLOAT4,), _NUMBERS, "NaN becomes a zero of either sign"),
    ),
)

_NAN_TO_NUMBER = "NaN becomes a number: the largest in magnitude, an infinity, or a zero"
_NUMKONG = Library(
    "numkong",
    "`numkong.astype`, on AVX-512",
    (
        *_INTS,
        *_NUMPY_FLOATS,
        "bfloat16",
        *_OCP,
        *_FLOAT6,
        *_NUMPY_COMPLEX,
    ),
    (
        Rule(
            ("float",),
            ("int", "uint"),
            replace(_WITHIN, rounding="nearest-even"),
            "it saturates, but not every value just beyond 64 bits, and of NaN makes 0 or the "
            "smallest number",
        ),
        Rule(("uint64",), ("int64",), PLAIN),
        Rule(("uint64",), ("int8", "int16", "int32"), replace(_SATURATED, through="int64")),
        Rule(("int",), ("uint64",), PLAIN),
        Rule(("int", "uint"), ("int", "uint"), _SATURATED),
        Rule(("int64", "uint64"), ("float32", "complex64"), replace(PLAIN, through="float64")),
        Rule(_WIDE_INTS, ("bfloat16",), _BY_FLOAT32),
        Rule(("float64",), ("float16", "float8_e5m2"), _BY_FLOAT32),
        Rule(("float64",), ("float8_e4m3fn",), _SATURATED_BY_FLOAT32),
        Rule(("int", "uint"), ("float8_e4m3fn",), _SATURATED),
        Rule(
            ("float64",), ("bfloat16", *_FLOAT6), replace(_BY_FLOAT32, nan="raise"), _NAN_TO_NUMBER
        ),
        Rule(
            ("float32", "float16", "bfloat16", "float8_e5m2"),
            ("float8_e4m3fn",),
            replace(_SATURATED, nan="raise"),
            _NAN_TO_NUMBER,
        ),
        Rule(
            ("float32", "bfloat16"),
            ("float8_e5m2",),
            _WITHIN,
            "overflow becomes infinity or NaN, and NaN infinity or NaN",
        ),
        Rule(("float8_e5m2",), ("bfloat16",), None, "it gives 65536 for infinity"),
        Rule(("float",), ("bfloat16", "float8_e5m2", *_FLOAT6), _NUMBERS, _NAN_TO_NUMBER),
    ),
)

LIBRARIES = (_NUMPY, _TORCH, _TORCH_BEFORE_2_12, _JAX, _TENSORFLOW, _ONNX, _NUMKONG)
"""All, in the order of the page."""

ALIASES: Mapping[Like, Like] = {"onnxruntime": "onnx"}
"""The packages that `like=` takes for a library, beside its name."""

DECIDED = ("rounding", "overflow", "nan", "scale", "seed")
"""The options of `cast` that a library decides, or does not have."""


def cast_like(
    array: NDArray[Any],
    source: str,
    dtype: Any,  # noqa: ANN401
    target: str,
    *,
    like: str,
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Cast an array as another library casts it.

    Parameters
    ----------
    array : ndarray
        Of any shape.
    source, target : str
        The formats.
    dtype : dtype or None
        The target as it was given.
    like : str
        The name of a library.
    **options
        ``out``, ``order``, ``copy``, ``report`` and ``threads``, as in `castwise.cast`.

    Raises
    ------
    TypeError
        An option that the library decides; a pair that it does not cast.
    ValueError
        No library of this name; a pair, or NaN, for which no options give its result; a report of
        a cast that rounds twice.
    OverflowError
        A value beyond the range, for which none do.

    """
    for name in DECIDED:
        if options.get(name) is not None:
            raise TypeError(f"{name}= does not go with like={like!r}, which decides it; give one.")
    rule = library_named(like).rule(source, target)
    if rule is None:
        raise TypeError(
            f"like={like!r}: {like} does not cast {source} to {target}; leave like out."
        )
    recipe = rule.recipe
    if recipe is None:
        raise ValueError(
            f"like={like!r}: no options give what {like} gives for {source} to {target}, because "
            f"{rule.reason}; leave like out."
        )
    if options.get("report") and not recipe.is_reported(target):
        raise ValueError(
            f"report=True: with like={like!r}, {source} to {target} is not one rounding; leave "
            "report or like out."
        )
    if rule.unsettled is not None:
        _refuse_unsettled(array, like, rule)
    try:
        return recipe.cast(array, dtype, **options)
    except (OverflowError, ValueError) as error:
        value = _REFUSED_VALUE.match(str(error))
        if not rule.reason or value is None:
            raise
        raise type(error)(
            f"{value[0]}, and no options give what {like} gives: {rule.reason}. Leave like= out, "
            "and say what it becomes by overflow= and nan=."
        ) from error


def _refuse_unsettled(array: NDArray[Any], like: str, rule: Rule) -> None:
    """Raise ValueError for values for which a library has no single answer."""
    low, high = rule.unsettled or (0.0, 0.0)
    numbers = np.ascontiguousarray(array).view(array.real.dtype).ravel()
    magnitudes = np.abs(numbers)
    places = np.flatnonzero((magnitudes >= low) & (magnitudes < high))
    if places.size:
        place = int(places[0])
        index = place * array.real.itemsize // array.itemsize
        raise ValueError(
            f"value {numbers[place]} at flat index {index}, and no options give what {like} "
            f"gives: {rule.reason}. Leave like= out."
        )


_REFUSED_VALUE = re.compile(r".* at flat index \d+( is beyond the range of \w+)?")
"""The beginning of what `cast` says of a value."""


def library_named(name: object) -> Library:
    """Return a library by the name that `like=` takes; ValueError lists them."""
    by_name = _by_name()
    if not isinstance(name, str) or name not in by_name:
        raise ValueError(
            f"like={name!r} is not known; {suggestion(name, by_name)}use one of "
            f"{', '.join(by_name)}."
        )
    return by_name[name]


@cache
def _by_name() -> dict[str, Library]:
    libraries: dict[str, Library] = {library.name: library for library in LIBRARIES}
    return libraries | {alias: libraries[name] for alias, name in ALIASES.items()}
