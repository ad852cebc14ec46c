"""Check that an adapter keeps the promises of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, cast, finfo
from castwise.arrays.adapter_registry import (
    Adapter,
    array_format,
    checked_adapter,
    children_of,
    elements_of,
    method_of,
    rebuilt,
)

# Values of no library with an adapter.
_OTHERS = (None, 1.5, "text", b"bytes", [1.0], {"a": 1.0}, np.ones(2), object())

_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"rounding": "towards-zero"},
    {"overflow": "saturate"},
    {"nan": "zero"},
    {"scale": 2.0},
    {"order": "C"},
    {"threads": 1},
    {"report": True},
)
# What `castwise.cast` raises for options, formats and values that it refuses.
_REFUSALS = (TypeError, ValueError, OverflowError)

Fault = tuple[str, str]  # the name of a method, and the promise that it broke


def check(adapter: Adapter | type[Adapter], sample: object) -> None:
    """Check every promise of the protocol on an array or a container of a library.

    Parameters
    ----------
    adapter : castwise.adapters.protocol.Adapter, or class derived from it
        It need not be registered.
    sample : array or container
        One that `is_array` accepts, best with values that a cast to float16 rounds; or one that
        `children` takes apart, of which all arrays and containers are checked. It is not changed.

    Raises
    ------
    TypeError
        Promises are broken: the message has a line for each, with the method that broke it.

    Examples
    --------
    >>> from castwise import adapters
    >>> from castwise.adapters.protocol import Adapter
    >>> class Quantity:
    ...     def __init__(self, values):
    ...         self.values = values
    >>> class QuantityAdapter(Adapter):
    ...     def is_array(self, value):
    ...         return isinstance(value, Quantity)
    ...     def dtype_of(self, array):
    ...         return array.values.dtype
    ...     def to_host(self, array):
    ...         return array.values
    ...     def from_host(self, array, like):
    ...         return Quantity(array)
    >>> adapters.check(QuantityAdapter, Quantity(np.linspace(-1, 1, 7)))

    """
    instance = checked_adapter(adapter, f"adapter={adapter!r}")
    faults = dict.fromkeys(_faults(instance, sample))
    if faults:
        lines = [f"{method_of(instance, method)} {promise}" for method, promise in faults]
        raise TypeError("\n".join(lines))


def _faults(adapter: Adapter, sample: Any) -> Iterator[Fault]:
    for value in _OTHERS:
        yield from _trial("is_array", partial(_is_other, adapter, value))
    try:
        answer = adapter.is_array(sample)
    except Exception as error:  # of the adapter that is checked
        yield "is_array", f"raised {type(error).__name__}: {error}"
        return
    if not isinstance(answer, bool):
        yield "is_array", f"returned {answer!r} for the sample; return True or False."
    if answer:
        name = None

        def find_format() -> None:
            nonlocal name
            name = array_format(adapter, sample)

        yield from _trial("dtype_of", find_format)
        yield from _trial("is_floating", lambda: _floating_faults(adapter, sample))
        if name is None:  # an array that is never read, as of text
            return
        yield from _trial("to_host", lambda: elements_of(adapter, sample))
        yield from _trial("format_of", lambda: _format_faults(adapter, sample))
        faults = [*_trial("from_host", lambda: _array_faults(adapter, sample))]
        yield from faults or _trial("cast", lambda: _cast_faults(adapter, sample))
        return
    for value in _OTHERS:
        yield from _trial("children", partial(_other_children_faults, adapter, value))
    try:
        children = children_of(adapter, sample)
    except Exception:  # of the adapter that is checked
        yield from _trial("children", lambda: children_of(adapter, sample))
        return
    if children is not None:
        yield from _trial("rebuild", lambda: _container_faults(adapter, sample, children or []))
        for _, child in children:
            if adapter.is_array(child) or adapter.children(child) is not None:
                yield from _faults(adapter, child)
    else:
        hint = "give an array or a container of the library."
        promise = f"returned {answer!r} for the sample, and children no pairs either; {hint}"
        yield "is_array", promise


def _trial(method: str, promise: Callable[[], Any]) -> Iterator[Fault]:
    """Yield the faults that a promise finds, and what is raised instead."""
    try:
        faults = promise()
        yield from faults if isinstance(faults, list) else ()
    except Exception as error:  # of the adapter that is checked
        text = str(error)
        methods = [name for name in vars(Adapter) if f".{name} returned " in text]
        if methods:
            yield methods[0], text[text.index(" returned ") + 1 :]
        else:
            yield method, f"raised {type(error).__name__}: {text}"


def _is_other(adapter: Adapter, value: object) -> list[Fault]:
    answer = adapter.is_array(value)
    kind = type(value).__name__
    wrong = [("is_array", f"returned {answer!r} for a {kind}; return False.")]
    return [] if answer is False or answer is None else wrong


def _other_children_faults(adapter: Adapter, value: object) -> list[Fault]:
    if children_of(adapter, value) is None:
        return []
    kind = type(value).__name__
    return [("children", f"returned children of a {kind}; return None for what is no container.")]


def _floating_faults(adapter: Adapter, sample: object) -> list[Fault]:
    name, answer = array_format(adapter, sample), adapter.is_floating(sample)
    expectation = name is not None and finfo(name).kind == "float"
    if answer is expectation:
        return []
    return [("is_floating", f"returned {answer!r} for an array of {name}; return {expectation}.")]


def _format_faults(adapter: Adapter, sample: object) -> list[Fault]:
    faults = []
    if (answer := adapter.format_of(object())) is not None:
        faults.append(("format_of", f"returned {answer!r} for an object; return None."))
    name, dtype = array_format(adapter, sample), getattr(sample, "dtype", None)
    answer = adapter.format_of(dtype)
    if answer is not None and (not isinstance(answer, str) or finfo(answer).name != name):
        promise = f"returned {answer!r} for the dtype {dtype!r} of an array of {name}; return that."
        faults.append(("format_of", promise))
    return faults


def _array_faults(adapter: Adapter, sample: Any) -> list[Fault]:
    faults: list[Fault] = []
    name, host = str(array_format(adapter, sample)), elements_of(adapter, sample)
    before = host.copy()
    if finfo(name).dtype != host.dtype:
        faults.append(("dtype_of", f"says {name}, but to_host returned an array of {host.dtype}."))
        return faults
    shape = getattr(sample, "shape", host.shape)
    if tuple(shape) != host.shape:
        faults.append(("to_host", f"returned shape {host.shape} for an array of shape {shape}."))
    if not _is_same(elements_of(adapter, sample), host):
        faults.append(("to_host", "returned other elements the second time."))
    reversed_elements = np.array(np.flip(host))
    returned_array = adapter.from_host(np.array(reversed_elements), sample)
    faults += _result_faults(adapter, "from_host", returned_array, reversed_elements)
    if not faults and not _is_same(elements_of(adapter, sample), before):
        faults.append(("from_host", "changed the array that it was to be like."))
    return faults


def _cast_faults(adapter: Adapter, sample: object) -> list[Fault]:
    faults: list[Fault] = []
    name, host = str(array_format(adapter, sample)), elements_of(adapter, sample)
    before = host.copy()
    is_complex = finfo(name).kind == "complex"
    targets = ("complex64", "complex128") if is_complex else ("float16", "float32")
    casts = 0
    for target in targets:
        for options in _OPTIONS:
            arguments = ", ".join(
                [repr(target), *(f"{key}={word!r}" for key, word in options.items())]
            )
            try:
                result = adapter.cast(sample, target, **options)
            except _REFUSALS:  # a class refuses what it cannot obey
                continue
            casts += 1
            if options.get("report"):
                if not (isinstance(result, tuple) and isinstance(result[-1], CastReport)):
                    promise = f"(array, {arguments}) returned no pair of an array and a CastReport."
                    faults.append(("cast", promise))
                    continue
                result = result[0]
            expectation = cast(host, target, **{**options, "report": False})
            faults += [
                (method, f"(array, {arguments}) {promise}")
                for method, promise in _result_faults(adapter, "cast", result, expectation)
            ]
    if not casts:
        faults.append(("cast", f"refused {', '.join(targets)}, whatever the options."))
    for wrong in ({"rounding": "no such"}, {"overflow": "no such"}, {"no_such": 1}):
        faults += _check_cast(adapter, sample, targets[0], wrong)
    faults += _check_cast(adapter, sample, None, {})
    same_array = adapter.cast(sample, name, copy=False)
    if same_array is not sample and not isinstance(same_array, np.ndarray):
        promise = f"(array, {name!r}, copy=False) returned another array; return the array itself."
        faults.append(("cast", promise))
    if not faults and not _is_same(elements_of(adapter, sample), before):
        faults.append(("cast", "changed the array that it was given."))
    return faults


def _check_cast(
    adapter: Adapter, sample: object, target: str | None, wrong: dict[str, Any]
) -> list[Fault]:
    """Return a fault if a cast takes a wrong option, or no dtype."""
    try:
        adapter.cast(sample, target, **wrong)
    except _REFUSALS:
        return []
    option = ", ".join(f"{key}={word!r}" for key, word in wrong.items()) or "dtype=None"
    return [("cast", f"ignores {option}; refuse options that are not obeyed, or pass them on.")]


def _result_faults(
    adapter: Adapter, method: str, result: object, expectation: NDArray[Any]
) -> list[Fault]:
    """Return what is wrong with an array that a method returned."""
    if not (isinstance(result, np.ndarray) or adapter.is_array(result)):
        kind = type(result).__name__
        return [(method, f"returned a {kind}; return an array of the library.")]
    elements: NDArray[Any] = (
        result if isinstance(result, np.ndarray) else elements_of(adapter, result)
    )
    if elements.dtype != expectation.dtype:
        return [(method, f"returned an array of {elements.dtype}, not of {expectation.dtype}.")]
    if elements.shape != expectation.shape:
        return [(method, f"returned an array of shape {elements.shape}, not {expectation.shape}.")]
    return [] if _is_same(elements, expectation) else [(method, "returned other elements.")]


def _container_faults(
    adapter: Adapter, node: object, children: list[tuple[Any, Any]]
) -> list[Fault]:
    faults: list[Fault] = []
    keys = [key for key, _ in children]
    if len(set(map(str, keys))) < len(keys):
        faults.append(("children", f"returned a key twice, among {keys}."))
    new_children = [(key, object()) for key in keys]
    for name, pairs in (("the same children", children), ("new ones", new_children)):
        copy = rebuilt(adapter, node, pairs)
        if type(copy) is not type(node):
            kind = type(copy).__name__
            faults.append(("rebuild", f"returned a {kind} for a {type(node).__name__}."))
            return faults
        if copy is node and pairs is new_children:
            faults.append(("rebuild", "returned the container itself; return a new one."))
        elif not _are_same(children_of(adapter, copy), pairs):
            faults.append(("rebuild", f"returned a container with other children, given {name}."))
    if not _are_same(children_of(adapter, node), children):
        faults.append(("rebuild", "changed the container that it was given."))
    return faults


def _are_same(pairs: list[tuple[Any, Any]] | None, expectation: list[tuple[Any, Any]]) -> bool:
    return pairs is not None and [(key, id(child)) for key, child in pairs] == [
        (key, id(child)) for key, child in expectation
    ]


def _is_same(elements: NDArray[Any], expectation: NDArray[Any]) -> bool:
    """Tell whether two arrays have equal elements; a NaN equals every NaN."""
    if elements.dtype != expectation.dtype or elements.shape != expectation.shape:
        return False
    if elements.tobytes() == expectation.tobytes():
        return True
    both_nan = (elements != elements) & (expectation != expectation)  # noqa: PLR0124
    return bool(((elements == expectation) | both_nan).all())
