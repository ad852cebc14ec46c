"""Carry out a conversion: a file, a folder, a part of either, or a repository of the Hub."""

import json
from contextlib import AbstractContextManager
from pathlib import Path

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import source_path
from castwise.checkpoint.files.hub import target_path
from castwise.checkpoint.files.paths import checked_path
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.requests._planned import PlannedConversion, plain_values
from castwise.checkpoint.requests._push import target_of
from castwise.checkpoint.requests.options import REQUESTS, Cast, Request, Run
from castwise.checkpoint.results.summary import CastSummary
from castwise.checkpoint.running.ledger import RunPart
from castwise.checkpoint.running.parts import RunParts, convert_part, refuse_parts
from castwise.text.wording import argument, check_switch, join, parenthesis


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
        target_of(request, run, source, destination) as target,
        open_planned(request, run, target.path) as planned_conversion,
    ):
        plan = planned_conversion.refuse_losses_of(run)
        if run.dry_run:
            target.summary = plan.preview(run)
        elif share is None:
            target.summary = plan.summary(plan.writer.write(plan.meter(run), run.executor))
        else:
            rows = convert_part(plan.writer, target.path, share, progress=run.progress)
            target.summary = plan.summary(rows)
    return target.summary


def finish_conversion(run: Run, *, overwrite: bool) -> CastSummary:
    """Make a checkpoint of its parts."""
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
    """Refuse what does not go together with `part`, also that parts draw different seeds.

    TypeError: a dtype, map or policy is an object that JSON cannot hold.
    """
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
