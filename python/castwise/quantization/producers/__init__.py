"""How producers name, store and declare quantised weights, with a module for each.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from castwise.quantization.producers._attention import scale_of_attention
from castwise.quantization.producers._block_types import BLOCK_TYPES, ROLES, names_beside
from castwise.quantization.producers._configs import (
    MODEL,
    SECTIONS,
    Statement,
    statements,
    undecodable,
)
from castwise.quantization.producers._consumers import Loading, find_consumer
from castwise.quantization.producers._found import joined, prefixed
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
    TYPED,
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
from castwise.quantization.producers._typed_tensors import quantization_by_types
from castwise.quantization.producers._written import (
    EncodedModules,
    Encoding,
    Statements,
    Written,
)
