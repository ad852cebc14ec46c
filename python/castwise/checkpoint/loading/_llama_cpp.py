"""What llama.cpp loads: GGUF files with the tensors and the types that its loader looks for.

Its `src/llama-model-loader.cpp` asks for every tensor of every layer; its converter keeps vectors
in float32, which its graphs take for granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.loading._modules import code_of
from castwise.checkpoint.loading._problem import LoadingProblem

_LAYER = re.compile(r"blk\.([0-9]+)\.")
_REQUIRED = ("token_embd.weight", "output_norm.weight")
_ARCHITECTURE = "general.architecture"
_AGAIN = "transcode the model anew (castwise transcode --to gguf)"


def llama_cpp_problems(
    tensors: Iterable[TensorInfo], metadata: Mapping[str, str]
) -> Iterator[LoadingProblem]:
    """Yield what keeps llama.cpp from loading a GGUF file."""
    infos = {info.name: info for info in tensors}
    if _ARCHITECTURE not in metadata:
        yield LoadingProblem("", f"the file states no {_ARCHITECTURE}", _AGAIN)
    for name in _REQUIRED:
        if name not in infos:
            yield LoadingProblem(name, "llama.cpp needs it, and the file has none", _AGAIN)
    layers: dict[int, set[str]] = {}
    for name in infos:
        if (match := _LAYER.match(name)) is not None:
            layers.setdefault(int(match[1]), set()).add(name[match.end() :])
    for number in range(max(layers, default=-1) + 1):
        if number not in layers:
            yield LoadingProblem(f"blk.{number}", "the file has no tensor of this layer", _AGAIN)
    for info in infos.values():
        if len(info.shape) == 1 and code_of(info) != "F32":
            problem = f"llama.cpp needs vectors in float32, and it is {info.label}"
            yield LoadingProblem(info.name, problem, _AGAIN)
