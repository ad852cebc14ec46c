"""Read the pickles of torch files without running them.

A pickle is a program. This machine knows the instructions that build plain values (protocols 2 to
5), and of all functions a pickle can name those by which torch describes a dense tensor; anything
else is refused by its name. Nothing is imported, and no function of a file is called.

What can be claimed is bounded: a pickle has at most 64 MiB and 16 million instructions, and a text
or number no more bytes than are left.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from castwise.checkpoint._errors import CheckpointError, damage
from castwise.checkpoint.containers._torch_values import (
    GLOBALS,
    REFUSED_AT_ONCE,
    REMEDY,
    Opaque,
    StorageType,
    TorchStorage,
    TorchTensor,
    call_function,
    is_count,
    key_of,
    opaque,
)

# Data stands outside the pickle, which names storages and shapes: some hundred bytes of a tensor.
MAX_PICKLE_BYTES = 1 << 26
# An instruction of one byte can make an object of a hundred.
_MAX_INSTRUCTIONS = 1 << 24
_NOTHING = object()
_MAX_NAME = 200  # bytes of a module, a function or the key of a storage


class TorchPickle:
    """Reads one pickle from a file, from its place on, up to its end and not beyond."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._bytes_left = min(size, MAX_PICKLE_BYTES)
        self._stack: list[Any] = []
        self._outer_stacks: list[list[Any]] = []  # the stacks under each mark
        self._memo: list[Any] = []  # a dict takes ten times the memory
        # The storages of all tensors, by key, as far as the pickle has been read.
        self.storages: dict[str, TorchStorage] = {}

    def value(self) -> object:
        values, instructions = _VALUES, _INSTRUCTIONS
        try:
            for _ in range(_MAX_INSTRUCTIONS):
                code = self._take(1)
                if code == b".":
                    return self._stack.pop()
                if (read := values.get(code)) is not None:
                    value = read(self)  # first, as it may take what stands above a mark
                    self._stack.append(value)
                elif (instruction := instructions.get(code)) is not None:
                    instruction(self)
                else:
                    raise damage(
                        f"the pickle has the instruction {code!r}, which torch never writes"
                    )
        except (IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
            raise damage("the pickle is damaged") from error
        except (AttributeError, TypeError) as error:  # a list, a text or a mapping was wanted
            raise damage("the pickle is damaged: an instruction has no operand") from error
        raise damage(f"the pickle has more than {_MAX_INSTRUCTIONS:,} instructions")

    def _take(self, size: int) -> bytes:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise damage(f"the pickle is truncated, or has more than {MAX_PICKLE_BYTES:,} bytes")
        piece = self._file.read(size)
        if len(piece) < size:
            raise damage("the pickle is truncated")
        return piece

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _text(self, size: int) -> str:
        """Read a text after its length, which has so many bytes."""
        return self._take(self._number(size)).decode("utf-8", "surrogatepass")

    def _line(self) -> str:
        line = self._file.readline(_MAX_NAME)
        self._bytes_left -= len(line)
        if self._bytes_left < 0 or not line.endswith(b"\n"):
            raise damage("the pickle is damaged: it names a function without an end")
        return line[:-1].decode()

    def _mark(self) -> None:
        self._outer_stacks.append(self._stack)
        self._stack = []

    def _items(self) -> list[Any]:
        """Take what stands above the last mark."""
        items = self._stack
        self._stack = self._outer_stacks.pop()
        return items

    def _tuple(self, size: int) -> None:
        items = self._stack[-size:]
        if len(items) < size:
            raise IndexError
        self._stack[-size:] = [tuple(items)]

    def _append(self) -> None:
        value = self._stack.pop()
        self._list().append(value)

    def _appends(self) -> None:
        items = self._items()
        self._list().extend(items)

    def _list(self) -> list[Any]:
        top = self._stack[-1]
        if not isinstance(top, list):
            raise TypeError
        return top

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_pairs([key, value])

    def _set_pairs(self, items: list[Any]) -> None:
        top = self._stack[-1]
        if not isinstance(top, dict) or len(items) % 2:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            top[key_of(key)] = value

    def _add_items(self) -> None:
        items = self._items()
        if not isinstance(self._stack[-1], Opaque):
            raise TypeError
        opaque("set", items)

    def _put_memo(self, size: int) -> None:
        number = self._number(size)
        if number == 1 and not self._memo:  # where Python 2 begins
            self._memo.append(_NOTHING)
        if number == len(self._memo):
            self._memo.append(self._stack[-1])
        else:
            self._memo[number] = self._stack[-1]

    def _get(self, size: int) -> None:
        value = self._memo[self._number(size)]
        if value is _NOTHING:
            raise IndexError
        self._stack.append(value)

    def _memoize(self) -> None:
        self._memo.append(self._stack[-1])

    def _global(self) -> None:
        self._name(self._line(), self._line())

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise TypeError
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        value = GLOBALS.get(full)
        if value is not None:
            self._stack.append(value)
        elif name in REFUSED_AT_ONCE and module in {"torch._utils", "torch._tensor"}:
            raise CheckpointError(f"it holds {REFUSED_AT_ONCE[name]}")
        else:
            raise CheckpointError(
                f"its pickle needs {full[:_MAX_NAME]!r}, which castwise does not run; {REMEDY}"
            )

    def _reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(call_function(function, arguments))

    def _build(self) -> None:
        """Leave out attributes: state dictionaries have `_metadata`, for torch's own versions."""
        self._stack.pop()
        if not isinstance(self._stack[-1], dict | Opaque | TorchTensor):
            raise TypeError

    def _persistent(self) -> None:
        """Take a storage: `('storage', class, key, device, size)`, and a view in old files."""
        reference = self._stack.pop()
        if (
            not isinstance(reference, tuple)
            or len(reference) not in {5, 6}
            or reference[0] != "storage"
        ):
            raise damage("the pickle refers to something else than a storage")
        _, kind, key, _, size, *view = reference
        is_known = isinstance(kind, StorageType) and isinstance(key, str) and len(key) <= _MAX_NAME
        if not is_known or not is_count(size):
            raise damage("the pickle describes a storage that torch does not have")
        problem = None if view in ([], [None]) else f"in a storage that is a view; {REMEDY}"
        description = TorchStorage(key, kind.dtype, size, problem)
        storage = self.storages.setdefault(key, description)
        if storage != description:
            raise damage(f"storage {key!r} is described in two ways")
        self._stack.append(storage)


_M = TorchPickle
# What the instructions push that read a value or make one, by their codes in the file.
_VALUES: Mapping[bytes, Callable[[TorchPickle], Any]] = {
    b"N": lambda m: None,
    b"\x88": lambda m: True,
    b"\x89": lambda m: False,
    b"K": lambda m: m._number(1),
    b"M": lambda m: m._number(2),
    b"J": lambda m: m._number(4, signed=True),
    b"\x8a": lambda m: m._number(m._number(1), signed=True),
    b"\x8b": lambda m: m._number(m._number(4), signed=True),
    b"G": lambda m: struct.unpack(">d", m._take(8))[0],
    b"X": lambda m: m._text(4),
    b"\x8c": lambda m: m._text(1),
    b"\x8d": lambda m: m._text(8),
    b"U": lambda m: m._take(m._number(1)).decode("latin-1"),  # a `str` of Python 2
    b"B": lambda m: m._take(m._number(4)),
    b"C": lambda m: m._take(m._number(1)),
    b"\x8e": lambda m: m._take(m._number(8)),
    b"\x96": lambda m: m._take(m._number(8)),  # a bytearray
    b"]": lambda m: [],
    b"}": lambda m: {},
    b")": lambda m: (),
    b"\x8f": lambda m: Opaque("set"),
    b"l": _M._items,
    b"t": lambda m: tuple(m._items()),
    b"\x91": lambda m: opaque("frozenset", m._items()),
}
# What all others do.
_INSTRUCTIONS: Mapping[bytes, Callable[[TorchPickle], Any]] = {
    b"\x80": lambda m: m._take(1),  # the protocol
    b"\x95": lambda m: m._take(8),  # the length of a frame
    b"(": _M._mark,
    b"0": lambda m: m._stack.pop(),
    b"1": _M._items,
    b"\x85": lambda m: m._tuple(1),
    b"\x86": lambda m: m._tuple(2),
    b"\x87": lambda m: m._tuple(3),
    b"a": _M._append,
    b"e": _M._appends,
    b"s": _M._set_item,
    b"u": lambda m: m._set_pairs(m._items()),
    b"\x90": _M._add_items,
    b"q": lambda m: m._put_memo(1),
    b"r": lambda m: m._put_memo(4),
    b"h": lambda m: m._get(1),
    b"j": lambda m: m._get(4),
    b"\x94": _M._memoize,
    b"c": _M._global,
    b"\x93": _M._stack_global,
    b"R": _M._reduce,
    b"b": _M._build,
    b"Q": _M._persistent,
}
