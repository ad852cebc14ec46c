"""What the method "fp8" states, which several producers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from castwise.quantization.producers._module_entries import module_values
from castwise.quantization.producers.layouts import FLOAT8
from castwise.quantization.producers.stated import Describe, Stated, pair_of_sizes


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
