"""bitsandbytes: int8 in rows, and maps of 16 values in flat blocks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from castwise.quantization.producers.layouts import (
    OF_F32,
    OF_I8,
    OF_U8,
    SCALE,
    Layout,
    Part,
    Storage,
    scale_part,
)
from castwise.quantization.producers.producer import Configuration, Marker, Producer
from castwise.quantization.producers.stated import Stored, no_statements
from castwise.quantization.producers.stored_weight import StoredWeight, WeightForm

_NAME = "bitsandbytes"


def _unnamed_method(key: str, section: Mapping[str, Any]) -> str | None:
    del key
    return _NAME if section.get("load_in_4bit") or section.get("load_in_8bit") else None


def _read_marker(name: str, array: Stored) -> None:
    layout = np.asarray(array)
    if layout.size != 1:
        raise ValueError(
            f"{name!r} has the shape {layout.shape}, not that of one number; "
            "fetch the checkpoint again."
        )
    if layout.any():
        raise ValueError(f"{name!r} says that rows are reordered; bitsandbytes reads them.")


def _rule(case: StoredWeight) -> WeightForm:
    """Describe bitsandbytes: int8 with a scale per row, or a map of 16 values in flat blocks."""
    if case.scheme != "int8_channel":
        case.require_part(".quant_map")
        return WeightForm(case.scheme)
    return WeightForm(case.scheme, (1, 0), case.matrix())


BITSANDBYTES = Producer(
    _NAME,
    (
        *(
            Layout(
                f"bnb_{kind}",
                "",
                (),
                (
                    Part(".absmax", SCALE, (*OF_F32, *OF_U8), is_required=True, distinct=True),
                    Part(
                        f".quant_state.bitsandbytes__{kind}",
                        formats=OF_U8,
                        is_required=True,
                        distinct=True,
                        use="state",
                    ),
                    *(
                        Part(f".{name}", formats=OF_F32, distinct=True, use=use)
                        for name, use in (
                            ("quant_map", "code map"),
                            ("nested_absmax", "nested scale"),
                            ("nested_quant_map", "nested code map"),
                        )
                    ),
                ),
                storage=Storage(np.uint8, ("high-first",), flat=True),
            )
            for kind in ("nf4", "fp4")
        ),
        Layout(
            "int8_channel",
            "",
            OF_I8,
            (scale_part("SCB", distinct=True), Part("weight_format", use="marker")),
            parameters=("weight",),
            storage=Storage(divisor_after=127.0),
        ),
    ),
    channels=1,
    rule=_rule,
    is_evident=True,
    configuration=Configuration(
        {_NAME: no_statements},
        unnamed_method=_unnamed_method,
        kept_keys={_NAME: "llm_int8_skip_modules"},
    ),
    marker=Marker(read=_read_marker),
)
