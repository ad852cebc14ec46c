"""Lay a quantised checkpoint anew, as another producer stores it, without decoding it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from castwise._core import get_num_threads
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._quantizing import Request
from castwise.checkpoint._transcoding import transcoded
from castwise.checkpoint._written_schemes import form_names
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.report import CastSummary, Progress


def transcode_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    recipe: str,
    *,
    overwrite: bool = False,
    resumable: bool = False,
    resume: bool = False,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    max_shard_size: int | str | None = None,
    dry_run: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CastSummary:
    """Write a quantised checkpoint as another producer stores it, with the same codes and scales.

    That is NVFP4 and MXFP8 of ModelOpt as compressed-tensors, and the other way round. Names and
    shapes change, what states the quantisation, and the global scale, which one multiplies by and
    the other divides by: its reciprocal is one with which every value decodes to the same in
    bfloat16 and in float16. That of the scales of inputs is rounded once.

    It appears when it is complete, as with `cast_file`; all other tensors and files are copied.

    Parameters
    ----------
    source
        What to read, as in `cast_file`.
    destination
        What to write, as in `quantize_file`.
    recipe
        The producer: "compressed-tensors" or "modelopt".
    overwrite, resumable, resume, include, exclude, max_shard_size, dry_run, progress
        As in `cast_file`.

    Returns
    -------
    What each tensor became; a `CastPlan` if `dry_run`. Those have a `target` that were renamed or
    inverted.

    Raises
    ------
    CheckpointError
        The checkpoint is not quantised, is stored so already, or in a way that cannot be laid anew;
        the other form has no place for one of its parts; no reciprocal of a global scale leaves all
        values what they are; or what makes `cast_file` raise it.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read or written, or the disk is full.

    """
    if recipe not in form_names():
        raise CheckpointError(
            f"recipe {recipe!r}: castwise lays checkpoints anew as {' or '.join(form_names())}; "
            "for others decode (castwise dequantize) and quantise (castwise quantize)"
        )
    request = Request(
        source=source,
        make=partial(transcoded, recipe=recipe, threads=get_num_threads()),
        options=TranscodeOptions(recipe=recipe),
        overwrite=overwrite,
        resumable=resumable,
        resume=resume,
        include=include,
        exclude=exclude,
        max_shard_size=max_shard_size,
    )
    return request.run(destination, progress, dry_run=dry_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscodeOptions(CastOptions):
    """The options of a run that lays a checkpoint anew."""

    recipe: str

    def to_dict(self) -> dict[str, Any]:
        """Return those that decide the result, for the report."""
        return {"seed": None, "recipe": self.recipe}
