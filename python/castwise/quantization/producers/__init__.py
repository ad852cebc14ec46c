"""How producers name, store and declare quantised weights, with a module for each.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.quantization.producers._attention import scale_of_attention
    from castwise.quantization.producers._configs import (
        MODEL,
        SECTIONS,
        Statement,
        statements,
        undecodable,
    )
    from castwise.quantization.producers._consumers import Loading, find_consumer
    from castwise.quantization.producers._found import joined, prefixed
    from castwise.quantization.producers._gguf_types import quantization_by_types
    from castwise.quantization.producers._keras_layers import plain_model, stated_layers
    from castwise.quantization.producers._keras_names import KERAS_FLOAT8, numbered_kernel
    from castwise.quantization.producers._layouts import (
        ACTIVATION,
        BF16,
        BYTES,
        E4M3,
        E8M0,
        EXPERTS,
        GLOBAL,
        I8,
        OF_E4M3,
        SCALE,
        ZERO,
        Layout,
        Part,
    )
    from castwise.quantization.producers._names import beside, tail
    from castwise.quantization.producers._registry import (
        CACHE_KEYS,
        CONFIGS,
        CONVERTED_TO,
        EVIDENT,
        KEPT_KEYS,
        MARKERS,
        METADATA_KEYS,
        NOT_DECODED,
        OWN_SECTIONS,
        SEVERAL,
        WRAPPED,
        WRITTEN,
        described_in,
        find_recipe,
        known_recipe,
        powers_stated,
        producer_of_model,
        written_layout,
    )
    from castwise.quantization.producers._schemes import find_scheme, has_global_scale
    from castwise.quantization.producers._stored_weight import Undecodable
    from castwise.quantization.producers._written import (
        EncodedModules,
        Encoding,
        Statements,
        Written,
    )
    from castwise.quantization.producers.gguf import GGUF, GGUF_BLOCKS, ROLES, names_beside
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.quantization.producers._attention": ("scale_of_attention",),
            "castwise.quantization.producers._configs": (
                "MODEL",
                "SECTIONS",
                "Statement",
                "statements",
                "undecodable",
            ),
            "castwise.quantization.producers._consumers": ("Loading", "find_consumer"),
            "castwise.quantization.producers._found": ("joined", "prefixed"),
            "castwise.quantization.producers._gguf_types": ("quantization_by_types",),
            "castwise.quantization.producers._keras_layers": ("plain_model", "stated_layers"),
            "castwise.quantization.producers._keras_names": ("KERAS_FLOAT8", "numbered_kernel"),
            "castwise.quantization.producers._layouts": (
                "ACTIVATION",
                "BF16",
                "BYTES",
                "E4M3",
                "E8M0",
                "EXPERTS",
                "GLOBAL",
                "I8",
                "Layout",
                "OF_E4M3",
                "Part",
                "SCALE",
                "ZERO",
            ),
            "castwise.quantization.producers._names": ("beside", "tail"),
            "castwise.quantization.producers._registry": (
                "CACHE_KEYS",
                "CONFIGS",
                "CONVERTED_TO",
                "EVIDENT",
                "KEPT_KEYS",
                "MARKERS",
                "METADATA_KEYS",
                "NOT_DECODED",
                "OWN_SECTIONS",
                "SEVERAL",
                "WRAPPED",
                "WRITTEN",
                "described_in",
                "find_recipe",
                "known_recipe",
                "powers_stated",
                "producer_of_model",
                "written_layout",
            ),
            "castwise.quantization.producers._schemes": ("find_scheme", "has_global_scale"),
            "castwise.quantization.producers._stored_weight": ("Undecodable",),
            "castwise.quantization.producers._written": (
                "EncodedModules",
                "Encoding",
                "Statements",
                "Written",
            ),
            "castwise.quantization.producers.gguf": (
                "GGUF",
                "GGUF_BLOCKS",
                "ROLES",
                "names_beside",
            ),
        },
    )

__all__ = [
    "ACTIVATION",
    "BF16",
    "BYTES",
    "CACHE_KEYS",
    "CONFIGS",
    "CONVERTED_TO",
    "E4M3",
    "E8M0",
    "EVIDENT",
    "EXPERTS",
    "GGUF",
    "GGUF_BLOCKS",
    "GLOBAL",
    "I8",
    "KEPT_KEYS",
    "KERAS_FLOAT8",
    "MARKERS",
    "METADATA_KEYS",
    "MODEL",
    "NOT_DECODED",
    "OF_E4M3",
    "OWN_SECTIONS",
    "ROLES",
    "SCALE",
    "SECTIONS",
    "SEVERAL",
    "WRAPPED",
    "WRITTEN",
    "ZERO",
    "EncodedModules",
    "Encoding",
    "Layout",
    "Loading",
    "Part",
    "Statement",
    "Statements",
    "Undecodable",
    "Written",
    "beside",
    "described_in",
    "find_consumer",
    "find_recipe",
    "find_scheme",
    "has_global_scale",
    "joined",
    "known_recipe",
    "names_beside",
    "numbered_kernel",
    "plain_model",
    "powers_stated",
    "prefixed",
    "producer_of_model",
    "quantization_by_types",
    "scale_of_attention",
    "stated_layers",
    "statements",
    "tail",
    "undecodable",
    "written_layout",
]
