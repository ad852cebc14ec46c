"""Fixtures and marks for every test; the matrix of casts that were compared, printed at the end."""

from __future__ import annotations

import gc
import importlib
import os
import re
import shutil
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import date
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import peers
import pytest
import refusals
import support
from _pytest.runner import runtestprotocol
from fresh_states import keras_state, tf24_state, tf_keras_state  # noqa: F401 - fixtures
from hub import hub  # noqa: F401 - a fixture
from hypothesis import settings
from object_store import store  # noqa: F401 - a fixture
from process_state import changes, end_command_line, environment_kept, process_state, undo_imports
from recorded import SESSION, TESTS, Records, read, write
from sharded_folder import sharded_folder  # noqa: F401 - a fixture
from support import at_level

settings.register_profile("exhaustive", deadline=None, derandomize=True, max_examples=200)
settings.register_profile(
    "default",
    parent=settings.get_profile("exhaustive"),
    max_examples=20,
    stateful_step_count=15,
)
settings.load_profile("exhaustive")

# torch imports triton if it is installed, whose LLVM crashes a process that has TensorFlow's.
sys.modules.setdefault("triton", None)  # type: ignore[arg-type]

# The processes of tests compute little: OpenBLAS' threads would wait for work in a loop.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# xdist sets the width of its terminal, which tables obey; readline does too, behind `os.environ`.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# By default tests write their files there, where creating and syncing them costs next to nothing.
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - in it pytest makes a folder for this user alone

FRAMEWORKS = {
    "distributed",
    "moto",
    "h5py",
    "keras",
    "tf_keras",
    "tensorflow",
    "jax",
    "flax",
    "jmp",
    "torch",
    "peers",
}
BY_HAND = {TESTS / "quantization" / "peers", TESTS / "exams" / "by_hand"}
"""Tests beside libraries of gigabytes, or to be compiled: those of `.ci/peers` and `.ci/exams`."""
RECORDED: dict[Path, dict[str, list[str]]] = {}
REFUSED: dict[str, list[str]] = {}
PASSED = pytest.StashKey[bool]()
STATE = pytest.StashKey[dict[str, object]]()
FROZEN_MODULES = [0]
MATRIX = pytest.StashKey[Counter[tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write tests/recorded anew")
    parser.addoption(
        "--every",
        type=int,
        default=1,
        help="of each sweep, and each test beside no framework, run one case in so many",
    )
    parser.addoption(
        "--except",
        type=Path,
        dest="names_left_out",
        help="a file of names of tests, as `--collect-only -q` prints them: leave them out",
    )
    parser.addoption(
        "--architectures",
        type=int,
        default=10,
        help="of all models that transformers builds, load one in so many; 1 loads all",
    )
    parser.addoption(
        "--draw",
        type=int,
        default=date.today().toordinal(),
        help="the number that draws these models: by default that of the day",
    )


def pytest_configure(config: pytest.Config) -> None:
    """By default, tests run the best level of this machine, smaller samples and fewer examples.

    A single case that is named runs whatever its marks, unless marks are asked for.
    """
    asked = any(argument.startswith("-m") for argument in config.invocation_params.args)
    if not asked and all(argument.endswith("]") for argument in config.args):
        config.option.markexpr = ""
    chosen = config.getoption("markexpr")
    peers.are_wanted = "not frameworks" not in chosen
    if "not exhaustive" in chosen:
        support.LEVELS, support.FEWER = support.LEVELS[-1:], 5
        settings.load_profile("default")
        if has_room(IN_MEMORY) and config.option.basetemp is None:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


def has_room(folder: Path) -> bool:
    """Tell whether a folder may hold what the tests write at any time, and much more."""
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 << 30


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process of pytest-xdist whole files of tests, which share what they prepare."""
    scheduling = importlib.import_module("xdist.scheduler").WorkStealingScheduling
    return scheduling(config, log) if config.getoption("dist") == "load" else None


@cache
def needs_framework(file: Path) -> bool:
    """Tell whether a file of tests imports a framework, itself or through other files here."""
    names: set[str] = set()
    files = [file]
    for each in files:
        found = imported(each)
        files += [path for name in found for path in python_files()[name] if path not in files]
        names.update(found)
    return bool(names & FRAMEWORKS)


@cache
def imported(file: Path) -> set[str]:
    """Name the top-level modules that a file imports."""
    text = file.read_text("utf-8")
    return set(re.findall(r"^ *(?:import|from) +(\w+)", text, re.MULTILINE))


@cache
def python_files() -> defaultdict[str, list[Path]]:
    """Every Python file of the tests, by the name under which it is imported."""
    files: defaultdict[str, list[Path]] = defaultdict(list)
    for path in TESTS.rglob("*.py"):
        is_in_package = (path.parent / "__init__.py").is_file()
        files[path.parent.name if is_in_package else path.stem].append(path)
    return files


@cache
def adapters(file: Path) -> list[str]:
    """Name the frameworks without which a file of tests cannot even be imported."""
    text = file.read_text("utf-8")
    found = re.findall(
        r"^(?:from|import) castwise\.adapters(?:\.| import )(\w+)", text, re.MULTILINE
    )
    return [name for name in found if name in FRAMEWORKS]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out that would only be deselected, before they import their framework.

    What is run by hand is collected where a path of the command line is in its folder.
    """
    if collection_path in BY_HAND:
        given = [Path(each.partition("::")[0]).absolute() for each in config.args]
        return None if any(path.is_relative_to(collection_path) for path in given) else True
    if peers.are_wanted or collection_path.suffix != ".py" or not needs_framework(collection_path):
        return None
    return bool(adapters(collection_path)) or not Records(collection_path).tests


class Missing(pytest.Module):
    """A file of tests of an adapter whose framework is not installed."""

    def collect(self) -> Iterator[pytest.Item]:
        peers.need(*adapters(self.path))
        return iter(())


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Skip what cannot be imported, in one line for each framework."""
    is_missing = any(find_spec(name) is None for name in adapters(module_path))
    return Missing.from_parent(parent, path=module_path) if is_missing else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Run a test that has records twice: with them, and with the real packages; thin sweeps."""
    given = (mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "level" in metafunc.fixturenames and not any("level" in names for names in given):
        metafunc.parametrize("level", support.LEVELS, indirect=True)
    if needs_framework(path := metafunc.definition.path):
        modes = [pytest.param("live", marks=pytest.mark.frameworks)]
        if metafunc.definition.name in Records(path).functions():
            modes.append("recorded")
        metafunc.parametrize("_answers", modes, indirect=True)
    yield
    thinned = metafunc.definition.get_closest_marker("thinned")
    every, start = (*thinned.args, 0)[:2] if thinned else (1, 0)
    places: Counter[object] = Counter()
    for case in metafunc._calls:
        mode = case.params.get("_answers")
        if (places[mode] - start) % every:
            case.marks.append(pytest.mark.exhaustive.mark)
        places[mode] += 1
    # Of those that would only be deselected, one is made: without any there would be a test
    # without parameters.
    left_out = _left_out(metafunc.config)
    wanted = [case for case in metafunc._calls if left_out.isdisjoint(_names(case.marks))]
    if not left_out.isdisjoint(_names(metafunc.definition.iter_markers())):
        wanted = []
    metafunc._calls[:] = wanted or metafunc._calls[:1]


def _names(marks: Iterable[pytest.Mark]) -> Iterator[str]:
    return (mark.name for mark in marks)


@cache
def _left_out(config: pytest.Config) -> frozenset[str]:
    """Name the marks whose tests are surely deselected."""
    chosen = config.getoption("markexpr")
    alternatives = " or " in chosen
    marks = {"exhaustive", "frameworks"}
    return frozenset(each for each in marks if f"not {each}" in chosen and not alternatives)


def name_and_mode(item: pytest.Item) -> tuple[str, str | None]:
    """Give the name of a test without its mode, which comes first among its parameters."""
    found = re.fullmatch(r"(\w+)\[(live|recorded)(?:-(.*))?\]", item.name, re.DOTALL)
    if found is None or not needs_framework(item.path):
        return item.name, None
    return found[1] + (f"[{found[3]}]" if found[3] else ""), found[2]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests without a record and by `--every`, and mark tests of unittest classes."""
    for item in items.copy():
        name, mode = name_and_mode(item)
        if mode == "recorded" and Records(item.path).of(name) is None:
            items.remove(item)
        elif (mode is None and needs_framework(item.path)) or "framework" in item.fixturenames:
            item.add_marker(pytest.mark.frameworks)
    left_out = set(_cases_between(items, config.getoption("every")))
    if names := config.getoption("names_left_out"):
        tests = frozenset(names.read_text("utf-8").splitlines())
        left_out.update(item for item in items if item.nodeid in tests)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _cases_between(items: Iterable[pytest.Item], every: int) -> list[pytest.Item]:
    """List the cases that `--every` leaves out; a checksum of the name decides.

    So neither the order of cases nor that of CPU levels among them matters.
    """
    functions: set[str] = set()
    left_out = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        is_first = function not in functions
        functions.add(function)
        is_kept = is_first or zlib.crc32(item.nodeid.encode()) % every == 0
        is_of_sweep = item.get_closest_marker("exhaustive") is not None
        if not is_kept and (is_of_sweep or not item.get_closest_marker("frameworks")):
            left_out.append(item)
    return left_out


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what lives to the end: the tests, of which there are many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _in_one_line(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Report skips for a missing framework at one place: pytest sums them up in one line."""
    if (
        report.skipped
        and isinstance(report.longrepr, tuple)
        and "test-frameworks" in report.longrepr[2]
    ):
        report.longrepr = (peers.__file__, peers.need.__code__.co_firstlineno, report.longrepr[2])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    with environment_kept():  # distributed sets OMP_NUM_THREADS
        report = yield
    _in_one_line(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _in_one_line(report)
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    _freeze_modules()
    item.stash[STATE] = process_state()
    return (yield)


def _freeze_modules() -> None:
    """Spare the garbage collector the frameworks that tests imported: a million objects.

    Keras collects garbage whenever a layer loses a variable: 18 times where attention is quantized.
    """
    if len(sys.modules) > FROZEN_MODULES[-1] + 200:
        gc.freeze()
        FROZEN_MODULES.append(len(sys.modules))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that leaves the process in another state, in which others would run."""
    yield
    end_command_line()
    if item.get_closest_marker("frameworks"):
        undo_imports(item.stash[STATE])
    if left := changes(item.stash[STATE]):
        pytest.fail("\n".join(["the process was left in another state:", *left]), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Compare the texts of the errors that a test expects with the record of it."""
    refusals.NOTED.texts = texts = []
    yield
    if (name := refusals.name_of(item)) is None:
        return
    if item.config.getoption("record"):
        REFUSED[name] = texts
    else:
        assert texts == refusals.record().get(name, texts), (
            "reworded; see tests/helpers/refusals.py"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Tell pytest-xdist's main process of a test that passes in one message, not in five."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed or report.duration > 0.005:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def framework() -> Callable[[str], ModuleType]:
    """Import a framework: for one test among others that need none; marks it `frameworks`."""
    return peers.framework


@pytest.fixture(autouse=True)
def _answers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give a test the recorded answers, or compare the answers of the real packages with them."""
    test, mode = name_and_mode(request.node)
    if mode is None:
        yield
        return
    recorded = Records(request.path).of(test)
    SESSION.begin(recorded if mode == "recorded" else None)
    yield
    given, is_recordable = SESSION.given, SESSION.is_recordable
    SESSION.begin()
    if not request.node.stash.get(PASSED, False):
        return
    if mode == "recorded" or not request.config.getoption("record"):
        same = recorded in (None, given)  # read as values only where the texts differ
        same = same or list(map(read, recorded or ())) == list(map(read, given))
        assert same, (
            "the real packages answer otherwise than recorded; see tests/helpers/recorded.py"
        )
    elif is_recordable and not request.node.get_closest_marker("exhaustive"):
        RECORDED.setdefault(request.path, {})[test] = given


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the records of every file that was run; hand the matrix to the main process."""
    for tests, found in RECORDED.items():
        write(tests, found)
    if REFUSED:
        refusals.write(REFUSED)
    if hasattr(session.config, "workeroutput"):
        counts = session.config.stash.get(MATRIX, {})
        session.config.workeroutput["matrix"] = [(*pair, count) for pair, count in counts.items()]


@pytest.fixture
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each CPU level that is tested, in force during the test."""
    with at_level(request.param):
        yield request.param


@pytest.fixture(scope="session")
def matrix(request: pytest.FixtureRequest) -> Counter[tuple[str, str]]:
    """Count, by (source, target), the results compared with the oracle; printed at the end."""
    return request.config.stash.setdefault(MATRIX, Counter())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the processes of pytest-xdist have compared."""
    counts = node.config.stash.setdefault(MATRIX, Counter())
    for source, target, count in getattr(node, "workeroutput", {}).get("matrix", ()):
        counts[source, target] += count


def _short(name: str) -> str:
    """Abbreviate a heading: `float8_e4m3fn` to `e4m3fn`, `bfloat16` to `bf16`, `uint4` to `u4`."""
    name = name.rpartition("_")[2]
    for word, letter in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(word, letter)
    return name


def _count(number: int) -> str:
    return str(number) if number < 10_000 else f"{number // 1000}k"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what the exams compared, and the matrix of casts."""
    _print_exams(terminalreporter)
    _print_matrix(terminalreporter, config)


def _print_exams(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many results of other libraries were compared, for each file of tests."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for report in terminalreporter.stats.get("passed", ()):
        for name, number in report.user_properties:
            counts[report.nodeid.partition("::")[0]][name] += number
    if counts:
        terminalreporter.section("exams: results compared, and differences that are explained")
    for path, numbers in sorted(counts.items()):
        terminalreporter.write_line(f"{path}: {numbers['cases']:,}, {numbers['differences']:,}")


def _print_matrix(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the matrix, a row per source, in two halves that fit a log."""
    counts = config.stash.get(MATRIX, None)
    if not counts:
        return
    sources = list(dict.fromkeys(source for source, _ in counts))
    targets = list(dict.fromkeys(target for _, target in counts))
    terminalreporter.section(
        f"casts compared with the oracle: {sum(counts.values()):,}, on {', '.join(support.LEVELS)}"
    )
    half = (len(targets) + 1) // 2
    for columns in (targets[:half], targets[half:]):
        rows = [["from \\ to", *map(_short, columns)]]
        rows += [
            [_short(source), *(_count(counts[source, target]) for target in columns)]
            for source in sources
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for head, *cells in rows:
            line = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            terminalreporter.write_line("  ".join([head.ljust(widths[0]), *line]))
        terminalreporter.write_line("")
