"""Push what a conversion writes to a repository of the Hugging Face Hub, as one commit."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from castwise._options import SAFETENSORS
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import source_suffix
from castwise.checkpoint.containers.registry import WHOLE_MODELS
from castwise.checkpoint.files.entry_names import check_name
from castwise.checkpoint.files.hub import HubRepository
from castwise.checkpoint.files.remote import is_hub
from castwise.checkpoint.files.temporary_names import remove_folder
from castwise.checkpoint.requests.options import Cast, Request, Run
from castwise.checkpoint.results.model_card import CARD, Base, read_card, write_card
from castwise.checkpoint.results.summary import CastSummary
from castwise.checkpoint.running.other_files import Patterns
from castwise.checkpoint.running.output_options import ONLY_FOLDERS

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class Target:
    """Where a conversion writes, on this machine, and the summary of what it wrote."""

    path: Path
    summary: CastSummary | None = None


def target_of(
    request: Request, run: Run, source: Path, destination: Path
) -> AbstractContextManager[Target]:
    """Return where a conversion writes: for a repository, a folder that is pushed at the end."""
    if is_hub(destination):
        return _push_after(request, run, source, destination)
    return nullcontext(Target(destination))


@contextmanager
def _push_after(request: Request, run: Run, source: Path, destination: Path) -> Iterator[Target]:
    """Let a block write into a temporary folder; give it a model card, and push it at the end.

    CheckpointError: `destination` is the source, or has files that may not be replaced; the model
    card of the source cannot become that of the result; or the result, which then stays on this
    machine, could not be pushed.
    OSError: the Hub is out of reach, or nobody is logged in.
    """
    if run.keeps_shards:
        raise CheckpointError(ONLY_FOLDERS + f"this machine, and {destination} is not one")
    is_folder = request.max_shard_size is not None
    suffix = None if is_folder else _file_suffix(request, run, source)
    card_path = _card_path(request, source) if suffix is None else None
    repository, origin = HubRepository(destination), HubRepository.of_file(source)
    if origin is not None and origin.name == repository.name:
        raise CheckpointError(
            f"{destination} is the repository that is read; choose another destination"
        )
    base, card = None, read_card(card_path)
    if not run.dry_run:
        repository.prepare(overwrite=request.overwrite)
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
    target = Target(root / file_name)
    is_unpushed = False  # complete, and not at the Hub
    try:
        yield target
        assert target.summary is not None, "of the block"  # noqa: S101
        target.summary = replace(target.summary, destination=str(destination))
        if not run.dry_run:
            is_unpushed = True
            write_card(root, card, target.summary, command=request.command, base=base)
            subject = f"castwise {request.command} of {base.name if base else source.name}"
            repository.push(root, subject)
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
            + remedy
        ) from error
    finally:
        if not is_unpushed:
            remove_folder(folder)


def _file_suffix(request: Request, run: Run, source: Path) -> str | None:
    """Return the suffix of the file that a source becomes in a repository; None for a folder.

    Refuses options that are wrong.
    """
    suffix = SAFETENSORS
    if not isinstance(request, Cast):
        from castwise.checkpoint.requests._derive import derivation  # noqa: PLC0415  (not of casts)

        options, _ = derivation(request, run.threads)
        suffix = options.suffix
    is_folder = source.is_dir() or source_suffix(source) in WHOLE_MODELS
    return None if is_folder and suffix not in WHOLE_MODELS else suffix


def _card_path(request: Request, source: Path) -> Path | None:
    """Return the path of the model card that is copied from a folder; None if there is none."""
    path, is_excluded = source / CARD, Patterns(request.include, request.exclude).excludes(CARD)
    return path if not is_excluded and (path.is_file() or path.is_dir()) else None
