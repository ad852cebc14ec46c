"""What a compressed-tensors configuration states of a weight, and the tensors that store it.

After compressed-tensors 0.20: `quantization/lifecycle/initialize.py`, `compressors/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

from castwise._numbers import BYTE_BITS
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.loading.modules import Module, code_of, is_wide
from castwise.quantization.producers.stated import sides_of

# Formats whose payload is `weight_packed`, and its dtype.
_PACKED = {
    "pack-quantized": "I32",
    **dict.fromkeys(("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized"), "U8"),
}

_MXFP8 = "mxfp8-quantized"
# Formats whose payload is `weight`.
_PLAIN = ("naive-quantized", "float-quantized", "int-quantized", _MXFP8)

# The formats of floats of so many bits in groups of so many.
_FLOATS = {
    (4, 32): "mxfp4-pack-quantized",
    (6, 32): "mxfp6-pack-quantized",
    (8, 32): _MXFP8,
    (4, 16): "nvfp4-pack-quantized",
}

_E4M3 = "F8_E4M3"
# The codes of dtypes of scales that are powers of two.
_POWERS = {"U8", "F8_E8M0"}


class Arguments(NamedTuple):
    """The arguments of the weights of one group, as far as they decide what is stored."""

    # `num_bits`, `type` and `strategy` of `QuantizationArgs`.
    bits: int
    kind: str
    strategy: str
    # `group_size` and `block_structure`; 0 and None where there are none.
    group: int
    block: tuple[int, int] | None
    # False if there are zero points.
    symmetric: bool
    # The compression format of the group; "" if neither it nor the whole states one.
    form: str
    # True if an index says in which group each column is.
    has_order: bool
    # True if inputs are quantized, too, and if their scales are computed while the model runs.
    inputs: bool
    dynamic: bool
    # `num_bits` and `group_size` of inputs; 0 where there are none.
    input_bits: int
    input_group: int

    @classmethod
    def of(cls, group: Mapping[str, Any], whole: Mapping[str, Any]) -> Arguments | None:
        """Read those of a group of a configuration; None if its weights are not quantized."""
        weights = group.get("weights")
        if not isinstance(weights, Mapping):
            return None
        size, block = weights.get("group_size"), weights.get("block_structure")
        inputs = group.get("input_activations")
        input_values = inputs if isinstance(inputs, Mapping) else {}
        input_size = input_values.get("group_size")
        block = sides_of(block)
        strategy = weights.get("strategy") or _strategy(size, block)
        arguments = cls(
            bits=int(weights.get("num_bits") or 8),
            kind=str(weights.get("type") or "int"),
            strategy=str(strategy),
            group=int(size) if size and size > 0 else 0,
            block=(int(block[0]), int(block[1])) if isinstance(block, list) and block else None,
            symmetric=weights.get("symmetric") is not False,
            form="",
            has_order=weights.get("actorder") in {"group", "dynamic"},
            inputs=isinstance(inputs, Mapping),
            dynamic=bool(input_values.get("dynamic")),
            input_bits=int(input_values.get("num_bits") or 8) if input_values else 0,
            input_group=int(input_size) if input_size and input_size > 0 else 0,
        )
        form_text = group.get("format") or whole.get("format")
        form = (
            arguments.infer_format(weights, group)
            if form_text in {None, "mixed-precision"}
            else form_text
        )
        return arguments._replace(form=form)

    def infer_format(self, weights: Mapping[str, Any], group: Mapping[str, Any]) -> str:
        """Return the format that is used where none is stated (`infer_module_format`)."""
        form = _FLOATS.get((self.bits, self.group)) if self.kind == "float" else None
        has_powers = "uint8" in str(weights.get("scale_dtype"))
        if form is not None and (has_powers or form != _MXFP8):
            return form
        has_inputs = isinstance(group.get("input_activations"), Mapping)
        if self.kind == "int":
            return "int-quantized" if has_inputs else "pack-quantized"
        return "float-quantized" if has_inputs else "naive-quantized"

    @property
    def is_float8(self) -> bool:
        return self.kind == "float" and self.bits == BYTE_BITS

    @property
    def scheme(self) -> str:
        """The scheme by castwise's name."""
        if self.form.startswith(("nvfp4", "mxfp")):
            name = self.form.partition("-")[0]
            return {"mxfp6": "mxfp6_e2m3", "mxfp8": "mxfp8_e4m3"}.get(name, name)
        return f"{'fp' if self.kind == 'float' else 'int'}{self.bits}_{self.strategy}"

    @property
    def has_float8_inputs(self) -> bool:
        """True for MXFP4 beside inputs of 8 bits, as of the preset `MXFP4XFP8`."""
        return self.scheme == "mxfp4" and self.input_bits == BYTE_BITS

    @property
    def of_weights(self) -> Arguments:
        """The same without what is stated of inputs, which decides nothing of decoding."""
        return self._replace(inputs=False, dynamic=False, input_bits=0, input_group=0)

    def splits_inputs(self, module: Module) -> bool:
        """Return False if the columns of a module are no whole groups of its inputs."""
        payload = module.tensors.get("_packed" if self.form in _PACKED else "")
        if not self.input_group or payload is None:
            return True
        least, most = self._columns(payload.shape[-1])
        return most // self.input_group * self.input_group >= least

    def fault(self, module: Module) -> str | None:
        """Say how what the file stores of a module differs from what it needs; None if it fits."""
        if self.form not in _PACKED and self.form not in _PLAIN:
            return f"it needs the format {self.form!r}, which stores no codes"
        suffix = "_packed" if self.form in _PACKED else ""
        suffixes = {suffix, "_scale"}
        suffixes |= {"_shape"} if self.form == "pack-quantized" else set()
        suffixes |= {"_global_scale"} if self.strategy == "tensor_group" else set()
        suffixes |= set() if self.symmetric else {"_zero_point"}
        for name in sorted(suffixes):
            if name not in module.tensors:
                return f"it needs 'weight{name}', and the file has none"
        extra = {name for name in module.tensors if name[:1] in ("", "_")} - suffixes - {"_g_idx"}
        if extra:
            return f"it drops 'weight{min(extra)}', for which {self.scheme} has no place"
        payload, scale = module.tensors[suffix], module.tensors["_scale"]
        return self._wrong_payload(payload) or self._wrong_scale(payload, scale)

    def _wrong_payload(self, payload: TensorInfo) -> str | None:
        code = _PACKED.get(self.form)
        if code is None:
            code = "I8" if self.kind == "int" else _E4M3
        if code_of(payload) != code:
            return f"its codes are {payload.label}, and {self.form} stores {code}"
        return None

    def _wrong_scale(self, payload: TensorInfo, scale: TensorInfo) -> str | None:
        if self.form.startswith("mxfp"):
            if code_of(scale) not in _POWERS:
                return f"its scales are {scale.label}, and {self.scheme} has powers of two"
        elif self.form.startswith("nvfp4"):
            if code_of(scale) != _E4M3:
                return f"its scales are {scale.label}, and {self.scheme} has {_E4M3}"
        elif not is_wide(scale):
            return f"its scales are {scale.label}, and {self.scheme} has floating numbers"
        *outer, rows, words = payload.shape if len(payload.shape) > 1 else (1, *payload.shape)
        least, most = self._columns(words)
        shapes = self._scale_shapes((*outer, rows), least, most)
        if scale.shape not in shapes:
            return f"its scales have the shape {scale.shape}, and {self.scheme} needs {shapes[0]}"
        return None

    def _columns(self, words: int) -> tuple[int, int]:
        """Return the least and the most columns of weights that so many words may hold."""
        # Words are int32, and a row's last one may have room that is not used.
        if self.form == "pack-quantized":
            return (words - 1) * 32 // self.bits + 1, words * 32 // self.bits
        count = words * 8 // self.bits if self.form in _PACKED else words
        return count, count

    def _scale_shapes(self, rows: tuple[int, ...], least: int, most: int) -> list[tuple[int, ...]]:
        if self.strategy == "tensor":
            return [(1,)]
        if self.strategy == "channel":
            return [(*rows, 1)]
        if self.strategy == "block" and self.block is not None:
            high, wide = self.block
            return [(*rows[:-1], ceil(rows[-1] / high), ceil(most / wide))]
        size = self.group or most
        return [(*rows, count) for count in range(ceil(least / size), ceil(most / size) + 1)]


def _strategy(size: object, block: object) -> str:
    """Return the strategy that arguments without one have (`QuantizationArgs.validate_model`)."""
    if block:
        return "block"
    if not isinstance(size, int):
        return "tensor"
    return "group" if size > 0 else "channel"


def groups_of(section: Mapping[str, Any]) -> list[tuple[list[str], Arguments | None]]:
    groups = section.get("config_groups")
    result = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if isinstance(group, Mapping):
            targets = [target for target in group.get("targets") or () if isinstance(target, str)]
            result.append((targets, Arguments.of(group, section)))
    return result
