"""The maps that come with castwise, on every causal architecture of the installed transformers.

Each is made from its configuration on the meta device, so no weights take memory. What must stay is
read from its code: the lists of modules that it keeps in float32, parameters that are float32 in a
model of bfloat16, and parameters that its forward turns into float32.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from castwise import checkpoint
from castwise.checkpoint.maps import named_map
from castwise.models.model import Model

OPTIONS: dict[str, dict[str, Any]] = {
    "Dots1ForCausalLM": {"n_routed_experts": 4, "n_shared_experts": 1},
    "HunYuanDenseV1ForCausalLM": {"head_dim": 128},
    "HunYuanMoEV1ForCausalLM": {"head_dim": 128},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "MinistralForCausalLM": {"head_dim": 128},
    "NemotronForCausalLM": {"num_key_value_heads": 8},
    "ReformerModelWithLMHead": {"is_decoder": True},
}
"""What the defaults of a configuration lack for a model."""

UNMADE = {
    "CohereCompassForCausalLM",
    "DbrxForCausalLM",
    "Gemma3nForConditionalGeneration",  # needs timm
    "Gemma4AssistantForCausalLM",
    "Qwen4ExpForCausalLM",
}
"""Models that transformers makes from no default configuration."""

_TO_FLOAT32 = re.compile(
    r"self\.(\w+)\.(?:float\(\)|type\(torch\.float32\)|to\((?:dtype=)?torch\.float(?:32)?\))"
)


@functools.cache
def floated(module: type) -> frozenset[str]:
    """The attributes that the code of a module turns into float32."""
    if not module.__module__.startswith("transformers.models."):
        return frozenset()
    return frozenset(_TO_FLOAT32.findall(inspect.getsource(module)))


def kept_by_its_code(model: Any, torch: ModuleType) -> Iterator[str]:
    """The parameters that a model keeps in float32, or computes with in float32."""
    listed = (model._keep_in_fp32_modules or (), model._keep_in_fp32_modules_strict or ())
    patterns = [re.compile(rf"(?:^|\.){name}(?:$|\.)") for names in listed for name in names]
    floats: set[str] = set()
    for prefix, module in model.named_modules():
        names = floated(type(module))
        if isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d):
            names |= {"weight"}
        dotted = f"{prefix}." if prefix else ""
        floats.update(f"{dotted}{name}{end}" for name in names for end in ("", ".weight"))
    for name, parameter in model.named_parameters():
        if (
            name in floats
            or parameter.dtype == torch.float32
            or any(pattern.search(name) for pattern in patterns)
        ):
            yield name


def models(transformers: ModuleType, torch: ModuleType) -> Iterator[Any]:
    """Every causal architecture, of bfloat16 on the meta device."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415  (optional)

    unmade = set()
    for name in sorted(set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())):
        cls = getattr(transformers, name)
        try:
            with torch.device("meta"):
                yield cls(cls.config_class(**OPTIONS.get(name, {})))
        except Exception:
            unmade.add(name)
    assert unmade <= UNMADE


def test_every_map_keeps_what_the_code_of_each_architecture_keeps(
    framework: Callable[[str], ModuleType],
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    from transformers.core_model_loading import revert_weight_conversion  # noqa: PLC0415

    maps = {name: named_map(name).with_default("bfloat16") for name in checkpoint.map_names()}
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    forgotten: set[tuple[str, str, str]] = set()
    judged, of_model = 0, ""
    try:
        for model in models(transformers, torch):
            of_model = type(model).__name__
            judged += 1
            parameters = dict(model.named_parameters())
            groups = {re.sub(r"\d+", "*", one): one for one in kept_by_its_code(model, torch)}
            kept = {name: parameters[name] for name in groups.values() if name in parameters}
            # As the model names them, and as its files do.
            for name, parameter in {**revert_weight_conversion(model, dict(kept)), **kept}.items():
                forgotten |= {
                    (of_model, family, name)
                    for family, dtypes in maps.items()
                    if dtypes.decide(name, True, parameter.shape).target is not None
                }
            for name, parameter in parameters.items():
                if parameter.ndim < 2:
                    assert maps["llama"].decide(name, True, parameter.shape).target is None
    finally:
        torch.set_default_dtype(default)
    assert judged > 100
    assert forgotten == set()


def test_every_map_keeps_embeddings_and_heads_of_the_models_of_the_table(
    framework: Callable[[str], ModuleType],
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    forgotten: set[tuple[str, str]] = set()
    judged = 0
    try:
        for model in models(transformers, torch):
            name_of_class = type(model).__name__
            known = Model({"architectures": [name_of_class]}, {})
            if known.architecture is None:
                continue
            judged += 1
            ends = (model.get_input_embeddings(), model.get_output_embeddings())
            for name, module in model.named_modules():
                is_end = isinstance(module, torch.nn.Embedding) or any(
                    module is one for one in ends
                )
                if is_end and hasattr(module, "weight") and not known.keeps(f"{name}.weight"):
                    forgotten.add((name_of_class, name))
    finally:
        torch.set_default_dtype(default)
    assert judged > 100
    assert forgotten == set()
