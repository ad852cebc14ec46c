"""Producers that packages offer: the documented one in every command, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import offered
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.quantization import quantize
from castwise.quantization.producers._offered import producer_problem
from castwise.quantization.producers._registry import GGUF, PRODUCERS
from castwise.quantization.producers.protocol import (
    Part,
    Producer,
    Storage,
    Transcoding,
    Writing,
    Written,
)
from checkpoint_samples import assert_same
from producer_models import write
from producer_models.awq_gptq import gptq
from whole_models import dense

EYE = np.eye(8, dtype=np.float32)


def documented() -> Producer:
    """The producer that the page shows."""
    names: dict[str, Any] = {}
    exec(offered.example(offered.PRODUCER_PAGE), names)  # noqa: S102 the page is the subject
    producer: Producer = names["PRODUCER"]
    return producer


def offer(folder: Path, package: str, source: str, name: str = "rowpack") -> Path:
    """Install a package with a producer."""
    points = f"[castwise.producers]\n{name} = {package.replace('-', '_')}:PRODUCER\n"
    return offered.install(folder, package, points, source)


def changed(**fields: str) -> str:
    """The documented package with other fields, given as source."""
    arguments = ", ".join(f"{name}={value}" for name, value in fields.items())
    return (
        f"{offered.example(offered.PRODUCER_PAGE)}\nfrom dataclasses import replace\n"
        f"PRODUCER = replace(PRODUCER, {arguments})\n"
    )


def test_the_documented_producer_in_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = offered.install_example(tmp_path / "site", offered.PRODUCER_PAGE)
    monkeypatch.chdir(tmp_path)
    dense(tmp_path / "model", {})
    checkpoint.save("one.safetensors", {"a.weight": EYE})
    done = offered.run_commands(
        site,
        "quantize model rows --scheme int8_channel --recipe rowpack",
        "inspect rows",
        "dequantize rows plain",
        "verify rows plain",
        "diff rows rows",
        "transcode rows packed --to compressed-tensors",
        "verify rows packed",
        "quantize one.safetensors small.safetensors --scheme int8_channel --recipe rowpack",
        "dequantize small.safetensors one-again.npz",
    )
    assert "quantised weights, stated in config.json: rowpack" in done.stdout
    section = json.loads(Path("rows/config.json").read_text())["quantization_config"]
    assert section == {"quant_method": "rowpack", "version": 1, "left": ["lm_head"]}
    plain, rows, packed = map(checkpoint.load, ("model", "rows", "packed"))
    name = "model.layers.0.mlp.up_proj.weight"
    expected = quantize(plain[name], "int8_channel", recipe="modelopt")
    assert_same(rows[f"{name}_rows"], expected.data)
    assert_same(rows[f"{name}_step"], expected.scale.reshape(-1))
    assert_same(packed[f"{name}_scale"].reshape(-1), rows[f"{name}_step"])
    assert_same(rows["model.embed_tokens.weight"], plain["model.embed_tokens.weight"])
    assert_same(checkpoint.load("one-again.npz")["a.weight"].astype(np.float32), EYE)
    # Who does not have the package is told that it is quantised as castwise does not know.
    quantization = checkpoint.inspect("rows").quantization
    assert quantization is not None
    assert (quantization.unknown, quantization.weights) == ("rowpack", ())
    with pytest.raises(CheckpointError, match="rowpack"):
        checkpoint.dequantize_file("rows", "nowhere")
    with pytest.raises(CheckpointError, match="does not know the method"):
        checkpoint.cast_file("rows", "nowhere", "float16")


def test_arrays_are_quantised_as_its(tmp_path: Path) -> None:
    site = offered.install_example(tmp_path / "site", offered.PRODUCER_PAGE)
    program = """
        import numpy as np
        from castwise.quantization import QuantizedArray, dequantize, quantize
        x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
        q = quantize(x, "int8_channel", recipe="rowpack")
        parts = q.parts()
        print({name: (str(part.dtype), part.shape) for name, part in parts.items()})
        same = dequantize(QuantizedArray.from_parts(parts, "rowpack")) == dequantize(q)
        print(same.all(), q.recipe)
        for scheme, recipe in (("fp8_tensor", "rowpack"), ("int8_channel", "rowpak")):
            try:
                quantize(x, scheme, recipe=recipe)
            except ValueError as error:
                print(error)
    """
    lines = offered.run_program(site, program, tmp_path).stdout.splitlines()
    assert lines[0] == "{'weight_rows': ('int8', (4, 8)), 'weight_step': ('float32', (4,))}"
    assert lines[1] == "True rowpack"
    assert lines[2].startswith("recipe='rowpack' is not valid for fp8_tensor; use one of deepseek")
    assert "did you mean 'rowpack'?" in lines[3]


def test_weights_of_others_become_its(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = offered.install_example(tmp_path / "site", offered.PRODUCER_PAGE)
    monkeypatch.chdir(tmp_path)
    model = gptq(8, "gptq_v2", centred=True, group=128)()
    write(tmp_path / "gptq", model)
    offered.run_commands(
        site,
        "transcode gptq rows --to rowpack",
        "verify gptq rows",
        "dequantize rows plain.safetensors --dtype float32",
    )
    rows = checkpoint.load("rows")
    assert (rows["a.weight_rows"].dtype, rows["a.weight_rows"].shape) == (np.int8, (64, 128))
    assert_same(rows["a.weight_step"], model.tensors["a.scales"].reshape(-1))
    assert_same(
        checkpoint.load("plain.safetensors")["a.weight"],
        rows["a.weight_rows"] * rows["a.weight_step"].astype(np.float32)[:, None],
    )


def test_scales_of_another_format_are_refused(tmp_path: Path) -> None:
    text = offered.example(offered.PRODUCER_PAGE).replace('"float32", "float16", ', '"float32", ')
    site = offer(tmp_path / "site", "castwise-rowpack", text)
    write(tmp_path / "gptq", gptq(8, "gptq_v2", centred=True, group=128)())
    done = offered.run(
        site, "-m", "castwise", "transcode", tmp_path / "gptq", tmp_path / "rows", "--to", "rowpack"
    )
    assert done.returncode == 2
    assert "'a.scales' is float16, and the other form has scales of float32" in done.stderr
    assert not (tmp_path / "rows").exists()


def test_what_a_producer_lacks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are recognised by their layouts alone; all else is asked of what it has."""
    source = changed(
        layouts="(replace(PRODUCER.layouts[0], storage=None),)",
        writing="Writing()",
        transcoding="Transcoding()",
    )
    site = offer(tmp_path / "site", "castwise-rowpack", source)
    monkeypatch.chdir(tmp_path)
    stated = {"quantization_config": json.dumps({"quant_method": "rowpack"})}
    tensors = {"a.weight_rows": np.ones((4, 8), np.int8), "a.weight_step": np.ones(4, np.float32)}
    checkpoint.save("rows.safetensors", tensors, metadata=stated)
    checkpoint.save("plain.safetensors", {"a.weight": EYE})
    expected = {
        "inspect rows.safetensors": "",
        "cast rows.safetensors x.safetensors --dtype float16": "is int8_channel (rowpack)",
        "dequantize rows.safetensors x.safetensors": "rowpack does not store together",
        "quantize plain.safetensors x.safetensors --scheme int8_channel --recipe rowpack": (
            "are written as by compressed-tensors, modelopt"
        ),
        "transcode rows.safetensors x.safetensors --to rowpack": "rowpack",
    }
    done = offered.run(site, "-W", "error", "-c", offered.COMMANDS, *expected)
    codes = [line for line in done.stdout.splitlines() if line in {"0", "1", "2"}]
    assert codes == ["0", "2", "2", "2", "2"], done.stderr
    assert "a.weight" in done.stdout
    errors = [line for line in done.stderr.splitlines() if line.startswith("castwise: error")]
    for text, error in zip(list(expected.values())[1:], errors, strict=True):
        assert text in error
    assert not Path("x.safetensors").exists()


def test_packages_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    text = offered.example(offered.PRODUCER_PAGE)
    site = offer(tmp_path / "site", "castwise-beta", text)
    offer(site, "castwise-alpha", text)
    offer(site, "castwise-broken", "import missing_thing", "broken")
    offer(site, "castwise-circle", "from castwise.quantization import quantize", "circle")
    offer(site, "castwise-wrong", "PRODUCER = dict", "wrong")
    offer(site, "castwise-mlx", "raise SystemExit", "mlx")
    offer(site, "castwise-transformers", "raise SystemExit", "transformers")
    offer(site, "castwise-other", text, "other")
    offer(site, "castwise-late", changed(name="'zlate'", also="('late',)"), "zlate")
    program = """
        import warnings
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            from castwise.quantization.producers._registry import OFFERED
        print(*(warning.message for warning in log), sep="\\n")
        print(sorted(OFFERED))
    """
    *warnings, names = offered.run_program(site, program, tmp_path).stdout.splitlines()
    assert names == "['rowpack']"
    of, left_out = "PRODUCER of castwise", "castwise goes on as if it were not installed."
    expected = [
        "castwise and castwise-mlx both have a producer named mlx; castwise's own is used. "
        "Uninstall one of them.",
        "castwise and castwise-transformers both have a producer named transformers; castwise's "
        "own is used. Uninstall one of them.",
        "castwise-alpha and castwise-beta both have a producer named rowpack; "
        "castwise_alpha:PRODUCER is used. Uninstall one of them.",
        f"the producer broken, castwise_broken:{of}-broken, cannot be imported "
        "(ModuleNotFoundError: No module named 'missing_thing'); update or uninstall that package. "
        f"{left_out}",
        f"the producer other, castwise_other:{of}-other, cannot be used: its name is 'rowpack', "
        f"and the entry point is named 'other'. Mend it, or update or uninstall it. {left_out}",
        f"the producer wrong, castwise_wrong:{of}-wrong, cannot be used: it is not a castwise."
        "quantization.producers.protocol.Producer. Mend it, or update or uninstall it. "
        f"{left_out}",
        f"the producer zlate, castwise_late:{of}-late, cannot be used: readers has 'rowpack', "
        f"which rowpack has. Mend it, or update or uninstall it. {left_out}",
    ]
    (circle,) = [line for line in warnings if "castwise-circle" in line]
    assert "(ImportError: cannot import name" in circle
    assert sorted(set(warnings) - {circle}) == sorted(expected)


def test_the_command_line_warns_in_one_line(tmp_path: Path) -> None:
    site = offer(tmp_path / "site", "castwise-broken", "import missing_thing", "broken")
    checkpoint.save(tmp_path / "a.safetensors", {"a": np.ones(2)})
    done = offered.run(site, "-m", "castwise", "inspect", tmp_path / "a.safetensors")
    (line,) = done.stderr.splitlines()
    assert line.startswith("castwise: warning: the producer broken, castwise_broken:PRODUCER of")
    assert done.returncode == 0


@pytest.mark.parametrize("is_evident", [True, False])
def test_without_statements_names_must_tell(tmp_path: Path, is_evident: bool) -> None:
    source = changed(configuration="Configuration()", is_evident=str(is_evident))
    site = offer(tmp_path / "site", "castwise-rowpack", source)
    tensors = {"a.weight_rows": np.eye(8, dtype=np.int8), "a.weight_step": np.ones(8, np.float32)}
    checkpoint.save(tmp_path / "rows.safetensors", tensors)
    paths = tmp_path / "rows.safetensors", tmp_path / "plain.safetensors"
    done = offered.run(site, "-m", "castwise", "dequantize", *paths, "--dtype", "float32")
    if is_evident:
        assert_same(checkpoint.load(paths[1])["a.weight"], EYE)
    else:
        assert "put the configuration of the model beside it" in done.stderr
    assert done.returncode == (0 if is_evident else 2)


FAILURES = {
    'configuration=Configuration({"rowpack": lambda section: 1 / 0})': "ZeroDivisionError",
    'configuration=Configuration({"rowpack": lambda section: lambda *_: [][0]})': "IndexError",
    'configuration=Configuration({"rowpack": lambda section: lambda *_: 3})': "it returns 3, not",
    "rule=lambda weight: weight.thing": "AttributeError",
    "rule=lambda weight: None": "it returns None, not Given",
    "writing=replace(PRODUCER.writing, write=lambda modules: {})": "it returns {}, not Statements",
}


def test_functions_that_fail_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {"quantization_config": json.dumps({"quant_method": "rowpack"})}
    tensors = {"a.weight_rows": np.ones((4, 8), np.int8), "a.weight_step": np.ones(4, np.float32)}
    checkpoint.save(tmp_path / "rows.safetensors", tensors, metadata=stated)
    checkpoint.save(tmp_path / "plain.safetensors", {"a.weight": EYE})
    program = """
        from castwise import checkpoint
        from castwise.quantization.producers import _offered, _registry
        for call in (
            lambda: checkpoint.dequantize_file("rows.safetensors", "x.safetensors"),
            lambda: checkpoint.quantize_file(
                "plain.safetensors", "x.safetensors", "int8_channel", recipe="rowpack"
            ),
        ):
            try:
                call()
            except ValueError as error:
                print(error)
    """
    for number, (field, words) in enumerate(FAILURES.items()):
        name, _, value = field.partition("=")
        site = offer(tmp_path / f"site{number}", "castwise-rowpack", changed(**{name: value}))
        (line,) = offered.run_program(site, program, tmp_path).stdout.splitlines()
        assert "the producer rowpack, castwise_rowpack:PRODUCER of castwise-rowpack fails" in line
        assert words in line
        assert "update or uninstall it" in line
        (tmp_path / "x.safetensors").unlink()  # of the other call, which ends well


def test_castwises_own_weights_stay_its_own(tmp_path: Path) -> None:
    """A package whose layouts are those of others changes nothing where nobody states it."""
    tensors = {"a.weight": np.ones((4, 8), np.int8), "a.weight_scale": np.ones((4, 1), np.float32)}
    checkpoint.save(tmp_path / "a.safetensors", tensors)
    source = changed(
        layouts="""(Layout("int8_channel", "", ("int8",),
            (Part("_scale", SCALE, ("float32",), required=True),), parameters=("weight",),
            storage=Storage()),)""",
    )
    program = """
        from castwise import checkpoint
        quantization = checkpoint.inspect("a.safetensors").quantization
        print([weight.recipes for weight in quantization.weights])
        from castwise.quantization.producers._registry import OFFERED
        print(sorted(OFFERED))
    """
    lines = [
        offered.run_program(site, program, tmp_path).stdout.splitlines()
        for site in (tmp_path / "none", offer(tmp_path / "site", "castwise-rowpack", source))
    ]
    assert lines[0][0] == lines[1][0]
    assert "modelopt" in lines[0][0]
    assert (lines[0][1], lines[1][1]) == ("[]", "['rowpack']")


def test_without_packages_no_metadata_are_read(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    checkpoint.save(tmp_path / "a.safetensors", {"a": np.ones(2)})
    program = """
        import sys
        from castwise.cli import main
        main(["cast", "a.safetensors", "b.safetensors", "--dtype", "float16"])
        loaded = {"castwise.quantization.producers._registry", "importlib.metadata"}
        print(sorted(loaded.intersection(sys.modules)))
    """
    lines = offered.run_program(tmp_path / "site", program, tmp_path).stdout.splitlines()
    assert lines[-1] == "['castwise.quantization.producers._registry']"


PRODUCER = documented()
LAYOUT = PRODUCER.layouts[0]


def with_layout(**fields: Any) -> Producer:
    return replace(PRODUCER, layouts=(replace(LAYOUT, **fields),))


def configured(**fields: Any) -> Producer:
    return replace(PRODUCER, configuration=replace(PRODUCER.configuration, **fields))


def written(*rows: Written, **fields: Any) -> Producer:
    rows = rows or PRODUCER.writing.rows
    return replace(PRODUCER, writing=replace(PRODUCER.writing, rows=rows, **fields))


INVALID: list[tuple[Callable[[], object], str]] = [
    (lambda: replace(PRODUCER, name="other"), "its name is 'other'"),
    (lambda: replace(PRODUCER, name=3), "name=3 is not of str"),
    (lambda: replace(PRODUCER, also="ab"), "also='ab' is not of tuple"),
    (lambda: replace(PRODUCER, also=("mlx",)), "the name 'mlx' is that of mlx"),
    (lambda: replace(PRODUCER, also=("transformers",)), "the name 'transformers' is that of"),
    (lambda: replace(PRODUCER, also=("gguf",)), "the name 'gguf' is that of gguf"),
    (lambda: replace(PRODUCER, also=("Row Pack",)), "'Row Pack' is not a name of small letters"),
    (lambda: replace(PRODUCER, also=("rowpack",)), "has a name twice"),
    (lambda: replace(PRODUCER, model_marker="scaled_fp8"), "model_marker has 'scaled_fp8'"),
    (lambda: replace(PRODUCER, model_type="gpt_oss"), "model_type has 'gpt_oss', which gpt-oss"),
    (lambda: replace(PRODUCER, layouts=()), "it has no layouts"),
    (lambda: replace(PRODUCER, layouts=[LAYOUT]), "is not of tuple"),
    (lambda: replace(PRODUCER, layouts=("int8",)), r"layouts\[0\]: 'int8' is not a Layout"),
    (lambda: replace(PRODUCER, scales="half"), "scales='half' is neither"),
    (lambda: replace(PRODUCER, channels=3), "channels=3 is not one of"),
    (lambda: replace(PRODUCER, scalar=(2,)), r"scalar=\(2,\) is not a shape of one element"),
    (lambda: replace(PRODUCER, rule="usual"), "rule='usual' of its Producer is not a function"),
    (lambda: replace(PRODUCER, writing=None), "writing=None is not of Writing"),
    (lambda: with_layout(parts=()), "it has no parts"),
    (lambda: with_layout(parts=("_step",)), "'_step' is not a Part"),
    (lambda: with_layout(parts=(Part("", "scale"),)), "is not a Part with a name"),
    (lambda: with_layout(parts=(Part("_step", "scales"),)), "has the role 'scales'; use scale"),
    (lambda: with_layout(parts=(*LAYOUT.parts, Part("_x", use="twist"))), "the use 'twist'; use"),
    (lambda: with_layout(parts=(Part("_step", "scale", "float32"),)), "is not a Part with a name"),
    (lambda: with_layout(parts=(Part("_s", "scale", ("F32",)),)), "'F32' is not a format"),
    (lambda: with_layout(formats=("I8",)), "'I8' is not a format, one of castwise.formats"),
    (lambda: with_layout(formats="int8"), "formats='int8' is not a tuple"),
    (lambda: with_layout(block=(1, 2, 3)), r"block=\(1, 2, 3\) is not \(rows, columns\)"),
    (lambda: with_layout(scheme="q8"), "the begin of no scheme"),
    (lambda: with_layout(storage=Storage(packing=("loose",))), "packing=.* is not a tuple of"),
    (lambda: with_layout(storage="plain"), "storage='plain' is not a Storage"),
    (lambda: configured(readers={"fp8": print}), "readers has 'fp8', which"),
    (lambda: configured(readers={"rowpack": 3}), "readers has 3 for 'rowpack'"),
    (lambda: configured(readers=3), "a field of another type"),
    (lambda: configured(kept_keys={"rows": "left"}), "kept_keys has 'rows', which readers"),
    (lambda: configured(config_file="rows.json"), "go together, and file_section is left out"),
    (
        lambda: configured(config_file="hf_quant_config.json", file_section=print),
        "config_file has 'hf_quant_config.json', which modelopt has",
    ),
    (lambda: configured(config_file="config.json", file_section=print), "a file of its own"),
    (lambda: configured(config_file="../a.json", file_section=print), "a file of its own"),
    (lambda: configured(metadata_reader=print), "metadata_section and metadata_reader go togeth"),
    (lambda: configured(own_section=("a", "b")), "go together, and is_own_form is left out"),
    (lambda: written(write=None), "no write that states them"),
    (lambda: written(arithmetic="rowpack"), "arithmetic='rowpack' is not one of int8_channel; use"),
    (lambda: written(Written("int9_channel")), "ValueError: scheme='int9_channel'"),
    (lambda: written(*PRODUCER.writing.rows * 2), "one for each scheme"),
    (lambda: written(Written("fp8_tensor")), "no layout with storage holds fp8_tensor"),
    (
        lambda: replace(written(), layouts=with_layout(storage=Storage(divides=True)).layouts),
        "it stores int8_channel with other factors",
    ),
    (lambda: replace(written(), scales="float64"), "writes scales of int8_channel as float64"),
    (
        lambda: replace(PRODUCER, transcoding=Transcoding(forms_to=(("mxfp4", "nvfp4"),))),
        "forms_to has nvfp4, which it has no row",
    ),
    (
        lambda: replace(PRODUCER, writing=Writing()),
        "forms_to, and neither rows to write nor statements_of_form",
    ),
    (
        lambda: replace(PRODUCER, transcoding=Transcoding(statements_of_form=print)),
        "is not of Statements",
    ),
]


@pytest.mark.parametrize(("make", "words"), INVALID, ids=[words for _, words in INVALID])
def test_a_producer_that_cannot_be_right_is_refused(make: Callable[[], object], words: str) -> None:
    problem = producer_problem(make(), "rowpack", (*PRODUCERS, GGUF))
    assert problem is not None
    assert re.search(words, problem), problem


def test_what_is_documented_is_right() -> None:
    assert producer_problem(PRODUCER, "rowpack", (*PRODUCERS, GGUF)) is None


@pytest.mark.parametrize("producer", PRODUCERS, ids=lambda producer: producer.name)
def test_castwises_own_producers_are_right(producer: Producer) -> None:
    """What is asked of packages holds for castwise's own, but that several read one method."""
    alone = replace(
        producer,
        also=(),
        writing=replace(producer.writing, arithmetic=producer.name),
        configuration=replace(producer.configuration, readers={}, kept_keys={}),
    )
    others = [row for row in PRODUCERS if row is not producer]
    assert producer_problem(alone, producer.name, others) is None


def test_the_protocol_makes_no_tables(tmp_path: Path) -> None:
    """A package is imported while the tables are made, so what it imports must not make them."""
    program = """
        import sys
        from castwise.quantization.producers import protocol
        folder = "castwise.quantization.producers."
        print(sorted({folder + "_registry", folder + "_offered"}.intersection(sys.modules)))
        print([name for name in protocol.__all__ if not getattr(protocol, name).__doc__])
    """
    lines = offered.run_program(tmp_path, program, tmp_path).stdout.splitlines()
    assert lines == ["[]", "[]"]
