"""What is beside a payload and not part of how its producer stores it is refused by name."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.cli import main
from castwise.quantization.producers.foreign import _Siblings
from castwise.quantization.producers.layouts import Layout
from castwise.quantization.producers.names import name_part
from castwise.quantization.producers.registry import PRODUCERS
from castwise.quantization.weights.recognition import recognize
from producer_models import MODELS, Decodable, write

INVENTED = ("global_scale", "smooth_scale", "channel_scale", "scales2", "weight_scale_2", "zeta")
NAMED = (*INVENTED, "scale_bias", "lut", "weight_zp", "wscale")
KNOWN = ("bias", "k_scale", "v_scale")


@dataclass(frozen=True)
class Stored:
    name: str
    format: str | None
    shape: tuple[int, ...]


TABLE = [(recipe.name, layout) for recipe in PRODUCERS for layout in recipe.layouts]


def tensors_of(layout: Layout) -> dict[str, Stored]:
    """Every tensor of a layout, in a module."""
    stem = layout.parameters[0] if layout.parameters else "weight"
    weight = f"model.layer.{stem}"
    parts = {name_part(part.name, weight): part for part in layout.parts}
    found = {
        name: Stored(name, (part.formats or ("float32",))[0], (64, 4))
        for name, part in parts.items()
    }
    payload = name_part(layout.payload, weight) if layout.payload else weight
    return {payload: Stored(payload, (layout.formats or ("uint8",))[0], (64, 64)), **found}


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("recipe", "layout"), TABLE, ids=[f"{name} {one.scheme}{one.payload}" for name, one in TABLE]
)
def test_every_layout_of_the_table(recipe: str, layout: Layout) -> None:
    tensors = tensors_of(layout)
    known = recognize(tensors.values(), {}, {})
    assert known is not None
    (weight,) = known.weights
    assert weight.foreign == ()
    stem = layout.parameters[0] if layout.parameters else "weight"
    for tail in (*NAMED, f"{stem}_zeta", f"{stem}.zeta"):
        name = f"model.layer.{tail}"
        if name in tensors:
            continue
        other = Stored(name, "float32", (1,))
        found = recognize([*tensors.values(), other], {}, {})
        assert found is not None
        (again,) = found.weights
        # A name of the table may belong to another layout of the same payload, and is used then.
        if name not in again.parts:
            assert again.foreign == (name,)
            assert again.problem is not None
            assert found.orphans == ()
        else:
            assert tail in INVENTED
    others = [Stored(f"model.layer.{tail}", "float32", (1,)) for tail in KNOWN]
    if recipe != "keras":
        found = recognize([*tensors.values(), *others], {}, {})
        assert found is not None
        assert found.weights[0].foreign == ()


def beside_payloads(model: Decodable, tail: str) -> str:
    """Add a tensor beside the first payload; return its name."""
    first = next(iter(model.tensors))
    name = f"{first.rpartition('.')[0]}.{tail}"
    model.tensors[name] = np.full(1, 3, np.float32)
    return name


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [one for one in MODELS if "keras" not in one])
def test_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    model = deepcopy(MODELS[name]())
    added = beside_payloads(model, "zeta")
    source, out = write(tmp_path / "in", model), tmp_path / "out"
    found = checkpoint.inspect(source).quantization
    assert found is not None
    assert [one.foreign for one in found.weights if one.foreign] == [(added,)]
    for command in (
        ["dequantize", str(source), str(out)],
        ["transcode", str(source), str(out), "--to", "compressed-tensors"],
        ["transcode", str(source), str(out), "--to", "modelopt"],
        ["verify", str(source), str(source)],
        ["cast", str(source), str(out), "--dtype", "float16"],
    ):
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert command[0] == "cast" or repr(added) in said or "does not go" in said, said
        assert not out.exists()
    assert main(["inspect", str(source)]) in (0, 1)
    assert added in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mlx, 4 bits", "gptq, 4 bits", "modelopt, nvfp4"])
def test_a_cast_does_not_change_what_is_beside_a_payload(tmp_path: Path, name: str) -> None:
    model = deepcopy(MODELS[name]())
    added = beside_payloads(model, "smooth_scale")
    source = write(tmp_path / "in", model)
    with pytest.raises(checkpoint.CheckpointError, match="smooth_scale"):
        checkpoint.cast_file(source, tmp_path / "out", {added: "bfloat16", ".*": "keep"})


STATED: dict[str, tuple[str, Any]] = {
    "compressed-tensors": (
        "compressed-tensors, int8",
        lambda section: next(iter(section["config_groups"].values()))["weights"],
    ),
    "mlx": ("mlx, 4 bits", None),
}


@pytest.mark.parametrize("name", ["compressed-tensors, int8", "modelopt, nvfp4", "mlx, 4 bits"])
def test_a_key_of_a_layer_that_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    model = deepcopy(MODELS[name]())
    module = next(iter(model.plain)).rpartition(".")[0] if hasattr(model, "plain") else "a"
    section = model.config.get("quantization_config", model.config.get("quantization"))
    if "config_groups" in section and "weights" in next(iter(section["config_groups"].values())):
        next(iter(section["config_groups"].values()))["weights"]["zeta"] = 1
    elif name.startswith("mlx"):
        model.config["quantization"][module] = {"group_size": 64, "bits": 4, "zeta": 1}
    else:
        algorithm = {key: section[key] for key in ("quant_algo",) if key in section}
        section["quantized_layers"] = {module: {**algorithm, "zeta": 1}}
    for file in ("hf_quant_config.json",):
        model.files.pop(file, None)
    assert main(["dequantize", str(write(tmp_path / "in", model)), str(tmp_path / "out")]) == 2
    assert "'zeta'" in capsys.readouterr().err
    assert json.loads((tmp_path / "in" / "config.json").read_text())


def test_what_is_beside_many_payloads_of_a_module_is_judged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of anybody may hold any number of them; their square would be hours."""
    tensors = {}
    for number in range(40):
        name = f"module.w{number}_weight"
        tensors[name] = Stored(name, "int8", (2, 4))
        tensors[f"{name}_scale"] = Stored(f"{name}_scale", "float32", (2, 1))
        zeta = f"module.zeta{number}"
        tensors[zeta] = Stored(zeta, "float32", (2,))
    judged = []
    is_other = _Siblings._is_other

    def judge(siblings: _Siblings, name: str, module: str) -> bool:
        judged.append(name)
        return is_other(siblings, name, module)

    monkeypatch.setattr(_Siblings, "_is_other", judge)
    siblings = _Siblings(tensors, {name for name in tensors if "zeta" not in name}, tensors)
    names = [siblings.foreign(f"module.w{number}_weight") for number in range(40)]
    assert len(judged) == len(tensors)
    assert all(foreign is names[0] for foreign in names)
    assert set(names[0]) == {f"module.zeta{number}" for number in range(40)}
