"""The method "fp8", which several producers state, and producers whose weights are float8 alone.

AutoFP8 is that from which vLLM took its first float8, and FBGEMM's kernels take float8 in rows;
the files of Mistral name scales as no others do.
"""

from collections.abc import Mapping
from typing import Any

from castwise.quantization.producers._module_entries import module_values
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    FLOAT8,
    FP8_SCALE,
    OF_FP8,
    PLAIN,
    Layout,
    Part,
    scale_part,
)
from castwise.quantization.producers.producer import Configuration, Producer
from castwise.quantization.producers.stated import Describe, Stated, constant_reader, pair_of_sizes


def quantizes_inputs(section: Mapping[str, Any]) -> bool:
    return section.get("activation_scheme") == "dynamic"


def read_fp8(section: Mapping[str, Any]) -> Describe:
    of_module = module_values(section)
    element = str(section.get("fmt"))

    def describe(module: str, payload: str | None) -> Stated:
        values, problem = of_module(module)
        block = pair_of_sizes(values.get("weight_block_size")) or pair_of_sizes(
            values.get("group_size")
        )
        if semantics := values.get("weight_scale_semantics"):  # of GPTQModel, beside other names
            problem = problem or (
                f"states weight_scale_semantics {semantics!r}, by which scales divide; the library "
                "that wrote it reads it"
            )
        if problem is not None:
            return Stated(problem=problem)
        other = element.startswith("e") and element not in (payload or "")
        if payload in FLOAT8 and other:
            return Stated(element)  # which no layout holds
        # Of other payloads, such as 4-bit experts, it says nothing.
        if payload not in FLOAT8 or block is None:
            return Stated()
        return Stated("fp8_block", block)

    return describe


AUTOFP8 = Producer("autofp8", (FP8_SCALE,), configuration=Configuration({"fp8": read_fp8}))

FBGEMM = Producer(
    "fbgemm",
    (FP8_SCALE,),
    configuration=Configuration(
        {"fbgemm_fp8": constant_reader("fp8_channel")},
        kept_keys={"fbgemm_fp8": "modules_to_not_convert"},
        # `FbgemmFp8Linear` of transformers quantizes each row of them.
        quantizes_inputs=lambda _: True,
    ),
)

MISTRAL = Producer(
    "mistral",
    (
        Layout(
            "fp8_{}",
            "",
            OF_FP8,
            (
                scale_part("qscale_weight", distinct=True),
                Part("qscale_act", ACTIVATION, distinct=True),
            ),
            parameters=("weight",),
            storage=PLAIN,
        ),
    ),
    is_evident=True,
    configuration=Configuration({"fp8": read_fp8}),
)
