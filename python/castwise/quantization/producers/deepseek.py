"""DeepSeek: float8 in blocks as of V3, which transformers writes alike, and float4 as of V4."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from castwise.quantization.producers.float8 import quantizes_inputs, read_fp8
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    INPUTS,
    OF_E8M0,
    OF_FP8,
    OF_I8,
    OF_POWER,
    OF_REAL,
    PLAIN,
    Layout,
    Part,
    Storage,
    scale_part,
)
from castwise.quantization.producers.producer import (
    Configuration,
    EncodedModules,
    Producer,
    Statements,
    Transcoding,
    Writing,
    Written,
    in_section,
)
from castwise.quantization.producers.stated import constant_reader, pair_of_sizes

_FP8_INVERSE = Layout(
    "fp8_{}",
    "",
    OF_FP8,
    (
        scale_part("_scale_inv", (*OF_REAL, *OF_E8M0), distinct=True),
        *INPUTS,
        Part("_activation_scale", ACTIVATION, distinct=True),
    ),
    families=("mxfp8",),
    storage=PLAIN,
)

# In the text of config.json, all other characters of which stay as they are.
_EXPERTS_OF_4_BITS = r'("expert_dtype"\s*:\s*)"fp4"'


def _write(modules: EncodedModules) -> Statements:
    section = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": list(modules.distinct[0].block),
        "modules_to_not_convert": list(_exact(modules.plain, modules.encodings)),
    }
    return in_section(section)


def _exact(names: Iterable[str], modules: Iterable[str]) -> Iterator[str]:
    """Yield names, as expressions those that are the end of the name of a quantized module."""
    # transformers leaves out what ends with such a text, or what it matches as an expression.
    ends = [*sorted(name[::-1] for name in modules), ""]
    for name in names:
        is_end = ends[bisect_left(ends, name[::-1], hi=len(ends) - 1)].startswith(name[::-1])
        yield re.escape(name) if is_end else name


# States that experts of DeepSeek-V4 are stored as its other weights are.
_WIDENED_EXPERTS = Statements(edit=partial(re.sub, _EXPERTS_OF_4_BITS, r'\1"fp8"'))


DEEPSEEK = Producer(
    "deepseek",
    (_FP8_INVERSE,),
    also=("transformers",),
    configuration=Configuration(
        {"fp8": read_fp8, "mxfp8": constant_reader("mxfp8_e4m3", (1, 32))},
        kept_keys=dict.fromkeys(("fp8", "mxfp8"), "modules_to_not_convert"),
        powers_stated=lambda section: (
            "scale_fmt says ue8m0" if section.get("scale_fmt") == "ue8m0" else None
        ),
        quantizes_inputs=quantizes_inputs,
    ),
    writing=Writing(rows=(Written("fp8_block", inputs="dynamic"),), write=_write),
)

DEEPSEEK_V4 = Producer(
    "deepseek-v4",
    (
        *(
            Layout(
                scheme,
                "",
                formats,
                (scale_part("scale", OF_POWER, distinct=True),),
                block=block,
                parameters=("weight",),
                storage=storage,
            )
            for scheme, formats, block, storage in (
                ("fp8_{}", OF_FP8, None, PLAIN),
                ("mxfp4", OF_I8, (1, 32), Storage(np.int8)),
            )
        ),
    ),
    configuration=Configuration({"fp8": read_fp8}),
    transcoding=Transcoding(
        forms_from=(("mxfp4", "fp8_block"),),
        forms_to=(("mxfp4", "fp8_block"),),
        block_of_form=lambda section: pair_of_sizes(section.get("weight_block_size")),
        statements_of_form=_WIDENED_EXPERTS,
    ),
)
