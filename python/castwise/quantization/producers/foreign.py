"""Which tensors beside a payload are not part of how its producer stores it."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from castwise.quantization.producers.found import QuantizedWeight
from castwise.quantization.producers.layouts import WIDE
from castwise.quantization.producers.names import Described, tail
from castwise.quantization.producers.registry import MARKERS

# As vLLM reads them of compressed-tensors, Quark, AutoFP8, ModelOpt and Mistral; of ModelOpt also
# what it adds to the values, and its names before export.
_OF_CACHES = r"""(?xs)(?:.*[./])?(?:
    (?:k|v|kv)_(?:cache_)?(?:scale|zero_point|global_scale)
    | kv_cache_scaling_factor
    | [kv]_proj[./](?:output_(?:scale|zero_point)|[kv]_bias)
    | (?:k|v|kv)_fake_quantizer[./]qscale_act
    | [kv]_bmm_quantizer[./]_(?:amax|bias_value)
    )"""

_OF_ATTENTION = r"""(?xs)(?:.*[./])?(?:
    q_(?:scale|zero_point|global_scale)
    | prob(?:_output)?_scale
    | q_proj[./]output_(?:scale|zero_point)
    | q_fake_quantizer[./]qscale_act
    | q_bmm_quantizer[./]_(?:amax|bias_value)
    )"""


def scale_of_attention(name: str) -> str | None:
    """Say whose scale a tensor is, by its name in a quantized model; None if it is another."""
    if re.fullmatch(_OF_CACHES, name):
        return "scales of caches"
    return "scales of attention" if re.fullmatch(_OF_ATTENTION, name) else None


_WEIGHT = "weight"
_NUMBERED = "vars/"
# Parameters of which a module may have several, so that one beside a payload is not part of it.
_MODULE_PARAMETERS = (
    "gate_up_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    *("w1", "w2", "w3", "v1"),
    *("mlp1_weight", "mlp2_weight"),
    *("embeddings", "reverse_embeddings", "kernel"),
)

# Names of biases, the second one that of routers, which nothing quantizes.
_BIASES = ("bias", "e_score_correction_bias")


def with_foreign(
    weights: Mapping[str, QuantizedWeight],
    parameters: Mapping[str, str],
    tensors: Mapping[str, Described],
    known_names: Collection[str],
) -> dict[str, QuantizedWeight]:
    """Return weights with what is beside each that its producer does not store there."""
    siblings = _Siblings(tensors, known_names, [parameters[name] for name in weights])
    result = dict(weights)
    for payload, weight in weights.items():
        if names := siblings.foreign(parameters[payload]):
            producers = " or ".join(weight.recipes)
            text = (
                f"{names[0]!r} is beside it, which is not part of how {producers} stores it; "
                "remove it if it means nothing, else load it with the program that wrote it"
            )
            result[payload] = replace(weight, problem=weight.problem or text, foreign=names)
    return result


# What a module has is judged once, however many of its parameters are quantized.
class _Siblings:
    """The tensors of each module: those with the same name but for the last component."""

    def __init__(
        self, tensors: Mapping[str, Described], known_names: Collection[str], weights: Iterable[str]
    ) -> None:
        """Group tensors by module, and the parameters that are quantized."""
        self._tensors = tensors
        self._known_names = known_names
        self._names = sorted(tensors)
        self._modules: dict[str, list[str]] = {}
        for name in tensors:
            self._modules.setdefault(_module(name), []).append(name)
        weights_of: dict[str, set[str]] = {}
        for name in weights:
            weights_of.setdefault(_module(name), set()).add(tail(name))
        self._parameters = {
            module: {*names, *(name.removesuffix("_weight") for name in names)}
            for module, names in weights_of.items()
        }
        self._foreign_in: dict[str, tuple[str, ...]] = {}
        self._numbered_in: dict[str, tuple[str, ...]] = {}

    def foreign(self, weight: str) -> tuple[str, ...]:
        """Name the tensors beside a parameter that its producer does not store there."""
        module, last = _module(weight), tail(weight)
        if module not in self._numbered_in:
            variables = self._modules.get(module + _NUMBERED, ())
            names = [name for name in variables if not tail(name).isdigit()]
            self._numbered_in[module] = self._unknown(names) if names else ()
        # Names without a module are those of a file, of which only some belong together.
        if module == "" and last != _WEIGHT:
            near = tuple(self._foreign_names(self._with_prefix(f"{last}_"), module))
        else:
            if module not in self._foreign_in:
                siblings = self._modules.get(module, ())
                self._foreign_in[module] = tuple(self._foreign_names(siblings, module))
            near = self._foreign_in[module]
        names_beneath = [*self._with_prefix(f"{weight}.")]
        numbered_names = self._numbered_in[module]
        if not (names_beneath or numbered_names):
            return near
        return (*near, *self._unknown(names_beneath), *numbered_names)

    def _unknown(self, names: Iterable[str]) -> tuple[str, ...]:
        stored_names = [self._tensors[name].name for name in names]
        return tuple(name for name in stored_names if name not in self._known_names)

    def _foreign_names(self, siblings: Iterable[str], module: str) -> Iterator[str]:
        """Name those of the siblings of a module that it has for no reason known."""
        for name in siblings:
            if not self._is_other(name, module):
                yield self._tensors[name].name

    def _is_other(self, name: str, module: str) -> bool:
        """Return True for what a module has whether or not its weights are quantized."""
        info, last = self._tensors[name], tail(name)
        if info.name in self._known_names or last in (*_BIASES, *MARKERS):
            return True
        if scale_of_attention(name) is not None:
            return True
        parameters, stem = self._parameters[module], last.removesuffix("_bias")
        if stem != last and (stem in parameters or stem in _MODULE_PARAMETERS):
            return True
        is_wide = info.format in WIDE and last in _MODULE_PARAMETERS
        return is_wide and _WEIGHT not in parameters

    def _with_prefix(self, prefix: str) -> Iterator[str]:
        place = bisect_left(self._names, prefix)
        while place < len(self._names) and self._names[place].startswith(prefix):
            yield self._names[place]
            place += 1


def _module(name: str) -> str:
    return name[: len(name) - len(tail(name))]
