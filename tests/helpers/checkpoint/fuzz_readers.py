"""Fuzz all that Python reads; a script, not a test.

    python tests/helpers/checkpoint/fuzz_readers.py [TARGET ...] [--seconds 600] [--corpus FOLDER]

Every input may be taken, or refused with the documented error: a ValueError or TypeError of the
function, or one line and exit code 2 of the command. Any other exception, a crash, more than a
minute, or more than 2 GiB is a finding: the input is kept, its path printed, and the exit code 1.
Where atheris is installed (`pip install atheris`), inputs that reach new lines are kept and changed
further; without it they are changed at random. `--corpus` keeps them for the next run, `--replay`
reads inputs that were kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import pkgutil
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

if is_guided := find_spec("atheris") is not None:
    import atheris

    with (
        contextlib.redirect_stderr(io.StringIO()),
        atheris.instrument_imports(include=["castwise"]),
    ):
        import castwise

        for module in pkgutil.walk_packages(castwise.__path__, "castwise."):
            if not re.search(
                r"\.(adapters|compat|autocast|keras|tf_keras|__main__)\b", module.name
            ):
                importlib.import_module(module.name)

import castwise
import numpy as np
from castwise import checkpoint, cli, dtype_policies, loss_scale, surveys
from castwise.checkpoint.running.ledger import seal_page

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "quantization")]

import small_llama
import whole_models
from checkpoint_samples import floats, write_sharded
from fuzz_headers import damaged, damaged_member, files
from producer_models.gguf import gguf_file

PATIENCE = 60
MEGABYTES = 2048
MOST = 1 << 16
"""Bytes of an input."""


class Target(NamedTuple):
    """What reads an input, and inputs that it takes."""

    read: Callable[[bytes], object]
    seeds: Sequence[bytes]


def command(out: Path, *arguments: object) -> None:
    """Run a command, which may refuse its input in one line, and then writes nothing."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    shown, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        try:
            code: object = cli.main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
    text = said.getvalue()
    if code == 2:
        lines = [line for line in text.splitlines() if "error: " in line]
        assert len(lines) == 1, text
        assert "did not expect" not in text, text
        assert all(line.isprintable() for line in text.splitlines()), ascii(text)
        assert len(text) < 5000, text
        assert not list(out.iterdir()), text
    else:
        assert code in {0, 1}, (code, text)
        if "--json" in arguments:
            json.loads(shown.getvalue(), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def refusing(read: Callable[[Any], object], *errors: type[Exception]) -> Callable[[bytes], None]:
    """Read JSON, which may be refused with a sentence."""

    def call(data: bytes) -> None:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return
        try:
            read(value)
        except (KeyError, *errors) as error:
            refusal: Exception = error
        else:
            return
        if isinstance(refusal, KeyError):  # as Keras does
            assert refusal.args == ("policy_map",), repr(refusal)
            return
        # What Python's own operations say names neither an argument nor a remedy.
        assert len(str(refusal)) > 20, repr(refusal)
        assert not re.match(_PYTHONS, str(refusal)), repr(refusal)

    return call


_PYTHONS = (
    "not enough values|too many values|invalid hexadecimal|unhashable|'.*' object|can't convert"
    "|argument '|unsupported operand|list indices|string indices|expected .* got"
)


def file_targets(folder: Path) -> dict[str, Target]:
    """Return the containers, each read by the commands."""
    out = folder / "out"
    seeds: dict[str, list[bytes]] = {}
    (folder / "seeds").mkdir()
    for name, content in files(folder / "seeds").items():
        seeds.setdefault(Path(name).suffix, []).append(content)
    blocks = np.arange(34 * 4, dtype=np.uint8).tobytes()
    tensors = {"w": (8, (2, 64), blocks), "b": (0, (3,), bytes(12))}
    seeds[".gguf"] = [gguf_file(folder / "seeds" / "a.gguf", tensors).read_bytes()]

    def reader(path: Path) -> Callable[[bytes], None]:
        def read(data: bytes) -> None:
            path.write_bytes(data)
            command(out, "inspect", path, "--json")
            if path.suffix == ".gguf":
                to = ("dequantize", path, out / "x.safetensors", "--dtype", "float16", "--quiet")
                command(out, *to)
            else:
                command(out, "cast", path, out / "x.npz", "--dtype", "float16", "--quiet", "--raw")
                command(out, "survey", path, "--json", "--quiet")

        return read

    suffixes = [suffix for suffix in seeds if suffix not in {".h5", ".keras"}]
    return {
        f"{suffix[1:]}-file": Target(reader(folder / f"x{suffix}"), seeds[suffix])
        for suffix in suffixes
    }


def folder_targets(folder: Path) -> dict[str, Target]:
    """Return the files of a model beside its tensors."""
    out = folder / "out"
    plain, model = folder / "plain", folder / "model"
    write_sharded(plain, {f"{name}.safetensors": {name: floats(4)} for name in ("one", "two")})
    config = whole_models.model(model) / "config.json"
    quantized: list[bytes] = [config.read_bytes()]
    for recipe, scheme in (
        ("compressed-tensors", "nvfp4"),
        ("modelopt", "fp8_tensor"),
        ("mlx", "int4_group"),
    ):
        source = small_llama.write(folder / f"{recipe}-source")
        made = folder / recipe
        checkpoint.quantize_file(source, made, scheme, recipe=recipe)
        quantized.append((made / "config.json").read_bytes())

    def replaced(path: Path, *calls: tuple[object, ...]) -> Callable[[bytes], None]:
        content = path.read_bytes()

        def read(data: bytes) -> None:
            path.write_bytes(data)
            for call in calls:
                command(out, *call)
            path.write_bytes(content)

        return read

    def decode(source: Path) -> tuple[object, ...]:
        return ("dequantize", source, out / "new", "--dtype", "bfloat16", "--dry-run", "--quiet")

    to_gguf = ("transcode", model, out / "x.gguf", "--to", "gguf", "--dry-run", "--quiet")
    cast = ("cast", plain, out / "new", "--dtype", "float16", "--quiet")
    index = plain / "model.safetensors.index.json"
    targets = {
        "index": Target(replaced(index, ("inspect", plain, "--json"), cast), [index.read_bytes()]),
        "dtypes": Target(replaced(plain / "config.json", cast), quantized),
    }
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        path = model / name
        calls = (
            (to_gguf, ("inspect", model, "--json"), decode(model))
            if name == "config.json"
            else (to_gguf,)
        )
        targets[name.replace(".json", "")] = Target(replaced(path, *calls), [path.read_bytes()])
    for recipe in ("compressed-tensors", "modelopt", "mlx"):
        path = folder / recipe / "config.json"
        calls = ("inspect", path.parent, "--json"), decode(path.parent)
        targets[recipe] = Target(replaced(path, *calls), quantized)
    return targets


def text_targets(folder: Path) -> dict[str, Target]:
    """Return the files that a user gives to a command."""
    out, source = folder / "out", folder / "weights.safetensors"
    checkpoint.save(
        source, {"a.weight": floats(4096).reshape(32, -1), "b.weight": floats(256).reshape(4, -1)}
    )
    cast = ("cast", source, out / "x.npz", "--quiet")
    search = ("quantize", source, out / "x.safetensors", "--scheme", "mxfp4", "--scales", "best")
    lists = json.dumps({"a.weight": [1, 0.5] * 64, "b.weight": [[2] * 64]}).encode()
    advise = ("advise", source, "--bits", "9", "--quiet", "--json")
    map_json = b'{"default": "keep", "a\\\\..*": "bfloat16", "(?i)B\\\\b.{2,3}$": "float8_e4m3fn"}'
    map_toml = b'default = "float16"\n"a\\\\.(weight|bias)" = "bfloat16"\n\'b.*\' = "keep"\n'
    scheme = b'"a.*" = "int8_channel"\n"b.*" = "keep"\n'
    policy = dtype_policies.DTypePolicyMap("mixed_bfloat16", {"a/.*": "float16"})
    policies = [json.dumps(dtype_policies.serialize(policy)).encode(), b'"int8_from_float32"']
    rows = (
        ("map-json", ".json", (*cast, "--map"), [map_json]),
        ("map-toml", ".toml", (*cast, "--map"), [map_toml]),
        (
            "map-scheme",
            ".toml",
            ("quantize", source, out / "x.safetensors", "--quiet", "--map"),
            [scheme, map_toml],
        ),
        ("policy", ".json", (*cast, "--policy"), policies),
        ("groups-json", ".json", (*advise, "--groups"), [b'["a.*", "b.*"]', b'{"a.*": "x"}']),
        ("groups-toml", ".toml", (*advise, "--groups"), [b'"a.*" = "x"\n"b.*" = "y"\n']),
        ("importance", ".json", (*advise, "--importance"), [b'{"a.weight": 1, "b.weight": 0.5}']),
        ("importance-lists", ".json", (*search, "--importance"), [lists]),
    )

    def reader(path: Path, call: tuple[object, ...]) -> Callable[[bytes], None]:
        def read(data: bytes) -> None:
            path.write_bytes(data)
            command(out, *call, path)

        return read

    return {
        name: Target(reader(folder / f"{name}{suffix}", call), seeds)
        for name, suffix, call, seeds in rows
    }


def state_targets(folder: Path) -> dict[str, Target]:
    """Return what was saved by castwise, and is read again."""
    survey = castwise.survey(floats(3000).reshape(30, -1))
    log = surveys.GradientLog(by_name=True)
    log.record(0, {"w": floats(300), "b": floats(30)}, loss_scale=128.0)
    policy = dtype_policies.DTypePolicyMap("mixed_bfloat16", {"a/.*": "int8_from_float32"})
    configs = [
        dtype_policies.serialize(policy),
        dtype_policies.serialize(dtype_policies.DTypePolicy("float16")),
    ]
    scales = [
        loss_scale.DynamicLossScale(),
        loss_scale.DynamicLossScale(preset="torch"),
        loss_scale.FixedLossScale(2.0),
    ]

    def look_up(value: object) -> None:
        policies = dtype_policies.get(value)
        if isinstance(policies, dtype_policies.DTypePolicyMap):
            policies.get("a/b")

    def surveyed(value: object) -> None:
        read = surveys.Survey.from_dict(value)  # type: ignore[arg-type]
        assert (
            read.to_dict()
            == surveys.Survey.from_dict(json.loads(json.dumps(read.to_dict()))).to_dict()
        )
        str(read), str(read + survey)

    def logged(value: object) -> None:
        read = surveys.GradientLog.from_dict(value)  # type: ignore[arg-type]
        json.dumps(read.to_dict()), str(read), repr(read), read.loss_scales()

    def dumped(values: Sequence[object]) -> list[bytes]:
        return [json.dumps(value).encode() for value in values]

    return {
        "survey": Target(refusing(surveyed, ValueError), dumped([survey.to_dict()])),
        "log": Target(refusing(logged, ValueError), dumped([log.to_dict()])),
        "policies": Target(refusing(look_up, ValueError, TypeError), dumped(configs)),
        "loss-scale": Target(
            refusing(_scale, ValueError, TypeError),
            dumped([scale.get_config() for scale in scales]),
        ),
        "map-patterns": Target(
            pattern,
            [
                b"a|b\nab",
                rb"(?i)x\d+.*\.w$" b"\nX12.a.w",
                rb"^\w[^a-c]{2,3}\b" b"\nxyz",
                "(?i)k.s\n\u212a.\u017f".encode(),
            ],
        ),
        **journal_targets(folder),
    }


def _scale(config: Any) -> None:
    for kind in (loss_scale.DynamicLossScale, loss_scale.FixedLossScale):
        with contextlib.suppress(ValueError, TypeError):
            kind.from_config(config)
    loss_scale.DynamicLossScale.from_config(config)


def pattern(data: bytes) -> None:
    """Match a pattern against a path: as Python's `re` does, if that takes it."""
    key, _, path = data.decode("utf-8", "replace")[:200].partition("\n")
    if re.search(r"[*+}?]\)*[*+{]", key):
        return  # `re` may take exponential time for it
    try:
        expected = re.compile(key)
    except (re.error, OverflowError, RecursionError):
        expected = None
    policies = dtype_policies.DTypePolicyMap("float32")
    try:
        policies[key] = "float16"
    except ValueError:
        assert expected is None, key
        return
    assert expected is not None, key
    is_match = path == key or expected.fullmatch(path) is not None
    assert (policies.get(path).name == "float16") == is_match, (key, path)


class _StopError(Exception):
    """Raised to interrupt a conversion."""


def journal_targets(folder: Path) -> dict[str, Target]:
    """Return what an interrupted conversion, and one in parts, leave."""
    out, source = folder / "out", folder / "shards"
    write_sharded(source, {f"{n}.safetensors": {n: floats(50), f"{n}2": floats(8)} for n in "abc"})
    cast = ("cast", source, out / "new", "--dtype", "bfloat16", "--quiet")

    def stop(progress: checkpoint.Progress) -> None:
        if progress.name == "c":
            raise _StopError

    out.mkdir()
    with contextlib.suppress(_StopError):
        checkpoint.cast_file(source, out / "new", "bfloat16", resumable=True, progress=stop)
    kept, journal = folder / "kept", folder / "journal"
    (out / ".new.resumable.castwise-tmp").rename(kept)
    (out / ".new.resumable.journal.castwise-tmp").rename(journal)
    checkpoint.cast_file(source, out / "new", "bfloat16", part="1/1")
    parts = folder / "parts"
    (out / ".new.parts.castwise-tmp").rename(parts)

    def sealed(act: Callable[[bytes, str], None], data: bytes, *, name: str) -> None:
        """Act on the page as it is, and with the seal of what it says."""
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
            content = json.loads(data)
            content.pop("seal", None)
            act(seal_page(content), name)
        act(data, name)

    def resume(data: bytes, name: str) -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        shutil.copytree(kept, out / ".new.resumable.castwise-tmp")
        shutil.copytree(journal, out / ".new.resumable.journal.castwise-tmp")
        (out / ".new.resumable.journal.castwise-tmp" / name).write_bytes(data)
        _quietly(*cast, "--resume")

    def finish(data: bytes, name: str) -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        shutil.copytree(parts, out / ".new.parts.castwise-tmp")
        (out / ".new.parts.castwise-tmp" / name).write_bytes(data)
        _quietly("finish", out / "new", "--quiet")

    def _quietly(*arguments: object) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = cli.main([str(argument) for argument in arguments])
        text = said.getvalue()
        assert code in {0, 1, 2}, text
        assert "did not expect" not in text, text
        assert (out / "new").exists() == (code != 2), text
        if code != 2:
            assert checkpoint.load(out / "new").keys() == {*"abc", "a2", "b2", "c2"}

    pages = (
        ("journal", resume, journal, "part-2-of-3.json"),
        ("journal_job", resume, journal, "job.json"),
        ("page", finish, parts, "part-1-of-1.json"),
        ("job", finish, parts, "job.json"),
    )
    return {
        target: Target(partial(sealed, act, name=name), [(place / name).read_bytes()])
        for target, act, place, name in pages
    }


def name_targets(folder: Path) -> dict[str, Target]:
    """Return the names that a store, an index and an archive list, none of which may lead out."""
    if find_spec("upath") is None:
        print("universal-pathlib is not installed: names of stores are not tried")
        return {}
    memory = importlib.import_module("fsspec.implementations.memory")
    objects, out = memory.MemoryFileSystem.store, folder / "out"
    indexed = folder / "indexed"
    write_sharded(indexed, {f"{name}.safetensors": {name: floats(4)} for name in ("one", "two")})
    index, shard = indexed / "model.safetensors.index.json", (indexed / "one.safetensors")
    archive = folder / "in.npz"

    def outside() -> set[Path]:
        return {path for path in folder.rglob("*") if out / "new" not in (path, *path.parents)}

    def read(data: bytes) -> None:
        try:
            names = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return
        keys = [f"/m/{name}" for name in ("model.safetensors", *names)]
        objects.clear()
        objects.update((key, memory.MemoryFile(None, key, shard.read_bytes())) for key in keys)
        index.write_text(json.dumps({"weight_map": dict.fromkeys(["one"], *names[:1])}))
        with zipfile.ZipFile(archive, "w") as members, contextlib.suppress(IndexError):
            for name in names:  # zipfile's IndexError: an empty one
                members.writestr(name.encode(errors="replace").decode(), b"")
        out.mkdir(exist_ok=True)
        before = outside()
        for source, target in (
            ("memory://m", out / "new"),
            (indexed, out / "new"),
            (archive, out / "new" / "x.npz"),
            (indexed / "two.safetensors", "memory://m"),
        ):
            command(out, "cast", source, target, "--dtype", "float16", "--quiet")
            assert outside() == before, outside() ^ before
        assert {key for key in objects if not key.startswith("/m/")} == set()

    seeds = ["a.txt", "sub/b.json"], ["one.safetensors"], ["one.npy", "a/two.npy"]
    return {"names": Target(read, [json.dumps(seed).encode() for seed in seeds])}


STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *(2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400),
    *("", "x", "0", "-1", "\0", "\n", "\ud800", "é", "../x", "/x", "a" * 300, "nan", "0x1p99999"),
    *("a/../../x", "..", ".", "..\\x", "C:x", "a//x", "file::x"),
    *("float16", "float8_e4m3fn", "int4", "mixed_float16", "(", ".*", "[]", "null", "1e400"),
    *([], {}, [[]], {"": None}, [{}], [0, 0], [128, 128], {"a": {"b": [1]}}),
)


def _nodes(value: Any, nodes: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in list(items)[:200]:
        nodes.append((value, key))
        _nodes(item, nodes)
    return nodes


def changed_json(data: bytes, random_: random.Random) -> bytes:
    """Change values, keys or the structure of JSON; of several lines, of one of them."""
    lines = data.split(b"\n") if b"\n{" in data else [data]
    place = random_.randrange(len(lines))
    value = [json.loads(lines[place])]
    for _ in range(random_.choice((1, 1, 1, 2, 4))):
        nodes = _nodes(value, [])
        if not nodes:
            break
        holder, key = random_.choice(nodes)
        other, other_key = random_.choice(nodes)
        match random_.randrange(8):
            case 0 | 1 | 2 | 3:
                holder[key] = random_.choice(STRANGE)
            case 4:
                holder[key] = json.loads(json.dumps(other[other_key]))
            case 5:
                del holder[key]
            case 6 if isinstance(holder, dict):
                holder[random_.choice(("x", "", "default", str(key) + "x"))] = holder.pop(key)
            case 7 if isinstance(holder[key], str):
                text = holder[key]
                at = random_.randrange(len(text) + 1)
                holder[key] = text[:at] + str(random_.choice(STRANGE)) + text[at + 1 :]
            case 7 if isinstance(holder[key], list) and holder[key]:
                holder[key] *= random_.choice((0, 2, 40))
            case _:
                holder[key] = [holder[key]]
    lines[place] = json.dumps(value[0] if value else None).encode()
    return b"\n".join(lines)


def changed(data: bytes, random_: random.Random) -> bytes:
    """Change an input by what it is: JSON, a zip file, or bytes."""
    if random_.random() < 0.01:
        return random_.choice((b"[", b'{"a":', b"a=[", b"[a.", b"a.")) * 10_000
    if random_.random() < 0.75:
        with contextlib.suppress(ValueError, RecursionError):
            return changed_json(data, random_)
        with contextlib.suppress(Exception):  # a zip file that was damaged before
            return damaged_member(data, random_)
    return damaged(data, random_)


def guided(target: Target, corpus: Path, kept: Path, seconds: int) -> None:
    """Fuzz with atheris, which does not return."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random_ = random.Random(seed)
        if random_.random() < 0.3:
            return atheris.Mutate(data, most)
        return changed(data, random_)[:most]

    arguments = [
        *(sys.argv[0], str(corpus), f"-artifact_prefix={kept}-", f"-max_total_time={seconds}"),
        *(f"-timeout={PATIENCE}", f"-rss_limit_mb={MEGABYTES}", f"-max_len={MOST}"),
        *("-print_final_stats=1", "-verbosity=0", "-close_fd_mask=0"),
    ]
    atheris.Setup(arguments, target.read, custom_mutator=mutate)
    atheris.Fuzz()


def unguided(target: Target, kept: Path, seconds: float) -> None:
    """Fuzz by changes at random."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        random_ = random.Random(count)
        data = changed(random_.choice(target.seeds), random_)
        count += 1
        kept.write_bytes(data)
        signal.alarm(PATIENCE)
        target.read(data)
        signal.alarm(0)
    kept.unlink(missing_ok=True)
    print(f"stat::number_of_executed_units: {count}", flush=True)


def fuzz(name: str, target: Target, seconds: float, corpus: Path, log: Path) -> bool:
    """Fuzz one target in a process of its own, and print what became of it; True if all is well."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    kept = Path(tempfile.gettempdir()) / f"fuzz-{name}"
    child = os.fork()
    if child == 0:
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        try:
            for seed in target.seeds:
                target.read(seed)
            if is_guided:
                guided(target, corpus, kept, max(round(seconds), 1))
            unguided(target, kept, seconds)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = log.read_text("utf-8", "replace")
    executed = re.search(r"number_of_executed_units: (\d+)", text)
    print(f"{name}: {int(executed[1]) if executed else 0:,} inputs, exit code {code}", flush=True)
    if code:
        print(text[-4000:], flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--replay", type=Path, nargs="+", help="inputs for the one target")
    options = parser.parse_args()
    logging.disable()
    memory = Path("/dev/shm")  # noqa: S108
    root = Path(tempfile.mkdtemp(prefix="fuzz-readers-", dir=memory if memory.is_dir() else None))
    folder = root / "work"
    folder.mkdir()
    targets: dict[str, Target] = {}
    for make in (
        *(state_targets, text_targets, name_targets),
        *(file_targets, folder_targets),
    ):
        if not options.targets or {*options.targets} - {*targets}:
            targets |= make(folder)
    if unknown := {*options.targets} - {*targets}:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(targets)}")
    names = options.targets or list(targets)
    if options.replay:
        for path in options.replay:
            targets[names[0]].read(path.read_bytes())
        return 0
    if not is_guided:
        print("atheris is not installed: inputs are changed at random")
    corpora, share = options.corpus or root / "corpus", options.seconds / len(names)
    results = [fuzz(name, targets[name], share, corpora / name, root / "log") for name in names]
    shutil.rmtree(root, ignore_errors=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
