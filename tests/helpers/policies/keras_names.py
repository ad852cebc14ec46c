"""Calls that make a policy from a name or arguments, and every one that castwise answers otherwise.

Each rule rewrites a call, in a global state, into the call to which castwise gives the real Keras'
answer, or into the exception that castwise raises. Whatever no rule rewrites is answered alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from keras_systems import OURS, Outcome, State, System, original, outcome

MODES = ("int8", "float8", "int4", "gptq", "awq")
WITH_NUMBERS = ("Int4DTypePolicy", "GPTQDTypePolicy", "AWQDTypePolicy")
CONSTRUCTORS = ("QuantizedDTypePolicy", "QuantizedFloat8DTypePolicy", *WITH_NUMBERS)
# Classes that the real Keras has not yet with the mode "ternary".
KERAS_3_16 = {"QuantizedDTypePolicy of 3.16": "QuantizedDTypePolicy"}
_OF_CONFIG = (
    *("set_dtype_policy", "set_floatx", "standardize_dtype", "is_float_dtype", "is_int_dtype"),
)
DTYPES = (
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "string", "complex64", "complex128"),
)


@dataclass(frozen=True)
class Own:
    """An argument that each system makes for itself, as an expression over its module."""

    expression: str


class Named:
    """An object that has nothing but a name, as the dtypes of TensorFlow have."""

    def __init__(self, name: Any) -> None:
        self.name = name


@dataclass(frozen=True)
class Call:
    """A function or class by name, and its arguments."""

    function: str
    arguments: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...] = ()

    def on(self, system: System) -> Outcome:
        """Make the call on one system."""
        assert self.function in (*_OF_CONFIG, *KERAS_3_16, *dir(OURS.dtype_policies))

        def own(value: Any) -> Any:
            if isinstance(value, Own):
                return eval(value.expression, dict(vars(system.dtype_policies)))  # noqa: S307
            return value

        def call() -> Any:
            arguments = [own(value) for value in self.arguments]
            return self._function(system)(*arguments, **dict(self.named))

        return outcome(call)

    def _function(self, system: System) -> Callable[..., Any]:
        if self.function in KERAS_3_16 and system is original():
            base = system.dtype_policies.QuantizedDTypePolicy
            return with_ternary(KERAS_3_16[self.function], base)
        if self.function in ("set_dtype_policy", "set_floatx"):
            read = self.function.removeprefix("set_")
            return lambda *arguments: _after(system, self.function, read, *arguments)
        found: Callable[..., Any] = getattr(
            system.config if self.function in _OF_CONFIG else system.dtype_policies, self.function
        )
        return found


def _after(system: System, set_name: str, get_name: str, *arguments: Any) -> Any:
    """Set a global, which returns nothing, and give what it is then."""
    assert getattr(system.config, set_name)(*arguments) is None
    return getattr(system.config, get_name)()


@cache
def with_ternary(name: str, quantized: Any) -> type:
    """Give Keras 3.15 a class that knows the mode "ternary", as those of Keras 3.16 do."""

    class WithTernary(quantized):  # type: ignore[misc]
        def _check_quantization_mode(self, mode: Any, compute_dtype: str) -> None:
            if mode != "ternary":
                raise ValueError(mode)

    WithTernary.__name__ = name
    return WithTernary


Rule = Callable[[Call, State], "Call | type[Exception] | None"]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Add a divergence; its name is the function's, and its description the docstring."""
    RULES[function.__name__] = function
    return function


def _is_text(value: Any, text: str) -> bool:
    return isinstance(value, str) and value == text


def _halves(call: Call) -> tuple[str, str] | None:
    """Split the argument of `get` or `set_dtype_policy` as a quantized name."""
    if call.function in ("get", "set_dtype_policy") and len(call.arguments) == 1:
        name = _first(call)
        if isinstance(name, str) and name.count("_from_") == 1:
            mode, _, source = name.partition("_from_")
            return mode, source
    return None


def _mode(call: Call) -> str | None:
    """Find the mode with numbers in a call that takes one."""
    if call.function in WITH_NUMBERS and isinstance(_first(call), str):
        return _first(call)
    halves = _halves(call)
    return halves[0] if halves and halves[0].startswith(("int4/", "gptq", "awq")) else None


def _with_mode(call: Call, mode: str) -> Call:
    if halves := _halves(call):
        return replace(call, arguments=(f"{mode}_from_{halves[1]}",))
    return replace(call, arguments=(mode, *call.arguments[1:]))


@rule
def dtypes_that_begin_like_a_mode(call: Call, of: State) -> Call | None:
    """`get("int8")` is the dtype: Keras takes whatever begins like a mode for a quantized name."""
    if call.function not in ("get", "set_dtype_policy"):
        return None
    name = _first(call)
    if isinstance(name, str) and name.startswith(MODES) and name in DTYPES:
        return Call("DTypePolicy", (name,))
    return None


@rule
def numbers_are_small_and_plain(call: Call, of: State) -> type[Exception] | None:
    """A number in a mode is one of 64 bits, in ASCII digits; Python's `int` reads others too."""
    numbers = (_mode(call) or "").split("/")[1:]
    is_beyond = any(
        (isinstance(value, int) and value >= 2**63) or not number.strip().isascii()
        for number in numbers
        if (value := _integer(number)) is not None
    )
    return ValueError if is_beyond and call.on(original()).error is None else None


def _integer(number: str) -> int | None:
    try:
        return int(number)
    except ValueError:
        return None


@rule
def numbers_are_canonical(call: Call, of: State) -> Call | None:
    """A number is named as Python writes it, not as the caller wrote it."""
    mode = _mode(call)
    if mode is None:
        return None
    head, *numbers = mode.split("/")
    canonical = "/".join([head, *map(_canonical, numbers)])
    return _with_mode(call, canonical) if canonical != mode else None


def _canonical(number: str) -> str:
    value = _integer(number)
    return number if value is None else str(value)


@rule
def no_block_size_is_minus_one(call: Call, of: State) -> Call | None:
    """`int4/None`, as older versions of Keras wrote it into files, is `int4/-1`, as in 3.16."""
    mode = _mode(call)
    return _with_mode(call, "int4/-1") if mode == "int4/None" else None


@rule
def ternary_names(call: Call, of: State) -> Call | None:
    """The mode "ternary" is known, as in Keras 3.16."""
    halves = _halves(call)
    if halves and halves[0].startswith("ternary"):
        return Call("QuantizedDTypePolicy of 3.16", halves)
    if call.function == "QuantizedDTypePolicy" and _is_text(_first(call), "ternary"):
        return replace(call, function="QuantizedDTypePolicy of 3.16")
    return None


@rule
def the_plain_policy_underneath(call: Call, of: State) -> Call | None:
    """A missing name is that of the plain policy under a quantized or map global policy."""
    if of.name == of.plain and not of.is_map:
        return None
    if call.function in ("DTypePolicy", "FloatDTypePolicy") and _first(call) is None:
        return replace(call, arguments=(of.plain,))
    takes_source = call.function in (*CONSTRUCTORS, *KERAS_3_16)
    if takes_source and call.arguments and _source_is_missing(call):
        return _with_source(call, of.plain)
    return None


@rule
def a_missing_source_is_named(call: Call, of: State) -> Call | None:
    """`Int4DTypePolicy("int4/64")` is not named `int4/64_from_None`."""
    if call.function in WITH_NUMBERS and call.arguments and _source_is_missing(call):
        return _with_source(call, of.plain)
    return None


def _first(call: Call) -> Any:
    return call.arguments[0] if call.arguments else None


def _source_is_missing(call: Call) -> bool:
    return len(call.arguments) < 2 or call.arguments[1] is None


def _with_source(call: Call, source: str) -> Call:
    return replace(call, arguments=(call.arguments[0], source, *call.arguments[2:]))


@rule
def float8_is_the_mode_of_float8(call: Call, of: State) -> type[Exception] | None:
    """`QuantizedFloat8DTypePolicy` refuses the other modes."""
    if call.function != "QuantizedFloat8DTypePolicy" or _is_text(_first(call), "float8"):
        return None
    is_otherwise_right = replace(call, arguments=call.arguments[:2]).on(original()).error is None
    return ValueError if is_otherwise_right else None


@rule
def the_history_of_float8_is_a_length(
    call: Call,
    of: State,
) -> Call | type[Exception] | None:
    """The length of the amax history is at least one, no bool, and may be a numpy integer."""
    if call.function != "QuantizedFloat8DTypePolicy" or len(call.arguments) < 3:
        return None
    length = call.arguments[2]
    if isinstance(length, np.integer):
        return replace(call, arguments=(*call.arguments[:2], int(length)))
    if call.on(original()).error:
        return None
    if isinstance(length, bool):
        return TypeError
    return ValueError if length < 1 else None


@rule
def a_mode_that_is_not_text(call: Call, of: State) -> type[Exception] | None:
    """`Int4DTypePolicy(4)` is a TypeError, not an AttributeError.

    The classes that look their mode up, and so raise ValueError, do so before they read the source.
    """
    if call.function not in CONSTRUCTORS or not call.arguments or isinstance(_first(call), str):
        return None
    return TypeError if call.function in WITH_NUMBERS else ValueError


@rule
def a_source_that_is_not_text(call: Call, of: State) -> type[Exception] | None:
    """A source that is not a str is a TypeError everywhere, and before the mode is read."""
    if call.function not in CONSTRUCTORS or not isinstance(_first(call), str):
        return None
    is_wrong = not _source_is_missing(call) and not isinstance(call.arguments[1], str)
    return TypeError if is_wrong else None


@rule
def texts_are_names(call: Call, of: State) -> Call | type[Exception] | None:
    """A str is a name: it has no attributes, and no dtype behind the last dot of "torch.float32".

    Keras means the dtypes of other libraries, whose `str` that is, but tests any object.
    """
    if call.function == "set_floatx":
        return None
    for place, value in enumerate(call.arguments):
        if isinstance(value, str) and hasattr(value, "name"):
            text = str.__str__(value)
            return replace(
                call, arguments=(*call.arguments[:place], text, *call.arguments[place + 1 :])
            )
    has_word = any(
        isinstance(value, str) and ("torch" in value or "jax.numpy" in value)
        for value in call.arguments
    )
    return ValueError if has_word and call.on(original()).error is None else None


@rule
def sets_do_not_hash(call: Call, of: State) -> type[Exception] | None:
    """A set is a wrong type for floatx; Keras looks it up in a set, where it passes for frozen."""
    is_set = call.function == "set_floatx" and isinstance(_first(call), set)
    return TypeError if is_set else None


@rule
def policies_hash(call: Call, of: State) -> Call | type[Exception] | None:
    """A policy can be hashed, and so is a wrong value, not a wrong type, where Keras hashes it."""
    argument = _first(call)
    if not isinstance(argument, Own) or call.function not in ("set_floatx", "standardize_dtype"):
        return None
    value = eval(argument.expression, dict(vars(original().dtype_policies)))  # noqa: S307
    base = original().dtype_policies.DTypePolicy
    if not isinstance(value, base) or isinstance(value, original().dtype_policies.DTypePolicyMap):
        return None
    return Call(call.function, (Named(value.name),))


def normal_form(call: Call, of: State) -> tuple[Call | type[Exception], list[str]]:
    """Rewrite a call until no rule applies, and name the rules that did."""
    applied: list[str] = []
    form: Call | type[Exception] | None = call
    while isinstance(form, Call):
        call = form
        for name, rewrite in RULES.items():
            form = rewrite(call, of)
            if form is not None:
                applied.append(name)
                break
    return form or call, applied


def expected(call: Call, of: State) -> tuple[Outcome, list[str]]:
    """Tell what castwise must do, from what the real Keras does, and the rules that say so."""
    form, applied = normal_form(call, of)
    return form.on(original()) if isinstance(form, Call) else Outcome(error=form), applied


class Seen(Counter[str]):
    """How often each rule changed an answer."""

    def compare(self, call: Call, of: State) -> None:
        """Make one call on both systems, from the same state."""
        of.enter(original())
        wanted, rules = expected(call, of)
        of.enter(OURS)
        ours = call.on(OURS)
        assert ours == wanted, f"{call} in {of}: castwise {ours!r}, not {wanted!r}"
        if rules:
            of.enter(original())
            if call.on(original()) != wanted:
                self.update(rules)


WITNESSES = {
    "dtypes_that_begin_like_a_mode": (Call("get", ("int8",)), State()),
    "numbers_are_canonical": (Call("get", ("int4/+128_from_float32",)), State()),
    "no_block_size_is_minus_one": (Call("get", ("int4/None_from_float32",)), State()),
    "ternary_names": (Call("get", ("ternary_from_float32",)), State()),
    "the_plain_policy_underneath": (
        Call("QuantizedDTypePolicy", ("int4",)),
        State(policy="int8_from_mixed_bfloat16"),
    ),
    "a_missing_source_is_named": (Call("AWQDTypePolicy", ("awq/4/-1",)), State()),
    "float8_is_the_mode_of_float8": (
        Call("QuantizedFloat8DTypePolicy", ("int4", "float32")),
        State(),
    ),
    "the_history_of_float8_is_a_length": (
        Call("QuantizedFloat8DTypePolicy", ("float8", "float32", 0)),
        State(),
    ),
    "a_mode_that_is_not_text": (Call("Int4DTypePolicy", (4, "float32")), State()),
    "a_source_that_is_not_text": (Call("Int4DTypePolicy", ("abc", 4)), State()),
    "texts_are_names": (Call("get", ("torch.float32",)), State()),
    "numbers_are_small_and_plain": (Call("get", (f"int4/{2**63}_from_float32",)), State()),
    "sets_do_not_hash": (Call("set_floatx", (set(),)), State()),
    "policies_hash": (Call("set_floatx", (Own("DTypePolicy('float16')"),)), State()),
}
