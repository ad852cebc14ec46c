"""Carry out a conversion: a file, a folder, a part of either, or a repository of the Hub."""

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from castwise._options import SAFETENSORS
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import source_path, source_suffix
from castwise.checkpoint.containers.registry import WHOLE_MODELS
from castwise.checkpoint.files.entry_names import check_name
from castwise.checkpoint.files.hub import HubRepository, target_path
from castwise.checkpoint.files.paths import checked_path
from castwise.checkpoint.files.remote import is_hub, is_remote
from castwise.checkpoint.files.temporary_names import remove_folder
from castwise.checkpoint.requests._planned import PlannedConversion, plain_values
from castwise.checkpoint.requests.options import REQUESTS, Cast, Request, Run
from castwise.checkpoint.results.model_card import CARD, Base, read_card, write_card
from castwise.checkpoint.results.summary import CastSummary
from castwise.checkpoint.running.ledger import RunPart, refuse_parts
from castwise.checkpoint.running.other_files import ONLY_FOLDERS, Patterns
from castwise.text.wording import argument, check_switch, join, parenthesis

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class Target:
    """Where a conversion writes, on this machine, and the summary of what it wrote."""

    path: Path
    summary: CastSummary | None = None


@contextmanager
def _push_after(request: Request, run: Run, source: Path, destination: Path) -> Iterator[Target]:
    """Let a block write into a temporary folder; give it a model card, and push it at the end."""
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
    """Return the suffix of the file that a source becomes in a repository; None for a folder."""
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


def run_conversion(request: Request, run: Run) -> CastSummary:
    """Write what is requested, or a part of it, or tell what would be written."""
    destination = target_path(run.destination, "destination")
    source = source_path(request.source, "source")
    if (run.part, run.executor) != (None, None) and any(map(is_remote, (destination, source))):
        raise CheckpointError(
            "part and executor are for files that all workers see under the same paths, not "
            "for those on a store; leave them out, or copy the source to a disk that workers "
            "share, and the result from it"
        )
    share = None if run.part is None else RunPart.of(run.part)
    if share is None:
        refuse_parts(destination)
    else:
        _check_part(request, run)
    with (
        _push_after(request, run, source, destination)
        if is_hub(destination)
        else nullcontext(Target(destination)) as target,
        open_planned(request, run, target.path) as planned_conversion,
    ):
        plan = planned_conversion.refuse_losses_of(run)
        if run.dry_run:
            target.summary = plan.preview(run)
        elif share is None:
            target.summary = plan.summary(plan.writer.write(plan.meter(run), run.executor))
        else:
            from castwise.checkpoint.running.parts import convert_part  # noqa: PLC0415  (of parts)

            rows = convert_part(plan.writer, target.path, share, progress=run.progress)
            target.summary = plan.summary(rows)
    return target.summary


def finish_conversion(run: Run, *, overwrite: bool) -> CastSummary:
    """Make a checkpoint of its parts."""
    from castwise.checkpoint.running.parts import RunParts  # noqa: PLC0415  (of parts)

    check_switch("overwrite", overwrite)
    destination = checked_path(run.destination, "destination")
    parts = RunParts(destination)
    values = dict(parts.arguments)
    values["overwrite"] = overwrite or values.get("overwrite", False)
    kinds = {request.command: request for request in REQUESTS}
    try:
        request = kinds[values.pop("command")](**values)
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"the parts of {destination} are of another version of castwise; finish them with that "
            "one, or convert all parts again"
        ) from error
    with open_planned(request, run, destination) as planned_conversion:
        plan = planned_conversion.refuse_losses_of(run)
        return plan.summary(parts.assemble(plan.writer))


def _check_part(request: Request, run: Run) -> None:
    """Refuse what does not go together with `part`, also that parts draw different seeds."""
    other_options = {
        "executor": run.executor,
        "dry_run": run.dry_run,
        "resumable": run.keeps_shards,
    }
    if names := sorted(name for name, value in other_options.items() if value):
        raise CheckpointError(
            argument("part")
            + " and "
            + join(", ", map(argument, names))
            + " do not go together; leave out one of them"
        )
    for name, value in plain_values(request).items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise TypeError(
                f"with part, {name} must be text, or a mapping of text, so that the other "
                f"parts and the end can be told of it: {error}"
            ) from error
    if isinstance(request, Cast) and request.rounding == "stochastic" and request.seed is None:
        raise CheckpointError(
            "all parts must draw from the same seed; give one "
            + parenthesis("seed")
            + " with "
            + argument("part")
        )


def open_planned(
    request: Request, run: Run, destination: Path
) -> AbstractContextManager[PlannedConversion]:
    """Open the source for a block, and decide what becomes of every tensor."""
    if isinstance(request, Cast):
        from castwise.checkpoint.requests.cast import planned_cast  # noqa: PLC0415  (alone)

        return planned_cast(request, run, destination)
    from castwise.checkpoint.requests._derive import planned_derivation  # noqa: PLC0415

    return planned_derivation(request, run, destination)
