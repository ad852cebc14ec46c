"""What llama.cpp calls modules of transformers, by the name map of its own package `gguf`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_EXPERT = re.compile(r"\.experts\.[0-9]+\.")
_STACKED_BIAS = "_bias"
_ENDS = (".weight", ".bias")


def find_gguf_names(architecture: str, layers: int, names: Iterable[str]) -> dict[str, str | None]:
    """Return what llama.cpp calls tensors of a model, by their names in transformers.

    A name of one expert has the name of the tensor of all. None are those that the package has no
    name for: what llama.cpp's converter splits or computes (gate and up of gpt-oss in one tensor).
    Read the other way, the result names the tensors of the model that a tensor of GGUF holds.

    Parameters
    ----------
    architecture
        The name in llama.cpp, such as "qwen3moe".
    layers
        The number of layers.
    names
        Of tensors.

    Raises
    ------
    ImportError
        The package `gguf` is not installed.
    ValueError
        The package knows no such architecture.

    """
    import gguf  # noqa: PLC0415  (castwise works without it)

    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture not in kinds:
        known = f"the package gguf knows {len(kinds)} architectures"
        raise ValueError(f"{architecture!r} is no architecture of llama.cpp; {known}")
    table = gguf.get_tensor_name_map(kinds[architecture], layers)
    found: dict[str, str | None] = {}
    for name in names:
        whole = _EXPERT.sub(".experts.", name)
        if whole.endswith(_STACKED_BIAS):  # the converter of gpt-oss renames these
            whole = f"{whole.removesuffix(_STACKED_BIAS)}.bias"
        found[name] = table.get_name(whole, try_suffixes=_ENDS)
        if found[name] is not None and not whole.endswith(_ENDS):
            found[name] = f"{found[name]}.weight"  # a parameter that is no module's
    return found
