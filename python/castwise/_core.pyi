"""The compiled part of castwise. Its names are re-exported by `castwise`; import that."""

from collections.abc import Callable, Iterable, Sequence
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    Self,
    SupportsFloat,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    final,
    overload,
)

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from typing_extensions import disjoint_base

from castwise._options import (
    AmaxAlgorithm,
    DelayedScalingPreset,
    Level,
    Like,
    LossScalePreset,
    Match,
    Nan,
    OnOverlap,
    Order,
    Overflow,
    Rounding,
    Scales,
)

__all__ = [
    "BlockDecoder",
    "BlockEncoder",
    "CastReport",
    "Comparison",
    "DelayedScaling",
    "DynamicLossScale",
    "ElementCast",
    "FixedLossScale",
    "FormatInfo",
    "OpenFile",
    "PolicyBase",
    "PolicyMap",
    "SurveyTables",
    "UnfitError",
    "__version__",
    "accelerated_pairs",
    "arrays_finite",
    "block_amax",
    "block_types",
    "build_safetensors_header",
    "cast",
    "caster",
    "compare",
    "compare_stacks",
    "compare_stored",
    "convert_tensors",
    "cpu_level",
    "cpu_levels",
    "decode_block_type",
    "decode_blocks",
    "dtype_word",
    "encode_block_type",
    "encode_blocks",
    "environment_errors",
    "explain_cast",
    "finfo",
    "floatx_dtypes",
    "format_name",
    "formats",
    "get_num_threads",
    "gguf_type",
    "global_scale",
    "have_same_bits",
    "in_default_environment",
    "likely_names",
    "mixed_compute_dtype",
    "nearest_texts",
    "pack_codes",
    "parse_assignment",
    "parse_dtype",
    "parse_gguf_array",
    "parse_gguf_header",
    "parse_literal",
    "parse_policy",
    "parse_safetensors_header",
    "read_array",
    "rearrange_items",
    "report_losses",
    "report_stored",
    "restore_delayed_scaling",
    "restore_loss_scale",
    "restore_report",
    "restore_survey",
    "schemes",
    "set_accelerated",
    "set_cpu_level",
    "set_kept_memory",
    "set_num_threads",
    "sum_surveys",
    "survey_array",
    "survey_rows",
    "swizzle_scales",
    "unpack_codes",
    "unscale_arrays",
    "unswizzle_scales",
]

__version__: str
environment_errors: list[str]

_Result = TypeVar("_Result")
_Cast_co = TypeVar("_Cast_co", NDArray[Any], tuple[NDArray[Any], CastReport], covariant=True)

_Entry = tuple[str, str, tuple[int, ...], int, int]

_Array = TypeVar("_Array", bound=_Foreign)

# What numpy has of its own comes first: its arrays look like those of other libraries.
_Numpy: TypeAlias = NDArray[Any] | np.generic | complex | Sequence[Any]

class _Foreign(Protocol):
    """An array of torch, jax or another library, by what these have in common."""

    @property
    def dtype(self) -> Any: ...
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

class _Store(Protocol):
    """An array in a file, of h5py or zarr, by what these have in common."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __setitem__(self, place: Any, block: Any, /) -> None: ...

@overload
def cast(
    x: _Numpy,
    dtype: DTypeLike | None = None,
    *,
    out: NDArray[Any] | None = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: Order = "K",
    copy: bool = True,
    report: Literal[False] = False,
    threads: int | None = None,
    like: Like | None = None,
) -> NDArray[Any]: ...
@overload
def cast(
    x: _Numpy,
    dtype: DTypeLike | None = None,
    *,
    out: NDArray[Any] | None = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: Order = "K",
    copy: bool = True,
    report: Literal[True],
    threads: int | None = None,
    like: Like | None = None,
) -> tuple[NDArray[Any], CastReport]: ...
@overload
def cast(
    x: _Array,
    dtype: Any = None,
    *,
    out: None = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: Order = "K",
    copy: bool = True,
    report: Literal[False] = False,
    threads: int | None = None,
    like: Like | None = None,
) -> _Array: ...
@overload
def cast(
    x: _Array,
    dtype: Any = None,
    *,
    out: None = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: Order = "K",
    copy: bool = True,
    report: Literal[True],
    threads: int | None = None,
    like: Like | None = None,
) -> tuple[_Array, CastReport]: ...
@overload
def cast(
    x: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    out: NDArray[Any] | None = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: Order = "K",
    copy: bool = True,
    report: Literal[False] = False,
    threads: int | None = None,
    like: Like | None = None,
) -> NDArray[Any]: ...
@overload
def cast(
    x: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    out: NDArray[Any] | None = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: Order = "K",
    copy: bool = True,
    report: Literal[True],
    threads: int | None = None,
    like: Like | None = None,
) -> tuple[NDArray[Any], CastReport]: ...
@overload
def cast(
    x: ArrayLike | _Store,
    dtype: DTypeLike | None = None,
    *,
    out: _Store,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    report: bool = False,
    threads: int | None = None,
    like: Like | None = None,
) -> Any: ...
@overload
def cast(
    x: ArrayLike,
    dtype: Any = None,
    *,
    out: Any = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    seed: int | None = None,
    order: Order = "K",
    copy: bool = True,
    report: bool,
    threads: int | None = None,
    like: Like | None = None,
) -> Any: ...
def explain_cast(
    source: ArrayLike | DTypeLike,
    dtype: DTypeLike,
    *,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    scale: ArrayLike | None = None,
    report: bool = False,
    verbose: bool = False,
) -> str: ...

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
    def zero_in(self) -> int: ...
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
    def _repr_html_(self) -> str: ...
    def __add__(self, other: CastReport, /) -> CastReport: ...
    def __radd__(self, other: Literal[0], /) -> CastReport: ...
    def __reduce__(self) -> Any: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Comparison:
    @property
    def count(self) -> int: ...
    @property
    def equal_bits(self) -> int: ...
    @property
    def different(self) -> int: ...
    @property
    def largest_ulps(self) -> tuple[int, int] | None: ...
    @property
    def largest_difference(self) -> tuple[float, int] | None: ...
    @property
    def first_special(self) -> int | None: ...
    @property
    def finite(self) -> int | None: ...
    @property
    def finite_equal(self) -> int | None: ...
    @property
    def first_lost(self) -> int | None: ...
    @property
    def largest_relative(self) -> tuple[float, int] | None: ...
    @property
    def rms_error(self) -> float | None: ...
    @property
    def report(self) -> CastReport | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def compare_stored(
    x: NDArray[Any],
    data: NDArray[Any],
    scale: NDArray[Any],
    dtype: DTypeLike,
    options: tuple[dict[str, Any], dict[str, Any] | None],
    *,
    measure: bool = False,
) -> tuple[Comparison, bool, dict[int, float]]: ...
def report_stored(
    x: NDArray[Any],
    data: NDArray[Any],
    scale: NDArray[Any],
    dtype: DTypeLike,
    options: dict[str, Any],
) -> CastReport: ...
def compare_stacks(x: NDArray[Any], y: NDArray[Any]) -> list[float]: ...
def report_losses(x: NDArray[Any], y: NDArray[Any]) -> CastReport: ...
def have_same_bits(x: ArrayLike, y: ArrayLike, *, threads: int | None = None) -> bool: ...
def compare(
    x: ArrayLike, y: ArrayLike, *, measure: bool = False, threads: int | None = None
) -> Comparison:
    """Compare two arrays of one shape, of any formats.

    Elements of one format are compared as they are. Of two formats, both are converted first: to
    float32 if that holds both, else to float64, beside which the rest of a 64-bit integer counts.

    Parameters
    ----------
    x, y
        What is compared. They may have any strides.
    measure
        Whether what `y` lost of `x` is found, too.
    threads
        How many threads may be used; the result does not depend on them.

    Raises
    ------
    ValueError
        The shapes differ, or the number of threads is not valid.
    TypeError
        castwise has no such format.

    """

_SavedCell: TypeAlias = tuple[int, int, int]
_SavedSurvey: TypeAlias = tuple[
    list[int],
    list[float],
    list[_SavedCell],
    list[tuple[int, int]],
    list[tuple[float, int]] | None,
    list[list[tuple[int, int, list[_SavedCell]]]],
]

@final
class SurveyTables:
    @property
    def count(self) -> int: ...
    @property
    def zeros(self) -> int: ...
    @property
    def infinities(self) -> int: ...
    @property
    def nans(self) -> int: ...
    @property
    def largest(self) -> float: ...
    @property
    def smallest(self) -> float: ...
    @property
    def significant_bits(self) -> list[tuple[int, int]]: ...
    @property
    def values(self) -> list[tuple[float, int]] | None: ...
    def binade_columns(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.float64]]: ...
    def block_columns(
        self, shape: tuple[int, int]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.float64]]: ...
    def state(self) -> _SavedSurvey: ...
    def __add__(self, other: Self, /) -> SurveyTables: ...
    def __radd__(self, other: Self, /) -> SurveyTables: ...
    def __reduce__(self) -> Any: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def survey_array(x: ArrayLike, *, threads: int | None = None) -> SurveyTables: ...
def survey_rows(x: NDArray[Any]) -> list[tuple[int, int, int, float, float, dict[int, int]]]: ...
def sum_surveys(parts: Sequence[SurveyTables]) -> SurveyTables: ...
def restore_survey(state: _SavedSurvey) -> SurveyTables: ...

@final
class caster(Generic[_Cast_co]):  # noqa: N801 - called like functools.partial
    @overload
    def __new__(
        cls,
        source: DTypeLike,
        target: DTypeLike,
        *,
        rounding: Rounding | None = None,
        overflow: Overflow = "ieee",
        nan: Nan = "keep",
        scale: ArrayLike | None = None,
        order: Order = "K",
        copy: bool = True,
        report: Literal[False] = False,
        threads: int | None = None,
        like: Like | None = None,
    ) -> caster[NDArray[Any]]: ...
    @overload
    def __new__(
        cls,
        source: DTypeLike,
        target: DTypeLike,
        *,
        rounding: Rounding | None = None,
        overflow: Overflow = "ieee",
        nan: Nan = "keep",
        scale: ArrayLike | None = None,
        order: Order = "K",
        copy: bool = True,
        report: Literal[True],
        threads: int | None = None,
        like: Like | None = None,
    ) -> caster[tuple[NDArray[Any], CastReport]]: ...
    @property
    def source(self) -> np.dtype[Any]: ...
    @property
    def target(self) -> np.dtype[Any]: ...
    @property
    def options(self) -> dict[str, Any]: ...
    def __call__(self, x: _Numpy, *, out: NDArray[Any] | None = None) -> _Cast_co: ...
    def __reduce__(self) -> Any: ...

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
    def __reduce__(self) -> Any: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

def read_array(argument: str, x: Any) -> NDArray[Any]: ...
def restore_report(
    counts: list[int],
    magnitudes: list[float],
    signal: tuple[int, list[int]],
    noise: tuple[int, list[int]],
) -> CastReport: ...
def finfo(dtype: DTypeLike) -> FormatInfo: ...
def formats() -> tuple[str, ...]: ...
def accelerated_pairs() -> list[list[tuple[str, str]]]: ...
def set_accelerated(accelerated: bool) -> None: ...
def cpu_level() -> Level: ...
def cpu_levels() -> tuple[Level, ...]: ...
def set_cpu_level(name: Level) -> None: ...
def get_num_threads() -> int: ...
def in_default_environment(function: Callable[..., _Result], *arguments: Any) -> _Result: ...
def set_kept_memory(mebibytes: int) -> None: ...
def set_num_threads(threads: int) -> None: ...
def parse_literal(text: str) -> Any:
    """Return the value of a literal of tuples, lists, dicts, strings, whole numbers and booleans.

    Python 2's ``3L`` is a whole number, too. Nothing is evaluated, and the memory is that of the
    value.

    Raises
    ------
    ValueError, TypeError, SyntaxError
        It is another expression, incomplete, or nested more than 200 brackets deep.

    """

def parse_gguf_header(
    read: Callable[[int, int], bytes],
    size: int,
    tensor: Callable[[str, tuple[int, ...], int, int], object],
    refusal: Callable[[str], Exception],
) -> tuple[dict[str, str | float], dict[str, int], tuple[dict[str, int], int], int, int]:
    """Parse the header of a GGUF file.

    Parameters
    ----------
    read
        Returns so many bytes of the file from a byte on, fewer where it ends.
    size
        Length of the file in bytes.
    tensor
        Takes the name, the shape, the number of the type and the offset in the data of each tensor,
        in their order.
    refusal
        Makes the exception of a fault of the header.

    Returns
    -------
    tuple
        The values by key; for each key of an array, the byte at which it begins; for each key, in
        their order, the byte at which it begins itself, and the byte after the last value; the byte
        at which the data start; the alignment of tensors there.

    """

def parse_gguf_array(
    read: Callable[[int, int], bytes], size: int, begin: int, refusal: Callable[[str], Exception]
) -> list[str | float]:
    """Parse an array of the header of a GGUF file, which begins at a byte; the rest is as above."""

def rearrange_items(
    source: tuple[int, int, Sequence[int]],
    target: tuple[int, Sequence[int]],
    items: tuple[int, Sequence[int]],
    block_bytes: int,
) -> None:
    """Copy the items of a tensor to where they stand in another file, by other strides.

    Parameters
    ----------
    source
        A descriptor (a handle, on Windows), the byte at which the first item begins, and the bytes
        from item to item along each axis.
    target
        A descriptor, and the strides there, by which no two items overlap.
    items
        The bytes of an item, and how many there are along each axis.
    block_bytes
        About how many bytes are read and written at a time.

    Raises
    ------
    EOFError
        The source ends early.
    OSError
        It cannot be read, or the target not be written.

    """

def parse_safetensors_header(
    header: bytes, data_len: int
) -> tuple[list[_Entry], list[tuple[str, str]] | None]: ...
def build_safetensors_header(
    tensors: Iterable[tuple[str, str, Sequence[int]]], metadata: list[tuple[str, str]] | None
) -> tuple[bytes, dict[str, int]]: ...

@final
class ElementCast:
    def __new__(
        cls,
        source: str,
        target: str,
        *,
        source_packed: bool = False,
        target_packed: bool = False,
        source_order: str = "<",
        target_order: str = "<",
        rounding: str | None = None,
        overflow: str = ...,
        nan: str = ...,
        seed: int | None = None,
        report: bool = False,
    ) -> Self: ...
    def convert(self, first: int, data: bytes) -> tuple[bytes, CastReport | None]: ...

@final
class OpenFile:
    def __new__(cls, descriptor: int) -> Self: ...
    def write_at(self, data: memoryview | NDArray[np.uint8], offset: int) -> None: ...

def convert_tensors(
    source: int,
    target: int,
    jobs: Iterable[tuple[int, int, tuple[int, int], ElementCast | None]],
    threads: int | None = None,
    poll: Callable[[int], object] | None = None,
) -> tuple[
    list[CastReport | None],
    tuple[int, Literal["read", "cast", "write"], int | None, Exception | None] | None,
]: ...

_Dialect = Literal["keras", "tf", "tf_layer", "jmp"]

@disjoint_base
class PolicyBase:
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def __init__(self, name: str | None = None) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def compute_dtype(self) -> str | None: ...
    @property
    def variable_dtype(self) -> str | None: ...
    @property
    def _quantization_mode(self) -> str | None: ...
    @property
    def _plain_name(self) -> str: ...
    @property
    def _parameters(self) -> tuple[tuple[str, int], ...]: ...
    def _set_plain(self, name: str, dialect: _Dialect) -> None: ...
    def _set_quantized(self, class_name: str, mode: str, source_name: str) -> None: ...
    def _means(self, other: PolicyBase) -> bool: ...
    def get_config(self) -> dict[str, Any]: ...
    def __reduce_ex__(self, protocol: SupportsIndex) -> Any: ...
    def __getstate__(self) -> Any: ...
    def __setstate__(self, state: Any) -> None: ...

@final
class PolicyMap:
    def __new__(
        cls, match: Match = "fullmatch", on_overlap: OnOverlap = "raise", *, linear: bool = False
    ) -> Self: ...
    @property
    def exact(self) -> dict[str, Any]: ...
    def insert(self, key: str, value: Any) -> None: ...
    def remove(self, key: str) -> Any: ...
    def pop_last(self) -> tuple[str, Any]: ...
    def setdefault(self, key: str, value: Any) -> Any: ...
    def find(self, path: str) -> tuple[str, Any] | None: ...
    def lookup(self, path: str) -> Any: ...
    def explain(self, path: str) -> tuple[str | None, bool, list[str]]: ...
    def groups(self, key: str, path: str) -> list[str | None]: ...
    def get(self, key: str) -> Any: ...
    def items(self) -> list[tuple[str, Any]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def __setstate__(self, items: list[tuple[str, Any]]) -> None: ...
    def __len__(self) -> int: ...

def parse_policy(name: str) -> tuple[str, tuple[str, ...]]: ...
def parse_dtype(spelling: str, dialect: _Dialect = "keras") -> str: ...
def parse_assignment(text: str, half: str) -> tuple[str, str, str]: ...
def floatx_dtypes(dialect: _Dialect) -> tuple[str, ...]: ...
def mixed_compute_dtype(name: str, dialect: _Dialect) -> str | None: ...
def dtype_word(dtype: str, dialect: _Dialect) -> str: ...
def format_name(name: str) -> str | None: ...
def gguf_type(name: str) -> str | None: ...
def likely_names(wanted: str, names: list[str]) -> list[str]: ...
def nearest_texts(wanted: list[str], texts: list[str]) -> list[int | None]: ...

@final
class FixedLossScale:
    def __new__(cls, scale: SupportsFloat, *, skip_nonfinite: bool = True) -> FixedLossScale: ...
    @property
    def scale(self) -> float: ...
    @property
    def skip_nonfinite(self) -> bool: ...
    def next(self, finite: Any) -> tuple[FixedLossScale, bool]: ...
    def transition(self, finite: Any) -> tuple[FixedLossScale, bool, str | None]: ...
    def get_config(self) -> dict[str, Any]: ...
    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FixedLossScale: ...
    def state_dict(self) -> dict[str, Any]: ...
    def with_state(self, state: Any) -> FixedLossScale: ...
    def __reduce__(self) -> Any: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class DynamicLossScale:
    def __new__(
        cls,
        initial_scale: SupportsFloat | None = None,
        growth_interval: SupportsIndex | None = None,
        growth_factor: SupportsFloat | None = None,
        backoff_factor: SupportsFloat | None = None,
        *,
        minimum: SupportsFloat | None = None,
        maximum: SupportsFloat | None = None,
        hysteresis: SupportsIndex | None = None,
        preset: LossScalePreset = "castwise",
    ) -> DynamicLossScale: ...
    @property
    def scale(self) -> float: ...
    @property
    def counter(self) -> int: ...
    @property
    def hysteresis_left(self) -> int: ...
    @property
    def floor_steps(self) -> int: ...
    @property
    def initial_scale(self) -> float: ...
    @property
    def growth_interval(self) -> int: ...
    @property
    def growth_factor(self) -> float: ...
    @property
    def backoff_factor(self) -> float: ...
    @property
    def minimum(self) -> float | None: ...
    @property
    def maximum(self) -> float | None: ...
    @property
    def hysteresis(self) -> int: ...
    @property
    def preset(self) -> LossScalePreset: ...
    @property
    def _rules(self) -> dict[str, str]: ...
    def next(self, finite: Any) -> tuple[DynamicLossScale, bool]: ...
    def transition(self, finite: Any) -> tuple[DynamicLossScale, bool, str | None]: ...
    def get_config(self) -> dict[str, Any]: ...
    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DynamicLossScale: ...
    def state_dict(self) -> dict[str, Any]: ...
    def with_state(self, state: Any) -> DynamicLossScale: ...
    def __reduce__(self) -> Any: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class DelayedScaling:
    def __new__(
        cls,
        amax_history_length: int = 1024,
        margin: int = 0,
        *,
        dtype: DTypeLike | None = None,
        amax_algorithm: AmaxAlgorithm = "max",
        preset: DelayedScalingPreset = "castwise",
    ) -> DelayedScaling: ...
    @property
    def scale(self) -> float: ...
    @property
    def amax_history(self) -> NDArray[np.float32]: ...
    @property
    def dtype(self) -> np.dtype[Any] | None: ...
    @property
    def margin(self) -> int: ...
    @property
    def amax_history_length(self) -> int: ...
    @property
    def amax_algorithm(self) -> AmaxAlgorithm: ...
    @property
    def preset(self) -> DelayedScalingPreset: ...
    def next(self, amax: SupportsFloat) -> DelayedScaling: ...
    def quantize(
        self, x: ArrayLike, out: NDArray[Any] | None = None, *, threads: int | None = None
    ) -> tuple[NDArray[Any], float]: ...
    def dequantize(self, codes: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]: ...
    def get_config(self) -> dict[str, Any]: ...
    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DelayedScaling: ...
    def state_dict(self) -> dict[str, Any]: ...
    def with_state(self, state: Any) -> DelayedScaling: ...
    def __reduce__(self) -> Any: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

def restore_delayed_scaling(config: dict[str, Any], state: dict[str, Any]) -> DelayedScaling: ...
def restore_loss_scale(
    config: dict[str, Any], state: tuple[float, int, int, int]
) -> DynamicLossScale: ...
def unscale_arrays(
    path: Callable[[int], str],
    sources: Sequence[Any],
    targets: Sequence[Any] | None,
    dtype: DTypeLike | None,
    scale: Any,
    *,
    squares: bool = False,
    single: bool = False,
    threads: int | None = None,
) -> tuple[list[NDArray[Any]], bool, float]: ...
def arrays_finite(
    path: Callable[[int], str], sources: Sequence[Any], threads: int | None
) -> bool: ...

class UnfitError(ValueError):
    """A scheme cannot hold an array of this shape, in such blocks, or with such an element."""

def schemes() -> list[dict[str, Any]]:
    """Return the table of schemes, one dict for each row.

    Returns
    -------
    list of dict
        "name"; "element", the format of a code, or "map" where a code is an index into a code map;
        "bits" of a stored code; "unit", what codes are multiplied with beside their scale, 1 but
        for fixed-point ones; "block", the (rows, columns) that share a scale, 0 for a whole
        axis; "scale", the format of stored scales, or "weight" for the dtype of the weight; "rule",
        the default scale rule, or None; "global_scale" and "zero_point", whether there may be one;
        "code_map", the values of codes as a list of floats, or None; "recipes", the names of the
        producers whose arithmetic `encode_blocks` knows for it, the default one first;
        "searched_recipes", those with which it takes scales="best"; "single_recipes", those that
        need `amax` beside a global scale, so that matrices of a stack cannot be encoded at once.

    """

def decode_blocks(
    data: NDArray[Any],
    scale: NDArray[Any] | None,
    out: NDArray[Any],
    *,
    element: str,
    bits: int,
    block: tuple[int, int],
    layout: str = "dense",
    high: NDArray[Any] | None = None,
    scale_format: str | None = None,
    scale_divides: bool = False,
    global_scale: NDArray[Any] | None = None,
    global_use: Literal["multiply", "divide", "after"] = "multiply",
    offset: int = 0,
    zero_point: NDArray[Any] | None = None,
    bias: NDArray[Any] | None = None,
    group_index: NDArray[Any] | None = None,
    divisor: NDArray[Any] | None = None,
    code_map: NDArray[np.float32] | None = None,
    arithmetic: Literal["peer", "exact", "narrow"] = "peer",
    threads: int | None = None,
    shape: tuple[int, ...] | None = None,
) -> BlockDecoder | None:
    """Decode packed codes with their scales into `out`, in one pass.

    The value of a code is `(element - offset - zero point) * scale + bias`, where "peer" takes
    every operation in float32 and rounds the float32 result to the dtype of `out`, and "exact"
    rounds the real value once; "narrow" is "peer" with products rounded to that dtype before the
    bias is added. All arrays may have any strides: an array that is stored transposed is given as
    its transposed view. Codes are packed along the last logical axis.

    Parameters
    ----------
    data
        (*stack, rows, ...): packed codes; the axes from the last logical one on are the containers
        of a row, in C order (gpt-oss has two). Containers of 1 or 4 bytes of any dtype.
    scale
        (*stack, row blocks, ...), the axes from the last logical one on being the column blocks, in
        C order. None: 1.
    out
        (*stack, rows, columns), any real float dtype.
    element
        The format of a code by name, of at most 8 bits; "map" for `code_map`. Codes of OCP MX's
        int8 are "int8" with the scheme's "unit" as their `global_scale`.
    bits
        Of a stored code, 1 to 8.
    block
        The (rows, columns) that share a scale; 0 is the whole axis. The last block may be shorter.
    layout
        Where codes stand in their containers: "dense" (a little-endian bit stream, low first),
        "high-first" (as dense, with the nibbles of each byte swapped), "padded" (32 // bits codes
        to a word of 32 bits), "awq" (nibbles of a word in AWQ's order), "halves-16", "halves-32"
        (bytes of 4-bit codes, j low and j + half high, in blocks of so many codes: GGUF).
    high
        One more bit for each code, above its others: a dense stream, shaped as `data` (GGUF Q5).
    scale_format
        The format that the bytes of `scale` are in, if not its dtype ("float8_e8m0fnu" of uint8).
    scale_divides
        Codes are divided by the scale (Keras).
    global_scale, global_use
        float32 that broadcasts to the stack, and what it does: the scale is multiplied by it, or
        divided by it; "after": the product with the scale is multiplied by its reciprocal rounded
        to float32 ("exact": divided by it).
    offset
        An integer that is subtracted from every code: 8 for excess-8.
    zero_point, bias
        Shaped as `scale`; an integer dtype of up to 16 bits, and a float.
    group_index
        (columns,) int32 or int64: the block of each column, in place of `block[1]`.
    divisor
        (rows,): the results of each row are divided by it (Keras' AWQ).
    code_map
        2**bits values, for element "map".
    arithmetic, threads
        As above; the most threads that may be used.
    shape
        Of the arrays that the result decodes into, if not that of `out`.

    Returns
    -------
    BlockDecoder, optional
        The same decoding of the same parts, for other arrays, if `out` is in C order.

    Raises
    ------
    ValueError
        For shapes that do not fit each other, an unknown name, or a group index without a block.
    TypeError
        For a dtype that an argument cannot have.

    """

@final
class BlockDecoder:
    """A decoding of the same parts, which are read again, as `decode_blocks` returns it."""

    def decode(self, out: NDArray[Any], threads: int | None = None) -> bool:
        """Decode into an array of the same dtype and shape in C order.

        False, and nothing is done, where it is not, shares memory with a part, or the level of the
        CPU has changed.
        """

def encode_blocks(
    x: NDArray[Any],
    data: NDArray[Any],
    scale: NDArray[Any],
    *,
    scheme: str,
    recipe: str | None = None,
    block: tuple[int, int] | None = None,
    layout: str = "dense",
    offset: int = 0,
    rule: str | None = None,
    scale_format: str | None = None,
    amax: float | None = None,
    global_scale: NDArray[np.float32] | None = None,
    global_max: float | None = None,
    scales: Scales = "amax",
    importance: NDArray[np.float32] | None = None,
    zero_point: NDArray[Any] | None = None,
    bias: NDArray[Any] | None = None,
    code_map: NDArray[np.float32] | None = None,
    rounding: Rounding | None = None,
    seed: int = 0,
    nonfinite: Literal["raise", "nan"] = "raise",
    threads: int | None = None,
    stored: Sequence[NDArray[Any]] | None = None,
) -> BlockEncoder | None:
    """Quantize `x` into arrays that the caller has made: scales, codes and packing in one pass.

    Parameters
    ----------
    x
        (*stack, rows, columns), a real float dtype, any strides. With float64 the arithmetic is
        float64's, and results are rounded once.
    data
        (*stack, rows, containers): packed codes are written here; bits that no code fills are 0.
    scale
        (*stack, row blocks, column blocks): written; its dtype is the format that scales are
        rounded to. uint8 needs `scale_format`.
    scheme, recipe
        A row of `schemes()`, and whose arithmetic; None is the first that the row names.
    block
        In place of the scheme's, where it has none of its own.
    layout, offset
        As for `decode_blocks`; `offset` is added to each code before it is packed.
    rule
        In place of the recipe's scale rule, for scales that are powers of two.
    amax
        In place of the largest magnitude of each block, where one scale serves the whole array.
    scale_format
        The format of scales whose dtype does not say it, as for `decode_blocks`.
    global_scale
        As `global_scale()` returns it for this recipe; float32 that broadcasts to the stack.
    global_max
        The largest block scale of NVFP4: None is 448; 256 for four-over-six as some store it.
    scales
        "amax": as the recipe computes them of the largest magnitudes. "best", of NVFP4, MX and the
        recipes that a scheme names as searched: the stored scale of least squared error, with the
        zero point. "four_over_six", of NVFP4: the better one of two.
    importance
        What the squared error of each element of `x` is multiplied by where scales are searched:
        shaped as `x`, finite and not negative. Along axes with strides of 0, one number is read.
    zero_point, bias
        Shaped as `scale`, for asymmetric integers; written.
    code_map
        Sorted or not, 2**bits values, for schemes of element "map"; default the scheme's.
    rounding, seed
        Of codes; None is the recipe's. Draws of "stochastic" belong to the flat index in `x`.
    nonfinite
        "raise", or "nan": a block with an infinity or NaN gets a NaN scale (E8M0 255).
    threads
        The most that may be used.
    stored
        `x`, `data`, `scale` and, if there is one, the global scale, as the caller of `quantize` has
        them: the same bytes in C order, perhaps in other shapes.

    Returns
    -------
    BlockEncoder, optional
        The same encoding of other arrays, if `stored` is given and `x` is in C order.

    Raises
    ------
    ValueError
        For shapes that do not fit, unknown names, and with "raise" for an infinite or NaN element,
        whose index is named.

    """

@final
class BlockEncoder:
    """An encoding of arrays of one shape and dtype, as `encode_blocks` returns it."""

    def encode(self, x: NDArray[Any], threads: int | None = None) -> list[NDArray[Any]] | None:
        """Encode an array of the same dtype and shape in C order into new arrays like `stored`.

        A global scale is found by the recipe. None where it is not, where an element is not finite,
        or where the level of the CPU has changed.
        """

def block_amax(x: NDArray[Any], *, threads: int | None = None) -> float:
    """Return the largest magnitude of `x`; NaN if an element is NaN. 0.0 if there are none."""

def global_scale(
    amax: float, *, recipe: str, dtype: DTypeLike, global_max: float | None = None
) -> float:
    """Return NVFP4's second-level scale for a largest magnitude, as a recipe computes it.

    The result is a float32. compressed-tensors divides by it, all others multiply. `dtype` is that
    of the weight, in which compressed-tensors computes.
    """

def pack_codes(
    codes: NDArray[Any], out: NDArray[Any], *, bits: int, layout: str = "dense", offset: int = 0
) -> None:
    """Pack the low bits of `codes + offset` along the last axis into containers, which are written.

    `codes` is (..., columns) of a dtype of one byte, `out` (..., containers) of 1 or 4 bytes. Bits
    that no code fills are 0.
    """

def unpack_codes(
    packed: NDArray[Any], out: NDArray[Any], *, bits: int, layout: str = "dense", add: int = 0
) -> None:
    """Unpack codes along the last axis of `packed` into `out`, of a dtype of one byte.

    `add` is added to each code, which keeps its low `bits` (1 for the zero points of GPTQ v1).
    Codes are sign-extended if `out` is signed.
    """

def swizzle_scales(scales: NDArray[Any], out: NDArray[Any]) -> None:
    """Reorder scales of one byte into tiles of 128x4, as cuBLAS reads them; padding is 0.

    `scales` is (*stack, rows, columns), `out` (*stack, rows rounded up to 128, columns to 4).
    """

def unswizzle_scales(swizzled: NDArray[Any], out: NDArray[Any]) -> None:
    """Undo `swizzle_scales`; the shape of `out` says which rows and columns are not padding."""

def block_types() -> tuple[tuple[str, int, int, int, int], ...]:
    """Return the types of blocks of llama.cpp that are written.

    Each is its name, the elements and the bytes of a block, the bits of a code, and where the scale
    of a block begins.
    """

def encode_block_type(
    x: NDArray[Any],
    blocks: NDArray[Any],
    name: str,
    importance: NDArray[np.float32] | None = None,
    best: bool = False,
) -> int | None:
    """Quantize float32 to blocks of a type, as the functions of llama.cpp do.

    `x` is (..., columns), finite, in whole blocks; `blocks` of uint8 has the bytes of as many
    blocks; both are in C order. `importance` has a number for each column, which weights errors.
    With `best`, no block has a larger weighted error than llama.cpp's. Returns the first block
    whose scale or minimum no float16 holds; None if all are held.
    """

def decode_block_type(blocks: NDArray[Any], out: NDArray[Any], name: str) -> None:
    """Decode blocks of a type into `out` of float32, as llama.cpp does."""
