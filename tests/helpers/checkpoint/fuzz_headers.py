"""Damage files of every container and convert them; a script, not a test.

    python tests/helpers/checkpoint/fuzz_headers.py [--seconds 600] [--seed 0]

Every case is inspected, and cast into its own container and into another. It may be refused with a
CheckpointError, or be read; any other exception, a crash of the process, or more than two minutes
is printed, the file is kept, and the exit code is then 1. Containers whose library is not installed
are left out, by name.
"""

import argparse
import io
import json
import logging
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from castwise import checkpoint
from checkpoint_samples import floats, random_array, write_sharded
from torch_files import FOLDER as TORCH
from torch_files import state_dict, tensor, torch_file

PATIENCE = 120
KEEP = {".*": "keep"}
HDF5 = (".h5", ".keras")
MEMORY = 2 << 30
FOUND = 3  # exit code of a child that met another exception
BYTES = (0, 1, 0x2D, 0x39, 0x5B, 0x7B, 0x7F, 0x80, 0xFF)
WORDS = (b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\0" * 8, (1 << 40).to_bytes(8, "little"))
TOKENS = (
    *(b"0", b"-1", b"9" * 20, b"1e400", b"null", b"[]", b"{}", b"true", b'""', b"NaN"),
    *(b"False", b"True", b"()", b"'<f4'", b"'|O'", b"'>V2'", b"F32", b"F4", b"U8", b"I64"),
)


def arrays() -> dict[str, np.ndarray]:
    """Return arrays of several kinds and ranks."""
    return {
        "a": floats(5),
        "b": random_array("bfloat16", (2, 3)),
        "c": np.asfortranarray(floats(12).reshape(3, 4)),
        "d": np.int64(3),
    }


def files(folder: Path) -> dict[str, bytes]:
    """Return a file of each container, by the name that a damaged one gets."""
    samples = {}
    for name in ("safetensors", "npz", *(["h5", "weights.h5"] if find_spec("h5py") else [])):
        path = folder / f"in.{name}"
        checkpoint.save(path, arrays())
        samples[f"x.{name}"] = path.read_bytes()
    packed = io.BytesIO()
    np.savez_compressed(packed, **{name: one for name, one in arrays().items() if name != "b"})
    samples["deflated/x.npz"] = packed.getvalue()
    for name in ("a", "b", "c"):
        path = folder / f"{name}.npy"
        checkpoint.save(path, arrays()[name])
        samples[f"{name}/x.npy"] = path.read_bytes()
    value = state_dict(a=tensor((2, 2), (1, 2)), b=tensor((8,), (1,)))
    samples["made/x.pt"] = torch_file({"model": value, "step": 3})
    for path in TORCH.iterdir():
        samples[f"{path.stem}/x{path.suffix}"] = path.read_bytes()
    if "x.weights.h5" in samples:
        config = json.dumps({"class_name": "Sequential", "config": {"layers": []}})
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as members:
            members.writestr("metadata.json", "{}")
            members.writestr("config.json", config)
            members.writestr("model.weights.h5", samples["x.weights.h5"])
        samples["x.keras"] = archive.getvalue()
    return samples


def folders(folder: Path) -> dict[str, bytes]:
    """Return the files of folders that say how the others are to be read."""
    shards = {f"{one}.safetensors": {one: floats(4)} for one in ("one", "two")}
    write_sharded(folder / "model", shards)
    config = {
        "torch_dtype": "float32",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    return {
        "model/model.safetensors.index.json": (
            folder / "model" / "model.safetensors.index.json"
        ).read_bytes(),
        "model/config.json": json.dumps(config).encode(),
    }


def damaged(content: bytes, random_: random.Random) -> bytes:
    """Change bytes, words or tokens of a file, repeat or drop a part, or cut it off."""
    changed = bytearray(content)
    # Headers stand at the begin, those of zip files and of torch's oldest also at the end.
    for _ in range(random_.choice((1, 1, 2, 4, 16))):
        size = len(changed) or 1
        at = random_.randrange(min(size, random_.choice((16, 256, 2048, size))))
        at = size - 1 - at if random_.random() < 0.25 else at
        match random_.randrange(8):
            case 0 | 1 | 2:
                changed[at : at + 1] = bytes([random_.choice((*BYTES, random_.randrange(256)))])
            case 3:
                changed[at : at + 8] = random_.choice(WORDS)
            case 4:
                width = random_.choice(("<H", "<I", "<Q"))
                number = random_.choice((0, 1, size, size - 1, 0xFFFF))
                word = struct.pack(width, number % (1 << 8 * struct.calcsize(width)))
                changed[at : at + len(word)] = word
            case 5:
                changed[at : at + random_.randrange(8)] = random_.choice(TOKENS)
            case 6:
                other = random_.randrange(size)
                changed[at:at] = changed[other : other + random_.randrange(64)]
            case 7:
                del changed[at : at + random_.randrange(1, 64)]
    if random_.random() < 0.1:
        del changed[random_.randrange(len(changed) or 1) :]
    return bytes(changed)


def damaged_member(content: bytes, random_: random.Random) -> bytes:
    """Change one member of a zip file, whose checksums are right then."""
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(result, "w") as new,
    ):
        chosen = random_.choice(old.namelist())
        for one in old.infolist():
            data = old.read(one)
            new.writestr(one, damaged(data, random_) if one.filename == chosen else data)
    return result.getvalue()


def convert(path: Path, out: Path) -> int:
    """Inspect a file, or the folder that it is part of, and cast it; returns how often it went."""
    source = path.parent if path.suffix == ".json" else path
    is_folder = source.is_dir()
    targets = [out / path.name, out / "new.safetensors", out / "new.npz"]
    targets = [out / "new"] if is_folder else targets
    # Another process reads each file of HDF5 first, which takes nearly all of the time.
    is_slow = path.suffix in HDF5
    actions: list[Callable[[], object]] = [lambda: checkpoint.inspect(source)]
    for target in targets[:1] if is_slow else targets:
        for raw in (True,) if is_slow else (False, True):
            actions += [
                partial(checkpoint.cast_file, source, target, "float16", raw=raw, overwrite=True),
                partial(checkpoint.cast_file, source, target, dtype_map=KEEP, dry_run=True),
            ]
    read = 0
    for action in actions:
        try:
            action()
            read += 1
        except checkpoint.CheckpointError:
            pass
    return read


def run(  # noqa: PLR0917
    name: str, content: bytes, folder: Path, first: int, seconds: float, seed: int
) -> None:
    """Try cases from the number `first` on, as long as there is time."""
    path, counter = folder / name, folder / "count"
    out = folder / "out"
    out.mkdir(exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    number = first
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, hard))
    counts = json.loads(counter.read_text()) if counter.exists() else {"cases": 0, "read": 0}
    while time.monotonic() < end:
        random_ = random.Random(f"{seed}/{name}/{number}")
        is_zip = zipfile.is_zipfile(io.BytesIO(content)) and random_.random() < 0.6
        path.write_bytes((damaged_member if is_zip else damaged)(content, random_))
        number += 1
        counts["cases"] += 1
        counter.write_text(json.dumps({**counts, "next": number}))
        signal.alarm(PATIENCE)
        try:
            counts["read"] += convert(path, out) > 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(FOUND)
        signal.alarm(0)
    counter.write_text(json.dumps({**counts, "next": number}))
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="fuzz-headers-"))
    samples = files(root) | folders(root)
    if not find_spec("h5py"):
        print("left out, because h5py is not installed: .h5, .weights.h5, .keras")
    found: Counter[str] = Counter()
    logging.disable()
    weights = {name: 4 if name.endswith(HDF5) else 1 for name in samples}
    for place, (name, content) in enumerate(samples.items()):
        folder = root / f"case{place}"
        folder.mkdir()
        if name.startswith("model/"):
            write_sharded(
                folder / "model", {f"{one}.safetensors": {one: floats(4)} for one in ("one", "two")}
            )
        end = time.monotonic() + options.seconds * weights[name] / sum(weights.values())
        first = 0
        while (left := end - time.monotonic()) > 0:
            child = os.fork()
            if child == 0:
                run(name, content, folder, first, left, options.seed)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            state = json.loads((folder / "count").read_text())
            first = state["next"]
            if code:
                found[name] += 1
                kept = root / f"found-{place}-{first - 1}{Path(name).suffix}"
                kept.write_bytes((folder / name).read_bytes())
                what = "another exception" if code == FOUND else f"exit code {code}"
                print(f"{name}: {what}: {kept}", flush=True)
        print(
            f"{name}: {state['cases']:,} cases, {state['read']:,} read, {found[name]} found",
            flush=True,
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
