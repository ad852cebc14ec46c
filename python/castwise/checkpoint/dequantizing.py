"""Decode the quantised weights of a checkpoint, a file or folders of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Unpack, overload

from castwise._core import finfo
from castwise._options import Arithmetic, FindingKind
from castwise.checkpoint._arguments import DequantizeArguments, PathArgument
from castwise.checkpoint.planning import decode_checkpoint, decoding_of
from castwise.checkpoint.preview import CastPlan
from castwise.checkpoint.report import LOSSES, Progress
from castwise.checkpoint.requests import DeriveRequest, Make, Request, RunOptions, carry_out
from castwise.checkpoint.summary import CastSummary
from castwise.quantization.producers import BF16


@overload
def dequantize_file(
    source: PathArgument,
    destination: PathArgument,
    dtype: object = BF16,
    *,
    dry_run: Literal[False] = False,
    **arguments: Unpack[DequantizeArguments],
) -> CastSummary: ...
@overload
def dequantize_file(
    source: PathArgument,
    destination: PathArgument,
    dtype: object = BF16,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[DequantizeArguments],
) -> CastPlan: ...
@overload
def dequantize_file(
    source: PathArgument,
    destination: PathArgument,
    dtype: object = BF16,
    *,
    dry_run: bool,
    **arguments: Unpack[DequantizeArguments],
) -> CastSummary: ...
def dequantize_file(
    source: PathArgument,
    destination: PathArgument,
    dtype: object = BF16,
    *,
    arithmetic: Arithmetic = "peer",
    only: str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    resumable: bool = False,
    resume: bool = False,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    max_shard_size: int | str | None = None,
    dry_run: bool = False,
    measure: bool = False,
    part: str | tuple[int, int] | None = None,
    executor: Executor | None = None,
    fail_on: FindingKind | Iterable[FindingKind] = LOSSES,
    max_zeros: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> CastSummary:
    """Decode the quantised weights of a checkpoint and write a new one without quantisation.

    Weights get the names and shapes that they have in the unquantised model; the tensors that only
    decode them are not written, and the scales of inputs, outputs, attention and its caches, which
    that model does not have, are left out with a warning. All other tensors stay as they are, byte
    for byte; but where `config.json` states the dtype of the model, those in bfloat16 and float16
    become what the weights become, as libraries load all of them in that. In a folder, what states
    the quantisation goes: the sections of `config.json`, whose dtype becomes that of the weights,
    `hf_quant_config.json`, `quantize_config.json`, `quant_config.json`, and keys of metadata; the
    index names the new tensors.

    A GGUF file whose architecture castwise knows becomes a folder that transformers loads, with its
    configuration and tokenizer (extra `gguf`), unless the destination ends with .safetensors: that
    has the names of llama.cpp, of any model.

    It appears when it is complete, as with `cast_file`. Slabs of whole blocks are read, decoded and
    written, so memory does not grow with the size of tensors; scales may be in other shards.

    Nothing is guessed: sizes of blocks are those that a configuration states.

    Parameters
    ----------
    source
        What to read, as in `cast_file`.
    destination
        What to write. What is there is replaced only with `overwrite`.
    dtype
        What the weights become: bfloat16, float16 or float32.
    arithmetic
        "peer": as the producer's library does it, bit for bit, as in
        `castwise.quantization.dequantize`. "exact": the product of real numbers, rounded once.
    only
        A regular expression that matches the whole names of the weights to decode, as they are in
        the unquantised model; the others stay quantised.
    threads
        How many threads may decode.
    overwrite, resumable, resume, include, exclude, max_shard_size, dry_run, measure
        As in `cast_file`.
    fail_on, max_zeros, progress
        As in `cast_file`.
    part, executor
        As in `cast_file`; a weight is decoded whole by one part or batch.

    Returns
    -------
    What each tensor became; a `CastPlan` if `dry_run`. A weight that was decoded has a `target`,
    as `source` its scheme, and as report what decoding lost: values that are infinite or NaN, and
    codes that are not 0 but became 0; `findings` lists them.

    Raises
    ------
    CheckpointError
        No weight is quantised; or one cannot be decoded for certain: a scale is missing, or has not
        the shape that the block needs; a scale has no weight; nothing, or not everything, says how
        it is stored; a configuration contradicts the tensors; castwise does not decode its kind; or
        what makes `cast_file` raise it.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read or written, or the disk is full.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> _ = checkpoint.quantize_file("model.safetensors", "small.safetensors", "fp8_channel")
    >>> _ = checkpoint.dequantize_file("small.safetensors", "plain.safetensors", "float32")
    >>> checkpoint.load("plain.safetensors")["fc.weight"].dtype
    dtype('float32')

    """
    return carry_out(DequantizeRequest, **locals())


@dataclass(frozen=True, slots=True, kw_only=True)
class DequantizeRequest(DeriveRequest):
    """All that decides what is decoded, as given to `dequantize_file`."""

    command: ClassVar[str] = "dequantize"
    action: ClassVar[str] = "decoded"
    is_plain: ClassVar[bool] = True
    dtype: Any
    arithmetic: Arithmetic
    only: str | None

    def checked(self, threads: int | None) -> tuple[RunOptions, Make]:
        """Check how weights are to be decoded."""
        decode = decoding_of(self.dtype, self.arithmetic, self.only, threads)
        asked = {"dtype": decode.format, "arithmetic": decode.arithmetic, "only": decode.only}
        return RunOptions(threads=decode.threads, asked=asked), partial(
            decode_checkpoint, decode=decode
        )

    def plain_values(self) -> dict[str, Any]:
        """Return the arguments by name, the dtype as that of its format."""
        return {**Request.plain_values(self), "dtype": finfo(self.dtype).name}
