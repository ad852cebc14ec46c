"""gpt-oss: experts of float4 in blocks, as OpenAI stores them."""

import numpy as np

from castwise.quantization.producers.layouts import OF_E8M0, OF_U8, Layout, Storage, scale_part
from castwise.quantization.producers.producer import (
    MXFP4_TO_NVFP4,
    Configuration,
    EncodedModules,
    Producer,
    Statements,
    Transcoding,
    Writing,
    Written,
    in_section,
    same_schemes,
)
from castwise.quantization.producers.stated import constant_reader
from castwise.quantization.producers.stored_weight import StoredWeight, Undecodable, WeightForm


def _rule(case: StoredWeight) -> WeightForm:
    """Describe gpt-oss' blocks; transformers wants the matrix of each expert transposed."""
    shape = case.shape(case.payload)
    if len(shape) < 3 or shape[-1] != 16:  # noqa: PLR2004
        raise Undecodable(
            f"{case.payload!r} has the shape {shape}, and blocks of 16 bytes end with 16"
        )
    if case.payload.endswith(".blocks"):
        return WeightForm(case.scheme, case.block())
    if len(shape) == 3:  # noqa: PLR2004
        raise Undecodable(f"{case.payload!r} has the shape {shape}, which is not that of experts")
    return WeightForm(case.scheme, case.block(), axis=-2)


def _write(modules: EncodedModules) -> Statements:
    return in_section({"quant_method": "mxfp4", "modules_to_not_convert": list(modules.plain)})


def _name_form(layout: Layout, stem: str, is_experts: bool) -> tuple[Layout, str]:
    """Name experts as transformers does, and other weights as OpenAI does."""
    # Experts of transformers are parameters of a module of that name.
    if is_experts and stem.removesuffix(".weight").rpartition(".")[0].endswith("experts"):
        return layout, stem.removesuffix(".weight")
    return next(layout for layout in GPT_OSS.layouts if layout.payload[0] == "."), stem


GPT_OSS = Producer(
    "gpt-oss",
    tuple(
        Layout(
            "mxfp4",
            f"{mark}blocks",
            OF_U8,
            (scale_part(f"{mark}scales", OF_E8M0, distinct=True),),
            block=(1, 32),
            storage=Storage(np.uint8, split=True),
        )
        for mark in ("_", ".")
    ),
    rule=_rule,
    is_evident=True,
    model_type="gpt_oss",
    configuration=Configuration(
        {"mxfp4": constant_reader("mxfp4", (1, 32))}, kept_keys={"mxfp4": "modules_to_not_convert"}
    ),
    writing=Writing(rows=(Written("mxfp4", stacks=True, is_transposed=True),), write=_write),
    transcoding=Transcoding(
        forms_from=(*same_schemes("mxfp4"), MXFP4_TO_NVFP4),
        forms_to=same_schemes("mxfp4"),
        stacks="only",
        name_form=_name_form,
    ),
)
