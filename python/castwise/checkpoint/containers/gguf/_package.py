"""The package gguf, which is llama.cpp's own."""

from __future__ import annotations

from typing import Any

from castwise.checkpoint._errors import CheckpointError


def gguf_package() -> Any:  # noqa: ANN401  (a module without types)
    """Import it."""
    try:
        import gguf  # noqa: PLC0415
    except ImportError as error:
        raise CheckpointError(
            "the package gguf has the names and the metadata of llama.cpp, and is not installed: "
            "pip install 'castwise[gguf]'"
        ) from error
    return gguf
