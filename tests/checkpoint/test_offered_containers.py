"""Containers that packages offer: the documented one in every command, and what fails."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import offered
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.containers import are_alike, is_container, registry
from castwise.checkpoint.containers.protocol import Container, Elements, Reader, Writer
from checkpoint_samples import assert_same
from numpy.typing import NDArray
from object_store import BUCKET, Store

ARRAYS: dict[str, NDArray[Any]] = {
    "fc.weight": np.arange(-2048, 2048, dtype=np.float32).reshape(64, 64) / 512,
    "fc.bias": np.linspace(-1, 1, 7).astype(ml_dtypes.bfloat16),
    "codes": np.arange(15).astype(ml_dtypes.float4_e2m1fn),
    "scalar": np.array(3, np.int64),
    "nothing": np.zeros((0, 4), np.float16),
    "complex": np.array([1 + 2j, -3j], np.complex64),
}


@pytest.fixture
def jst(monkeypatch: pytest.MonkeyPatch) -> Container:
    """The documented container, registered for a test."""
    monkeypatch.setattr(registry, "_containers", dict(registry._containers))
    names: dict[str, Any] = {}
    exec(offered.example(offered.CONTAINER_PAGE), names)  # noqa: S102 the page is the subject
    container: Container = names["CONTAINER"]
    registry.register(".JST", container)
    return container


def offer(folder: Path, package: str, source: str | None = None, name: str = "jst") -> Path:
    """Install a package with a container, by default the documented one."""
    points = f"[castwise.containers]\n{name} = {package.replace('-', '_')}:CONTAINER\n"
    text = offered.example(offered.CONTAINER_PAGE) if source is None else source
    return offered.install(folder, package, points, text)


def test_the_documented_container_in_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = offered.install_example(tmp_path / "site", offered.CONTAINER_PAGE)
    monkeypatch.chdir(tmp_path)
    weight = {"fc.weight": ARRAYS["fc.weight"]}
    checkpoint.save("model.safetensors", weight, metadata={"step": "7"})
    done = offered.run_commands(
        site,
        "cast model.safetensors model.jst --dtype bfloat16",
        "inspect model.jst",
        "survey model.jst",
        "diff model.jst model.jst",
        "verify model.safetensors model.jst --map bfloat16.json",
        "cast model.jst back.npz --dtype float32",
        "cast model.jst other.jst --dtype float16 --dry-run --measure",
        "cast model.jst folder --dtype float16 --max-shard-size 1KB",
        "cast model.safetensors parts.jst --dtype bfloat16 --part 1/2",
        "cast model.safetensors parts.jst --dtype bfloat16 --part 2/2",
        "finish parts.jst",
        "quantize model.jst quantized.safetensors --scheme int8_channel",
        "dequantize quantized.safetensors plain.jst",
        files={"bfloat16.json": '{"default": "bfloat16"}'},
    )
    assert "step: 7" in done.stdout
    assert Path("parts.jst").read_bytes() == Path("model.jst").read_bytes()
    assert not Path("other.jst").exists()
    rounded = ARRAYS["fc.weight"].astype(ml_dtypes.bfloat16)
    assert_same(checkpoint.load("back.npz")["fc.weight"], rounded.astype(np.float32))
    assert_same(checkpoint.load("folder")["fc.weight"], rounded.astype(np.float16))


def test_an_empty_tensor_may_be_the_last(tmp_path: Path, jst: Container) -> None:
    """Nothing is written of it, so that the file may end before the place where it begins."""
    arrays = {"odd": np.arange(3, dtype=np.uint8), "nothing": np.zeros((0, 4), np.float32)}
    checkpoint.save(tmp_path / "in.npz", arrays)
    path, cast = tmp_path / "saved.jst", tmp_path / "cast.jst"
    checkpoint.save(path, arrays)
    checkpoint.cast_file(tmp_path / "in.npz", cast, "float16")
    for made, dtype in ((path, np.float32), (cast, np.float16)):
        found = checkpoint.load(made)
        assert list(found) == ["odd", "nothing"]
        assert_same(found["odd"], arrays["odd"])
        assert_same(found["nothing"], arrays["nothing"].astype(dtype))


def test_every_format_survives(tmp_path: Path, jst: Container) -> None:
    path = tmp_path / "model.Jst"
    checkpoint.save(path, ARRAYS, metadata={"step": "7"})
    found = checkpoint.load(path)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert_same(found[name], array)
    assert checkpoint.metadata(path) == {"step": "7"}
    stated = json.loads(path.read_bytes().partition(b"\n")[0])
    assert stated["tensors"]["fc.weight"] == ["float32", [64, 64], 0]
    assert {begin % 64 for _, _, begin in stated["tensors"].values()} == {0}
    assert are_alike(".jst", tmp_path / "b.jst")
    assert registry.find(".jst") is jst
    back = tmp_path / "back.safetensors"
    checkpoint.cast_file(path, back, "float32", executor=ThreadPoolExecutor(2))
    assert_same(checkpoint.load(back)["fc.weight"], ARRAYS["fc.weight"])
    in_place = checkpoint.cast_file(path, path, "float16", overwrite=True)
    assert in_place.to_dict()["tensors"][0]["to"] == "float16"


@pytest.mark.usefixtures("jst")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "its first line does not end"),
        (b"{}\n", "KeyError.'tensors'"),
        (b"[]\n", "TypeError"),
        (b'{"tensors": [], "metadata": {}}\n', "AttributeError"),
        (b'{"tensors": {"a": ["float33", [1], 0]}, "metadata": {}}\n', "is not a format"),
        (b'{"tensors": {"a": ["int8", [-1], 0]}, "metadata": {}}\n', r"shape \(-1,\)"),
        (b'{"tensors": {"a": ["int8", [1.5], 0]}, "metadata": {}}\n', r"shape \(1.5,\)"),
        (b'{"tensors": {"a": ["int8", [true], 0]}, "metadata": {}}\n', r"shape \(True,\)"),
        (b'{"tensors": {"a": ["int8", [2], 0]}, "metadata": {}}\n1', "truncated"),
        (b'{"tensors": {"a": ["int8", [1], 1]}, "metadata": {}}\n1', "truncated"),
        (b'{"tensors": {"a": ["int8", [%d], 0]}, "metadata": {}}\n1' % 2**70, "too large"),
        (b'{"tensors": {"a": [7, [1], 0]}, "metadata": {}}\n1', "is not a format"),
        (b'{"tensors": {}, "metadata": {"a": 7}}\n', "metadata key 'a'"),
        (b'{"tensors": {}, "metadata": 7}\n', "metadata must be a mapping"),
        (b"[" * 100_000 + b"\n", "RecursionError"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "model.jst"
    path.write_bytes(text)
    with pytest.raises(CheckpointError, match=rf"model\.jst: it is damaged.*{words}"):
        checkpoint.load(path)


@pytest.mark.usefixtures("jst")
def test_what_a_file_of_another_container_cannot_be(tmp_path: Path) -> None:
    checkpoint.save(model := tmp_path / "model.jst", {"w": ARRAYS["fc.weight"]})
    with pytest.raises(CheckpointError, match=r"a folder or a \.safetensors file"):
        checkpoint.quantize_file(model, tmp_path / "small.jst", "int8_channel")
    checkpoint.cast_file(model, folder := tmp_path / "folder", "float16", max_shard_size="1GB")
    with pytest.raises(CheckpointError, match=r"is a folder, which can become a folder or one"):
        checkpoint.cast_file(folder, tmp_path / "other.jst", "float32")
    with pytest.raises(CheckpointError, match="leave it out"):
        checkpoint.load(model, assume="bfloat16")
    strings = tmp_path / "strings.npz"
    np.savez(strings, a=np.array(["text"]))
    with pytest.raises(CheckpointError, match=r"'a' is stored as .*not a format of castwise"):
        checkpoint.cast_file(strings, tmp_path / "strings.jst", "float32")
    assert not (tmp_path / "strings.jst").exists()


class TextReader(Reader):
    """Text of one vector; its tensors have no place in the file."""

    reopens = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._array = np.array(path.read_text().split(), np.float32)
        info = checkpoint.TensorInfo("v", "float32", "float", "text", self._array.shape, 4)
        self.tensors = {"v": info._replace(nbytes=self._array.nbytes)}
        self.metadata = {}
        self.other_entries = []

    @property
    def state(self) -> list[int]:
        return [len(self._array)]

    def lost_entries(self) -> list[str]:
        return []

    def elements(self, name: str) -> Elements:
        return Elements("float32")

    def pieces(self, name: str, nbytes: int) -> Any:
        data = self._array.tobytes()
        return (data[start : start + nbytes] for start in range(0, len(data), nbytes))

    def read(self, name: str) -> NDArray[Any]:
        return self._array.copy()

    def __enter__(self) -> TextReader:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


class TextWriter(Writer):
    """Writes what `TextReader` reads."""

    def __init__(self, file: Any, planned: Any, metadata: Any, source: Any) -> None:
        self._file = file
        self.planned = {plan.info.name: plan for plan in planned}
        self.order = list(self.planned)

    def keeps(self, name: str) -> bool:
        return False

    def elements(self, name: str) -> Elements:
        return Elements("float32")

    def write_pieces(self, name: str, pieces: Any) -> None:
        self.write(name, np.frombuffer(b"".join(pieces), np.float32))

    def write(self, name: str, array: NDArray[Any]) -> None:
        self._file.write(" ".join(map(str, array.tolist())).encode())


def test_a_container_without_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_containers", dict(registry._containers))
    registry.register(".vec", Container(TextReader, TextWriter))
    registry.register(".pit", Container(TextReader))
    (tmp_path / "a.vec").write_text("1 2.5 -3")
    (tmp_path / "a.pit").write_text("1 2.5 -3")
    checkpoint.cast_file(tmp_path / "a.vec", tmp_path / "a.safetensors", "float16")
    assert checkpoint.load(tmp_path / "a.safetensors")["v"].tolist() == [1, 2.5, -3]
    checkpoint.cast_file(tmp_path / "a.safetensors", tmp_path / "b.vec", "float32")
    assert (tmp_path / "b.vec").read_text() == "1.0 2.5 -3.0"
    assert checkpoint.verify(tmp_path / "a.vec", tmp_path / "b.vec").equal
    with pytest.raises(CheckpointError, match=r"as in \.safetensors and \.npy; leave out"):
        checkpoint.cast_file(tmp_path / "a.safetensors", tmp_path / "c.vec", "float32", part="1/2")
    assert checkpoint.load(tmp_path / "a.pit")["v"].tolist() == [1, 2.5, -3]
    for write in (
        lambda path: checkpoint.save(path, {"v": np.ones(2, np.float32)}),
        lambda path: checkpoint.cast_file(tmp_path / "a.vec", path, "float32"),
    ):
        with pytest.raises(CheckpointError, match=r"only reads \.pit; it writes .*\.vec"):
            write(tmp_path / "b.pit")
        assert not (tmp_path / "b.pit").exists()


def test_a_reader_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_containers", dict(registry._containers))
    (tmp_path / "a.vec").write_text("")
    for reader, words in (
        (lambda path: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda path: path, "AttributeError: 'PosixPath' object has no attribute 'tensors'"),
    ):
        registry.register(".vec", Container(reader))  # type: ignore[arg-type]
        with pytest.raises(CheckpointError, match=rf"a\.vec: <function .*> fails \({words}\); up"):
            checkpoint.load(tmp_path / "a.vec")


@pytest.mark.frameworks
@pytest.mark.usefixtures("jst")
def test_files_on_stores(tmp_path: Path, store: Store) -> None:
    checkpoint.save(model := tmp_path / "model.jst", ARRAYS)
    store.write("model.jst", model.read_bytes())
    checkpoint.cast_file(f"s3://{BUCKET}/model.jst", f"s3://{BUCKET}/small.jst", "float16")
    checkpoint.cast_file(model, tmp_path / "small.jst", "float16")
    assert store.read("small.jst") == (tmp_path / "small.jst").read_bytes()
    registry.register(".vec", Container(TextReader, TextWriter))
    store.write("a.vec", b"1 2")
    with pytest.raises(CheckpointError, match=r"a\.vec: \.vec files cannot be read from a store"):
        checkpoint.load(f"s3://{BUCKET}/a.vec")


def test_a_package_that_fails_is_named_when_such_a_file_is_met(tmp_path: Path) -> None:
    site = offer(tmp_path / "site", "castwise-broken", "import missing_thing")
    offer(site, "castwise-wrong", "CONTAINER = dict", "wrg")
    offer(site, "castwise-absent", "", "abs")
    program = """
        import numpy as np, sys
        from castwise import checkpoint
        checkpoint.save("a.npz", {"a": np.ones(2)})
        for suffix in ("jst", "wrg", "abs", "zzz"):
            for call in (lambda: checkpoint.save(f"a.{suffix}", {}),
                         lambda: checkpoint.cast_file("a.npz", f"a.{suffix}", "float16")):
                try:
                    call()
                except checkpoint.CheckpointError as error:
                    print(error)
        print("broken", "castwise_broken" in sys.modules)
    """
    done = offered.run_program(site, program, tmp_path)
    lines = done.stdout.splitlines()
    broken = "the container for .jst, castwise_broken:CONTAINER of castwise-broken, cannot be"
    assert all(line.startswith(broken) for line in lines[:2])
    assert "No module named 'missing_thing'); update or uninstall that package" in lines[0]
    assert "castwise_wrong:CONTAINER of castwise-wrong, is not a castwise.checkpoint" in lines[2]
    assert "castwise-absent, cannot be imported (AttributeError" in lines[4]
    # What does not work is not among what to use instead of a name that no container has.
    assert lines[6] == (
        "a.zzz: the suffix '.zzz' names no container; use .safetensors, .npz, .npy, .h5, .hdf5, "
        ".keras"
    )


def test_castwises_own_and_the_first_package_win(tmp_path: Path) -> None:
    site = offer(tmp_path / "site", "castwise-beta")
    offer(site, "castwise-alpha")
    offer(site, "castwise-npz", "raise SystemExit", "npz")
    program = """
        import numpy as np, warnings
        from castwise import checkpoint
        from castwise.checkpoint.containers import registry
        checkpoint.save("a.npz", {"a": np.ones(2)})
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            checkpoint.save("a.jst", {"a": np.ones(2)})
            checkpoint.save("b.jst", {"a": np.ones(2)})
        print(*(warning.message for warning in log), sep="\\n")
        print(registry.find(".jst").reader.__module__)
    """
    lines = offered.run_program(site, program, tmp_path).stdout.splitlines()
    assert lines == [
        "castwise-alpha and castwise-beta both offer 'jst' as castwise.containers; "
        "castwise_alpha:CONTAINER is used. Uninstall one of them.",
        "castwise_alpha",
    ]


def test_castwises_own_suffixes_look_for_no_packages(tmp_path: Path) -> None:
    site = offer(tmp_path / "site", "castwise-jst")
    program = """
        import numpy as np, sys
        from pathlib import Path
        from castwise import checkpoint
        from castwise.checkpoint.containers import is_container
        checkpoint.save("a.safetensors", {"a": np.ones(2)})
        checkpoint.load("a.safetensors")
        for name in map(Path, ("model", "Qwen3-0.6B", "v1.5-fp8", "model.v1")):
            print(is_container(name), "importlib.metadata" in sys.modules)
        print("castwise_jst" in sys.modules)
    """
    lines = offered.run_program(site, program, tmp_path).stdout.splitlines()
    assert lines == ["False False", "False False", "False False", "False True", "False"]


@pytest.mark.parametrize(
    ("suffix", "container", "error", "words"),
    [
        ("jst", Container(TextReader), ValueError, "give one as '.jst'"),
        (".a.b", Container(TextReader), ValueError, "give one as"),
        (".NPZ", Container(TextReader), ValueError, "which castwise does not have"),
        (3, Container(TextReader), TypeError, "must be a str"),
        (".jst", TextReader, TypeError, "make it one"),
    ],
)
def test_bad_registrations(suffix: Any, container: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        registry.register(suffix, container)
    assert not is_container(Path("a.jst"))


@pytest.mark.parametrize("arguments", [(3,), ("module",), (TextReader, 3), (None,)])
def test_a_container_has_classes(arguments: Any) -> None:
    with pytest.raises(TypeError, match="must be a class, or named as 'module:Class'"):
        Container(*arguments)
