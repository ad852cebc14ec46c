"""The quantised checkpoints that castwise writes: which schemes, for whom, and what states them.

One row per producer and scheme. The arrays are those of `castwise.quantization`; here stands what a
checkpoint needs beside them: the section of its configuration, and what a row of weights must be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from castwise._core import __version__
from castwise._spelling import nearest
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.report import MAX_ZEROS
from castwise.quantization import Scheme, schemes
from castwise.quantization._configs import CONFIGS
from castwise.quantization._recipes import E4M3, U8

_TILE_ROWS = 128
_NORMAL_BITS = 3
_GROUP_OF_MLX = 64


@dataclass(frozen=True, slots=True)
class Written:
    """A scheme as a producer's checkpoints hold it.

    Attributes
    ----------
    recipe
        The producer.
    scheme
        One of `castwise.quantization.schemes()`.
    code
        What its configuration calls that.
    block
        The default block, if it is not the scheme's.
    tile
        Rows and columns of which those of a weight must be multiples, so that nothing is padded.
    step
        Slabs are multiples of so many rows, beside whole blocks.
    stacks
        Experts may be stacked in one tensor.
    transposed
        Only such experts are stored so, and in a plain model their matrices are (in, out).
    shares
        What engines fuse must have the same global scale.
    symmetric
        False for groups that have a bias.

    """

    recipe: str
    scheme: str
    code: str = ""
    block: tuple[int, int] | None = None
    tile: tuple[int, int] = (1, 1)
    step: int = 1
    stacks: bool = False
    transposed: bool = False
    shares: bool = False
    symmetric: bool = True

    @property
    def row(self) -> Scheme:
        """The row of the scheme."""
        return scheme_named(self.scheme)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A row, and the block that is used."""

    written: Written
    block: tuple[int, int]

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.written.row.bits


@dataclass(frozen=True, slots=True)
class Form:
    """How a producer lays a scheme that others lay otherwise, with the same codes and scales.

    Attributes
    ----------
    recipe, scheme
        The producer, and what it stores.
    payload, level, inputs
        Its names of the codes, the global scale and the scale of inputs; empty if it has none.
    scalar
        The shape of the latter two.
    divides
        The global scale divides.

    """

    recipe: str
    scheme: str
    payload: str = "weight"
    level: str = ""
    inputs: str = ""
    scalar: tuple[int, ...] = ()
    divides: bool = False


@dataclass(frozen=True, slots=True)
class Statements:
    """What states how the weights of a component are stored.

    Attributes
    ----------
    sections
        Members of `config.json`.
    files
        Other files beside the tensors, with their texts.
    metadata
        The same for a file without a configuration; None if its producer has no such form.

    """

    sections: Mapping[str, Any]
    files: Mapping[str, str]
    metadata: Mapping[str, str] | None


_OF_CT = ("compressed-tensors",)
_MODELOPT = "modelopt"
_INTEGERS = tuple(
    f"int{bits}_{unit}"
    for bits, unit in ((8, "channel"), (4, "channel"), (4, "group"), (8, "group"))
)
_ROWS = (
    *(Written(name, "fp8_block", stacks=True) for name in ("deepseek", "transformers")),
    *(
        Written(name, scheme, code, shares=scheme == "nvfp4")
        for name in _OF_CT
        for scheme, code in (
            *((f"fp8_{unit}", "naive-quantized") for unit in ("tensor", "channel", "block")),
            ("nvfp4", "nvfp4-pack-quantized"),
            ("mxfp4", "mxfp4-pack-quantized"),
            ("mxfp6_e2m3", "mxfp6-pack-quantized"),
            ("mxfp8_e4m3", "mxfp8-quantized"),
            *((scheme, "pack-quantized") for scheme in _INTEGERS),
        )
    ),
    Written(_MODELOPT, "fp8_tensor", "FP8"),
    Written(_MODELOPT, "fp8_channel", "FP8_PER_CHANNEL_PER_TOKEN"),
    # Without the scales of inputs: the weights alone are NVFP4.
    Written(_MODELOPT, "nvfp4", "W4A16_NVFP4", shares=True),
    Written(_MODELOPT, "mxfp8_e4m3", "MXFP8"),
    Written("gpt-oss", "mxfp4", stacks=True, transposed=True),
    Written("comfy", "fp8_tensor"),
    Written("comfy", "nvfp4", tile=(16, 16), step=_TILE_ROWS),
    Written("comfy", "mxfp8_e4m3", tile=(32, 32), step=_TILE_ROWS),
    *(
        Written(
            "mlx",
            f"int{bits}_group",
            "affine",
            block=(1, _GROUP_OF_MLX),
            stacks=True,
            symmetric=False,
        )
        for bits in (4, 8, 2, 3, 5, 6)
    ),
    *(
        Written("mlx", scheme, code, stacks=True)
        for scheme, code in (("mxfp4", "mxfp4"), ("mxfp8_e4m3", "mxfp8"), ("nvfp4", "nvfp4"))
    ),
)
"""What is written; the first row of a scheme is its default."""


def scheme_named(name: Any) -> Scheme:
    """Return a scheme that is written.

    Raises
    ------
    CheckpointError
        There is none of this name, or castwise does not write it; the nearest name, or all, are in
        the message.

    """
    rows = {one.scheme: one for one in _ROWS}
    known = {one.name: one for one in schemes()}
    if name in rows:
        return known[name]
    if name in known:
        raise CheckpointError(
            f"scheme {name!r}: castwise writes no checkpoint of it; it writes {', '.join(rows)}"
        )
    near = nearest([name], rows)[name] if isinstance(name, str) else None
    meant = f"did you mean {near!r}? " if near else ""
    raise CheckpointError(f"scheme {name!r} is not known: {meant}castwise writes {', '.join(rows)}")


def scheme_names() -> tuple[str, ...]:
    """Return the schemes that are written."""
    return tuple(dict.fromkeys(one.scheme for one in _ROWS))


def recipes() -> tuple[str, ...]:
    """Return the producers as which checkpoints are written."""
    return tuple(dict.fromkeys(one.recipe for one in _ROWS))


def expected_zeros(targets: Iterable[str | None]) -> float:
    """Return the share of values that may become zero before that says more than how few bits are.

    It is about twice what normally distributed weights lose.
    """
    found = set(targets)
    bits = [one.bits for one in schemes() if one.name in found]
    return min(2.0 ** (_NORMAL_BITS - min(bits)), 1.0) if bits else MAX_ZEROS


_FORMS = (
    Form(
        "compressed-tensors",
        "nvfp4",
        "weight_packed",
        "weight_global_scale",
        "input_global_scale",
        (1,),
        divides=True,
    ),
    Form(_MODELOPT, "nvfp4", "weight", "weight_scale_2", "input_scale"),
    Form("compressed-tensors", "mxfp8_e4m3"),
    Form(_MODELOPT, "mxfp8_e4m3"),
)
_WITH_INPUTS = {"W4A16_NVFP4": "NVFP4"}
"""What ModelOpt calls an algorithm when inputs have scales, too."""


def form_of(recipe: str, scheme: str | None) -> Form | None:
    """Return how a producer lays a scheme; None if nobody lays the same otherwise."""
    found = (one for one in _FORMS if (one.recipe, one.scheme) == (recipe, scheme))
    return next(found, None)


def form_names() -> tuple[str, ...]:
    """Return the producers between whose forms checkpoints can be laid anew."""
    return tuple(dict.fromkeys(one.recipe for one in _FORMS))


def is_scheme(name: Any) -> bool:
    """Return True for the name of a scheme."""
    return any(name == one.name for one in schemes())


def written(scheme: Any, recipe: str | None) -> Written:
    """Return the row of a scheme and a producer, by default the first of the scheme.

    Raises
    ------
    CheckpointError
        They do not go together; those that do are in the message.

    """
    row = scheme_named(scheme)
    found = {one.recipe: one for one in _ROWS if one.scheme == row.name}
    if recipe is None:
        return next(iter(found.values()))
    if recipe in found:
        return found[recipe]
    own = [one.scheme for one in _ROWS if one.recipe == recipe]
    every = dict.fromkeys(one.recipe for one in _ROWS)
    what = f"; {recipe} is written as {', '.join(own)}" if own else ""
    if not own and (near := nearest([recipe], every).get(recipe)):
        what = f"; did you mean {near!r}?"
    raise CheckpointError(
        f"recipe {recipe!r} and scheme {row.name!r} do not go together: checkpoints of {row.name} "
        f"are written as by {', '.join(found)}{what}"
    )


def encoding(row: Written, block: tuple[int, int] | None) -> Encoding:
    """Return a row with its block.

    Raises
    ------
    CheckpointError
        The scheme has another block.

    """
    default = row.block or row.row.block
    if block is None or block == default:
        return Encoding(row, default)
    is_free = row.scheme.endswith("_block") or (row.scheme.endswith("_group") and block[0] == 1)
    if not is_free or min(block) < 1:
        rows, columns = default
        text = f"{rows}x{columns}" if min(default) else "what the scheme says"
        raise CheckpointError(f"block {block[0]}x{block[1]} is not one of {row.scheme}; use {text}")
    return Encoding(row, block)


# What configurations state


def statements(
    encodings: Mapping[str, Encoding], kept: Sequence[str], *, inputs: bool = False
) -> Statements:
    """Return what states how modules are stored, given those that are kept.

    `inputs` says that there are scales of their inputs, too.

    Raises
    ------
    CheckpointError
        The producer cannot state several schemes in one checkpoint.

    """
    recipe = next(iter(encodings.values())).written.recipe
    found = list(dict.fromkeys(encodings.values()))
    if len(found) > 1 and recipe not in _SEVERAL:
        names = ", ".join(dict.fromkeys(one.written.scheme for one in found))
        raise CheckpointError(
            f"recipe {recipe!r} states one scheme for a whole checkpoint, not {names}; leave one "
            f"(ignore, --ignore), or use {', '.join(_SEVERAL)}"
        )
    found.sort(key=lambda one: -sum(each == one for each in encodings.values()))
    more = {"inputs": True} if inputs else {}
    return _STATED[recipe](found, encodings, kept, **more)


def _only_section(section: dict[str, Any], **files: str) -> Statements:
    key = "quantization_config"
    return Statements({key: section}, files, {key: json.dumps(section)})


def _compressed(
    found: Sequence[Encoding],
    encodings: Mapping[str, Encoding],
    kept: Sequence[str],
    *,
    inputs: bool = False,
) -> Statements:
    groups = {}
    for number, one in enumerate(found):
        targets = ["Linear"]
        if number:
            targets = [
                f"re:{re.escape(module)}$" for module, each in encodings.items() if each == one
            ]
        groups[f"group_{number}"] = {
            "targets": targets,
            "weights": _arguments(one),
            "input_activations": {**_arguments(one), "dynamic": "local"} if inputs else None,
            "output_activations": None,
            "format": one.written.code,
        }
    forms = {one.written.code for one in found}
    return _only_section(
        {
            "quant_method": "compressed-tensors",
            "format": forms.pop() if len(forms) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": list(kept),
            "kv_cache_scheme": None,
            "global_compression_ratio": None,
        }
    )


def _arguments(one: Encoding) -> dict[str, Any]:
    """Say what compressed-tensors calls the arguments of weights."""
    scheme, (_, columns) = one.written.scheme, one.block
    strategy = scheme.rpartition("_")[2]
    bytes_of_scale = {"nvfp4": E4M3}.get(scheme, U8 if scheme.startswith("mx") else None)
    if bytes_of_scale is not None:
        strategy = "tensor_group" if one.written.row.global_scale else "group"
    dtype = f"torch.{bytes_of_scale}" if bytes_of_scale else None
    return {
        "num_bits": one.bits,
        "type": "int" if scheme.startswith("int") else "float",
        "symmetric": True,
        "strategy": strategy,
        "group_size": columns if strategy.endswith("group") else None,
        "block_structure": list(one.block) if strategy == "block" else None,
        "dynamic": False,
        "actorder": None,
        "scale_dtype": dtype,
        "zp_dtype": dtype,
    }


def _of_modelopt(
    found: Sequence[Encoding],
    encodings: Mapping[str, Encoding],
    kept: Sequence[str],
    *,
    inputs: bool = False,
) -> Statements:
    del encodings
    (one,) = found
    group = {"group_size": one.block[1]} if min(one.block) else {}
    producer = {"name": _MODELOPT, "version": f"castwise {__version__}"}
    code = _WITH_INPUTS[one.written.code] if inputs else one.written.code
    algorithm = {"quant_algo": code, "kv_cache_quant_algo": None, **group}
    weights = {"dynamic": False, "num_bits": one.bits, "type": "float", **group}
    stated = {"weights": weights, **({"input_activations": weights} if inputs else {})}
    own = {"producer": producer, "quantization": {**algorithm, "exclude_modules": list(kept)}}
    return _only_section(
        {
            "quant_method": _MODELOPT,
            **algorithm,
            "config_groups": {"group_0": {"targets": ["Linear"], **stated}},
            "ignore": list(kept),
            "producer": producer,
        },
        **{CONFIGS[0]: json.dumps(own, indent=2) + "\n"},
    )


def _of_deepseek(
    found: Sequence[Encoding], encodings: Mapping[str, Encoding], kept: Sequence[str]
) -> Statements:
    del encodings
    section = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": list(found[0].block),
        "modules_to_not_convert": list(kept),
    }
    return _only_section(section)


def _of_gpt_oss(
    found: Sequence[Encoding], encodings: Mapping[str, Encoding], kept: Sequence[str]
) -> Statements:
    del found, encodings
    return _only_section({"quant_method": "mxfp4", "modules_to_not_convert": list(kept)})


def _of_mlx(
    found: Sequence[Encoding], encodings: Mapping[str, Encoding], kept: Sequence[str]
) -> Statements:
    del kept
    first, *others = (
        {"group_size": one.block[1], "bits": one.bits, "mode": one.written.code} for one in found
    )
    for one, values in zip(found[1:], others, strict=True):
        first |= {module: values for module, each in encodings.items() if each == one}
    return Statements({"quantization": first, "quantization_config": first}, {}, None)


def _of_comfy(
    found: Sequence[Encoding], encodings: Mapping[str, Encoding], kept: Sequence[str]
) -> Statements:
    """Every weight states it for itself, in a tensor."""
    del found, encodings, kept
    return Statements({}, {}, {})


_STATED: Mapping[str, Callable[..., Statements]] = {
    "compressed-tensors": _compressed,
    "modelopt": _of_modelopt,
    "deepseek": _of_deepseek,
    "transformers": _of_deepseek,
    "gpt-oss": _of_gpt_oss,
    "comfy": _of_comfy,
    "mlx": _of_mlx,
}
_SEVERAL = ("compressed-tensors", "comfy", "mlx")
"""Producers that state a scheme for each module."""
