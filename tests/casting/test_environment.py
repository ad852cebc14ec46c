"""The same bits whatever the process is like: FTZ, DAZ, rounding mode, threads, a fork."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
import support
from castwise import checkpoint, quantization
from child_processes import in_a_child, run_program
from float_environment import (
    DENORMALS_ARE_ZERO,
    DOWN,
    ENVIRONMENTS,
    FLUSH_TO_ZERO,
    SUPPORTED,
    UP,
    mxcsr,
)
from oracle import FORMATS, Array, Format
from safetensors.numpy import save_file
from sources import all_codes, random_codes, sources_around
from support import AVAILABLE, REAL, array_of
from system_parts import need

only_x86 = pytest.mark.skipif(
    not SUPPORTED, reason="MXCSR is x86-64's, its place in fenv_t glibc's"
)


def sample(source: Format, target: Format) -> Array:
    if source.bits <= 16:
        return array_of(all_codes(source)[:: support.FEWER], source)
    codes = sources_around(source, target)
    small = np.arange(4096).astype(source.codes)  # subnormals and small integers
    return array_of(
        np.concatenate([codes[:: max(1, codes.size * support.FEWER // 20_000)], small]), source
    )


def everything(x: Array, target: str) -> list[tuple[Array, castwise.CastReport | None]]:
    """Cast in ways that together take each route."""
    outcomes: list[tuple[Array, castwise.CastReport | None]] = [
        (castwise.cast(x, target, **options), None)
        for options in (
            {},
            {"overflow": "saturate", "rounding": "towards-positive"},
            {"rounding": "stochastic", "seed": 5},
            {"scale": 0.37},
            {"scale": 2.0**-1060, "rounding": "nearest-away"},
        )
    ]
    outcomes.append(castwise.cast(x, target, report=True))
    return outcomes


def bits_of(outcomes: list[tuple[Array, castwise.CastReport | None]]) -> list[object]:
    """Give what can be compared later: printing floats depends on the environment."""
    return [
        (array.tobytes(), report and [float(value).hex() for value in report.to_dict().values()])
        for array, report in outcomes
    ]


@only_x86
def test_the_switch_switches() -> None:
    """The switch works: numpy's own arithmetic changes under it, and is the same afterwards."""
    tiny, three = np.array([1e-40], np.float32), np.array([3.0])
    with mxcsr(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO):
        flushed = (tiny * np.float32(1))[0]
    with mxcsr(UP):
        up = 1 / three
    with mxcsr(DOWN):
        down = 1 / three
    assert flushed == 0
    assert (tiny * np.float32(1))[0] > 0
    assert up[0] > down[0]


@pytest.mark.thinned(31)
@only_x86
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("source", REAL, ids=lambda row: row.name)
def test_the_floating_point_environment_changes_nothing(
    source: Format, environment: str, level: str
) -> None:
    for target in AVAILABLE:
        x = sample(source, target)
        before = bits_of(everything(x, target.name))
        with mxcsr(ENVIRONMENTS[environment]):
            during = everything(x, target.name)
        assert bits_of(during) == before, target.name


def quantized_everything(x: Array) -> list[bytes]:
    """Quantize by every scheme and recipe; the bytes of parts, and of the decoded values."""
    outcomes = []
    for row in quantization.schemes():
        for recipe in row.recipes:
            q = quantization.quantize(x, row.name, recipe=recipe)
            parts = (q.data, q.scale, q.global_scale)
            outcomes += [part.tobytes() for part in parts if part is not None]
            outcomes.append(quantization.dequantize(q, np.float32).tobytes())
    return outcomes


@only_x86
@pytest.mark.filterwarnings("ignore:x has scales")
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("magnitude", [1.0, 3e-38, 1e-41])
def test_the_floating_point_environment_changes_no_quantized_array(
    environment: str, magnitude: float
) -> None:
    x = (np.random.default_rng(1).standard_normal((32, 256)) * magnitude).astype(np.float32)
    before = quantized_everything(x)
    with mxcsr(ENVIRONMENTS[environment]):
        during = quantized_everything(x)
    assert during == before


@only_x86
@pytest.mark.parametrize(
    ("scheme", "recipe"), [("nvfp4", "compressed-tensors"), ("fp8_tensor", "modelopt")]
)
@pytest.mark.parametrize("environment", ["FTZ and DAZ", "round up"])
def test_the_floating_point_environment_changes_no_quantized_file(
    tmp_path: Path, scheme: Any, recipe: Any, environment: str
) -> None:
    (tmp_path / "model").mkdir()
    weight = (np.random.default_rng(1).standard_normal((32, 256)) * 1e-42).astype(np.float32)
    save_file({"q_proj.weight": weight}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text("{}")

    def written(name: str) -> bytes:
        checkpoint.quantize_file(tmp_path / "model", tmp_path / name, scheme, recipe=recipe)
        return (tmp_path / name / "model.safetensors").read_bytes()

    before = written("default")
    with mxcsr(ENVIRONMENTS[environment]):
        assert written("other") == before


@only_x86
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_floating_point_environment_changes_no_comparison(environment: str) -> None:
    x = np.random.default_rng(1).standard_normal((32, 256)) * 1e-310
    y = castwise.cast(x, "bfloat16")

    def found() -> tuple[castwise.Comparison, dict[str, object]]:
        return castwise.compare(x, y), castwise.survey(x).to_dict()

    before = found()
    with mxcsr(ENVIRONMENTS[environment]):
        comparison = castwise.compare(x, y)
        survey = castwise.survey(x).to_dict()
    assert (comparison, survey) == before


@only_x86
def test_worker_threads_inherit_nothing_harmful(level: str) -> None:
    x = np.arange(1 << 21, dtype=np.uint32).view(np.float32)  # all subnormal
    for target in ("float64", "float16", "bfloat16", "float8_e5m2", "float8_e8m0fnu"):
        before = castwise.cast(x, target, threads=4).tobytes()
        with mxcsr(ENVIRONMENTS["FTZ and DAZ"]):
            assert castwise.cast(x, target, threads=4).tobytes() == before


@only_x86
def test_an_import_under_ftz_and_daz_builds_the_same_tables() -> None:
    """Tables computed at import or at the first cast are the same under FTZ and DAZ."""
    code = (
        "import sys, numpy as np, ml_dtypes, hashlib\n"
        "from float_environment import *\n"
        "with mxcsr(int(sys.argv[1])):\n"
        "    import castwise\n"
        "    codes = np.arange(65536, dtype=np.uint16)\n"
        "    sources = [codes.view(np.float16), codes.view(ml_dtypes.bfloat16)]\n"
        "    sources += [codes.astype(np.uint8).view(getattr(ml_dtypes, name)) for name in\n"
        "                ('float8_e5m2', 'float8_e4m3fn', 'float8_e8m0fnu', 'float6_e3m2fn')]\n"
        "    names = [name for name in castwise.formats() if castwise.finfo(name).dtype]\n"
        "    results = [castwise.cast(x, name).tobytes() for x in sources for name in names]\n"
        "    fields = ('max', 'min', 'smallest_normal', 'smallest_subnormal', 'eps')\n"
        "    infos = [castwise.finfo(name) for name in names]\n"
        "    floats = [getattr(info, field, None) for info in infos for field in fields]\n"
        "print(hashlib.sha256(b''.join(results)).hexdigest(), floats)\n"
    )
    bits = (0, ENVIRONMENTS["FTZ and DAZ"])
    plain, flushed = (run_program(code, each) for each in bits)
    assert plain.stdout == flushed.stdout
    assert plain.stdout


def test_the_child_of_a_fork_casts_with_threads(level: str) -> None:
    """The parent's threads do not exist in the child: a pool made before would hang it."""
    need("os.fork")
    x = np.random.default_rng(1).normal(size=1 << 21).astype(np.float32)
    want = castwise.cast(x, "float8_e4m3fn", threads=4).tobytes()
    assert in_a_child(lambda: castwise.cast(x, "float8_e4m3fn", threads=4).tobytes()) == want
    grandchild = in_a_child(lambda: in_a_child(lambda: castwise.cast(x, "float8_e4m3fn").tobytes()))
    assert grandchild == want
    assert castwise.cast(x, "float8_e4m3fn", threads=4).tobytes() == want


def test_a_fork_in_the_middle_of_other_casts(level: str) -> None:
    """Other Python threads are inside a cast while the process forks; the child still casts."""
    need("os.fork")
    x = np.random.default_rng(2).normal(size=1 << 20).astype(np.float32)
    want = castwise.cast(x, "bfloat16").tobytes()
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(castwise.cast, x, "float8_e5m2", threads=3) for _ in range(30)]
        for _ in range(3):
            assert in_a_child(lambda: castwise.cast(x, "bfloat16", threads=3).tobytes()) == want
        for other in others:
            other.result()


@pytest.mark.parametrize(
    "source", ["float32", "float64", "float16", "float8_e4m3fn", "int64", "complex64"]
)
def test_thread_counts_change_nothing(source: str, level: str) -> None:
    row = FORMATS[source]
    codes = random_codes(row, 2 * 262_147).reshape(-1, 2)
    x = array_of(codes if row.part else codes[:, 0], row)
    for target in (
        ("complex64", "complex128")
        if row.part
        else ("bfloat16", "float8_e4m3fn", "float64", "int4")
    ):
        want = castwise.cast(x, target, threads=1).tobytes()
        for threads in (2, 3, 7, 64, 1000):
            assert castwise.cast(x, target, threads=threads).tobytes() == want
        before = castwise.get_num_threads()
        try:
            castwise.set_num_threads(5)
            assert castwise.get_num_threads() == 5
            assert castwise.cast(x, target).tobytes() == want
        finally:
            castwise.set_num_threads(before)


def test_many_python_threads_at_once(level: str) -> None:
    """Eight threads over one input, different targets and options, each with workers of its own."""
    x = np.random.default_rng(3).normal(size=300_000).astype(np.float32)
    jobs = [
        (target, {"overflow": overflow, "threads": threads, "report": True})
        for target in ("bfloat16", "float8_e4m3fn", "float16", "int8", "float64")
        for overflow in ("ieee", "saturate")
        for threads in (1, 2, 4)
    ]

    def job(target: str, options: dict[str, object]) -> bytes:
        result, report = castwise.cast(x, target, **options)
        return result.tobytes() + str(report).encode()

    want = [job(*each) for each in jobs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(lambda each: job(*each), jobs)) == want


@pytest.mark.parametrize("name", castwise.cpu_levels())
def test_the_environment_forces_a_level(name: str) -> None:
    code = "import castwise; castwise.cast([1.5] * 9, 'int4'); print(castwise.cpu_level())"
    assert run_program(code, CASTWISE_CPU_LEVEL=name).stdout.split() == [name]


@pytest.mark.parametrize(
    "name", ["sse9", "AVX-1024", "neon" if "neon" not in castwise.cpu_levels() else "avx2"]
)
def test_a_level_this_machine_lacks_is_refused_by_name(name: str) -> None:
    failed = run_program("import castwise", CASTWISE_CPU_LEVEL=name)
    assert failed.returncode == 1
    assert "CASTWISE_CPU_LEVEL" in failed.stderr
    assert name in failed.stderr
    for valid in castwise.cpu_levels():
        assert valid in failed.stderr


def test_the_environment_sets_the_number_of_threads() -> None:
    found = run_program(
        "import castwise; print(castwise.get_num_threads())", CASTWISE_NUM_THREADS="3"
    )
    assert found.stdout.split() == ["3"]
