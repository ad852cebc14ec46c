"""What the standards say of each condition, by the format that is cast to."""

from __future__ import annotations

from collections.abc import Mapping

from agreement import part_name
from castwise._core import finfo

_IEEE = {
    "halfway": ("even",),
    "overflow": ("infinity",),
    "infinity": ("infinity",),
    "NaN": ("NaN",),
    "subnormal": ("kept",),
    "-0": ("-0",),
}
"""IEEE 754-2019, 4.3, 5.4.2, 6.2.3, 6.3 and 7.4, with the default rounding; bfloat16 follows it."""

_OFP8 = {
    "float8_e4m3fn": {"overflow": ("largest", "NaN"), "infinity": ("largest", "NaN")},
    "float8_e5m2": {"overflow": ("largest", "infinity"), "infinity": ("largest", "infinity")},
}
"""OCP OFP8 1.0, 5.2: with saturation or without."""

_MX = {"overflow": ("largest",), "infinity": None, "NaN": None}
"""OCP MX 1.0, 5.3: clamped; without infinity and NaN, of which it says nothing."""

_BY_IEEE = ("float64", "float32", "float16", "bfloat16")
_BY_MX = ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")


def departures(answers: Mapping[str, str], target: str) -> str:
    """Say in which conditions a cast is not what the standard of its target says.

    Parameters
    ----------
    answers : mapping
        What the library gives, by condition; "" where the pair has none.
    target : str
        The format that is cast to.

    Returns
    -------
    str
        "yes", the conditions, or "·" where there is no standard.

    """
    name = part_name(target)
    if finfo(name).kind != "float":
        return "·"
    if name in _BY_IEEE:
        said: Mapping[str, tuple[str, ...] | None] = _IEEE
    elif name in _OFP8:
        said = {**_IEEE, **_OFP8[name]}
    elif name in _BY_MX:
        said = {**_IEEE, **_MX}
    else:
        return "·"
    wrong = [
        condition
        for condition, text in answers.items()
        if text and (allowed := said[condition]) is not None and text not in allowed
    ]
    return f"not {', '.join(wrong)}" if wrong else "yes"
