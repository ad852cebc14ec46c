"""The number of threads: from the environment, and shared by calls at the same time."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import castwise
import numpy as np
import pytest
from castwise import _core
from child_processes import in_a_child
from processes import run_python
from system_parts import need

CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_under(**variables: str) -> int:
    program = "import castwise; print(castwise.get_num_threads())"
    kept = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    return int(run_python("-c", program, env=kept | variables).stdout)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({}, CPUS),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "1,2"}, 1),
        ({"OMP_NUM_THREADS": "1000"}, CPUS),
        ({"OMP_NUM_THREADS": "many"}, CPUS),
        ({"OMP_NUM_THREADS": "0"}, CPUS),
        ({"OMP_NUM_THREADS": "1", "CASTWISE_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "1", "CASTWISE_NUM_THREADS": "abc"}, 1),
    ],
)
def test_the_environment_says_how_many(variables: dict[str, str], threads: int) -> None:
    assert threads_under(**variables) == threads


def test_casts_from_many_threads_give_what_one_gives() -> None:
    x = np.random.default_rng(2).standard_normal(3 << 20).astype(np.float32)
    want = castwise.cast(x, "float16", threads=1).tobytes()
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: castwise.cast(x, "float16", threads=4), range(16)):
            assert got.tobytes() == want


def test_a_thread_may_have_a_small_stack() -> None:
    """With musl, 128 KiB is what threads have."""
    program = """if True:
        import threading
        import castwise
        import numpy as np
        from castwise.quantization import dequantize, quantize

        x = np.ones((64, 2048), np.float32)

        def work():
            for report in (False, True):
                castwise.cast(x, "float8_e4m3fn", report=report)
                castwise.cast(x.view(np.uint8), "float16", report=report)
                castwise.cast(x[:, ::3].T, "int8", rounding="stochastic", report=report)
            castwise.cast(x.astype(">f4"), "float16", overflow="raise")
            castwise.loss_scale.unscale([x, x[::2]], 2.0, norm=True)
            castwise.survey(x)
            castwise.loss_scale.DelayedScaling(2).quantize(x)
            for scheme in ("fp8_block", "nvfp4", "int4_group", "bnb_nf4"):
                dequantize(quantize(x, scheme))

        castwise.set_num_threads(1)
        threading.stack_size(1 << 17)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print("done")
    """
    run = run_python("-c", program)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr[-2000:]


def test_a_child_of_a_fork_has_its_threads_to_itself() -> None:
    """While the parent's threads are casting, its children cast too, and end."""
    need("os.fork")
    x = np.random.default_rng(2).standard_normal(3 << 20).astype(np.float32)
    want = castwise.cast(x, "float16", threads=1).tobytes()
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(castwise.cast, x, "float16", threads=2) for _ in range(8)]
        assert in_a_child(lambda: castwise.cast(x, "float16", threads=2).tobytes()) == want
        assert all(cast.result().tobytes() == want for cast in running)


THREADS_AT_EXIT = """if True:
    import gc
    import threading
    import time

    import castwise
    import numpy as np
    from castwise import _core
    from castwise.adapters import registry
    from castwise.adapters.protocol import Adapter

    x = np.ones(8, np.float32)
    numbers = np.zeros((1 << 20) + 4, np.float32)

    class Host:
        def __init__(self, turns):
            self.turns = turns

        def __array__(self, dtype=None, copy=None):
            while self.turns < 0:
                pass
            for _ in range(self.turns):
                time.perf_counter()
            return x

        def __float__(self):
            return float(self.__array__()[0])

        def __repr__(self):
            return str(self.__array__())

        def __del__(self):
            self.__array__()

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            for _ in range(1000):
                time.perf_counter()

    class Device:
        pass

    class DeviceAdapter(Adapter):
        def is_array(self, value):
            return True

        def dtype_of(self, array):
            return "float32"

        def to_host(self, array):
            return np.asarray(Host(1000))

        def from_host(self, array, like):
            return array

    Device.__module__ = "castwise_tests_device"
    registry.register(Device.__module__, DeviceAdapter())

    def cast(value=x, dtype="float16", **options):
        try:
            castwise.cast(value, dtype, **options)
        except (TypeError, ValueError):
            pass

    def run():
        while True:
            WORK

    for _ in range(4):
        threading.Thread(target=run, daemon=True).start()
    time.sleep(DELAY)
"""


@pytest.mark.parametrize(
    ("work", "delay"),
    [
        ("cast(like='torch')", 0.0),  # the first import of a module, by Rust
        ("cast(like='torch')", 0.05),
        ("cast(Host(1000))", 0.05),
        ("cast(Host(-1))", 0.05),
        ("cast(Device())", 0.05),
        ("cast(scale=Host(1000))", 0.05),
        ("cast(overflow=Host(1000))", 0.05),
        ("cast([Host(1000)])", 0.05),
        ("cast(numbers[:-4], None, out=numbers[4:])", 0.05),
        ("gc.set_threshold(2); Cycle(); Cycle(); Cycle(); _core.PolicyMap()", 0.05),
        ("gc.set_threshold(1); Cycle(); cast(copy=np.bool_(1))", 0.05),  # whose `__bool__` is bound
    ],
)
def test_the_interpreter_ends_while_threads_run_python_in_calls(work: str, delay: float) -> None:
    """Before 3.14, Python ends threads that wait for its lock, below a call of castwise too."""
    program = THREADS_AT_EXIT.replace("WORK", work).replace("DELAY", str(delay))
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(run_python, "-X", "faulthandler", "-c", program, forked=False)
            for _ in range(3)
        ]
    assert {(end.result().returncode, end.result().stderr) for end in ends} == {(0, "")}


CALLS = Path(__file__).parents[1] / "rust" / "extension" / "src" / "endless_wait"
HARMLESS = {
    "they run no Python code, whatever the object is": """
        PyBuffer_IsContiguous PyByteArray_AsString PyByteArray_Size PyBytes_AsString PyBytes_Size
        PyCFunction_GetFlags PyCFunction_GetFunction PyCFunction_GetSelf PyCallable_Check
        PyCapsule_GetContext PyCapsule_GetName PyCapsule_GetPointer PyDict_Next PyDict_Size
        PyErr_ExceptionMatches PyErr_Fetch PyErr_GivenExceptionMatches PyErr_Occurred
        PyException_GetCause PyException_GetTraceback PyList_GetItem PyList_Size
        PyLong_AsUnsignedLongLong PyModuleDef_Init PyModule_GetNameObject PyObject_GC_UnTrack
        PySequence_Check PyTuple_GetItem PyTuple_Size PyType_GetFlags PyType_IsSubtype
        PyUnicode_AsUTF8AndSize Py_IsInitialized Py_NewRef _Py_IncRef
    """,
    "what they make is no container, so that nothing is collected": """
        PyBytes_FromStringAndSize PyCapsule_New PyFloat_FromDouble PyLong_FromLong
        PyLong_FromSsize_t PyLong_FromUnsignedLongLong PyType_GetName PyType_GetQualName
        PyUnicode_FromStringAndSize PyUnicode_InternInPlace
    """,
    "PyO3 calls them for new objects, in which they replace nothing": """
        PyException_SetCause PyException_SetTraceback PyList_SetItem PyTuple_SetItem
    """,
    "PyO3 stands before them itself": """
        PyEval_RestoreThread PyEval_SaveThread PyGILState_Ensure PyGILState_Release
    """,
    "only Python calls them, by the tables of classes": """
        PyObject_GenericGetDict PyObject_GenericSetDict
    """,
}
"""Functions of Python's before which none of `calls.rs` stands, and why."""


def test_a_function_stands_before_each_that_may_run_python_code() -> None:
    need(str(CALLS), "/proc/self/status")
    library = Path(_core.__file__).read_bytes()
    if library[:6] != b"\x7fELF\x02\x01":
        pytest.skip("needs an ELF library of 64 bits, little-endian")
    imported = {
        name
        for name in imported_names(library)
        if re.match("_?Py", name) and not re.search("_Type$|^PyExc_|Struct$|^_Py_Ellipsis", name)
    }
    calls, module = ((CALLS / name).read_text("utf-8") for name in ("calls.rs", "mod.rs"))
    wrapped = {*re.findall(r"fn (\w+)\(", calls), *re.findall(r'"__wrap_(\w+)"', module)}
    harmless = {name for names in HARMLESS.values() for name in names.split()}
    assert imported - wrapped - harmless == set()
    assert wrapped - imported == set(), "nothing calls them"
    assert not wrapped & harmless


def imported_names(library: bytes) -> Iterator[str]:
    """Name what an ELF library of 64 bits takes from others."""
    (start,) = struct.unpack_from("<Q", library, 0x28)
    size, count = struct.unpack_from("<2H", library, 0x3A)
    sections = [
        struct.unpack_from("<2I4Q2I2Q", library, start + size * number) for number in range(count)
    ]
    for _, kind, _, _, offset, nbytes, link, *_ in sections:
        if kind == 11:  # dynamic symbols
            names = sections[link][4]
            for name, _, _, section, _, _ in struct.iter_unpack(
                "<I2BH2Q", library[offset : offset + nbytes]
            ):
                if section == 0:  # defined elsewhere
                    yield library[names + name : library.index(b"\0", names + name)].decode()
