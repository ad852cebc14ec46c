"""AutoAWQ, AutoGPTQ and GPTQModel: integers in words, packed along outputs or inputs."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from castwise.quantization.producers._module_entries import module_values, tensors_of
from castwise.quantization.producers.layouts import OF_WORD, ZERO, Layout, Part, Storage, scale_part
from castwise.quantization.producers.producer import (
    INTEGERS,
    Configuration,
    Producer,
    Transcoding,
    same_schemes,
)
from castwise.quantization.producers.stated import METHOD_KEYS, Describe, Stated, integer_scheme
from castwise.quantization.producers.stored_weight import StoredWeight, Undecodable, WeightForm

_GPTQ_LAYOUT = Layout(
    "int_{}",
    "qweight",
    OF_WORD,
    (
        scale_part("scales"),
        Part("qzeros", ZERO, OF_WORD, distinct=True),
        Part("g_idx", formats=OF_WORD, distinct=True, use="group index"),
    ),
    columns=(1, 1),
    storage=Storage(
        np.int32,
        is_unsigned=True,
        zeros="columns",
        zeros_add=(("gptq", 1), ("gptq_v2", 0)),
        orientation="parts",
    ),
)

# The keys of the order of words: that of GPTQModel and transformers, its alias, and AutoAWQ's.
_FORMAT_KEYS = ("format", "checkpoint_format", "version")

_WORD = np.dtype(np.int32).name
_DEFAULT_FORMAT = {"gptq": "gptq", "awq": "gemm"}
# Codes of which GPTQModel's `gptq_p` stores the high bits apart; others are in gptq_v2's words.
_PLANAR_BITS = (3, 5, 6, 7)
# GPTQModel packs an embedding with its tokens as inputs, and does not transpose what it decodes.
# Linear layers such as `embed_out` or `context_embedder` have names of their own.
_EMBEDDING = re.compile(
    r"(?:.*\.)?(?:embed_tokens|embed_in|wte|shared|(?:word_|token_|tok_)?embeddings?)"
)


def _read(section: Mapping[str, Any]) -> Describe:
    of_module = module_values(section)

    def describe(module: str, payload: str | None) -> Stated:
        values, problem = of_module(module)
        bits = values.get("bits", values.get("w_bit"))
        statement = integer_scheme(bits, values.get("group_size", values.get("q_group_size")))
        needs = (ZERO,) if values.get("zero_point") is True else ()
        differing = (_difference(values, keys) for keys in (_FORMAT_KEYS, METHOD_KEYS))
        problem = problem or next(filter(None, differing), None)
        return statement._replace(needs=needs, problem=problem, details=_details(values))

    return describe


def _words_of(values: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, str]:
    """Return what a section states under several keys of one meaning, in lower case."""
    return {key: value.lower() for key in keys if isinstance(value := values.get(key), str)}


def _difference(values: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """Say that keys of one meaning differ; None if they do not."""
    words = _words_of(values, keys)
    if len(set(words.values())) < 2:  # noqa: PLR2004
        return None
    texts = " and ".join(f"{key} {word!r}" for key, word in words.items())
    return f"states {texts}, which mean one thing; remove the one that does not hold"


def _method_of(values: Mapping[str, Any], usual: str) -> str:
    return next(iter(_words_of(values, METHOD_KEYS).values()), usual)


def _format_of(values: Mapping[str, Any]) -> str:
    """Return the order of words that is stated, or that of the method."""
    if values.get("backend") == "llm-awq":  # which transformers takes before a stated format
        return "llm-awq"
    words = _words_of(values, _FORMAT_KEYS)
    method = tensors_of(_method_of(values, "gptq"), values)
    return next(iter(words.values()), _DEFAULT_FORMAT.get(method, "gptq"))


def _details(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return what two statements of the same words must agree on, beside bits and groups."""
    details = {"format": _format_of(values), "pack_dtype": values.get("pack_dtype") or _WORD}
    if _method_of(values, "gptq") != "awq":
        details["is_marlin_format"] = values.get("is_marlin_format", False)
    details |= {key: values.get(key) for key in ("sym", "desc_act", "zero_point")}
    return tuple((key, value) for key, value in details.items() if value is not None)


def _undecodable(section: Mapping[str, Any]) -> str | None:
    """Say why no word of a section is decoded: its weights need rotated inputs, or other words."""
    for key in _FORMAT_KEYS:
        if not isinstance(words := section.get(key), str | None):
            return f"its {key} is {words!r}, which names no order of words; mend or remove it"
    if rotation := section.get("rotation"):
        return f"its weights are rotated (rotation {rotation!r}), which castwise cannot undo"
    if (container := section.get("pack_dtype") or _WORD) != _WORD:
        return f"its codes are in words of {container!r} (pack_dtype), and castwise decodes {_WORD}"
    return None


def _rule_of_awq(case: StoredWeight) -> WeightForm:
    """Describe AutoAWQ's "gemm": 8 outputs in a word, in an order of their own."""
    form, bits = _format_of(case.section), case.bits()
    if form != "gemm" or bits != 4:  # noqa: PLR2004
        raise Undecodable(
            f"castwise cannot decode the version {form!r} of AWQ with {bits} bits; AutoAWQ or "
            "GPTQModel read it"
        )
    case.require_part("qzeros")
    return WeightForm("int4_group", case.group(case.matrix()[0]))


def _rule_of_gptq(case: StoredWeight) -> WeightForm:
    """Describe AutoGPTQ's words: packed along the inputs, zero points along the outputs."""
    form = _format_of(case.section)
    method = tensors_of(_method_of(case.section, "gptq"), case.section)
    if case.section.get("is_marlin_format"):  # as AutoGPTQ wrote before it stated a form
        form = "marlin"
    bits = case.bits()
    variant = "gptq_v2" if form == "gptq_p" and bits not in _PLANAR_BITS else form
    if variant not in ("gptq", "gptq_v2") or method != "gptq" or bits not in (2, 3, 4, 8):
        raise Undecodable(
            f"castwise cannot decode the format {form!r} of GPTQ with {bits} bits; GPTQModel reads "
            "it"
        )
    module = case.payload.rpartition(".")[0]
    if _EMBEDDING.fullmatch(module):
        raise Undecodable(
            "it is an embedding, whose axes GPTQModel stores in another order than those of linear "
            "layers; GPTQModel reads it"
        )
    case.require_part("qzeros")
    if case.part("g_idx") is None and case.section.get("desc_act") is True:
        raise Undecodable("it has no g_idx, and desc_act says that it is needed")
    inputs = case.whole(bits, case.matrix()[0])
    is_centered = module_values(case.section)(module).values.get("sym")
    return WeightForm(
        f"int{bits}_group", case.group(inputs), variant=variant, is_centered=is_centered is True
    )


AWQ = Producer(
    "awq",
    (
        Layout(
            "int4_{}",
            "qweight",
            OF_WORD,
            (scale_part("scales"), Part("qzeros", ZERO, OF_WORD, distinct=True)),
            families=("int",),
            columns=(1, 8),
            storage=Storage(
                np.int32, ("awq",), is_unsigned=True, zeros="columns", orientation="weight"
            ),
        ),
    ),
    scales="float16",
    rule=_rule_of_awq,
    configuration=Configuration(
        {"awq": _read},
        undecodable=_undecodable,
        config_file="quant_config.json",
        file_section=lambda config: (_method_of(config, "awq"), config),
    ),
    transcoding=Transcoding(forms_from=same_schemes(*INTEGERS)),
)

_WRAPPED_ZEROS = (
    "zero points of {!r} are stored as the largest code, one less than 0; they are taken as 0, as "
    "GPTQModel and exllamav2 do, while AutoGPTQ's torch code takes them for the largest code plus "
    "one"
)

GPTQ = Producer(
    "gptq",
    (_GPTQ_LAYOUT,),
    scales="float16",
    rule=_rule_of_gptq,
    wrapped_zeros=_WRAPPED_ZEROS,
    configuration=Configuration(
        {"gptq": _read},
        undecodable=_undecodable,
        config_file="quantize_config.json",
        file_section=lambda config: (_method_of(config, "gptq"), config),
    ),
    transcoding=Transcoding(forms_from=same_schemes(*INTEGERS)),
)
