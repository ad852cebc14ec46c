"""Names and arguments of policies: the valid, the odd, and what only looks like one.

`objects()` holds every kind of thing that a caller may give for a dtype; `spelled()` draws names
from the pieces of the grammar.
"""

from __future__ import annotations

import enum
import types
from typing import Any

import ml_dtypes
import numpy as np
import peers
from hypothesis import strategies as st
from keras_names import DTYPES, MODES, Named, Own

SOURCES = ("float32", "float16", "mixed_float16", "mixed_bfloat16", "int8", "int", "torch.float16")
NAMES = (
    *DTYPES,
    *("mixed_float16", "mixed_bfloat16", "Mixed_Float16", " mixed_float16", "mixed_float16 "),
    *("mixed_float32", "mixed_float64", "mixed", "mixed_", "int", "float", "str", "bool_", "long"),
    *("Float32", " float32", "float32 ", "float32\n", "fp32", "f4", "<f4", "double", "half"),
    *("single", "object", "complex", "int4", "uint4", "int2", "float8", "float8_e4m3", "awq"),
    *("float8_e4m3fnuz", "float128", "longdouble", "", "None", "abc", "_infer", "infer", "gptq"),
    *("infer_float32_vars", "float16_with_float32_vars", "map_float32", "ternary", "int8_", "_"),
    *("int8_from_", "int8_from_None", "int8_from_abc", "int8_from", "_from_float32", "_from_"),
    *("int8_from_float32_from_float32", "int8_from_int8_from_float32", "int8x_from_float32"),
    *("int8/3_from_float32", "float8_e4m3fn_from_float32", "float8_from_None", "INT8_from_float32"),
    *("int16_from_float32", "mixed_float16_from_float32", "float32_from_int8", "ternary_from_"),
    *(
        "int4/None_from_float32",
        "int4/none_from_float32",
        "int4/None_from_None",
        "gptq/4/None_from",
    ),
    *("int4/128/2_from_float32", "int4/_from_float32", "int4//1_from_float32", "gptq_from_float32"),
    *("gptq/4/None_from_float32", "gptq/5/128_from_float32", "gptq/8/0_from_float32"),
    *("gptq/a/b_from_float32", "gptq/4_from_float32", "gptq/4/1/_from_float32", "awq/4_from_int8"),
    *("awq/3/128_from_float32", "awq/4/0_from_float32", "ternary/1_from_float32", "ternary_x"),
    *("ternary_from_float32", "ternary_from_mixed_bfloat16", "ternary_from_float16", "ternaryx"),
    *("ternary_from_float32_from_float32", "ternary_from_int8_from_float32", "TERNARY_from_int8"),
    # To Keras a string with one of two words in it is a dtype of torch or JAX, after the last dot.
    *("torch.float32", "torch.bfloat16", "torch.int", "torch", "a torch.b.int8", "jax.numpy.int8"),
    *(
        "jax.float32",
        "mixed_torch.float32",
        "torch.float32_from_int8",
        "int8_from_torch.bfloat16",
        "int8torch.float32",
    ),
    *(f"int4/{n}_from_float32" for n in ("128", "-1", "0", "-2", " 128", "+128", "0128", "1_2")),
    *(f"int4/{n}_from_mixed_float16" for n in ("1__2", "_1", "1_", "- 1", "-0", "1.0", "1e3", "x")),
    *(
        f"int4/{n}_from_bfloat16"
        for n in ("\u0661\u0662", "\u20034\n", "\u00b2", "-01", "0x10", "\x1c4")
    ),
    *(f"int4/{n}_from_int8" for n in (2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30))),
    *(f"gptq/{b}/{g}_from_float32" for b in (2, 3, 4, 8, " 8", "04") for g in (-1, 1, "+7", "-01")),
    *(f"awq/{b}/{g}_from_float32" for b in (4, "+4", "0_4") for g in (-1, 128, "\t9", 2**70)),
    *(f"{mode}_from_{source}" for mode in MODES for source in SOURCES),
    *(
        f"{mode}_from_{source}"
        for mode in ("int4/64", "gptq/4/64", "awq/4/64")
        for source in SOURCES
    ),
)

MODE_ARGUMENTS = (
    *MODES,
    *("ternary", "int4/64", "int4/-1", "int4/None", "int4/+64", "int4/0", "gptq/4/64", "awq/4/-1"),
    *(
        "awq/4/ 7",
        "gptq/08/1",
        "awq/8/64",
        "gptq/4",
        "INT8",
        "",
        "abc",
        "int8_from_float32",
        "float32",
    ),
    *(
        None,
        4,
        8.0,
        True,
        b"int4/64",
        [],
        ("int8",),
        np.str_("int8"),
        np.str_("int4/64"),
        int,
        "int8 ",
    ),
)
SOURCE_ARGUMENTS = (
    *(
        None,
        "float32",
        "float16",
        "mixed_float16",
        "mixed_bfloat16",
        "int",
        "int8",
        "bool",
        "torch.int8",
    ),
    *("abc", "", "None", "int8_from_float32", 1, np.float32, np.dtype("f4"), b"float32", []),
    *(np.str_("float32"), Own("DTypePolicy('float32')"), Own("get('int8_from_float32')")),
)
LENGTHS = (
    1024,
    1,
    3,
    0,
    -5,
    True,
    False,
    1.0,
    "512",
    None,
    np.int64(3),
    np.int8(0),
    np.bool_(True),
    2**70,
)


class _Shown:
    """An object that prints as a dtype of torch does."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class _Text(str):
    """A string with a name that says something else."""

    __slots__ = ("name",)

    def __init__(self, text: str) -> None:
        self.name = "float16"


class _Members(enum.Enum):
    float16 = "float64"
    other = "float32"


class float64:  # noqa: N801
    """A class that is named like a dtype."""


def objects() -> dict[str, Any]:
    """Every kind of thing that a caller may give for a dtype, by the text that makes it."""
    jax = peers.jax()
    numpy_types = [*np.sctypeDict.values(), np.generic, np.floating, np.number, np.ndarray]
    ml_types = [
        value
        for value in vars(ml_dtypes).values()
        if isinstance(value, type) and issubclass(value, np.generic)
    ]
    of_numpy = {str(value): value for value in numpy_types}
    of_ml = {f"ml_dtypes.{value.__name__}": value for value in ml_types}
    dtypes = {
        f"np.dtype({text!r})": np.dtype(text)
        for text in (
            *(">f4", "<f2", ">i8", "c8", ">c16", "?", "O", "U4", "S4", "M8[s]", "m8", "g", "G"),
            *("f4,i4", "V8", "(2,)f4", "B", "e"),
        )
    } | {f"np.dtype({name})": np.dtype(value) for name, value in of_ml.items()}
    of_jax = {
        f"jnp.{name}": getattr(jax.numpy, name)
        for name in (
            *("float32", "float64", "bfloat16", "float16", "int4", "uint8", "int_", "bool_"),
            *(
                "complex64",
                "float8_e4m3fn",
                "float8_e5m2",
                "float8_e4m3b11fnuz",
                "dtype",
                "floating",
            ),
        )
    }
    others = [
        *(None, bool, int, float, str, complex, bytes, object, list, type, float64, type(None)),
        *(1, 1.5, 0, True, False, 1j, (), ("f4",), ("float32",), b"float32", frozenset(), ...),
        *(np.float32(1), np.int8(1), np.bool_(True), np.str_("float16"), np.str_("abc")),
        *(np.str_("int"), np.str_("int8_from_float32"), np.str_("mixed_bfloat16"), np.bytes_(b"f")),
        *([], {}, set(), ["float32"], np.array(1.0), np.array([1, 2]), np.array("float32"), []),
        *(Named("float16"), Named("int"), Named("abc"), Named(None), Named(5), Named([])),
        *(Named(np.str_("int8")), Named("mixed_float16"), Named(Named("float32"))),
        *(_Shown("torch.float16"), _Shown("torch.int"), _Shown("float16"), _Shown("torch")),
        *(
            _Shown("<class 'jax.numpy.bfloat16'>"),
            _Shown("jax.numpy.int8"),
            _Shown("x.torch.y.bool"),
        ),
        *(_Text("float32"), _Text("abc"), _Text("int"), _Text("mixed_float16"), _Text("int8")),
        *(_Members.float16, _Members.other, types.ModuleType("float32"), types.SimpleNamespace()),
        *(lambda: None, np, Own("DTypePolicy"), Own("FloatDTypePolicy"), Own("get")),
    ]
    return of_numpy | of_ml | dtypes | of_jax | {f"{n}: {v!r}": v for n, v in enumerate(others)}


NUMBERS = st.one_of(
    st.integers(-3, 10).map(str),
    st.integers(-(2**80), 2**80).map(str),
    st.sampled_from(
        ("None", "none", "", "+4", " 4", "4 ", "04", "0_4", "4_", "--4", "4.0", "\u0664")
    ),
    st.text("0123456789+-_ N\u0664\t", max_size=4),
)
NUMBERED = st.builds(
    lambda head, numbers: "/".join((head, *numbers)),
    st.sampled_from((*MODES, "ternary", "INT4", "gpt", "")),
    st.lists(NUMBERS, max_size=3),
)
PLAIN = st.sampled_from(
    (*DTYPES, "mixed_float16", "mixed_bfloat16", "int", "float", "None", "", "torch.")
)
SPELLINGS = st.one_of(
    PLAIN,
    st.builds(
        lambda mode, link, source: mode + link + source,
        st.one_of(st.sampled_from(MODES), NUMBERED),
        st.sampled_from(
            ("_from_",) * 12 + ("_from", "from_", "_FROM_", "__from__", "_from__from_", "")
        ),
        st.one_of(PLAIN, PLAIN, NUMBERED, st.sampled_from(NAMES)),
    ),
    st.sampled_from(NAMES),
    st.text(max_size=8),
)


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """Draw a name from the pieces of the grammar, sometimes with a slip of the pen."""
    name = draw(SPELLINGS)
    slip = draw(st.sampled_from(("none",) * 6 + ("insert", "delete", "upper", "pad")))
    place = draw(st.integers(0, len(name)))
    if slip == "insert":
        return name[:place] + draw(st.sampled_from("/_ +-0x.\n\u0660")) + name[place:]
    if slip == "delete":
        return name[:place] + name[place + 1 :]
    if slip == "upper":
        return name.upper() if place % 2 else name.title()
    if slip == "pad":
        return draw(st.sampled_from((" {}", "{} ", "\t{}", "{}\n", "_{}", "{}_"))).format(name)
    return name
