"""The package gguf, and what it does not tell of an architecture: `architectures.toml`."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.models.architecture import Architecture, Parameter, normalize_name

_TABLE: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("architectures.toml").read_text("utf-8")
)
COUNT, FLOAT, TEXT, BOOL, INTEGER = "I", "f", "s", "?", "i"
"""The types of values that are written."""

ARCHITECTURE = "general.architecture"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
"""What has a row for each token; the second may be the first."""

FLOAT32 = re.compile(r".*(?:_norm\.weight|attn_sinks\.weight|ffn_gate_inp\.weight|\.bias)")
"""Matches the names of tensors that llama.cpp wants in float32: vectors, routers and biases."""

EXPERTS = ("num_experts", "num_local_experts")
"""The keys of which one states how many experts a layer has."""


def gguf_package() -> Any:  # noqa: ANN401  (a module without types)
    """Import the package gguf, which is llama.cpp's own."""
    try:
        import gguf  # noqa: PLC0415
    except ImportError as error:
        raise CheckpointError(
            "the package gguf has the names and the metadata of llama.cpp, and is not installed: "
            "pip install 'castwise[gguf]'"
        ) from error
    return gguf


class Key(NamedTuple):
    """A hyperparameter: its key after the architecture, what states it, and its type."""

    name: str
    config_key: str
    kind: str = COUNT
    required: bool = True  # others are written if they are stated


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """A row, whose fields `architectures.toml` describes."""

    name: str
    model: str
    keys: Sequence[Key]
    computes: Mapping[str, Any]
    layers: Mapping[str, Sequence[Any]] = field(
        default_factory=lambda: {"layer_types": ["full_attention"]}
    )
    tied: bool = True
    biases: Sequence[str] = ()
    follows: bool = False
    rotated: Sequence[str] = ()
    axes: Mapping[str, str] = field(default_factory=dict)  # those that differ from AXES
    scaled: Mapping[str, Any] = field(default_factory=dict)
    factors: str | None = None

    def lists_of(self, count: int) -> dict[str, list[Any]]:
        """Return what is stated of each of so many layers, by keys."""
        return {
            key: [pattern[layer % len(pattern)] for layer in range(count)]
            for key, pattern in self.layers.items()
        }


def _keys(config_keys: Mapping[str, str]) -> tuple[Key, ...]:
    floats, texts = _TABLE["floats"], _TABLE["texts"]
    return tuple(
        Key(
            name,
            key,
            FLOAT if name in floats else TEXT if name in texts else COUNT,
            name not in _TABLE["optional"],
        )
        for name, key in config_keys.items()
    )


def _row(row: Mapping[str, Any]) -> GgufArchitecture:
    columns = dict(row)
    keys = _keys(_TABLE["keys"] | columns.pop("keys", {}))
    computes = columns.pop("computes") | dict.fromkeys(columns.pop("unset", ()))
    return GgufArchitecture(keys=keys, computes=computes, **columns)


ARCHITECTURES = {kind: _row(row) for kind, row in _TABLE["models"].items()}
AXES: Mapping[str, str] = _TABLE["axes"]
READ = _keys(_TABLE["read"])
UNSCALED, YARN = "default", "yarn"
ROPE: Mapping[str, Sequence[Key]] = {
    **dict.fromkeys((UNSCALED, "llama3"), ()),
    **{kind: _keys(keys) for kind, keys in _TABLE["rope"].items()},
}
"""The keys of each kind of rotary embedding."""

_ROLES = {role: re.compile("|".join(names)) for role, names in _TABLE["roles"].items()}
_CAUSAL = "attention.causal"  # False of encoders, which have no logits, and of models that diffuse
_MATRIX = 2  # axes; what has fewer is no weight that llama.cpp quantizes


def architecture_of(metadata: Mapping[str, str], tensors: Iterable[TensorInfo]) -> Architecture:
    """Return the roles of tensors with llama.cpp's names, of any architecture."""
    name = metadata[ARCHITECTURE]
    parameters: dict[str, Parameter] = {}
    for info in tensors:
        key = normalize_name(info.name)
        if len(info.shape) < _MATRIX or not info.name.endswith(".weight"):
            continue
        role = next((role for role, names in _ROLES.items() if names.search(info.name)), "linear")
        parameters[key] = Parameter(key, role, "experts out in" if role == "experts" else "")
    is_causal = metadata.get(f"{name}.{_CAUSAL}") != str(False) or name in _TABLE["diffusion"]
    is_encoder = name in _TABLE["encoders"] or not is_causal
    if HEAD not in parameters and not is_encoder:  # llama.cpp takes the embedding
        parameters[HEAD] = Parameter(HEAD, "head", tied=EMBEDDING)
    return Architecture(f"the GGUF model {name}", "", parameters)


def stated_key(config: Mapping[str, Any], key: str) -> str:
    """Return the key that states something: one of two states how many experts a layer has."""
    keys = (key, *EXPERTS) if key in EXPERTS else ()
    return next((name for name in keys if config.get(name) is not None), key)


def experts_of(config: Mapping[str, Any]) -> Any:  # noqa: ANN401  (of JSON)
    return config.get(stated_key(config, EXPERTS[0]))
