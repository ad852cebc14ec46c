"""Checkpoints on an object store: the same bytes, read once, and visible when complete."""

import errno
import functools
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from checkpoint_samples import floats, write_sharded
from object_store import BUCKET, Store
from processes import run_python
from sharded_folder import OPTIONS, contents, tensors
from system_parts import LINKS, need
from torch_files import Storage, state_dict, tensor, torch_file, write_tensors


@pytest.fixture
def ranges(framework: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the bytes that are read of each object."""
    filesystem = framework("s3fs").S3FileSystem
    fetch = filesystem._cat_file
    counts: Counter[str] = Counter()

    async def counted(self: Any, path: str, *arguments: Any, **keywords: Any) -> bytes:
        data: bytes = await fetch(self, path, *arguments, **keywords)
        counts[path] += len(data)
        return data

    monkeypatch.setattr(filesystem, "_cat_file", counted)
    return counts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = [f"model-{one:05d}-of-00003.safetensors" for one in (1, 2, 3)]
    write_sharded(
        tmp_path / "source",
        {
            name: {f"{index}.{key}": value for key, value in tensors(index).items()}
            for index, name in enumerate(names)
        },
    )
    (tmp_path / "source" / "config.json").write_text('{"torch_dtype": "float32"}')
    return tmp_path / "source"


def test_a_folder(folder: Path, tmp_path: Path, store: Store, ranges: Counter[str]) -> None:
    store.put(folder, "source")
    alone = checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    summary = checkpoint.cast_file(f"s3://{BUCKET}/source", f"s3://{BUCKET}/new", "bfloat16")
    assert store.contents("new") == contents(tmp_path / "alone")
    assert summary.rows == alone.rows
    for path in folder.glob("*.safetensors"):
        assert ranges[f"{BUCKET}/source/{path.name}"] == path.stat().st_size


def test_from_and_to_this_machine(folder: Path, tmp_path: Path, store: Store) -> None:
    alone = checkpoint.cast_file(folder, tmp_path / "alone", "float8_e4m3fn")
    there = checkpoint.cast_file(folder, f"s3://{BUCKET}/new", "float8_e4m3fn")
    assert store.contents("new") == contents(tmp_path / "alone")
    assert there.rows == alone.rows
    back = checkpoint.cast_file(f"s3://{BUCKET}/new", tmp_path / "back", "float32")
    again = checkpoint.cast_file(tmp_path / "alone", tmp_path / "again", "float32")
    assert contents(tmp_path / "back") == contents(tmp_path / "again")
    assert back.rows == again.rows


def test_files_of_torch(tmp_path: Path, store: Store) -> None:
    write_tensors(tmp_path / "in" / "pytorch_model.bin", w=floats(5))
    checkpoint.cast_file(tmp_path / "in", f"s3://{BUCKET}/torch", "bfloat16")
    checkpoint.cast_file(tmp_path / "in", tmp_path / "out", "bfloat16")
    assert store.contents("torch") == contents(tmp_path / "out")
    store.put(tmp_path / "in", "in")
    checkpoint.cast_file(f"s3://{BUCKET}/in", f"s3://{BUCKET}/again", "bfloat16")
    assert store.contents("again") == contents(tmp_path / "out")


def torch_views(path: Path) -> None:
    storage = Storage("torch FloatStorage", "0", 500_000)
    views = {"w": ((500_000,), (1,)), "t": ((500, 900), (1, 500)), "third": ((90,), (3,))}
    calls = {name: tensor(*view, storage=storage) for name, view in views.items()}
    path.write_bytes(torch_file(state_dict(**calls), data__0=floats(500_000).tobytes()))


FILES: dict[str, Callable[[Path], object]] = {
    "in.npy": lambda path: np.save(path, floats(900_000)),
    "fortran.npy": lambda path: np.save(path, np.asfortranarray(floats(900_000).reshape(900, -1))),
    "in.npz": lambda path: np.savez(path, a=floats(900_000), b=floats(5), c=np.array(["text"])),
    "deflated.npz": lambda path: np.savez_compressed(path, a=floats(300_000), b=np.eye(3, 4).T),
    "in.pt": torch_views,
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("name", "write"), FILES.items(), ids=FILES)
def test_files_of_other_containers(  # noqa: PLR0917
    tmp_path: Path,
    store: Store,
    ranges: Counter[str],
    name: str,
    write: Callable[[Path], object],
    options: dict[str, Any],
) -> None:
    write(tmp_path / name)
    store.write(name, (tmp_path / name).read_bytes())
    targets = {".npy": [".npy"], ".npz": [".npz"], ".pt": [".npz", ".safetensors"]}
    for new in targets[Path(name).suffix]:
        alone = checkpoint.cast_file(tmp_path / name, tmp_path / f"alone{new}", **options)
        before = ranges.total()
        here = checkpoint.cast_file(f"s3://{BUCKET}/{name}", tmp_path / f"new{new}", **options)
        # Of a file of torch views of the same bytes are read each for itself.
        times = 3 if name == "in.pt" else 1
        assert ranges.total() - before <= times * (tmp_path / name).stat().st_size + 100_000
        url = f"s3://{BUCKET}/new{new}"
        there = checkpoint.cast_file(f"s3://{BUCKET}/{name}", url, **options)
        assert alone.rows == here.rows == there.rows
        expected = loaded(tmp_path / f"alone{new}")
        assert loaded(tmp_path / f"new{new}") == loaded(url) == expected
    assert store.uploads() == 0


def loaded(path: Any) -> dict[str, tuple[Any, ...]]:
    found: Any = checkpoint.load(path)
    arrays = {"": found} if isinstance(found, np.ndarray) else found
    return {name: (one.dtype, one.shape, one.tobytes()) for name, one in arrays.items()}


def test_large_tensors_and_uploads_in_blocks(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "large.safetensors"
    large = {"a": floats(9_000_000), "b": floats(5), "c": floats(3_000_001, 2)}
    checkpoint.save(path, large)
    checkpoint.save(f"s3://{BUCKET}/large.safetensors", large)
    assert store.read("large.safetensors") == path.read_bytes()
    checkpoint.cast_file(path, tmp_path / "new.safetensors", "bfloat16")
    url = f"s3://{BUCKET}/new.safetensors"
    checkpoint.cast_file(f"s3://{BUCKET}/large.safetensors", url, "bfloat16")
    assert store.read("new.safetensors") == (tmp_path / "new.safetensors").read_bytes()
    loaded = checkpoint.load(url, ["c"])
    assert loaded.keys() == {"c"}
    assert store.uploads() == 0


def test_inspecting_reads_headers_alone(folder: Path, store: Store, ranges: Counter[str]) -> None:
    store.put(folder, "source")
    here = checkpoint.inspect(folder)
    there = checkpoint.inspect(f"s3://{BUCKET}/source")
    assert there.tensors == here.tensors
    for path in folder.glob("*.safetensors"):
        header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        assert ranges[f"{BUCKET}/source/{path.name}"] == header


def test_a_refused_value_leaves_nothing(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "source.safetensors"
    # The value stands behind blocks that are uploaded before it is met.
    values = np.ones(30_000_000, np.float32)
    values[-1] = 1e30
    checkpoint.save(path, {"w": values})
    with pytest.raises(OverflowError, match="tensor 'w'"):
        checkpoint.cast_file(path, f"s3://{BUCKET}/new.safetensors", "float16", overflow="raise")
    assert store.client.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0
    assert store.uploads() == 0


def test_a_folder_that_is_there(folder: Path, tmp_path: Path, store: Store) -> None:
    store.put(folder, "new")
    store.write("new/old.txt", b"old")
    with pytest.raises(CheckpointError, match="overwrite=True"):
        checkpoint.cast_file(folder, f"s3://{BUCKET}/new", "bfloat16")
    assert "old.txt" in store.names("new")
    checkpoint.cast_file(folder, f"s3://{BUCKET}/new", "bfloat16", overwrite=True)
    checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    assert store.contents("new") == contents(tmp_path / "alone")


def test_a_refused_value_leaves_the_folder_as_it_was(folder: Path, store: Store) -> None:
    store.put(folder, "new")
    before = store.contents("new")
    with pytest.raises(OverflowError, match="tensor '0"):
        checkpoint.cast_file(
            folder,
            f"s3://{BUCKET}/new",
            "float4_e2m1fn",
            overwrite=True,
            overflow="raise",
            as_bytes=True,
        )
    assert store.contents("new") == before


def test_no_old_index_names_a_replaced_object(folder: Path, store: Store) -> None:
    store.put(folder, "new")
    path = next(folder.glob("model-00002*"))
    checkpoint.save(
        path, {**checkpoint.load(path), "1.large": np.full((200, 200), 1e30)}, overwrite=True
    )
    with pytest.raises(OverflowError, match=r"tensor '1\.large'"):
        checkpoint.cast_file(
            folder, f"s3://{BUCKET}/new", "float16", overwrite=True, overflow="raise"
        )
    assert "model.safetensors.index.json" not in store.names("new")


def test_the_index_is_written_last(
    folder: Path,
    store: Store,
    framework: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    file = framework("s3fs").core.S3File
    commit = file.commit
    monkeypatch.setattr(file, "commit", lambda self: (written.append(self.path), commit(self))[1])
    checkpoint.cast_file(folder, f"s3://{BUCKET}/new", "bfloat16")
    assert written[-1].endswith(".safetensors.index.json")
    assert len(written) == len(store.names("new")) + 1  # config.json twice


def test_an_object_that_is_changed_meanwhile(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "source.safetensors"
    checkpoint.save(path, {"w": floats(2_000_000)})
    store.write("source.safetensors", path.read_bytes())
    changed = path.read_bytes()[:-1] + b"\0"

    def change(progress: checkpoint.Progress) -> None:
        if progress.done:
            store.write("source.safetensors", changed)

    with pytest.raises(CheckpointError, match="was changed while it was read; run again"):
        checkpoint.cast_file(
            f"s3://{BUCKET}/source.safetensors",
            f"s3://{BUCKET}/new.safetensors",
            "bfloat16",
            progress=change,
        )
    assert store.client.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 1


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (
            PermissionError("Forbidden"),
            PermissionError,
            "Permission denied; check .*source.safetensors",
        ),
        (TimeoutError(), TimeoutError, "timed out; check .*source.safetensors"),
        (
            RuntimeError("odd"),
            OSError,
            "RuntimeError: odd; check the URL, the network, .*: .*source.safetensors",
        ),
        (RuntimeError("odd."), OSError, "RuntimeError: odd; check the URL, the network"),
        (ValueError("no such bucket name."), OSError, r"ValueError: no such bucket name\.: "),
        (NotImplementedError("no ranges"), OSError, "NotImplementedError: no ranges: "),
        (b"short", CheckpointError, "truncated while it was read; tensor 'w'"),
    ],
)
def test_what_a_server_does_wrong(  # noqa: PLR0917
    tmp_path: Path,
    store: Store,
    framework: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    answer: Exception | bytes,
    error: type[Exception],
    message: str,
) -> None:
    path = tmp_path / "source.safetensors"
    checkpoint.save(path, {"w": floats(20_000)})
    store.write("source.safetensors", path.read_bytes())
    filesystem = framework("s3fs").S3FileSystem
    fetch = filesystem._cat_file

    async def wrong(self: Any, path: str, start: int, end: int) -> bytes:
        if end - start < 10_000:  # the header
            data: bytes = await fetch(self, path, start=start, end=end)
            return data
        if isinstance(answer, bytes):
            return answer
        raise answer

    monkeypatch.setattr(filesystem, "_cat_file", wrong)
    with pytest.raises(error, match=message):
        checkpoint.cast_file(
            f"s3://{BUCKET}/source.safetensors", f"s3://{BUCKET}/new.safetensors", "bfloat16"
        )
    assert store.client.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 1
    assert store.uploads() == 0


@pytest.mark.parametrize("name", ["in.npy", "in.npz", "in.pt", "in.safetensors"])
def test_a_server_that_ignores_ranges(
    tmp_path: Path, framework: Callable[[str], ModuleType], name: str
) -> None:
    """As `http.server` of Python: each answer is the whole file, whose header is no data."""
    for package in ("upath", "aiohttp"):
        framework(package)
    if name in FILES:
        FILES[name](tmp_path / name)
    else:
        checkpoint.save(tmp_path / name, {"w": floats(900_000)})
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{name}"
        target = tmp_path / f"out{Path(name).suffix.replace('.pt', '.npz')}"
        with pytest.raises(CheckpointError, match=f"{url}: the server ignores ranges; download"):
            checkpoint.load(url)
        with pytest.raises(CheckpointError, match="the server ignores ranges"):
            checkpoint.cast_file(url, target, "bfloat16")
        server.shutdown()
    assert not target.exists()


def test_a_header_that_comes_in_part(
    tmp_path: Path,
    store: Store,
    framework: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint.save(tmp_path / "source.safetensors", {"w": floats(4)})
    store.write("source.safetensors", (tmp_path / "source.safetensors").read_bytes())
    filesystem = framework("s3fs").S3FileSystem
    fetch = filesystem._cat_file

    async def short(self: Any, path: str, start: int, end: int) -> bytes:
        data: bytes = await fetch(self, path, start=start, end=end)
        return data if end - start == 8 else data[:-1]

    monkeypatch.setattr(filesystem, "_cat_file", short)
    with pytest.raises(CheckpointError, match="truncated while it was read; the header has"):
        checkpoint.load(f"s3://{BUCKET}/source.safetensors")


def test_the_command(folder: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.put(folder, "source")
    arguments = [f"s3://{BUCKET}/source", f"s3://{BUCKET}/new", "--dtype", "bfloat16", "--json"]
    assert main(["cast", *arguments]) == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == 15
    for wrong in (
        ["s3://nowhere/source", *arguments[1:]],
        [f"s3://{BUCKET}/missing", *arguments[1:]],
    ):
        assert main(["cast", *wrong]) == 2
        assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "destination", "options", "message"),
    [
        (f"s3://{BUCKET}/a.h5", "new.npz", {}, "copy it to this machine first"),
        ("source/a.npz", f"s3://{BUCKET}/a.keras", {}, "copy it to this machine first, or from it"),
        ("source", f"s3://{BUCKET}/new", {"resumable": True}, "of this machine"),
        ("source", f"s3://{BUCKET}/new", {"part": "1/2"}, "to a disk that workers share"),
        (f"s3://{BUCKET}/new", "new", {"executor": ThreadPoolExecutor(1)}, "that workers share"),
    ],
)
def test_what_stores_cannot(  # noqa: PLR0917
    folder: Path,
    tmp_path: Path,
    store: Store,
    source: str,
    destination: str,
    options: dict[str, Any],
    message: str,
) -> None:
    store.write("a.h5", b"")
    checkpoint.save(folder / "a.npz", {"w": floats(3)})
    old = source if "://" in source else folder.parent / source
    new = destination if "://" in destination else tmp_path / destination
    with pytest.raises(CheckpointError, match=message):
        checkpoint.cast_file(old, new, "bfloat16", **options)


def test_a_url_without_its_package(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing://x: .*pip install 'castwise\[remote\]'"):
        checkpoint.inspect("nothing://x")
    checkpoint.save(tmp_path / "a.npz", {"w": floats(3)})
    assert os.listdir(tmp_path) == ["a.npz"]


def test_a_folder_becomes_one_object(folder: Path, tmp_path: Path, store: Store) -> None:
    store.put(folder, "source")
    alone = checkpoint.cast_file(folder, tmp_path / "alone.safetensors", "bfloat16")
    source, new = f"s3://{BUCKET}/source", f"s3://{BUCKET}/new.safetensors"
    summary = checkpoint.cast_file(source, new, "bfloat16")
    assert summary.rows == alone.rows
    assert store.read("new.safetensors") == (tmp_path / "alone.safetensors").read_bytes()


def test_a_folder_on_a_store_stays_where_it_is(folder: Path, store: Store) -> None:
    store.put(folder, "source")
    before = store.contents("source")
    for new in ("source", "source/"):
        with pytest.raises(CheckpointError, match="choose another destination"):
            checkpoint.cast_file(f"s3://{BUCKET}/source", f"s3://{BUCKET}/{new}", "float16")
    assert store.contents("source") == before


def test_reports_and_parts_beside_stores(
    folder: Path, tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put(folder, "source")
    source, new, report = f"s3://{BUCKET}/source", f"s3://{BUCKET}/new", tmp_path / "report.json"
    assert main(["cast", source, new, "--dtype", "bfloat16", "--report", str(report)]) == 0
    assert json.loads(report.read_text())["source"] == source
    capsys.readouterr()
    assert main(["finish", new]) == 2
    assert f"{new} has no parts" in capsys.readouterr().err
    for option in ("--report", "--map"):
        with pytest.raises(SystemExit):
            main(["cast", source, new, "--dtype", "bfloat16", option, f"{new}.json"])
        assert f"argument {option}: {new}.json is on a store" in capsys.readouterr().err


def test_objects_that_stand_for_folders(folder: Path, tmp_path: Path, store: Store) -> None:
    store.put(folder, "source")
    for name in ("source/", "new/"):
        store.write(name, b"")
    checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    checkpoint.cast_file(f"s3://{BUCKET}/source", f"s3://{BUCKET}/new", "bfloat16")
    made = store.contents("new")
    assert made.pop("") == b""
    assert {Path(name) for name in made} == {
        path.relative_to(tmp_path / "alone")
        for path in (tmp_path / "alone").rglob("*")
        if path.is_file()
    }


OUTSIDE = (
    *("a/../../x", "../x", "..", "a/..", "a/./x", "/x", "a//x", "a\\..\\..\\x", "C:x", "C:/x"),
    *("a/nul\0x", " ", "... /x", "file::x"),
)
"""Paths of objects whose copies could land outside of the target, on one system or another."""


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("side", ["read", "replaced"])
def test_an_object_whose_name_leads_out(
    folder: Path, tmp_path: Path, framework: Callable[[str], ModuleType], side: str, name: str
) -> None:
    """Of what is read nothing is opened; of what is there nothing is removed."""
    framework("upath")
    memory = framework("fsspec.implementations.memory")
    objects = memory.MemoryFileSystem.store
    files = {f"m/{path.name}": path.read_bytes() for path in folder.glob("*.*")}
    objects.update(
        (f"/{key}", memory.MemoryFile(None, f"/{key}", data))
        for key, data in {**files, f"m/{name}": b"evil", "x": b"other"}.items()
    )
    before = set(objects)
    work = tmp_path / "work" / "inside"
    work.mkdir(parents=True)
    source, target = ("memory://m", work / "new") if side == "read" else (folder, "memory://m")
    try:
        with pytest.raises(CheckpointError, match=r"memory://m\S* lists .*rename it there"):
            checkpoint.cast_file(source, target, "bfloat16", overwrite=True)
        assert set(objects) == before
        assert list((tmp_path / "work").rglob("*")) == [work]
        if side == "read":
            code = main(["cast", source, str(work / "one.safetensors"), "--dtype", "bfloat16"])
            assert code == 2
            with pytest.raises(CheckpointError, match="rename it there"):
                checkpoint.inspect(source)
    finally:
        objects.clear()


@pytest.mark.parametrize("name", ["x" * 256, "notes/" + "\u00e9" * 128 + ".txt", "y" * 300 + "/a"])
def test_an_object_whose_name_is_too_long(
    folder: Path, tmp_path: Path, framework: Callable[[str], ModuleType], name: str
) -> None:
    """It is named before any work, may be left out, and is no fault on another store."""
    framework("upath")
    memory = framework("fsspec.implementations.memory")
    objects = memory.MemoryFileSystem.store
    files = {f"m/{path.name}": path.read_bytes() for path in folder.glob("*.*")}
    files[f"m/{name}"] = b""
    objects.update((f"/{key}", memory.MemoryFile(None, f"/{key}", files[key])) for key in files)
    try:
        for more in ({}, {"dry_run": True}):
            with pytest.raises(CheckpointError, match=rf"'{name[:20]}.* of \d+ bytes.*\(exclude\)"):
                checkpoint.cast_file("memory://m", tmp_path / "new", "bfloat16", **more)
            assert [path.name for path in tmp_path.iterdir()] == [folder.name]
        checkpoint.cast_file("memory://m", "memory://n", "bfloat16")
        assert f"/n/{name}" in objects
        checkpoint.cast_file("memory://m", tmp_path / "new", "bfloat16", exclude=f"{name[:20]}*")
    finally:
        objects.clear()
    assert {path.name for path in (tmp_path / "new").iterdir()} >= {"model.safetensors.index.json"}


def test_a_key_of_a_bucket_that_leads_out(folder: Path, tmp_path: Path, store: Store) -> None:
    for name in ("a/../../x", "a//x"):
        store.put(folder, "source")
        store.write(f"source/{name}", b"evil")
        with pytest.raises(CheckpointError, match=r"source.* lists .*could lead out of it"):
            checkpoint.cast_file(f"s3://{BUCKET}/source", tmp_path / "new", "bfloat16")
        store.client.delete_object(Bucket=BUCKET, Key=f"source/{name}")
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_links_are_not_uploaded(
    folder: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    need(LINKS)
    (folder / "link").symlink_to("tokenizer")
    checkpoint.cast_file(folder, f"s3://{BUCKET}/new", "bfloat16")
    assert "link is a link, which no store holds, and was left out" in caplog.text
    assert "link" not in store.names("new")


SILENT = """
import sys
from castwise.checkpoint.files import remote
from castwise.cli import main

remote._PATIENCE = 0.5
for command in (["inspect", sys.argv[1]], ["cast", "a.npz", sys.argv[1], "--dtype", "bf16"]):
    print(main(command), flush=True)
"""


@pytest.mark.parametrize(
    "url", ["s3://bucket/model.npz", "http://HOST/model.npz", "hf://org/model", "org/model"]
)
def test_a_store_that_does_not_answer(
    tmp_path: Path, framework: Callable[[str], ModuleType], url: str
) -> None:
    """A server takes connections, and says nothing: libraries would wait and try again."""
    for package in ("upath", "s3fs", "huggingface_hub", "aiohttp"):
        framework(package)
    checkpoint.save(tmp_path / "a.npz", {"w": floats(4)})
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        endpoints = dict.fromkeys(("HF_ENDPOINT", "AWS_ENDPOINT_URL"), f"http://{host}")
        keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"), "a")
        result = subprocess.run(
            [sys.executable, "-c", SILENT, url.replace("HOST", host)],
            cwd=tmp_path,
            env={**os.environ, **endpoints, **keys, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert result.stdout.split() == ["2", "2"]
    lines = result.stderr.splitlines()
    assert len(lines) == 2, lines
    for line in lines if "://" in url else lines[:1]:  # as a target it is of this machine
        assert "no answer within 0.5 seconds; check the URL, the network, and your" in line
        assert url.replace("HOST", host) in line
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("s3:/bucket/model", "s3://bucket/model"),
        ("S3:bucket/model.npz", "s3://bucket/model.npz"),
        ("hf:/org/model", "hf://org/model"),
        ("org/model@main", "hf://org/model@main"),
        ("org/model/x.safetensors", "hf://org/model/x.safetensors"),
        ("org/model/sub/x.safetensors", None),
        ("here/model@main", None),
        ("C:/model", None),
        ("x.safetensors", None),
    ],
)
def test_a_missing_path_that_may_be_a_url(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    url: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(FileNotFoundError) as refused:
        checkpoint.inspect(name)
    hint = "" if url is None else f"; did you mean {url}?"
    assert str(refused.value.strerror) == os.strerror(errno.ENOENT) + hint
    assert main(["inspect", name]) == 2
    said = capsys.readouterr().err
    assert ("there is no folder" in said) != (url is not None or Path(name).parent.is_dir())


@pytest.mark.parametrize("name", ["s3:/bucket/out.npz", "S3:bucket/out.npz", "hf:/org/model"])
def test_a_target_that_may_be_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.save("in.npz", {"w": floats(4)})
    url = f"{name.partition(':')[0].lower()}://{name.partition(':')[2].lstrip('/')}"
    assert main(["cast", "in.npz", name, "--dtype", "bfloat16"]) == 2
    error = f"castwise: error: {name}: {os.strerror(errno.ENOENT)}; did you mean {url}?\n"
    assert capsys.readouterr().err == error
    with pytest.raises(FileNotFoundError, match=f"did you mean {url}"):
        checkpoint.save(name, {"w": floats(4)})
    assert os.listdir() == ["in.npz"]
    Path(name).parent.mkdir(parents=True)  # a folder of this machine may have such a name
    checkpoint.cast_file("in.npz", Path(name).with_suffix(".npz"), "bfloat16")


def test_schemes_are_read_in_either_case(tmp_path: Path, store: Store) -> None:
    checkpoint.save(tmp_path / "in.npz", {"w": floats(4)})
    store.write("in.npz", (tmp_path / "in.npz").read_bytes())
    assert "w" in checkpoint.load(f"S3://{BUCKET}/in.npz")


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("hf://org/model", "castwise[hf]"),
        ("s3://bucket/model", "castwise[remote]' s3fs"),
        ("gs://bucket/model", "castwise[remote]' gcsfs"),
        ("https://host/model.npz", "castwise[remote]' aiohttp"),
        ("az://bucket/model", "castwise[remote]' adlfs"),
    ],
)
def test_a_store_without_its_package(url: str, package: str) -> None:
    names = ("huggingface_hub", "s3fs", "gcsfs", "aiohttp", "adlfs")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({names}))\n"
        "from castwise.cli import main; main(['inspect', sys.argv[1]])"
    )
    result = run_python("-c", program, url)
    assert (result.returncode, result.stdout) == (2, "")
    *_, line = result.stderr.splitlines()
    assert len(result.stderr.splitlines()) == 2  # the usage
    assert url in line
    assert f"pip install '{package}" in line


CLOSED = "127.0.0.1:9"
"""A port of this machine at which nothing listens."""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hf://user/model", "Connect"),
        ("user/model", "Connect"),
        (f"http://{CLOSED}/model.safetensors", "Connection refused; check the URL, the network"),
        ("s3://bucket/model", "Could not connect to the endpoint"),
        (f"ftp://{CLOSED}/model", "refused"),
        ("data://x", "not enough values"),
        ("dir://x", "is not a URL that the package of fsspec for dir:// can open"),
    ],
)
def test_a_store_out_of_reach_is_one_line_and_exit_code_2(
    tmp_path: Path, framework: Callable[[str], ModuleType], url: str, said: str
) -> None:
    for package in ("upath", "s3fs", "huggingface_hub", "aiohttp"):
        framework(package)
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"w": floats(4)})
    program = (
        "import sys; from castwise.cli import main\n"
        f"commands = (['cast', {url!r}, 'o.npz', '--dtype', 'bf16'], ['inspect', {url!r}],\n"
        f"            ['verify', {url!r}, 'a.safetensors'],\n"
        f"            ['cast', 'a.safetensors', {url!r}, '--dtype', 'bf16'])\n"
        "for command in commands:\n"
        "    try: code = main(command)\n"
        "    except SystemExit as error: code = error.code\n"
        "    print(code, flush=True)\n"
        "    print('--', file=sys.stderr, flush=True)\n"
    )
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        **{
            "HF_ENDPOINT": f"http://{CLOSED}",
            "HF_TOKEN": "a",
            "AWS_ENDPOINT_URL": f"http://{CLOSED}",
        },
        **{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_MAX_ATTEMPTS": "1"},
    }
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["2"] * 4, result.stderr
    for errors in result.stderr.split("--\n")[:-1]:
        *usage, last = errors.splitlines()
        assert not any("Traceback" in line for line in usage)
        if "a name without suffix" in last and "://" not in url:
            continue  # a target of this machine
        assert url in last, errors
        assert said in last, errors
        assert len(usage) <= 1, errors
    assert os.listdir(tmp_path) == ["a.safetensors"]
