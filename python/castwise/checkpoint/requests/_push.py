"""Push what a conversion writes to a repository of the Hugging Face Hub, as one commit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._model_card import Base, write_card
from castwise.checkpoint.containers import container_of
from castwise.checkpoint.files import HubRepository, check_name
from castwise.checkpoint.report import CastRow
from castwise.checkpoint.summary import CastSummary

_GGUF = ".gguf"


def push_conversion(
    destination: Path,
    source: Path,
    convert: Callable[[Path], CastSummary],
    *,
    command: str,
    suffix: str | None,
    zeros: Callable[[Sequence[CastRow]], float],
    overwrite: bool,
    dry_run: bool,
) -> CastSummary:
    """Convert into a temporary folder, add a model card, and push the folder.

    Parameters
    ----------
    destination
        The repository.
    source
        What is converted.
    convert
        Converts the source into a path of this machine.
    command
        The name of the command, for the card.
    suffix
        That of the file that is written; None for a folder.
    zeros
        Tells the share of values that may become zero before the card calls that a loss.
    overwrite
        Whether files of the repository may be replaced.
    dry_run
        Write and push nothing.

    Raises
    ------
    CheckpointError
        `destination` is not a repository, is the source, or has files that may not be replaced; or
        the result, which then stays on this machine, could not be pushed.
    OSError
        The Hub is out of reach, or nobody is logged in.

    """
    repository, origin = HubRepository(destination), HubRepository.of_file(source)
    if origin is not None and origin.name == repository.name:
        raise CheckpointError(
            f"{destination} is the repository that is read; choose another destination"
        )
    base = None
    if not dry_run:
        repository.prepare(overwrite=overwrite)
        base = None if origin is None else Base(origin.name, origin.commit())
    folder = Path(tempfile.mkdtemp(prefix="castwise-"))
    root = folder / repository.name.partition("/")[2]
    local = root
    if suffix is not None:
        root.mkdir()
        local = root / f"{source.stem}{suffix}"
        check_name(local.name, f"{destination} would have")
    is_kept = False
    try:
        summary = replace(convert(local), destination=str(destination))
        if not dry_run:
            allowed = zeros(summary.rows)
            write_card(root, summary, command=command, base=base, max_zeros=allowed)
            title = f"castwise {command} of {base.name if base else source.name}"
            try:
                repository.push(root, title)
            except OSError as error:
                is_kept = True
                raise CheckpointError(
                    f"{destination}: {error.strerror or error}; the result is complete in {root}. "
                    f"To push it: hf upload {repository.name} {root}"
                ) from error
        return summary
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def suffix_of(source: Path, *, wanted: str) -> str | None:
    """Return the suffix of the file that a source becomes in a repository; None for a folder."""
    if wanted != _GGUF and (source.is_dir() or container_of(source) == _GGUF):
        return None
    return wanted
