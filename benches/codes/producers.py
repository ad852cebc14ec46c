"""Who encodes weights without data beside castwise: each peer is one class, with its functions.

A format is what is stored, so that all that is compared takes the same bits: a scheme, the columns
of a block, and whether blocks have a zero point. A function of a peer takes a matrix of float32 and
the importance of its columns, or none, and gives what the peer's own code decodes of it.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import torch
from castwise import _core
from castwise.quantization import dequantize, quantize
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Encode = Callable[[Floats, Floats | None], Floats]
SEARCHED_BITS = 6
"""The zero points of 8 bits take NeUQI's search a minute for each weight of a quarter million."""


@dataclass(frozen=True)
class Format:
    """What is stored: `kind` is `int`, or a type of blocks, or a scheme."""

    kind: str
    bits: int
    block: int
    has_zero_points: bool = False

    def __str__(self) -> str:
        if self.kind != "int":
            return self.kind
        block = f"groups of {self.block}" if self.block else "rows"
        return f"int{self.bits}, {block}{', zero points' if self.has_zero_points else ''}"


FORMATS = (
    Format("nvfp4", 4, 16), Format("mxfp4", 4, 32), Format("mxfp6_e2m3", 6, 32),
    Format("mxfp8_e4m3", 8, 32),
    *(Format("int", bits, 128, points) for bits in (2, 3, 4, 8) for points in (False, True)),
    Format("int", 4, 32), Format("int", 4, 32, True), Format("int", 8, 32),
    Format("int", 4, 0), Format("int", 8, 0),
    *(Format(f"Q{bits}_K", bits, 256) for bits in (2, 3, 4, 5, 6)),
)  # fmt: skip

FUNCTIONS_OF_MX = {"mxfp4": "mx_fp4", "mxfp6_e2m3": "mx_fp6", "mxfp8_e4m3": "mx_fp8"}


class Producer:
    """A library, and its functions for a format, by name."""

    name: str
    distributions: tuple[str, ...]

    def load(self) -> None:
        """Import the library; ImportError if it is not installed."""

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """What encodes in a format, in order; those that take importance have it in their name."""
        raise NotImplementedError

    def versions(self) -> dict[str, str]:
        """The versions of what it runs."""
        return {name: version(name) for name in self.distributions}


def on_torch(call: Callable[[torch.Tensor], torch.Tensor]) -> Encode:
    """Make a function that has no use for importance."""
    return lambda weight, importance: call(torch.from_numpy(weight.copy())).float().numpy()


class Castwise(Producer):
    """What this project writes."""

    name = "castwise"
    distributions = ()

    def versions(self) -> dict[str, str]:
        """See Producer."""
        return {"castwise": castwise.__version__}

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """See Producer."""
        if form.kind.endswith("_K"):
            return {"amax": functools.partial(_encode_type, form.kind)}
        if form.kind == "int":
            scheme = f"int{form.bits}_{'group' if form.block else 'channel'}"
        else:
            scheme = form.kind
        options: dict[str, Any] = {"recipe": "compressed-tensors"}
        options |= {"symmetric": not form.has_zero_points}
        if form.kind == "int" and form.block:
            options |= {"block": form.block}

        def encode(scales: str, weight: Floats, importance: Floats | None) -> Floats:
            weighted = {} if importance is None else {"importance": importance}
            stored = quantize(weight, scheme, scales=scales, **options, **weighted)  # type: ignore[arg-type]
            return np.asarray(dequantize(stored, "float32"))

        ways = ("amax", "best", *(("four_over_six",) if form.kind == "nvfp4" else ()))
        found = {way: functools.partial(encode, way) for way in ways}
        return found | {"best, importance": found["best"]}


def _encode_type(name: str, weight: Floats, importance: Floats | None) -> Floats:
    """Encode and decode as a type of blocks of llama.cpp."""
    del importance
    size, elements = next((row[2], row[1]) for row in _core.block_types() if row[0] == name)
    blocks = np.empty((len(weight), weight.shape[1] // elements, size), np.uint8)
    values = np.empty_like(weight)
    _core.encode_block_type(weight, blocks, name)
    _core.decode_block_type(blocks, values, name)
    return values


class LlmCompressor(Producer):
    """Its observers of weights, with compressed-tensors' scales and codes."""

    name = "llm-compressor"
    distributions = ("llmcompressor", "compressed-tensors")

    def load(self) -> None:
        """See Producer."""
        importlib.import_module("llmcompressor.observers")

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """See Producer."""
        if form.kind.endswith("_K") or form.kind == "mxfp6_e2m3":
            return {}
        observers = ["memoryless_minmax", "memoryless_mse", "imatrix_mse, importance"]
        if form.kind == "nvfp4":
            observers[2:2] = ["nvfp4_expanded_mse"]
            observers += ["nvfp4_expanded_imatrix, importance"]
        return {name: functools.partial(self._observed, form, name) for name in observers}

    @staticmethod
    def _observed(form: Format, name: str, weight: Floats, importance: Floats | None) -> Floats:
        quantization = importlib.import_module("compressed_tensors.quantization")
        forward = importlib.import_module("compressed_tensors.quantization.lifecycle.forward")
        observers = importlib.import_module("llmcompressor.observers")
        strategy = "group" if form.block else "channel"
        options: dict[str, Any] = {"type": "int", "symmetric": not form.has_zero_points}
        if form.kind != "int":
            scale = torch.float8_e4m3fn if form.kind == "nvfp4" else torch.uint8
            options = {"type": "float", "scale_dtype": scale, "zp_dtype": scale}
            strategy = "tensor_group" if form.kind == "nvfp4" else "group"
        if form.block:
            options["group_size"] = form.block
        observer_name = name.partition(",")[0]
        args = quantization.QuantizationArgs(
            num_bits=form.bits, strategy=strategy, observer=observer_name, **options
        )
        observer = observers.Observer.load_from_registry(
            observer_name, base_name="weight", args=args
        )
        if importance is not None:
            observer._imatrix_sum = torch.from_numpy(importance.copy())
            observer._imatrix_count = torch.tensor(1)
        values = torch.from_numpy(weight.copy())
        found = observer(values).get_qparams()
        decoded = forward.fake_quantize(
            values, found["scale"], found["zero_point"], args, global_scale=found["global_scale"]
        )
        result: Floats = decoded.float().numpy()
        return result


class ModelOpt(Producer):
    """Its tensors, and its search of scales.

    Its own way to the search of NVFP4 needs Triton on a GPU; here the calibrator's reference loop
    runs with the codes of its tensors.
    """

    name = "ModelOpt"
    distributions = ("nvidia-modelopt",)

    def load(self) -> None:
        """See Producer."""
        self.module: Any = importlib.import_module("modelopt.torch.quantization")
        self.tensors: Any = importlib.import_module("modelopt.torch.quantization.qtensor")
        self.calibrators: Any = importlib.import_module("modelopt.torch.quantization.calib")

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """See Producer."""
        if form.kind == "nvfp4":
            return {"max": on_torch(self._nvfp4), "mse, all scales": on_torch(self._nvfp4_search)}
        if form.kind == "mxfp4":
            return {"max": on_torch(self._mxfp4)}
        if form.kind == "mxfp8_e4m3":
            return {"max": on_torch(self._mxfp8)}
        name = {(4, 128): "INT4_BLOCKWISE_WEIGHT_ONLY_CFG", (8, 0): "INT8_WEIGHT_ONLY_CFG"}.get(
            (form.bits, form.block)
        )
        if form.kind != "int" or name is None or form.has_zero_points:
            return {}
        return {way: on_torch(functools.partial(self._layer, name, way)) for way in ("max", "mse")}

    def _nvfp4(self, x: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
        stored, scale, second = self.tensors.NVFP4QTensor.quantize(x, 16, *scales)
        return self._decoded(stored, scale, 16, double_scale=second)

    def _nvfp4_search(self, x: torch.Tensor) -> torch.Tensor:
        blocks = x.reshape(-1, 16)
        whole = x.abs().amax()

        def attempt(rows: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
            scale = (largest / (6 * whole / 2688)).clamp(2**-9, 448).to(torch.float8_e4m3fn)
            return self._nvfp4(rows, scale.reshape(-1, 1), whole / 2688)

        search = self.calibrators.NVFP4MSECalibrator(
            amax=blocks.abs().amax(1, keepdim=True), global_amax=whole, axis=0, quant_func=attempt
        )
        search.collect(blocks)
        return attempt(blocks, search.compute_amax()).reshape(x.shape)

    def _mxfp4(self, x: torch.Tensor) -> torch.Tensor:
        stored, scale = self.tensors.MXFP4QTensor.quantize(x, 32)
        return self._decoded(stored, scale, 32)

    def _mxfp8(self, x: torch.Tensor) -> torch.Tensor:
        stored, scale = self.tensors.MXFP8QTensor.quantize(x)
        return self._decoded(stored, scale, 32)

    @staticmethod
    def _decoded(stored: Any, scale: Any, block: int, **rest: Any) -> torch.Tensor:
        decoded: torch.Tensor = stored.dequantize(
            dtype=torch.float32, scale=scale, block_sizes={-1: block}, **rest
        )
        return decoded

    def _layer(self, name: str, algorithm: str, x: torch.Tensor) -> torch.Tensor:
        layer = torch.nn.Sequential(torch.nn.Linear(x.shape[1], len(x), bias=False))
        layer[0].weight.data.copy_(x)
        config = copy.deepcopy(getattr(self.module, name)) | {"algorithm": algorithm}
        with quiet(), torch.enable_grad():
            self.module.quantize(layer, config, forward_loop=lambda model: model(x[:4]))
        decoded: torch.Tensor = layer[0].weight_quantizer(layer[0].weight)
        return decoded.detach()


class AutoRound(Producer):
    """Its modes without training: plain, optimized, and NeUQI's search."""

    name = "AutoRound"
    distributions = ("auto-round",)

    def load(self) -> None:
        """See Producer; its searches are compiled unless they are told not to be."""
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        importlib.import_module("auto_round.data_type")
        register = importlib.import_module("auto_round.data_type.register")
        self.found: Any = register.QUANT_FUNC_WITH_DTYPE
        logging.getLogger("autoround").setLevel(logging.ERROR)

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """See Producer."""
        if form.kind == "nvfp4":
            names = ["nv_fp4_rtn", "opt_rtn_nv_fp4"]
        elif form.kind in FUNCTIONS_OF_MX:
            mx = FUNCTIONS_OF_MX[form.kind]
            names = [mx, f"{mx}_rceil", f"opt_rtn_{mx}"]
        elif form.kind != "int":
            return {}
        elif form.has_zero_points:
            names = ["int_asym"]
            names += ["opt_rtn_int_asym"] if form.bits <= SEARCHED_BITS else []
        else:
            names = ["rtn_int_sym", "opt_rtn_int_sym", "opt_rtn_int_sym_neuqi"]
        names += [f"{name}, importance" for name in names if name.startswith("opt_")]
        return {name: functools.partial(self._rounded, form, name) for name in names}

    def _rounded(
        self, form: Format, name: str, weight: Floats, importance: Floats | None
    ) -> Floats:
        function = name.partition(",")[0]
        options: dict[str, Any] = {"bits": form.bits, "group_size": form.block or -1}
        if form.kind in FUNCTIONS_OF_MX:
            options["data_type"] = FUNCTIONS_OF_MX[form.kind]
        if importance is not None:
            options["imatrix"] = torch.from_numpy(importance.copy())
        decoded: Floats = self.found[function](torch.from_numpy(weight.copy()), **options)[
            0
        ].numpy()
        return decoded


class Hqq(Producer):
    """Half-quadratic quantization: floating zero points."""

    name = "HQQ"
    distributions = ("hqq",)

    def load(self) -> None:
        """See Producer."""
        self.quantizer: Any = importlib.import_module("hqq.core.quantize").Quantizer

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """See Producer."""
        if form.kind != "int" or not form.has_zero_points:
            return {}
        ways = {"min and max": False, "optimized": True}
        return {
            name: on_torch(functools.partial(self._rounded, form, optimized))
            for name, optimized in ways.items()
        }

    def _rounded(self, form: Format, optimized: bool, x: torch.Tensor) -> torch.Tensor:
        stored = self.quantizer.quantize(
            x, nbits=form.bits, group_size=form.block, axis=1, optimize=optimized, device="cpu",
            compute_dtype=torch.float32,
        )  # fmt: skip
        decoded: torch.Tensor = self.quantizer.dequantize(*stored)
        return decoded


class Qwantize(Producer):
    """Its reference in torch, which its kernels for GPUs follow.

    It has no scale of the whole array; weights of NVFP4 are divided by that of the others first.
    """

    name = "qwantize"
    distributions = ("qwantize",)

    def load(self) -> None:
        """See Producer."""
        self.modules = {
            kind: importlib.import_module(f"qwantize.{kind}.reference")
            for kind in ("nvfp4", "mxfp4")
        }

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """See Producer."""
        if form.kind not in self.modules:
            return {}
        return {
            way: on_torch(functools.partial(self._rounded, form, way))
            for way in ("naive", "optimal")
        }

    def _rounded(self, form: Format, way: str, x: torch.Tensor) -> torch.Tensor:
        level = x.abs().amax() / 2688 if form.kind == "nvfp4" else torch.tensor(1.0)
        run = getattr(self.modules[form.kind], f"{form.kind}_{way}")
        blocks = (x / level).unflatten(-1, (-1, form.block))
        _, _, decoded = run(blocks, return_dequant=True)
        result: torch.Tensor = decoded.flatten(1) * level
        return result


class Mlx(Producer):
    """MLX on the CPU."""

    name = "MLX"
    distributions = ("mlx",)

    def load(self) -> None:
        """See Producer."""
        self.module: Any = importlib.import_module("mlx.core")
        self.module.set_default_device(self.module.cpu)

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """See Producer."""
        modes = {"nvfp4": "nvfp4", "mxfp4": "mxfp4", "mxfp8_e4m3": "mxfp8"}
        mode = "affine" if form.kind == "int" and form.has_zero_points else modes.get(form.kind)
        return {} if mode is None else {mode: functools.partial(self._rounded, form, mode)}

    def _rounded(
        self, form: Format, mode: str, weight: Floats, importance: Floats | None
    ) -> Floats:
        del importance
        options = {"group_size": form.block, "bits": form.bits, "mode": mode}
        parts = self.module.quantize(self.module.array(weight), **options)
        return np.array(self.module.dequantize(*parts, **options).astype(self.module.float32))


class LlamaCpp(Producer):
    """llama.cpp's own function of the library in xllamacpp, decoded by the package gguf."""

    name = "llama.cpp"
    distributions = ("xllamacpp", "gguf")
    kinds: Mapping[Format, str] = {
        Format("int", 4, 32): "Q4_0",
        Format("int", 4, 32, True): "Q4_1",
        Format("int", 8, 32): "Q8_0",
        Format("mxfp4", 4, 32): "MXFP4",
        **{form: form.kind for form in FORMATS if form.kind.endswith("_K")},
    }

    def load(self) -> None:
        """See Producer."""
        folder = Path(str(importlib.import_module("xllamacpp").__file__)).parent
        self.quants: Any = importlib.import_module("gguf.quants")
        self.function: Any = ctypes.CDLL(str(next(folder.glob("*.so")))).ggml_quantize_chunk
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self.function.restype = ctypes.c_size_t
        self.function.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]

    def functions(self, form: Format) -> Mapping[str, Encode]:
        """See Producer."""
        kind = self.kinds.get(form)
        if kind is None:
            return {}
        found = {kind: functools.partial(self._rounded, kind)}
        weighs = kind not in {"Q8_0", "MXFP4"}
        return found | ({f"{kind}, importance": found[kind]} if weighs else {})

    def _rounded(self, kind: str, weight: Floats, importance: Floats | None) -> Floats:
        gguf = importlib.import_module("gguf")
        number = gguf.GGMLQuantizationType[kind]
        elements, size = gguf.GGML_QUANT_SIZES[number]
        blocks = np.zeros((len(weight), weight.shape[1] // elements * size), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        self.function(number, weight.ctypes.data, blocks.ctypes.data, 0, *weight.shape, weights)
        decoded: Floats = self.quants.dequantize(blocks, number).reshape(weight.shape)
        return decoded


PRODUCERS = (
    Castwise(), LlmCompressor(), ModelOpt(), AutoRound(), Hqq(), Qwantize(), Mlx(), LlamaCpp(),
)  # fmt: skip


def installed() -> Iterator[Producer]:
    """Load those that are installed; castwise is the first."""
    for producer in PRODUCERS:
        with contextlib.suppress(ImportError), quiet():
            producer.load()
            yield producer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what libraries print."""
    with (
        Path(os.devnull).open("w") as sink,
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        yield


def on_portable(encode: Encode, weight: Floats, importance: Floats | None) -> Floats:
    """Encode on the portable level."""
    level = castwise.cpu_level()
    _core.set_cpu_level("portable")
    try:
        return encode(weight, importance)
    finally:
        _core.set_cpu_level(level)
