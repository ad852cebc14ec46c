"""Read numpy's tables of legacy cast functions, and its methods of casts, without castwise."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy._core import _multiarray_umath
from support import AVAILABLE

ARRAY_SLOTS = 21
GET_ARRAY_FUNCTIONS = 365
CASTDICT = ARRAY_SLOTS + 12 + 6  # after the casts, twelve functions and two arrays of three

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_table = (ctypes.c_void_p * (GET_ARRAY_FUNCTIONS + 1)).from_address(
    _pointer(_multiarray_umath._ARRAY_API, None)
)
_WORD = ctypes.sizeof(ctypes.c_void_p)
_functions = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(_table[GET_ARRAY_FUNCTIONS])


def _slots(descr: np.dtype) -> dict[int, int]:
    """The addresses of a dtype's cast functions, by the target's number."""
    words = (ctypes.c_void_p * (CASTDICT + 1)).from_address(_functions(descr))
    found = {number: words[number] or 0 for number in range(ARRAY_SLOTS)}
    if words[CASTDICT]:
        capsules = ctypes.cast(words[CASTDICT], ctypes.py_object).value
        found |= {number: _pointer(capsule, None) for number, capsule in capsules.items()}
    return found


def _method(source: np.dtype, target: np.dtype) -> int:
    """The words of a cast's method after its reference count, as one number."""
    bound = _multiarray_umath._get_castingimpl(type(source), type(target))
    if bound is None:
        return 0
    # Two pointers after the header: the classes of dtypes, and the method.
    address = ctypes.c_void_p.from_address(id(bound) + object.__basicsize__ + _WORD).value or 0
    class_at = address + object.__basicsize__ - _WORD
    kind = ctypes.cast(ctypes.c_void_p.from_address(class_at).value or 0, ctypes.py_object).value
    assert kind.__name__ == "_ArrayMethod"
    return int.from_bytes(ctypes.string_at(class_at, kind.__basicsize__ - class_at + address))


def cast_slots() -> dict[tuple[str, str], list[int]]:
    """What is stored of the functions between numpy's and ml_dtypes' formats, by their names."""
    numbers = {row.dtype.num: row.name for row in AVAILABLE}
    for code in np.typecodes["AllInteger"]:  # long, long long: two numbers for one format
        numbers.setdefault(np.dtype(code).num, np.dtype(code).name)
    found: dict[tuple[str, str], list[int]] = {}
    every = [np.dtype(each) for each in (*np.typecodes["All"], *(row.dtype for row in AVAILABLE))]
    descrs = {descr.num: descr for descr in reversed(every)}
    for source, name in numbers.items():
        # by number: dtype() gives one of two that are equal
        descr = descrs[source]
        for target, other in numbers.items():
            if source != target and max(source, target) >= 256:
                slots = [_slots(descr).get(target, 0), _method(descr, descrs[target])]
                found.setdefault((name, other), []).extend(slots)
    return found
