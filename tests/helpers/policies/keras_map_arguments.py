"""Keys, paths, values and defaults of maps, good ones and bad ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras_names import Own
from keras_systems import System

# Literals and patterns that overlap one another, with forms that only `re` can take.
KEYS = (
    *("a", "b", "enc", "enc/x", "enc/y", "dense_1", "", "enc/.*", "enc/x.*", "(a|b)", ".*", "e.."),
    *(
        "dense.1",
        "(?i)ENC/.*",
        "a|ab",
        "^x$",
        "(?!b).",
        r"(a)\1",
        "enc/[xy]",
        r"\w+",
        "x{2}",
        "ab?",
    ),
    *("(?<=a)b", "(?s:enc/.*)", r"enc/\d", "é", "(?x) a b", "a(?#b)", "enc/x\\Z", "a{1,2}", "a{,"),
)
PATHS = (
    *KEYS,
    *("enc/z", "xenc/x", "dense_10", "ENC/q", "ab", "aa", "xx", "x", "enc/x\ny", "x\n", "enc/1"),
    *("enc/", "model/dense_1", "É", "a\n", "enc/x/y"),
)
INVALID_KEYS = ("[", "*", "(", "(?P<a", "a{2,1}", "(?<=a*)b", "(?z)a", "a**", ")", "\\", "[b-a]")
NO_TEXTS = (1, None, ("a",), b"a", 1.5, True)
VALUES = (
    *("float16", "mixed_bfloat16", "int8_from_float32", "int4/8_from_bfloat16", "int", None),
    *(np.float16, np.dtype("f8"), float, {"class_name": "DTypePolicy", "config": {"name": "bool"}}),
    *map(Own, ("DTypePolicy('float64')", "FloatDTypePolicy('float16')", "DTypePolicyMap('int16')")),
    Own("QuantizedFloat8DTypePolicy('float8', 'mixed_float16', 5)"),
)
NO_VALUES = ("abc", 3, [], {}, b"float16", object(), "int4/0_from_float32", ("float16",))
DEFAULTS = (None, "float32", "mixed_float16", "int8_from_bfloat16", np.float16)


def own(system: System, value: Any) -> Any:
    """Make an argument that each system makes for itself."""
    if isinstance(value, Own):
        return eval(value.expression, dict(vars(system.dtype_policies)))  # noqa: S307
    return value
