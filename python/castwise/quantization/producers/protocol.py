"""How to write a producer, by whose rows castwise reads and writes quantised weights.

A package offers it as an entry point, whose name is that of the producer:

```toml
[project.entry-points."castwise.producers"]
rowpack = "castwise_rowpack:PRODUCER"
```

The value is a `Producer`, which says how weights are stored (`Layout`, `Part`, `Storage`), what
states it (`Configuration`), what a weight is (a function from `StoredWeight` to `Given`), what is
written (`Writing`, `Written`), and what weights of others become (`Transcoding`). The page
write_a_producer.md has a complete one.

The package is imported while castwise makes its tables of producers. So it imports from this
module and from `castwise.checkpoint.containers.protocol`, and from `castwise.quantization` only in
functions.
"""

from castwise.quantization.producers._layouts import (
    ACTIVATION,
    GLOBAL,
    OTHER,
    SCALE,
    ZERO,
    Layout,
    Part,
    Storage,
)
from castwise.quantization.producers._producer import (
    Configuration,
    Marker,
    Producer,
    Transcoding,
    Writing,
)
from castwise.quantization.producers._schemes import Scheme, find_scheme
from castwise.quantization.producers._stated import (
    Stated,
    Stored,
    group_block,
    integer_scheme,
    json_of,
    unknown_key,
)
from castwise.quantization.producers._stored_weight import Given, StoredWeight, Undecodable
from castwise.quantization.producers._usual_rule import usual
from castwise.quantization.producers._written import (
    EncodedModules,
    Encoding,
    Statements,
    Written,
    in_section,
    same_schemes,
)

__all__ = [
    "ACTIVATION",
    "GLOBAL",
    "OTHER",
    "SCALE",
    "ZERO",
    "Configuration",
    "EncodedModules",
    "Encoding",
    "Given",
    "Layout",
    "Marker",
    "Part",
    "Producer",
    "Scheme",
    "Stated",
    "Statements",
    "Storage",
    "Stored",
    "StoredWeight",
    "Transcoding",
    "Undecodable",
    "Writing",
    "Written",
    "find_scheme",
    "group_block",
    "in_section",
    "integer_scheme",
    "json_of",
    "same_schemes",
    "unknown_key",
    "usual",
]
