"""What states how the weights of a quantised checkpoint are stored, as its producer writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from castwise._core import __version__
from castwise._wording import argument, given
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.encoding._written_schemes import Encoding
from castwise.quantization.producers._configs import CONFIGS
from castwise.quantization.producers._recipes import E4M3, I8, U8

_MODELOPT = "modelopt"
_EXPERTS_OF_4_BITS = re.compile(r'("expert_dtype"\s*:\s*)"fp4"')
_WITH_INPUTS = {"W4A16_NVFP4": "NVFP4"}
"""What ModelOpt calls an algorithm when inputs have scales, too."""

_ALSO = {"W4A16_AWQ": {"has_zero_point": False, "pre_quant_scale": True}}
"""What it always states beside an algorithm; readers take factors of inputs that are there."""


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
    edit
        What makes the text of `config.json` follow, where its sections stay.

    """

    sections: Mapping[str, Any]
    files: Mapping[str, str]
    metadata: Mapping[str, str] | None
    edit: Callable[[str], str] | None = None


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
    distinct = list(dict.fromkeys(encodings.values()))
    if len(distinct) > 1 and recipe not in SEVERAL:
        names = ", ".join(dict.fromkeys(encoding.written.scheme for encoding in distinct))
        raise CheckpointError(
            f"{given('recipe', recipe)} states one scheme for a whole checkpoint, not "
            f"{names}; leave one "
            f"({argument('ignore')}), or use {', '.join(SEVERAL)}"
        )
    distinct.sort(key=lambda encoding: -sum(other == encoding for other in encodings.values()))
    more = {"inputs": True} if inputs else {}
    return _STATED[recipe](distinct, encodings, kept, **more)


def of_widened_experts() -> Statements:
    """Return what states that experts of DeepSeek-V4 are stored as its other weights are."""
    return Statements({}, {}, {}, partial(_EXPERTS_OF_4_BITS.sub, r'\1"fp8"'))


def _only_section(section: dict[str, Any], **files: str) -> Statements:
    key = "quantization_config"
    return Statements({key: section}, files, {key: json.dumps(section)})


def _compressed(
    distinct: Sequence[Encoding],
    encodings: Mapping[str, Encoding],
    kept: Sequence[str],
    *,
    inputs: bool = False,
) -> Statements:
    groups = {}
    for number, encoding in enumerate(distinct):
        targets = ["Linear"]
        if number:
            targets = [
                f"re:{re.escape(module)}$"
                for module, other in encodings.items()
                if other == encoding
            ]
        groups[f"group_{number}"] = {
            "targets": targets,
            "weights": _arguments(encoding),
            "input_activations": _arguments_of_inputs(encoding) if inputs else None,
            "output_activations": None,
            "format": encoding.written.code,
        }
    forms = {encoding.written.code for encoding in distinct}
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


def _arguments_of_inputs(encoding: Encoding) -> dict[str, Any]:
    """Say the same of inputs whose scale is stored: of NVFP4 only that of the scales is."""
    return {
        **_arguments(encoding),
        "dynamic": "local" if encoding.written.row.global_scale else False,
    }


def _arguments(encoding: Encoding) -> dict[str, Any]:
    """Say what compressed-tensors calls the arguments of weights."""
    scheme, (_, columns) = encoding.written.scheme, encoding.block
    strategy = scheme.rpartition("_")[2]
    bytes_of_scale = {"nvfp4": E4M3}.get(scheme, U8 if scheme.startswith("mx") else None)
    if bytes_of_scale is not None:
        strategy = "tensor_group" if encoding.written.row.global_scale else "group"
    dtype = f"torch.{bytes_of_scale}" if bytes_of_scale else None
    zero_dtype = dtype if encoding.symmetric else f"torch.{I8}"
    return {
        "num_bits": encoding.bits,
        "type": "int" if scheme.startswith("int") else "float",
        "symmetric": encoding.symmetric,
        "strategy": strategy,
        "group_size": columns if strategy.endswith("group") else None,
        "block_structure": list(encoding.block) if strategy == "block" else None,
        "dynamic": False,
        "actorder": "group" if encoding.reordered else None,
        "scale_dtype": dtype,
        "zp_dtype": zero_dtype,
    }


def _of_modelopt(
    distinct: Sequence[Encoding],
    encodings: Mapping[str, Encoding],
    kept: Sequence[str],
    *,
    inputs: bool = False,
) -> Statements:
    del encodings
    (encoding,) = distinct
    group: dict[str, Any] = {"group_size": encoding.block[1]} if min(encoding.block) else {}
    if min(encoding.block) > 1:  # which it does not state itself, so that nobody can read its files
        group = {"weight_block_size": list(encoding.block)}
    producer = {"name": _MODELOPT, "version": f"castwise {__version__}"}
    code = (
        _WITH_INPUTS.get(encoding.written.code, encoding.written.code)
        if inputs
        else encoding.written.code
    )
    algorithm = {"quant_algo": code, "kv_cache_quant_algo": None, **group, **_ALSO.get(code, {})}
    kind = "int" if encoding.written.scheme.startswith("int") else "float"
    weights = {"dynamic": False, "num_bits": encoding.bits, "type": kind, **group}
    stated = {"weights": weights, **({"input_activations": weights} if inputs else {})}
    file = {"producer": producer, "quantization": {**algorithm, "exclude_modules": list(kept)}}
    return _only_section(
        {
            "quant_method": _MODELOPT,
            **algorithm,
            "config_groups": {"group_0": {"targets": ["Linear"], **stated}},
            "ignore": list(kept),
            "producer": producer,
        },
        **{CONFIGS[0]: json.dumps(file, indent=2) + "\n"},
    )


def _of_deepseek(
    distinct: Sequence[Encoding], encodings: Mapping[str, Encoding], kept: Sequence[str]
) -> Statements:
    del encodings
    section = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": list(distinct[0].block),
        "modules_to_not_convert": list(kept),
    }
    return _only_section(section)


def _of_gpt_oss(
    distinct: Sequence[Encoding], encodings: Mapping[str, Encoding], kept: Sequence[str]
) -> Statements:
    del distinct, encodings
    return _only_section({"quant_method": "mxfp4", "modules_to_not_convert": list(kept)})


def _of_mlx(
    distinct: Sequence[Encoding], encodings: Mapping[str, Encoding], kept: Sequence[str]
) -> Statements:
    del kept
    section, *further = (
        {"group_size": encoding.block[1], "bits": encoding.bits, "mode": encoding.written.code}
        for encoding in distinct
    )
    for encoding, values in zip(distinct[1:], further, strict=True):
        section |= {module: values for module, other in encodings.items() if other == encoding}
    return Statements({"quantization": section, "quantization_config": section}, {}, None)


def _of_comfy(
    distinct: Sequence[Encoding],
    encodings: Mapping[str, Encoding],
    kept: Sequence[str],
    *,
    inputs: bool = False,
) -> Statements:
    """Every weight states it for itself, in a tensor."""
    del distinct, encodings, kept, inputs
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
SEVERAL = ("compressed-tensors", "comfy", "mlx")
"""Producers that state a scheme for each module."""
