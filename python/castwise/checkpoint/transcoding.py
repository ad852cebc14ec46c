"""Store a quantised checkpoint as another producer does, without decoding it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Unpack, overload

from castwise._options import FindingKind, TranscodedRecipe, TranscodedScheme
from castwise._spelling import scheme_hint, suggestion
from castwise._wording import given
from castwise.checkpoint._arguments import PathArgument, TranscodeArguments
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.planning import (
    architecture_option,
    changed_schemes,
    checked_architecture,
    checked_threads,
    form_names,
    transcode_checkpoint,
)
from castwise.checkpoint.preview import CastPlan
from castwise.checkpoint.report import LOSSES, Progress
from castwise.checkpoint.requests import (
    SAFETENSORS,
    DeriveRequest,
    Make,
    RunOptions,
    carry_out,
)
from castwise.checkpoint.summary import CastSummary
from castwise.quantization.producers import TYPED


@overload
def transcode_file(
    source: PathArgument,
    destination: PathArgument,
    recipe: TranscodedRecipe,
    *,
    dry_run: Literal[False] = False,
    **arguments: Unpack[TranscodeArguments],
) -> CastSummary: ...
@overload
def transcode_file(
    source: PathArgument,
    destination: PathArgument,
    recipe: TranscodedRecipe,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[TranscodeArguments],
) -> CastPlan: ...
@overload
def transcode_file(
    source: PathArgument,
    destination: PathArgument,
    recipe: TranscodedRecipe,
    *,
    dry_run: bool,
    **arguments: Unpack[TranscodeArguments],
) -> CastSummary: ...
def transcode_file(
    source: PathArgument,
    destination: PathArgument,
    recipe: TranscodedRecipe,
    *,
    scheme: TranscodedScheme | None = None,
    architecture: PathArgument | None = None,
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
    """Write a quantised checkpoint as another producer stores it, with the same values.

    Codes and scales stay; names and shapes change, where they lie, and what states the
    quantisation. From one to another go

    - NVFP4, MXFP8 and FP8 by tensor of ModelOpt, compressed-tensors and ComfyUI, and FP8 by channel
      of the first two,
    - MXFP4 of gpt-oss and compressed-tensors, and of GGUF files to either,
    - MXFP4 of both to a GGUF file, which llama.cpp runs, if castwise knows the architecture (extra
      `gguf`): a folder with its configuration and tokenizer, whose names, hyperparameters and
      tokens become llama.cpp's, and whose norms, biases and routers float32;
      a folder that such a file becomes has all that again (that of gpt-oss as "gpt-oss" alone),
      and a .safetensors file its own names,
    - integers of AWQ ("gemm") and of GPTQ (v1 and v2) to compressed-tensors, of 4 and 8 bits, with
      their zero points unless all are in the middle, and with the index of groups if columns are
      reordered.

    compressed-tensors divides by the global scale of NVFP4 and others multiply: its reciprocal is
    one with which every value decodes to the same in bfloat16 and in float16. That of the scales of
    inputs is rounded once. `verify` with ``arithmetic="exact"`` finds no difference in bfloat16;
    by default it decodes each as its producer does, which may round otherwise.

    With `scheme`, MXFP4 becomes NVFP4 of compressed-tensors or ModelOpt, also the experts of
    gpt-oss in one tensor, and the experts of DeepSeek-V4 become FP8 in its blocks, where these
    have all values, so that nothing is rounded.

    It appears when it is complete, as with `cast_file`; all other tensors and files are copied.
    Weights pass through memory in slabs of whole blocks.

    Parameters
    ----------
    source
        What to read, as in `dequantize_file`.
    destination
        What to write, as in `quantize_file`; a .gguf file for "gguf".
    recipe
        The producer: "compressed-tensors", "modelopt", "comfy", "gpt-oss", "gguf" or "deepseek-v4".
    scheme
        "nvfp4" or "fp8_block", if another scheme is to hold the values.
    architecture
        As in `quantize_file`.
    threads
        How many threads may transcode.
    overwrite, resumable, resume, include, exclude, max_shard_size, fail_on, max_zeros, progress
        As in `cast_file`.
    dry_run
        As in `cast_file`. Codes and scales are not read, so that a value that the other form cannot
        hold is not found.
    measure
        As in `cast_file`: they are read, and it is found.
    part, executor
        As in `cast_file`; a weight is transcoded whole by one part or batch.

    Returns
    -------
    What each tensor became; a `CastPlan` if `dry_run`. Those have a `target` that are not as they
    were stored. The report of the codes counts what decoding them to float32 loses.

    Raises
    ------
    CheckpointError
        The checkpoint is not quantised, is stored so already, or cannot be transcoded;
        a part is missing or has another shape than its weight needs; the other form has no place
        for one of its parts; no reciprocal of a global scale leaves all values what they are;
        another scheme does not have all values of a block; llama.cpp would compute something else
        of a GGUF file, or a tensor or the tokenizer is missing; or what makes `cast_file` raise it.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read or written, or the disk is full.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> _ = checkpoint.quantize_file("model.safetensors", "small.safetensors", "fp8_channel")
    >>> _ = checkpoint.transcode_file("small.safetensors", "other.safetensors", "modelopt")
    >>> checkpoint.verify("small.safetensors", "other.safetensors").equal
    True

    """
    return carry_out(TranscodeRequest, **locals())


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscodeRequest(DeriveRequest):
    """All that decides what is transcoded, as given to `transcode_file`."""

    command: ClassVar[str] = "transcode"
    action: ClassVar[str] = "transcoded"
    recipe: str
    scheme: str | None
    architecture: str | os.PathLike[str] | None

    @property
    def suffix(self) -> str:
        """The suffix of a file that holds what is written."""
        return f".{TYPED}" if self.recipe == TYPED else SAFETENSORS

    def checked(self, threads: int | None) -> tuple[RunOptions, Make]:
        """Check the form that is asked for."""
        if self.recipe not in form_names():
            raise CheckpointError(
                f"{given('recipe', self.recipe, option='--to')}: "
                f"{suggestion(self.recipe, form_names())}castwise transcodes to "
                f"{', '.join(form_names())}; for others decode (castwise dequantize) and quantise "
                "(castwise quantize)"
            )
        if self.scheme is not None and self.scheme not in changed_schemes():
            raise CheckpointError(
                f"{given('scheme', self.scheme)}: {scheme_hint(self.scheme, changed_schemes())}"
                "without rounding castwise makes "
                f"{', '.join(changed_schemes())} of others; leave it out to keep the scheme, or "
                "decode (castwise dequantize) and quantise (castwise quantize)"
            )
        architecture = checked_architecture(self.architecture)
        make = partial(
            transcode_checkpoint,
            recipe=self.recipe,
            scheme=self.scheme,
            threads=checked_threads(threads),
            architecture=architecture,
        )
        asked = {"recipe": self.recipe, "scheme": self.scheme, **architecture_option(architecture)}
        return RunOptions(threads=threads, asked=asked), make
