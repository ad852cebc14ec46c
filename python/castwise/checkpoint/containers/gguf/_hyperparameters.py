"""The hyperparameters of a model: of its `config.json` as of a GGUF file, and back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.gguf._architectures import (
    ARCHITECTURE,
    ARCHITECTURES,
    COUNT,
    FLOAT,
    READ,
    ROPE,
    TEXT,
    UNSCALED,
    YARN,
    GgufArchitecture,
    Key,
    stated_key,
)
from castwise.checkpoint.containers.gguf.writer import typed_text

# What states the context of a rotary embedding before it was scaled, in it or beside it.
_CONTEXT = "original_max_position_embeddings"

# What else is stated of it; llama.cpp computes as if `truncate` were true. Of an `attention_factor`
# versions of llama.cpp compute different things, none of them that of transformers, so that a model
# with one is refused.
_ROPE_TOO = ("rope_type", "type", "rope_theta", "truncate")

# What transformers takes for keys that are left out, where llama.cpp computes something else.
_LEFT_OUT = {"norm_topk_prob": False, "sliding_window": 4096}

_SMALLEST, _LARGEST = (float(limit) for limit in (np.finfo("f4").tiny, np.finfo("f4").max))
_OTHERS = "convert_hf_to_gguf.py of llama.cpp writes others"
_NO_FILE = "no GGUF file makes it compute this model"
_OF_FACTORS = "llama3"
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", _CONTEXT)
# The last three of all models of Llama 3, where factors do not tell them apart from others.
_OF_LLAMA3 = (1.0, 4.0, 8192)

_SCALING = "rope.scaling.type"
# What a configuration states where nothing is scaled: left out, it is YaRN of some models.
_NOT_SCALED = {"rope_type": UNSCALED}

_HEADS = ("head_dim", "num_key_value_heads")


def architecture(config: Mapping[str, Any]) -> tuple[GgufArchitecture, Mapping[str, Any]]:
    """Return the row of a model, of which llama.cpp computes what its configuration states."""
    # The configuration comes with what follows from it.
    kind = config.get("model_type")
    row = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if row is None:
        raise CheckpointError(
            f"config.json states the model_type {kind!r}, and castwise writes GGUF of "
            f"{', '.join(ARCHITECTURES)}; {_OTHERS}"
        )
    for key, pattern in row.layers.items():
        kinds = config.get(key)
        if kinds is not None and (
            not isinstance(kinds, list)
            or len(kinds) != config.get("num_hidden_layers")
            or kinds != row.lists_of(len(kinds))[key]
        ):
            raise CheckpointError(
                f"config.json states {key} {kinds!r}, and llama.cpp computes {row.name} with "
                f"{', '.join(map(str, pattern))} in turn, one for each layer (num_hidden_layers); "
                + _NO_FILE
            )
    for key, value in row.computes.items():
        statement = config.get(key, _LEFT_OUT.get(key, value))
        if statement != value:
            says = f"states {key} {statement!r}"
            if key not in config:
                says = f"leaves out {key}, which transformers takes as {statement!r}"
            raise CheckpointError(
                f"config.json {says}, and llama.cpp computes {row.name} with {value!r} alone; "
                + _NO_FILE
            )
    return row, _follow_rules(config) if row.follows else config


def _follow_rules(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with the heads that follow from others."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(width) is not int or type(heads) is not int or heads < 1:
        return config
    follows = dict(zip(_HEADS, (width // heads, heads), strict=True))
    return {**config, **{key: n for key, n in follows.items() if config.get(key) is None}}


def hyperparameters(row: GgufArchitecture, config: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return what a file states of a model of this name before its tokens; of its types nothing."""
    kind, rope = _rotary(row, config)
    left_out = dict.fromkeys(key.config_key for key in ROPE[kind])
    values = {**config, **left_out, **rope, "rope_type": kind}
    texts: dict[str, str] = {}
    for key in (*row.keys, *ROPE[kind]):
        value = values.get(stated_key(values, key.config_key))
        if key.required or value is not None:
            says = (
                f"config.json states {stated_key(values, key.config_key)} {value!r}, and GGUF needs"
            )
            texts[f"{row.name}.{key.name}"] = typed_text(key.kind, _check_value(key, value, says))
    return {
        ARCHITECTURE: typed_text(TEXT, row.name),
        "general.type": typed_text(TEXT, "model"),
        "general.name": typed_text(TEXT, name),
        **texts,
    }


def _rotary(row: GgufArchitecture, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of the rotary embedding, and what is stated of it; refuse other kinds."""
    parameters, scaling = (config.get(key) for key in ("rope_parameters", "rope_scaling"))
    rope = scaling if parameters is None else parameters
    if scaling is not None and scaling != rope:
        raise CheckpointError(
            f"config.json states rope_parameters {parameters!r} and rope_scaling {scaling!r}, "
            "which differ; remove the one that is wrong"
        )
    rope = {} if rope is None else rope
    is_mapping = isinstance(rope, dict)
    rope = {key: value for key, value in rope.items() if value is not None} if is_mapping else rope
    kind = str(rope.get("rope_type", rope.get("type", UNSCALED)) if is_mapping else None)
    known_keys = {*_ROPE_TOO, *(key.config_key for key in ROPE.get(kind, ()))}
    known_keys |= {*_LLAMA3} if kind == _OF_FACTORS and row.factors else set()
    if kind not in ROPE or rope.keys() - known_keys or (kind == _OF_FACTORS and not row.factors):
        raise CheckpointError(
            f"config.json states the rotary embedding {rope!r}, and castwise writes GGUF of "
            f"{', '.join(ROPE)}; {_OTHERS}"
        )
    if not rope and row.scaled:
        raise CheckpointError(
            f"config.json states neither rope_parameters nor rope_scaling, which transformers "
            f"takes as {YARN} for {row.name}; state rope_scaling, {_NOT_SCALED!r} if nothing is "
            "scaled"
        )
    if rope.get("truncate", True) not in (True, row.scaled.get("truncate", True)):
        raise CheckpointError(
            f"config.json states truncate {rope['truncate']!r} of its rotary embedding, and "
            f"llama.cpp computes {row.name} as if it were true; state true if that will do"
        )
    context = config.get(_CONTEXT)
    if (
        _CONTEXT in known_keys
        and context is not None
        and rope.setdefault(_CONTEXT, context) != context
    ):
        raise CheckpointError(
            f"config.json states {_CONTEXT} {context!r}, and {rope[_CONTEXT]!r} in its rotary "
            "embedding; remove the one that is wrong"
        )
    return kind, rope


def rotary_factors(row: GgufArchitecture, config: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """Return what llama.cpp divides the frequencies of a rotary embedding by; None for most."""
    kind, rope = _rotary(row, config)
    if kind != _OF_FACTORS:
        return None
    values = []
    for name in _LLAMA3:
        says = f"config.json states {name} {rope.get(name)!r}, and GGUF needs"
        values.append(_check_value(Key(str(row.factors), name, FLOAT), rope.get(name), says))
    theta = {**config, **rope}["rope_theta"]
    return _factors(theta, config["head_dim"], values)


def _factors(theta: float, size: int, values: Sequence[float]) -> NDArray[np.float32]:
    factor, low, high, context = values
    if not low < high:
        raise CheckpointError(f"low_freq_factor is {low}, and high_freq_factor {high}, not more")
    # Llama 3's rule: frequencies of long wavelengths are divided by the factor, those of short ones
    # stay, and those between are blended by how many wavelengths the original context holds.
    lengths = 2 * math.pi * float(theta) ** (np.arange(0, size, 2) / size)
    smooth = np.clip((context / lengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def rotary_scaling(config: Mapping[str, Any], factors: NDArray[np.float32]) -> dict[str, Any]:
    """Return what states these factors in a configuration, with the lengths of Llama 3."""
    if config["rope_scaling"] != _NOT_SCALED:
        raise CheckpointError("it states a scaled rotary embedding, and has rotary factors too")
    if factors.shape != (config["head_dim"] // 2,):
        raise CheckpointError(
            f"its rotary factors have the shape {factors.shape}, and heads of {config['head_dim']} "
            "(head_dim) need one for each two elements"
        )
    largest = max(float(str(factors.max())), 1.0)
    values = largest, *_OF_LLAMA3
    rule_factors = _factors(config["rope_theta"], config["head_dim"], values)
    if not np.allclose(factors, rule_factors, rtol=1e-5, atol=0):
        limits = ", ".join(
            f"{key} {value}" for key, value in zip(_LLAMA3[1:], _OF_LLAMA3, strict=True)
        )
        raise CheckpointError(f"its rotary factors are not those of {limits}, as Llama 3 has them")
    return {"rope_type": _OF_FACTORS, **dict(zip(_LLAMA3, values, strict=True))}


def _check_value(key: Key, value: Any, says: str) -> Any:  # noqa: ANN401  (of JSON)
    """Return the value of a hyperparameter, or refuse one that it cannot have."""
    is_right, requirement = {
        TEXT: (isinstance(value, str), "a text"),
        COUNT: (type(value) is int and 0 < value < 1 << 32, "a whole number from 1, below 2^32"),
        FLOAT: (
            type(value) in (int, float) and _SMALLEST <= value <= _LARGEST,
            f"a number from {_SMALLEST:.3g} to {_LARGEST:.3g}",
        ),
    }[key.kind]
    if not is_right:
        raise CheckpointError(f"{says} {key.name} of it: {requirement}")
    return value


def configuration(header: Mapping[str, Any]) -> tuple[GgufArchitecture, dict[str, Any]]:
    """Return the row of a file, and what its hyperparameters are in a configuration."""
    name = header.get(ARCHITECTURE)
    rows = ((kind, row) for kind, row in ARCHITECTURES.items() if row.name == name)
    kind, row = next(rows, (None, None))
    if row is None:
        names = dict.fromkeys(architecture.name for architecture in ARCHITECTURES.values())
        raise CheckpointError(
            f"its architecture is {name!r}, and castwise knows what transformers calls the tensors "
            f"of {', '.join(names)}"
        )
    begin = f"{row.name}."
    unread = {
        key.removeprefix(begin): value for key, value in header.items() if key.startswith(begin)
    }
    if unread.get(_SCALING) == "none":
        del unread[_SCALING]
    scaling = ROPE.get(str(unread[_SCALING]), ()) if _SCALING in unread else ()
    config: dict[str, Any] = {}
    for key in dict.fromkeys((*row.keys, *READ, *scaling)):
        value = unread.pop(key.name, None)
        if value is None and (not key.required or (row.follows and key.config_key in _HEADS)):
            continue
        value = _check_value(
            key, value, f"it states {begin}{key.name} {value!r}, and a model needs"
        )
        if key.kind == FLOAT:
            value = float(str(np.float32(value)))  # the shortest of those that are this float32
        if config.setdefault(key.config_key, value) != value:
            raise CheckpointError(
                f"it states {begin}{key.name} {value!r}, and elsewhere "
                f"{config[key.config_key]!r} of the same ({key.config_key})"
            )
    if unread:
        raise CheckpointError(
            f"it states {begin}{min(unread)} {unread[min(unread)]!r}, which castwise "
            "knows no form of in transformers"
        )
    scaling_values = {
        key.config_key: config.pop(key.config_key) for key in scaling if key.config_key in config
    }
    if scaling_values.get("rope_type") == YARN:
        scaling_values |= row.scaled
    return row, {
        "architectures": [row.model],
        "model_type": kind,
        **(_follow_rules(config) if row.follows else config),
        **row.computes,
        "rope_scaling": scaling_values or _NOT_SCALED,
    }
