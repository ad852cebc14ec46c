"""What names promise: formats, maps and policies as people type them."""

import re
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from checkpoint_samples import assert_same, floats, random_array, write_sharded
from support import run_castwise as run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, {"head.weight": floats(12).reshape(3, 4), "step": np.array(7)})
    return path


def formats(path: Path) -> dict[str, str | None]:
    return {info.name: info.format for info in checkpoint.inspect(path).tensors}


@pytest.mark.parametrize("name", ["fp8", "float8", "FP8", "Float8"])
def test_fp8_is_float8_e4m3fn(model: Path, tmp_path: Path, name: str) -> None:
    out, map_file, raw = tmp_path / "out.safetensors", tmp_path / "map.json", tmp_path / "raw.npz"
    map_file.write_text(f'{{"head.*": "{name}"}}')
    np.savez(raw, w=random_array("float8_e4m3fn", (8,)))
    for arguments in (("--dtype", name), ("--map", map_file)):
        run("cast", model, out, *arguments, "--overwrite")
        assert formats(out)["head.weight"] == "float8_e4m3fn"
    for wanted in (name, {"default": name}, {"head.*": name}):
        checkpoint.cast_file(model, out, wanted, overwrite=True)
        assert formats(out)["head.weight"] == "float8_e4m3fn"
    assert checkpoint.load(raw, assume=name)["w"].dtype.name == "float8_e4m3fn"
    assert "float8_e4m3fn" in run("inspect", raw, "--assume", name).stdout
    assert castwise.cast(np.ones(2), name).dtype.name == "float8_e4m3fn"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("f8", "write 'float64', or for 8 bits 'float8_e4m3fn'"),
        ("f4", "write 'float32', or for 4 bits 'float4_e2m1fn'"),
        ("u4", "write 'uint32', or for 4 bits 'uint4'"),
        ("i8", "write 'int64', or for 8 bits 'int8'"),
        ("u1", "write 'uint8', or for 1 bit 'uint1'"),
        ("<f4", "write 'float32', or"),
        ("f2", "write 'float16'$"),
        ("c16", "write 'complex128'$"),
    ],
)
def test_byte_counts_are_refused_where_they_are_typed(
    model: Path, tmp_path: Path, name: str, message: str
) -> None:
    out, map_file = tmp_path / "out.safetensors", tmp_path / "map.toml"
    map_file.write_text(f"'head.*' = '{name}'")
    np.save(tmp_path / "raw.npy", np.zeros(2, "V2"))
    for arguments, what in (
        (("cast", model, out, "--dtype", name), "--dtype"),
        (("cast", model, out, "--map", map_file), "map.toml: key 'head"),
        (("cast", model, out, "--dtype", "bf16", "--assume", name), "--assume"),
        (("inspect", tmp_path / "raw.npy", "--assume", name), "--assume"),
    ):
        said = run(*arguments, code=2).stderr
        assert what in said
        assert re.search(f"'{name}' counts bytes, as numpy does; {message}", said, re.MULTILINE)
    assert not out.exists()
    checkpoint.cast_file(model, out, np.dtype(name), as_bytes=True)  # no doubt what that is


def test_names_that_count_bits_are_not_byte_counts(model: Path, tmp_path: Path) -> None:
    for name, wanted in (("f16", "float16"), ("F32", "float32"), ("I8", "int8"), ("U8", "uint8")):
        run("cast", model, tmp_path / "out.npz", "--dtype", name, "--exit-zero", "--overwrite")
        assert formats(tmp_path / "out.npz")["head.weight"] == wanted


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("float8_e4m3", "float8_e4m3fn"),
        ("e3m4", "float8_e4m3fn"),
        ("float8_e4m3b11fnuz", "float8_e4m3fn"),
        ("float6_e2m3fn", "float8_e4m3fn"),
        ("int4", "int8"),
        ("uint1", "uint8"),
        ("complex128", "complex64"),
        ("bcomplex32", "complex64"),
    ],
)
def test_what_safetensors_cannot_name_needs_consent(
    model: Path, tmp_path: Path, name: str, nearest: str
) -> None:
    write_sharded(tmp_path / "shards", {"one.safetensors": {"w": floats(4)}})
    for source, target in ((model, "out.safetensors"), (tmp_path / "shards", "out")):
        arguments = ("cast", source, tmp_path / target, "--dtype", name, "--exit-zero")
        said = run(*arguments, code=2).stderr
        assert f"the nearest format it has is {nearest}; " in said
        assert "--as-bytes" in said
        assert not (tmp_path / target).exists()
        run(*arguments, "--as-bytes")
    with pytest.raises(checkpoint.CheckpointError, match=r"as_bytes$"):
        checkpoint.cast_file(model, tmp_path / "python.safetensors", name)
    checkpoint.cast_file(model, tmp_path / "python.safetensors", name, as_bytes=True)
    array = checkpoint.load(tmp_path / "python.safetensors")["head.weight"]
    assert_same(array, checkpoint.load(tmp_path / "out.safetensors")["head.weight"])
    run("cast", model, tmp_path / "out.npz", "--dtype", name, "--exit-zero")  # which can name it


def test_bytes_that_stay_need_no_consent_and_others_do(tmp_path: Path) -> None:
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    checkpoint.save(old, {"six": random_array("float6_e2m3fn", (4,)), "w": floats(4)})
    (tmp_path / "map.json").write_text('{"w": "bf16"}')
    run("cast", old, new, "--map", tmp_path / "map.json")
    assert formats(new) == {"six": "float6_e2m3fn", "w": "bfloat16"}
    np.savez(tmp_path / "in.npz", c=np.zeros(2, np.complex128))
    arguments = ("cast", tmp_path / "in.npz", new, "--dtype", "bf16")
    assert "tensor 'c': safetensors has no code" in run(*arguments, "--overwrite", code=2).stderr
    run(*arguments, "--as-bytes", "--overwrite")
    checkpoint.save(old, {"even": floats(4), "odd": floats(3)}, overwrite=True)
    arguments = ("cast", old, new, "--dtype", "fp4", "--exit-zero")
    said = run(*arguments, "--overwrite", code=2).stderr
    assert "tensor 'odd': safetensors has no way to pack rows of an odd length (shape (3,))" in said
    run(*arguments, "--as-bytes", "--overwrite")


def test_assume_is_honored_or_refused(model: Path, tmp_path: Path) -> None:
    array = random_array("bfloat16", (4,))
    np.save(tmp_path / "raw.npy", array)
    assert "V2 (raw bytes)" in run("inspect", tmp_path / "raw.npy").stdout
    shown = run("inspect", tmp_path / "raw.npy", "--assume", "bf16").stdout
    assert re.search(r"^raw +bfloat16 +4 ", shown, re.MULTILINE)
    write_sharded(tmp_path / "shards", {"one.safetensors": {"w": floats(4)}})
    for source in (model, tmp_path / "shards"):
        for arguments in (
            ("inspect", source, "--assume", "bf16"),
            ("cast", source, tmp_path / "out", "--dtype", "fp8", "--assume", "bf16"),
        ):
            said = run(*arguments, code=2).stderr
            assert "--assume is for arrays that numpy saved as raw bytes" in said
        for function in (checkpoint.load, checkpoint.inspect):
            with pytest.raises(checkpoint.CheckpointError, match="assume"):
                function(source, assume="bfloat16")


def test_a_policy_that_changes_nothing_says_why(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"

    def said(*options: Any) -> str:
        return run("cast", model, out, *options, "--overwrite").stderr

    warning = said("--policy", "mixed_bfloat16")
    assert re.match(
        "castwise: warning: nothing changed: the floating tensors already have what policy "
        "mixed_bfloat16 gives to role variable; for what it computes in, bfloat16: "
        "--policy mixed_bfloat16 --role compute$",
        warning,
    )
    assert said("--dtype", "mixed_bfloat16") == warning
    assert said("--policy", "mixed_bfloat16", "--role", "compute") == ""
    assert said("--policy", "float32").endswith("policy float32 gives to role variable\n")
    assert said("--dtype", "float32") == ""


def test_a_map_that_gives_no_format_says_so(model: Path, tmp_path: Path) -> None:
    out, map_file = tmp_path / "out.safetensors", tmp_path / "map.toml"
    for text, is_idle in (("", True), ("'.*' = 'keep'", True), ("default = 'float32'", False)):
        map_file.write_text(text)
        said = run("cast", model, out, "--map", map_file, "--overwrite").stderr
        assert ("nothing changed: " in said) == is_idle, said
        assert said.endswith("map.toml gives no tensor here a format\n") == is_idle


@pytest.mark.parametrize(
    "key", ["defualt", "Default", "DEFAULT", "defaults", "defalt", "efault", "default_"]
)
def test_a_default_that_is_spelled_wrong_is_an_error(model: Path, tmp_path: Path, key: str) -> None:
    out, map_file = tmp_path / "out.safetensors", tmp_path / "map.json"
    map_file.write_text(f'{{"{key}": "bf16"}}')
    said = run("cast", model, out, "--map", map_file, code=2).stderr
    assert (
        f"key '{key}': did you mean 'default'? For an array of that name, write '({key})'" in said
    )
    with pytest.raises(ValueError, match=f"key '{key}'"):
        castwise.cast_tree({"a": floats(2)}, {key: "bfloat16"})
    tree = castwise.cast_tree({key: floats(2)}, {f"({key})": "bfloat16"})
    assert tree[key].dtype.name == "bfloat16"


def test_unused_patterns_come_with_the_nearest_name(model: Path, tmp_path: Path) -> None:
    out, map_file = tmp_path / "out.safetensors", tmp_path / "map.json"
    map_file.write_text('{"default": "bf16", "haed\\\\.weight": "keep", "fault": "keep"}')
    result = run("cast", model, out, "--map", map_file)
    assert r"map.json: unused pattern 'haed\.weight'; nearest is 'head.weight'" in result.stderr
    summary = checkpoint.cast_file(model, out, dtype_map=map_file, overwrite=True)
    assert summary.unused_patterns["haed\\.weight"] == "head.weight"
    assert summary.to_dict()["unused_patterns"] == summary.unused_patterns


def test_a_map_takes_the_dtype_as_its_default(model: Path, tmp_path: Path) -> None:
    out, map_file = tmp_path / "out.safetensors", tmp_path / "map.json"
    map_file.write_text('{"step": "float64"}')
    run("cast", model, out, "--map", map_file, "--dtype", "bf16")
    assert formats(out) == {"head.weight": "bfloat16", "step": "float64"}
    map_file.write_text('{"default": "keep"}')
    said = run("cast", model, out, "--map", map_file, "--dtype", "bf16", code=2).stderr
    assert "map.json has a 'default', and --dtype bf16 is another; leave one out" in said
