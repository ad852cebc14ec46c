"""Push what a conversion writes to a repository of the Hugging Face Hub, as one commit."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._model_card import Base, read_card, write_card
from castwise.checkpoint.containers import WHOLE_MODELS, source_suffix
from castwise.checkpoint.files import HubRepository, check_name, remove_folder
from castwise.checkpoint.summary import CastSummary

_LOGGER = logging.getLogger(__name__)


def push_conversion(
    destination: Path,
    source: Path,
    convert: Callable[[Path], CastSummary],
    *,
    card_path: Path | None,
    command: str,
    suffix: str | None,
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
    card_path
        The model card of the source, which is copied to the result; None if there is none.
    command
        The name of the command, for the card.
    suffix
        That of the file that is written; None for a folder.
    overwrite
        Whether files of the repository may be replaced.
    dry_run
        Write and push nothing.

    Raises
    ------
    CheckpointError
        `destination` is not a repository, is the source, or has files that may not be replaced; the
        model card of the source cannot become that of the result; or the result, which then stays
        on this machine, could not be pushed.
    OSError
        The Hub is out of reach, or nobody is logged in.

    """
    repository, origin = HubRepository(destination), HubRepository.of_file(source)
    if origin is not None and origin.name == repository.name:
        raise CheckpointError(
            f"{destination} is the repository that is read; choose another destination"
        )
    base, card = None, read_card(card_path)
    if not dry_run:
        repository.prepare(overwrite=overwrite)
        if card_path is not None:
            repository.validate(card, card_path)
        base = None if origin is None else Base(origin.name, origin.commit())
    file_name = "" if suffix is None else f"{source.stem}{suffix}"
    if file_name:
        check_name(file_name, f"{destination} would have")
    folder = Path(tempfile.mkdtemp(prefix="castwise-"))
    root = folder / repository.name.partition("/")[2]
    if file_name:
        root.mkdir()
    local = root / file_name
    is_unpushed = False  # complete, and not at the Hub
    try:
        summary = replace(convert(local), destination=str(destination))
        if not dry_run:
            is_unpushed = True
            write_card(root, card, summary, command=command, base=base)
            repository.push(root, f"castwise {command} of {base.name if base else source.name}")
            is_unpushed = False
    except BaseException as error:
        if not is_unpushed:
            raise
        remedy = f"To push it: {repository.upload_command(root)}"
        if not isinstance(error, Exception):  # a signal
            _LOGGER.warning("the result is complete in %s. %s", root, remedy)
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise CheckpointError(
            f"{destination}: {reason or type(error).__name__}; the result is complete in {root}. "
            f"{remedy}"
        ) from error
    finally:
        if not is_unpushed:
            remove_folder(folder)
    return summary


def suffix_of(source: Path, *, wanted: str) -> str | None:
    """Return the suffix of the file that a source becomes in a repository; None for a folder."""
    if wanted not in WHOLE_MODELS and (source.is_dir() or source_suffix(source) in WHOLE_MODELS):
        return None
    return wanted
