"""The compiled half of castwise. Its names are re-exported by `castwise`; import that."""

from typing import Any, Literal, final, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = [
    "CastReport",
    "FormatInfo",
    "__version__",
    "build_safetensors_header",
    "cast",
    "cpu_level",
    "cpu_levels",
    "finfo",
    "formats",
    "get_num_threads",
    "parse_safetensors_header",
    "set_cpu_level",
    "set_num_threads",
]

__version__: str

_Rounding = Literal[
    "nearest-even",
    "nearest-away",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "stochastic",
]
_Overflow = Literal["ieee", "saturate", "raise"]
_Nan = Literal["keep", "raise", "zero"]
_Order = Literal["K", "C", "F", "A"]
_Level = Literal["portable", "neon", "avx2", "avx512"]
_Entry = tuple[str, str, list[int], int, int]

@overload
def cast(
    x: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    out: NDArray[Any] | None = None,
    rounding: _Rounding | None = None,
    overflow: _Overflow = "ieee",
    nan: _Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: _Order = "K",
    copy: bool = True,
    report: Literal[False] = False,
    threads: int | None = None,
) -> NDArray[Any]: ...
@overload
def cast(
    x: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    out: NDArray[Any] | None = None,
    rounding: _Rounding | None = None,
    overflow: _Overflow = "ieee",
    nan: _Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: _Order = "K",
    copy: bool = True,
    report: Literal[True],
    threads: int | None = None,
) -> tuple[NDArray[Any], CastReport]: ...
@overload
def cast(
    x: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    out: NDArray[Any] | None = None,
    rounding: _Rounding | None = None,
    overflow: _Overflow = "ieee",
    nan: _Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: _Order = "K",
    copy: bool = True,
    report: bool = False,
    threads: int | None = None,
) -> NDArray[Any] | tuple[NDArray[Any], CastReport]: ...

@final
class CastReport:
    def __new__(cls) -> CastReport: ...
    @property
    def count(self) -> int: ...
    @property
    def exact(self) -> int: ...
    @property
    def overflowed(self) -> int: ...
    @property
    def saturated(self) -> int: ...
    @property
    def underflowed(self) -> int: ...
    @property
    def subnormal(self) -> int: ...
    @property
    def nan_in(self) -> int: ...
    @property
    def nan_out(self) -> int: ...
    @property
    def inf_in(self) -> int: ...
    @property
    def amax(self) -> float: ...
    @property
    def amin_nonzero(self) -> float: ...
    @property
    def max_abs_error(self) -> float: ...
    @property
    def max_rel_error(self) -> float: ...
    @property
    def sqnr_db(self) -> float: ...
    def to_dict(self) -> dict[str, Any]: ...
    def __add__(self, other: CastReport, /) -> CastReport: ...
    def __radd__(self, other: CastReport, /) -> CastReport: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class FormatInfo:
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def bits(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def kind(self) -> Literal["bool", "int", "uint", "float", "complex"]: ...
    @property
    def component(self) -> FormatInfo | None: ...
    @property
    def dtype(self) -> np.dtype[Any] | None: ...
    @property
    def safetensors(self) -> str | None: ...
    @property
    def signed(self) -> bool: ...
    @property
    def exponent_bits(self) -> int: ...
    @property
    def mantissa_bits(self) -> int: ...
    @property
    def bias(self) -> int: ...
    @property
    def specials(self) -> Literal["ieee", "finite-nan", "fnuz", "finite", "exponent-only"]: ...
    @property
    def has_infinity(self) -> bool: ...
    @property
    def has_nan(self) -> bool: ...
    @property
    def max(self) -> Any: ...
    @property
    def min(self) -> Any: ...
    @property
    def smallest_normal(self) -> float: ...
    @property
    def smallest_subnormal(self) -> float: ...
    @property
    def eps(self) -> float: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

def finfo(dtype: DTypeLike) -> FormatInfo: ...
def formats() -> tuple[str, ...]: ...
def cpu_level() -> _Level: ...
def cpu_levels() -> tuple[_Level, ...]: ...
def set_cpu_level(name: str) -> None: ...
def get_num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def parse_safetensors_header(
    header: bytes, data_len: int
) -> tuple[list[_Entry], list[tuple[str, str]] | None]: ...
def build_safetensors_header(
    tensors: list[tuple[str, str, list[int]]], metadata: list[tuple[str, str]] | None
) -> tuple[bytes, list[_Entry]]: ...
