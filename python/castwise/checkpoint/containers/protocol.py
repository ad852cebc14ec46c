"""How to write a container, by which castwise reads and writes files of another suffix.

A package offers it as an entry point, whose name is the suffix without its dot:

```toml
[project.entry-points."castwise.containers"]
jst = "castwise_jst:CONTAINER"
```

`castwise.checkpoint.containers.registry.register` does the same for one process. The value is a
`Container`, which names a class that reads and, if files are written, one that writes.

- Most formats have a header and then the bytes of the tensors. Derive from `PlainReader` and
  `PlainWriter`, which leave only the header to you.
- If tensors are compressed, or stand otherwise, derive from `FileReader`, which has the file, or
  from `Reader`, and from `Writer`. They list what castwise calls.

The page write_a_container.md has a complete one. Files are untrusted: raise `CheckpointError`, and
allocate nothing that a header only claims.
"""

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned, TensorInfo, check_shape, format_named, numpy_dtype
from castwise.checkpoint.containers.array_bytes import from_bytes, to_bytes
from castwise.checkpoint.containers.interface import (
    Arrangement,
    Elements,
    FileReader,
    PlacedReader,
    Reader,
    Writer,
)
from castwise.checkpoint.containers.plain import Header, HeaderTensor, PlainReader, PlainWriter
from castwise.checkpoint.containers.registry import Container
from castwise.checkpoint.files.remote import RemoteSource
from castwise.checkpoint.files.source_files import SourceFile, source_file

__all__ = [
    "Arrangement",
    "CheckpointError",
    "Container",
    "Elements",
    "FileReader",
    "Header",
    "HeaderTensor",
    "PlacedReader",
    "PlainReader",
    "PlainWriter",
    "Planned",
    "Reader",
    "RemoteSource",
    "SourceFile",
    "TensorInfo",
    "Writer",
    "check_shape",
    "format_named",
    "from_bytes",
    "numpy_dtype",
    "source_file",
    "to_bytes",
]
