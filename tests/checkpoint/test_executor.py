"""Casting checkpoints by executors: the same bytes and report whoever converts which batch."""

import errno
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from castwise import checkpoint
from castwise.checkpoint.containers.interface import Elements
from castwise.checkpoint.running import _batches, _executors
from castwise.checkpoint.running._batches import TensorRange, cut_ranges
from sharded_folder import OPTIONS, contents, tensors

BATCH_BYTES = 20_000
LIMIT = 300  # seconds, after which a cluster is given up
CLUSTER = Path(__file__).parents[1] / "helpers" / "checkpoint" / "cluster_cast.py"


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_executors, "BATCH_BYTES", BATCH_BYTES)


def processes(count: int) -> ProcessPoolExecutor:
    # Not forked: this process has threads.
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_threads_give_the_same_folder(
    folder: Path, tmp_path: Path, workers: int, options: dict[str, Any]
) -> None:
    alone = checkpoint.cast_file(folder, tmp_path / "alone", **options)
    with ThreadPoolExecutor(workers) as executor:
        summary = checkpoint.cast_file(folder, tmp_path / "new", executor=executor, **options)
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")
    assert summary.rows == alone.rows


def test_processes_give_the_same_file(tmp_path: Path) -> None:
    source = tmp_path / "source.safetensors"
    checkpoint.save(source, tensors(0), metadata={"a": "b"})
    alone = checkpoint.cast_file(source, tmp_path / "alone.safetensors", "float8_e5m2")
    seen: list[checkpoint.Progress] = []
    with processes(2) as executor:
        new = tmp_path / "new.safetensors"
        summary = checkpoint.cast_file(
            source, new, "float8_e5m2", executor=executor, progress=seen.append
        )
    assert new.read_bytes() == (tmp_path / "alone.safetensors").read_bytes()
    assert summary.rows == alone.rows
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert (seen[-1].done, seen[-1].name) == (seen[-1].total, None)
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "alone.safetensors",
        "new.safetensors",
        "source.safetensors",
    ]


def test_other_containers_are_converted_here(tmp_path: Path) -> None:
    source = tmp_path / "source.npz"
    checkpoint.save(source, tensors(0))
    alone = checkpoint.cast_file(source, tmp_path / "alone.safetensors", "bfloat16")
    with ThreadPoolExecutor(2) as executor:
        new = tmp_path / "new.safetensors"
        summary = checkpoint.cast_file(source, new, "bfloat16", executor=executor)
    assert new.read_bytes() == (tmp_path / "alone.safetensors").read_bytes()
    assert summary.rows == alone.rows


class Killing(ProcessPoolExecutor):
    """Kills one of its workers after so many batches."""

    def __init__(self, after: int) -> None:
        super().__init__(2, multiprocessing.get_context("spawn"))
        self._left = after

    def submit(self, *call: Any, **keywords: Any) -> Future[Any]:
        future = super().submit(*call, **keywords)
        self._left -= 1
        if self._left == 0:
            future.result()
            os.kill(next(iter(self._processes)), signal.SIGKILL)
        return future


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_worker_loses_nothing(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    with Killing(2) as executor:
        summary = checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", executor=executor)
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")
    assert summary.rows == alone.rows
    assert "converted in this process, because the executor did not" in caplog.text


def test_workers_of_a_cluster_killed_at_random(
    folder: Path,
    tmp_path: Path,
    framework: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    distributed = framework("distributed")
    alone = checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    monkeypatch.setattr(_executors, "convert_batch", convert_slowly)
    pick = random.Random(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            done = threading.Event()
            killed: list[int] = []

            def kill() -> None:
                while len(killed) < 3 and not done.wait(0.5):
                    nanny = pick.choice(list(cluster.workers.values()))
                    pid = nanny.pid  # None while it is being started again
                    if pid is None:
                        continue
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                summary = checkpoint.cast_file(
                    folder, tmp_path / "new", "bfloat16", executor=client.get_executor(pure=False)
                )
            finally:
                done.set()
                killer.join()
    assert killed
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")
    assert summary.rows == alone.rows


@pytest.mark.parametrize("kind", ["ray", "mpi"])
def test_workers_of_other_clusters(
    folder: Path, tmp_path: Path, framework: Callable[[str], ModuleType], kind: str
) -> None:
    program = [sys.executable, "-m", "mpi4py.futures"] if kind == "mpi" else [sys.executable]
    framework("mpi4py" if kind == "mpi" else kind)
    if kind == "mpi":
        launcher = shutil.which(
            "mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        )
        if launcher is None:
            pytest.skip("mpiexec is not installed: pip install '.[test-frameworks]'")
        program = [launcher, "--oversubscribe", "-n", "3", *program]
    alone = checkpoint.cast_file(folder, tmp_path / "alone", **OPTIONS["stochastic"])
    result = subprocess.run(
        [*program, CLUSTER, kind, folder, tmp_path / "new"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert result.returncode == 0, result.stderr
    assert "converted in this process" not in result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == alone.to_dict()["tensors"]
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")


@pytest.mark.parametrize("is_client", [True, False], ids=["closed client", "lost scheduler"])
def test_a_cluster_that_is_lost(
    folder: Path,
    framework: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_client: bool,
) -> None:
    distributed = framework("distributed")
    new, alone = folder.with_name("new"), folder.with_name("alone")
    rows = checkpoint.cast_file(folder, alone, "bfloat16").rows
    monkeypatch.setattr(_executors, "convert_batch", convert_slowly)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50
        )
        client = distributed.Client(cluster)
        executor = client.get_executor(pure=False)
        losing = threading.Timer(0.3, cluster.close)
        client.close() if is_client else losing.start()
        try:
            summary = checkpoint.cast_file(folder, new, "bfloat16", executor=executor)
        finally:
            if not is_client:
                losing.join()
            client.close()
            cluster.close()
    assert contents(new) == contents(alone)
    assert summary.rows == rows
    assert "converted in this process, because the executor did not" in caplog.text


class Forgetful(Executor):
    """Accepts batches, forgets them, and is then closed."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if function is not _batches.convert_batch:
            raise RuntimeError("the scheduler is gone")
        self.futures.append(Future())
        return self.futures[-1]


def test_futures_that_never_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_executors, "PROBE_SECONDS", 0.01)
    new, alone = folder.with_name("new"), folder.with_name("alone")
    rows = checkpoint.cast_file(folder, alone, "bfloat16").rows
    executor = Forgetful()
    assert checkpoint.cast_file(folder, new, "bfloat16", executor=executor).rows == rows
    assert executor.futures
    assert contents(new) == contents(alone)
    assert "converted in this process, because the executor did not: the scheduler" in caplog.text


def test_slow_batches_are_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_executors, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(_executors, "convert_batch", convert_slowly)
    new, alone = folder.with_name("new"), folder.with_name("alone")
    checkpoint.cast_file(folder, alone, "bfloat16")
    with ThreadPoolExecutor(1) as executor:
        checkpoint.cast_file(folder, new, "bfloat16", executor=executor)
    assert contents(new) == contents(alone)
    assert not caplog.text


def convert_slowly(batch: _batches.Batch) -> _batches.Outcome:
    time.sleep(0.1)
    return _batches.convert_batch(batch)


def test_a_refused_value_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with (
        ThreadPoolExecutor(2) as executor,
        pytest.raises(OverflowError, match=r"tensor '0\.large': value .* at flat index \d+"),
    ):
        checkpoint.cast_file(
            folder,
            tmp_path / "new",
            "float4_e2m1fn",
            overflow="raise",
            executor=executor,
            as_bytes=True,
        )
    assert [one.name for one in tmp_path.iterdir()] == ["source"]


class Waiting(Executor):
    """Runs no batch; the first one fails as if a worker had refused it, or the user had stopped."""

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error
        self.futures: list[Future[Any]] = []

    def submit(self, *_call: Any, **_keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(self._error, Exception):
            future.set_result(([], self._error))
        elif self._error is not None:
            future.set_exception(self._error)
        self._error = None
        self.futures.append(future)
        return future


@pytest.mark.parametrize("error", [OverflowError("too large"), KeyboardInterrupt()], ids=repr)
def test_an_error_cancels_every_batch_that_waits(
    folder: Path, tmp_path: Path, error: BaseException
) -> None:
    executor = Waiting(error)
    with pytest.raises(type(error)):
        checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", executor=executor)
    _, *others = executor.futures
    assert len(others) > 3  # of the file that is waited for, and of those after it
    assert all(one.cancelled() for one in others)


class SilentError(RuntimeError):
    """An error of a library whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Losing(Executor):
    """Loses every batch: it returns None, or raises, on submission or of the result."""

    def __init__(self, way: str) -> None:
        self._way = way

    def submit(self, *_call: Any, **_keywords: Any) -> Any:
        if self._way == "submit returns None":
            return None
        if self._way == "submit raises":
            raise SilentError
        future: Future[Any] = Future()
        future.set_exception(SilentError())
        return future


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("submit returns None", "its submit() returned None"),
        ("submit raises", "SilentError"),
        ("result raises", "SilentError"),
    ],
)
def test_an_executor_that_loses_batches_in_silence(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str, said: str
) -> None:
    rows = checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16").rows
    summary = checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", executor=Losing(way))
    assert summary.rows == rows
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")
    assert f"converted in this process, because the executor did not: {said}" in caplog.text


def test_an_error_of_a_worker_without_text(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SilentError) as raised:
        checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", executor=Waiting(SilentError()))
    assert raised.value.args == ("in a worker of the executor: SilentError",)


def test_what_is_no_executor(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"executor must have submit\(\), .* not 4"):
        checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", executor=4)  # type: ignore[arg-type]


def test_ranges_are_cut_at_tiles() -> None:
    elements = Elements("float32"), Elements("bfloat16")
    casting = _batches.Casting(*elements, ())
    ranges = [
        TensorRange("a", 0, 0, 0, 10_000, casting),
        TensorRange("b", 0, 0, 0, 3, casting),
        TensorRange("c", 0, 0, 0, 5000, None),
        TensorRange("d", 0, 0, 0, 0, casting),
    ]
    total = sum(one.nbytes for one in ranges)
    for step in (1, 5000, 6144, 20_000, total, total + 1):
        lists = list(cut_ranges(ranges, range(step, total + step, step)))
        pieces = [piece for pieces in lists for piece in pieces]
        for one in ranges:
            mine = [piece for piece in pieces if piece.name == one.name]
            assert [piece.begin for piece in mine] == [
                sum(before.length for before in mine[:index]) for index in range(len(mine))
            ]
            assert sum(piece.length for piece in mine) == one.length
            assert all(piece.begin % 1024 == 0 for piece in mine)
        assert all(sum(piece.nbytes for piece in pieces) <= step + 6144 for pieces in lists[:-1])


class Refusing(ThreadPoolExecutor):
    """Takes some batches, and refuses the others with an error of its own."""

    def submit(self, *call: Any, **keywords: Any) -> Future[Any]:
        if self._counter() % 2:
            raise ExecutorError("no more")
        return super().submit(*call, **keywords)

    _counter = itertools.count().__next__


class ExecutorError(Exception):
    """Of an executor that has errors of its own."""


class Uncancellable(Waiting):
    """Its futures are those of a client that was closed."""

    def submit(self, *call: Any, **keywords: Any) -> Future[Any]:
        future = super().submit(*call, **keywords)
        future.cancel = refuse  # type: ignore[method-assign]
        return future


def refuse() -> bool:
    raise ExecutorError("the client is closed")


def test_an_executor_that_refuses_batches(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    with Refusing(2) as executor:
        summary = checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", executor=executor)
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")
    assert summary.rows == alone.rows
    assert "is converted in this process, because the executor did not: no more" in caplog.text


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            FileNotFoundError(errno.ENOENT, "No such file", "/data/a"),
            FileNotFoundError,
            r"No such file in a worker of the executor, which must see the files of this process "
            r"under the same paths: '/data/a'",
        ),
        (OSError(errno.ENOSPC, "No space"), OSError, "No space in a worker of the executor"),
        (OverflowError("too large"), OverflowError, "^in a worker of the executor: too large"),
        (
            UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"),
            checkpoint.CheckpointError,
            "^in a worker of the executor: 'utf-8' codec can't decode",
        ),
    ],
    ids=["path", "disk", "value", "other"],
)
def test_the_error_of_a_worker_says_so(
    folder: Path, tmp_path: Path, error: Exception, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", executor=Uncancellable(error))
    assert [one.name for one in tmp_path.iterdir()] == ["source"]


def test_a_worker_that_sees_other_files(folder: Path, tmp_path: Path) -> None:
    """Of a process that has no such folder: here one that looks for it under another root."""
    with ThreadPoolExecutor(1) as executor:

        def elsewhere(batch: _batches.Batch) -> Future[_batches.Outcome]:
            other = batch._replace(source=Path("/nowhere") / batch.source.name)
            return executor.submit(_batches.convert_batch, other)

        class Elsewhere(Executor):
            def submit(self, _function: Any, batch: Any) -> Future[Any]:  # type: ignore[override]
                return elsewhere(batch)

        with pytest.raises(FileNotFoundError, match="in a worker of the executor, which must see"):
            checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", executor=Elsewhere())
    assert [one.name for one in tmp_path.iterdir()] == ["source"]
