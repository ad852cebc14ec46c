"""What llama.cpp loads: GGUF files with the tensors and the types that its loader looks for.

`src/llama-model-loader.cpp` and `src/llama-model.cpp` of release b7000.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.loading._problem import LoadingProblem

_LAYER = re.compile(r"blk\.([0-9]+)\.")
_REQUIRED = ("token_embd.weight", "output_norm.weight")
_WIDE = frozenset(("F32",))


def llama_cpp_problems(
    tensors: Iterable[TensorInfo], metadata: Mapping[str, str]
) -> Iterator[LoadingProblem]:
    """Yield what keeps llama.cpp from loading a GGUF file."""
    infos = {info.name: info for info in tensors}
    for name in _REQUIRED:
        if name not in infos and "general.architecture" in metadata:
            yield LoadingProblem(
                name, "llama.cpp needs it, and the file has none", "transcode anew"
            )
    layers = {int(match[1]) for name in infos if (match := _LAYER.match(name))}
    missing = sorted(set(range(max(layers, default=-1) + 1)) - layers)
    if missing:
        yield LoadingProblem(
            f"blk.{missing[0]}", "the file has no tensor of this layer", "transcode anew"
        )
    for info in infos.values():
        if len(info.shape) == 1 and info.stored not in _WIDE:
            yield LoadingProblem(
                info.name,
                f"llama.cpp needs vectors in F32, and it is {info.stored}",
                "transcode it anew (castwise transcode --to gguf)",
            )
