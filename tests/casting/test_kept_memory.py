"""Memory of large results is used again, which only the time of a cast shows."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import castwise
import numpy as np
import pytest
from child_processes import in_a_child
from numpy._core.multiarray import get_handler_name
from processes import run_python
from system_parts import need

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="numpy allocates as ever")

COUNT = 5 << 20


def numbers(count: int = COUNT) -> np.ndarray[Any, np.dtype[Any]]:
    return np.arange(count, dtype=np.float32)


def halves(x: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Give a result of a size that no other test uses."""
    got: np.ndarray[Any, np.dtype[Any]] = castwise.cast(x, "float16", overflow="saturate")
    return got


def test_the_next_result_has_the_memory_of_one_that_is_gone() -> None:
    x = numbers()
    first = halves(x)
    want = first.copy()
    place = first.ctypes.data
    assert get_handler_name(first) == "castwise"
    del first
    second = halves(x)
    assert second.ctypes.data == place
    assert second.tobytes() == want.tobytes()
    assert place % 64 == 0


def test_results_behave_as_arrays_of_numpy() -> None:
    got = halves(numbers())
    assert type(got) is np.ndarray
    assert got.base is None
    assert got.flags.owndata
    assert got.flags.writeable
    start = got[:100].copy()
    assert pickle.loads(pickle.dumps(got)).tobytes() == got.tobytes()  # noqa: S301 - our own
    got.resize(COUNT + 1000, refcheck=False)
    assert got[:100].tobytes() == start.tobytes()
    assert not got[COUNT:].any()
    got.resize(100, refcheck=False)
    assert got.tobytes() == start.tobytes()
    got.resize(0, refcheck=False)
    assert got.size == 0


def test_arrays_that_live_at_the_same_time_share_nothing() -> None:
    sources = [numbers() + i for i in range(3)]
    wants = [halves(x).tobytes() for x in sources]
    for _ in range(2):
        alive = [halves(x) for x in sources for _ in range(2)]
        assert len({array.ctypes.data for array in alive}) == len(alive)
        assert [array.tobytes() for array in alive] == [want for want in wants for _ in range(2)]


def test_threads() -> None:
    sources = [numbers() + i for i in range(4)]
    wants = [halves(x).tobytes() for x in sources]

    def work(i: int) -> bool:
        return halves(sources[i % 4]).tobytes() == wants[i % 4]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(32)))


def test_small_results_and_other_arrays_are_numpys() -> None:
    assert get_handler_name(castwise.cast(numbers(1000), "float16")) == "default_allocator"
    halves(numbers())
    assert get_handler_name(np.empty(COUNT)) == "default_allocator"


def test_a_handler_of_the_users_stays_in_force() -> None:
    """A handler that others have set is asked, whatever its name."""
    capsule = ctypes.pythonapi
    capsule.PyCapsule_GetPointer.restype = ctypes.c_void_p
    capsule.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule.PyCapsule_New.restype = ctypes.py_object
    capsule.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    at = capsule.PyCapsule_GetPointer(np._core.multiarray._ARRAY_API, None)
    table = ctypes.cast(at, ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[304])
    get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(table[305])
    before = get_handler()
    size = 128 + 5 * ctypes.sizeof(ctypes.c_void_p)
    handler = ctypes.create_string_buffer(
        ctypes.string_at(capsule.PyCapsule_GetPointer(before, b"mem_handler"), size), size
    )
    handler[:5] = b"user\0"
    set_handler(capsule.PyCapsule_New(ctypes.addressof(handler), b"mem_handler", None))
    try:
        got = halves(numbers())
        assert get_handler_name(got) == "user"
        del got
    finally:
        set_handler(before)
    assert get_handler_name(halves(numbers())) == "castwise"


def test_tracemalloc_counts_arrays_and_not_what_waits() -> None:
    x = numbers()
    tracemalloc.start()
    try:
        empty = tracemalloc.get_traced_memory()[0]
        got = halves(x)
        assert tracemalloc.get_traced_memory()[0] - empty >= got.nbytes
        del got
        assert tracemalloc.get_traced_memory()[0] - empty < COUNT
    finally:
        tracemalloc.stop()


def test_a_child_of_a_fork_and_its_parent_do_not_meet() -> None:
    need("os.fork")
    x = numbers()
    alive = halves(x)
    want = alive.tobytes()
    place = halves(x).ctypes.data

    def overwrite() -> bytes:
        right = alive.tobytes() == want
        for _ in range(3):
            new = halves(x)
            right = right and new.tobytes() == want and new.ctypes.data == place
            new[:] = 7
            del new
        return b"right" if right else b"wrong"

    assert in_a_child(overwrite) == b"right"
    for _ in range(3):
        new = halves(x)
        assert new.ctypes.data == place
        assert new.tobytes() == want
        del new
    assert alive.tobytes() == want


def under(limit: str, program: str, forked: bool = True) -> subprocess.CompletedProcess[str]:
    start = (
        "import castwise, numpy as np\n"
        "from numpy._core.multiarray import get_handler_name as name\n"
        f"x = np.ones({COUNT}, np.float32)\n"
    )
    environment = os.environ | {"CASTWISE_KEPT_MEMORY": limit}
    return run_python("-c", start + program, env=environment, forked=forked)


@pytest.mark.parametrize(
    ("limit", "handler"), [("", "castwise"), ("10", "castwise"), ("9", "default_allocator")]
)
def test_the_environment_says_how_much_may_wait(limit: str, handler: str) -> None:
    """Arrays larger than that are numpy's; one that is alive at Python's end does no harm."""
    program = "y = castwise.cast(x, 'float16'); print(name(y))"
    done = under(limit, program, forked=bool(limit))
    assert (done.returncode, done.stdout.strip()) == (0, handler), done.stderr


def test_what_waits_is_bounded() -> None:
    """Of many freed arrays, no more stays mapped than the limit."""
    program = """if True:
    def mapped():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * 4 // 1024
    castwise.cast(x, 'float16', threads=1)
    empty = mapped()
    many = [castwise.cast(x, 'float16', threads=1) for _ in range(10)]
    full = mapped()
    del many
    print(full - empty > 80, mapped() - empty <= 25)
    """
    assert under("32", program).stdout.split() == ["True", "True"]


def test_a_wrong_limit_is_ignored_with_a_warning() -> None:
    done = under("many", "print(name(castwise.cast(x, 'float16')))")
    assert (done.returncode, done.stdout) == (0, "castwise\n")
    assert 'CASTWISE_KEPT_MEMORY="many" is not valid; use a whole number of MiB' in done.stderr


def test_what_waits_makes_room_for_what_finds_none() -> None:
    """Address space is bounded, so that the system takes none of the pages that wait."""
    program = """if True:
    import resource
    def mapped():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * 4096
    castwise.cast(x, 'float16', threads=1)
    castwise.set_kept_memory(256)
    room = 300 << 20
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + room,) * 2)
    for bytes in (200 << 20, 280 << 20):  # One that could wait itself, and one that is numpy's.
        one = np.float32(1)
        large = np.broadcast_to(one, 15 << 20)
        many = [castwise.cast(large, 'float32', threads=1) for _ in range(4)]
        del many
        y = castwise.cast(np.broadcast_to(one, bytes // 8), 'float64', threads=1)
        print(y[-1])
        del y
    """
    done = under("64", program)
    assert done.stdout.split() == ["1.0", "1.0"], done.stderr


def test_the_limit_changes_at_run_time() -> None:
    program = """if True:
    castwise.set_kept_memory(0)
    print(name(castwise.cast(x, 'float16')))
    castwise.set_kept_memory(64)
    print(name(castwise.cast(x, 'float16')))
    for wrong in (-1, 'many', 1 << 70):
        try:
            castwise.set_kept_memory(wrong)
        except ValueError as error:
            print(error)
    """
    done = under("", program)
    first, second, *errors = done.stdout.splitlines()
    assert (first, second) == ("default_allocator", "castwise"), done.stderr
    assert errors[0] == "mebibytes=-1 is not valid; use an int of 0 or more."
    assert len(errors) == 3
