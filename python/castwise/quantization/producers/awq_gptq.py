"""AutoAWQ, AutoGPTQ and GPTQModel: integers in words, packed along outputs or inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from castwise.quantization.producers._layouts import OF_WORD, OTHER, ZERO, Layout, Part, Storage
from castwise.quantization.producers._module_entries import module_values, tensors_of
from castwise.quantization.producers._producer import Configuration, Producer, Section, Transcoding
from castwise.quantization.producers._shared_layouts import scale_part
from castwise.quantization.producers._stated import Describe, Stated, integer_scheme
from castwise.quantization.producers._stored_weight import Given, StoredWeight, Undecodable
from castwise.quantization.producers._written import INTEGERS, same_schemes

_GPTQ_LAYOUT = Layout(
    "int_{}",
    "qweight",
    OF_WORD,
    (
        scale_part("scales"),
        Part("qzeros", ZERO, OF_WORD, distinct=True),
        Part("g_idx", OTHER, OF_WORD, distinct=True, use="group index"),
    ),
    columns=(1, 1),
    storage=Storage(
        np.int32,
        unsigned=True,
        zeros="columns",
        zeros_add=(("gptq", 1), ("gptq_v2", 0)),
        transposed="parts",
    ),
)

_UNSTATED: Mapping[str, Mapping[str, Any]] = {
    "gptq": {"checkpoint_format": "gptq", "is_marlin_format": False},
    "awq": {"version": "gemm"},
}
"""What holds of integers in words where a section does not say it."""


def _read(section: Mapping[str, Any]) -> Describe:
    of_module = module_values(section)

    def describe(module: str, payload: str | None) -> Stated:
        values, problem = of_module(module)
        bits = values.get("bits", values.get("w_bit"))
        stated = integer_scheme(bits, values.get("group_size", values.get("q_group_size")))
        needs = (ZERO,) if values.get("zero_point") is True else ()
        return stated._replace(needs=needs, problem=problem, details=_details(values))

    return describe


def _details(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return what two statements of the same words must agree on, beside bits and groups."""
    unstated = _UNSTATED["awq" if values.get("quant_method") == "awq" else "gptq"]
    stated = {key: values.get(key, value) for key, value in unstated.items()}
    stated |= {key: values.get(key) for key in ("sym", "desc_act", "zero_point")}
    return tuple((key, value) for key, value in stated.items() if value is not None)


def _rule_of_awq(case: StoredWeight) -> Given:
    """Describe AutoAWQ's "gemm": 8 outputs in a word, in an order of their own."""
    version = str(case.section.get("version", "gemm")).lower()
    bits = case.bits()
    if version != "gemm" or bits != 4:  # noqa: PLR2004
        raise Undecodable(
            f"castwise cannot decode the version {version!r} of AWQ with {bits} bits; AutoAWQ or "
            "GPTQModel read it"
        )
    case.named("qzeros")
    return Given("int4_group", case.group(case.matrix()[0]))


def _rule_of_gptq(case: StoredWeight) -> Given:
    """Describe AutoGPTQ's words: packed along the inputs, zero points along the outputs."""
    form = case.section.get("checkpoint_format", "gptq")
    method = tensors_of(case.section.get("quant_method", "gptq"), case.section)
    if case.section.get("is_marlin_format"):  # as AutoGPTQ wrote before it stated a form
        form = "marlin"
    bits = case.bits()
    if form not in ("gptq", "gptq_v2") or method != "gptq" or bits not in (2, 3, 4, 8):
        raise Undecodable(
            f"castwise cannot decode the checkpoint_format {form!r} of GPTQ with {bits} bits; "
            "GPTQModel reads it"
        )
    case.named("qzeros")
    if case.part("g_idx") is None and case.section.get("desc_act") is True:
        raise Undecodable("it has no g_idx, and desc_act says that it is needed")
    inputs = case.whole(bits, case.matrix()[0])
    return Given(f"int{bits}_group", case.group(inputs), variant=form)


def _section_of_awq(config: Mapping[str, Any]) -> Section:
    return str(config.get("quant_method", "awq")), config


def _section_of_gptq(config: Mapping[str, Any]) -> Section:
    return str(config.get("quant_method", "gptq")), config


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
                np.int32,
                ("awq",),
                unsigned=True,
                zeros="columns",
                transposed="weight",
            ),
        ),
    ),
    scales="float16",
    rule=_rule_of_awq,
    configuration=Configuration(
        {"awq": _read}, config_file="quant_config.json", file_section=_section_of_awq
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
        {"gptq": _read}, config_file="quantize_config.json", file_section=_section_of_gptq
    ),
    transcoding=Transcoding(forms_from=same_schemes(*INTEGERS)),
)
