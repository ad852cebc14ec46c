"""Tiny models that castwise quantizes, loaded by transformers beside what castwise decodes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TQDM_DISABLE", "1")  # tqdm reads it when it is imported

import tiny
import torch
import transformers
from castwise import checkpoint
from castwise.checkpoint.planning import consumers_check
from castwise.quantization import consumers
from castwise.quantization.producers.registry import WRITTEN

RECIPES: dict[str, tuple[str, ...]] = {
    loading.recipe: tuple(row.scheme for row in WRITTEN if row.recipe == loading.recipe)
    for consumer in consumers()
    if consumer.name == "transformers"
    for loading in consumer.loads
}
"""Every scheme of the producers whose checkpoints transformers loads."""

DRAWN = (
    ("compressed-tensors", "fp8_channel"),
    ("compressed-tensors", "int4_group"),
    ("compressed-tensors", "nvfp4"),
    ("deepseek", "fp8_block"),
)
"""One scheme of each form of codes and scales, of which every type has been loaded."""

FOR: dict[str, Any] = {"consumer": "transformers"}
EQUAL, BY_OPTION, ON_A_GPU = "equal", "equal with dequantize=True", "right on a GPU alone, as told"
REFUSED, NEEDLESS = "refused", "refused needlessly"
NOT_SAVED = "not loaded as its own class saves it"
LOADED = {EQUAL, BY_OPTION}
RIGHT = {*LOADED, ON_A_GPU, REFUSED, NOT_SAVED}
DECODED = "dequantize=True"
NOT_LOADED = "would not be loaded as it would be written"


@dataclass(frozen=True)
class Outcome:
    """What became of one model, quantized by one recipe."""

    kind: str
    reason: str = ""
    quantized: int = 0


def outcomes(model_type: str, folder: Path) -> Iterator[tuple[str, str, Outcome]]:
    """Quantize a tiny model as `DRAWN`; give the recipe, the scheme, and what became of it."""
    torch.set_num_threads(1)  # others would wait for work in a loop
    model = tiny.build(model_type)
    model.save_pretrained(folder / "plain")
    for recipe, scheme in DRAWN:
        place = folder / f"{recipe}-{scheme}"
        place.mkdir()
        yield recipe, scheme, outcome(folder / "plain", model, recipe, scheme, place)


def outcome(plain: Path, model: Any, recipe: str, scheme: Any, folder: Path) -> Outcome:
    """Quantize a saved model, load it, and compare what castwise tells of that."""
    result = folder / "quantized"
    options: Any = {"recipe": recipe, **FOR}
    try:
        checkpoint.quantize_file(plain, result, scheme, **options)
    except checkpoint.CheckpointError as error:
        refusal = str(error)
    else:
        return told_outcome(plain, model, result)
    if NOT_LOADED not in refusal:
        return Outcome(REFUSED if is_right(refusal, model, recipe) else NEEDLESS, refusal)
    write_anyway(plain, result, recipe, scheme)
    found = loaded(model, result)
    return Outcome(NEEDLESS if found.kind in LOADED else REFUSED, refusal, found.quantized)


def told_outcome(plain: Path, model: Any, result: Path) -> Outcome:
    """Load what was written, with the options that castwise tells."""
    told = {problem.option for problem in checkpoint.verify_loading(result, **FOR).problems}
    found = loaded(model, result)
    if found.kind == "decoded lacks keys" and load(model, plain)[1]:
        return replace(found, kind=NOT_SAVED)
    if "a GPU" in told and found.kind in {"weights", "not loaded"}:
        return replace(found, kind=ON_A_GPU)
    if DECODED in told and found.kind == EQUAL:
        return replace(found, kind="equal without the option that is told")
    if DECODED in told and found.kind not in LOADED:
        return loaded(model, result, is_decoded=True)
    return found


def write_anyway(plain: Path, result: Path, recipe: str, scheme: Any) -> None:
    """Quantize a model that the check of its consumers would refuse."""
    options: Any = {"recipe": recipe, "consumer": None}
    with mock.patch(f"{consumers_check.__name__}.check_consumers"):
        checkpoint.quantize_file(plain, result, scheme, **options)


def loaded(model: Any, result: Path, *, is_decoded: bool = False) -> Outcome:
    """Load a quantized model, and what castwise decodes; compare all tensors and all results."""
    found = checkpoint.inspect(result).quantization
    number = 0 if found is None else len(found.weights)
    if not (decoded := result.with_name("decoded")).exists():
        checkpoint.dequantize_file(result, decoded)
    expected, lacks = load(model, decoded)
    if lacks:
        return Outcome("decoded lacks keys", str(lacks), number)
    decoding = transformers.CompressedTensorsConfig(dequantize=True)
    options = {"quantization_config": decoding} if is_decoded else {}
    kind = BY_OPTION if is_decoded else EQUAL
    try:
        try:
            peer, lacks = load(model, result, **options)
        except AttributeError as error:
            # Some classes initialize `weight` of every layer, which one with packed codes has not.
            if not _is_initialization(error):
                raise
            kind = BY_OPTION
            peer, lacks = load(model, result, quantization_config=decoding)
    except Exception as error:
        return Outcome("not loaded", f"{type(error).__name__}: {error}", number)
    if lacks:
        return Outcome("keys", str(lacks), number)
    return compared(model, peer, expected) or Outcome(kind, quantized=number)


def compared(model: Any, peer: Any, expected: Any) -> Outcome | None:
    """Compare the tensors of a loaded model, and what it computes; None if all are equal."""
    decode(peer)
    if names := differences(peer, expected):
        return Outcome("weights", f"{len(names)}: {'; '.join(names[:6])}")
    try:
        numbers = different_results(model, peer, expected)
    except RuntimeError as error:
        return Outcome("not computed", str(error))
    return Outcome("results", str(numbers)) if numbers else None


def different_results(model: Any, peer: Any, expected: Any) -> list[int]:
    """Number the results that differ, of the first inputs that the model takes.

    Equal weights have the dtypes of the quantized model's: it holds fewer of them in float32.
    """
    dtypes = {name: value.dtype for name, value in peer.named_parameters()}
    for name, value in expected.named_parameters():
        value.data = value.data.to(dtypes.get(name, value.dtype))
    for values in tiny.inputs(model):
        results = None
        with contextlib.suppress(Exception):  # inputs that are none of this model's
            results = tiny.outputs(expected, values)
        if results is not None:
            pairs = zip(results, tiny.outputs(peer, values), strict=True)
            return [n for n, pair in enumerate(pairs) if not is_near(*pair)]
    return []


def load(model: Any, folder: Path, **options: Any) -> tuple[Any, dict[str, list[str]]]:
    """Load a folder; return the model, and the keys that it lacked or did not know."""
    loaded, info = type(model).from_pretrained(folder, output_loading_info=True, **options)
    return loaded.eval(), {name: sorted(map(str, info[name])) for name in info if info[name]}


def decode(model: Any) -> None:
    """Decode the modules of compressed-tensors, as their first call does."""
    if hasattr(model, "ct_decompress_hook"):
        model.hf_quantizer.compressor.decompress_model(model)


def differences(found: Any, expected: Any) -> list[str]:
    """Name the tensors of a model that are not, bit for bit, those of another."""
    others, names = found.state_dict(), []
    for name, value in expected.state_dict().items():
        other = others.get(name)
        if other is None:
            names.append(f"{name} is missing")
        elif other.shape != value.shape:
            names.append(f"{name} is {tuple(other.shape)}")
        elif not is_same(value, other):
            error = (other.double() - value.double()).norm() / value.double().norm()
            names.append(f"{name} differs, by {float(error):.2g}")
    return names


def is_same(one: Any, other: Any) -> bool:
    """Return True if tensors have the same values, NaNs at the same places; of any dtypes."""
    values = one.double(), other.double()
    return bool(torch.equal(*values) or torch.allclose(*values, 0, 0, equal_nan=True))


def is_near(one: Any, other: Any) -> bool:
    """Return True for results that differ by the rounding of a few sums in their dtype.

    Some classes multiply by a quantized layer in another order: Mamba calls `dt_proj` as a module.
    """
    if is_same(one, other):
        return True
    if one.shape != other.shape or not one.is_floating_point():
        return False
    bound = ROUNDINGS * torch.finfo(torch.bfloat16).eps
    return bool((other.double() - one.double()).norm() <= bound * one.double().norm())


def _is_initialization(error: AttributeError) -> bool:
    """Return True if a class's own initialization of weights has failed."""
    trace, names = error.__traceback__, []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return "_init_weights" in names


def is_right(refusal: str, model: Any, recipe: str) -> bool:
    """Return True if what a refusal tells of a model is so."""
    modules = dict(model.named_modules())
    linear = [name for name, module in modules.items() if isinstance(module, torch.nn.Linear)]
    stacks = [
        name
        for name, parameter in model.named_parameters()
        if "expert" in name and (parameter.ndim == STACK or ".experts." in name)
    ]
    if recipe == "gpt-oss":
        return bool(model.config.model_type != "gpt_oss")
    if "no weight in it would be quantized" in refusal:
        return not [name for name in linear if not HEADS.search(name)]
    if "as (in, out)" in refusal:
        return any(isinstance(module, transformers.Conv1D) for module in modules.values())
    if "experts in one tensor" in refusal:
        return bool(stacks)
    if found := BLOCKS.search(refusal):
        return int(found[2]) % int(found[1]) != 0
    return False


STACK, ROUNDINGS = 3, 4
HEADS = re.compile(r"head|classifier|^fc$|decoder|score|proj_out|output|embed|gate|router")
BLOCKS = re.compile(r"in whole blocks of (\d+) along (\d+) (?:rows|columns)")
