"""Plan a cast."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from castwise._options import MapArgument
from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint._config import Config
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import check_assume
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.files.paths import checked_path, refuse_url
from castwise.checkpoint.files.replacing import resumable_folder
from castwise.checkpoint.maps import is_map_name, named_map, refuse_map_name, warn_of_other_models
from castwise.checkpoint.plan import CastOptions, plan, unused_patterns
from castwise.checkpoint.planning.checkpoint_model import CheckpointModel, checked_architecture
from castwise.checkpoint.planning.decode import decode_refusal
from castwise.checkpoint.planning.stated_quantization import refuse_changes
from castwise.checkpoint.requests._planned import (
    PlannedConversion,
    new_writer,
    output_options,
    plan_shards,
)
from castwise.checkpoint.requests.options import Cast, Run
from castwise.checkpoint.running.ledger import resumed_options
from castwise.dtype_policies import DTypePolicy
from castwise.text.spelling import typed_format, typed_values
from castwise.text.wording import argument, parenthesis


@contextmanager
def planned_cast(request: Cast, run: Run, destination: Path) -> Iterator[PlannedConversion]:
    """Open the source for a block, and decide what becomes of every tensor."""
    source = source_path(request.source, "source")
    check_assume(request.assume)
    dtypes = chosen_dtypes(request.dtype, request.dtype_map, request.policy, request.role)
    architecture = checked_architecture(request.architecture)
    if architecture is not None and not dtypes.is_general:
        raise CheckpointError(
            argument("architecture", request.architecture)
            + " goes with the name of a map "
            + parenthesis("dtype_map")
            + ", which keeps tensors by what they are"
        )
    options = CastOptions.check(
        rounding=request.rounding,
        overflow=request.overflow,
        nan=request.nan,
        seed=request.seed,
        threads=run.threads,
        like=request.like,
    )
    output = output_options(request, run, None if request.keep_config else Config)
    with open_checkpoint(source, request.assume, output.patterns.excludes) as checkpoint:
        writer = new_writer(checkpoint, destination, output)
        model = CheckpointModel(checkpoint, architecture) if dtypes.is_general else None
        if model is not None:
            model.check_rows(architecture)
            dtypes = model.bind(dtypes)
        if run.resume:  # of a folder, or it would have been refused
            folder = resumable_folder(destination)
            options = resumed_options(folder, options, is_drawn=request.seed is None)
        plans = plan_shards(checkpoint, lambda tensors, prefix: plan(tensors, dtypes, prefix))
        writer.plan(plans, options)
        all_plans = [tensor for tensors in plans.values() for tensor in tensors]
        for tensor in all_plans:
            if tensor.is_cast:
                options.for_tensor(tensor.info.name, tensor.info.format, tensor.target)
        if model is not None and isinstance(request.dtype_map, str):
            used = {tensor.pattern for tensor in all_plans}
            warn_of_other_models(request.dtype_map, used, model.unknown_types)
        if not request.raw:
            refuse_changes(checkpoint, plans, partial(decode_refusal, checkpoint))
        if not request.as_bytes:
            for target in writer.files:
                target.check_codes()
        yield PlannedConversion(
            writer,
            (str(source), str(destination), options.to_dict()),
            unused_patterns(all_plans, dtypes),
            request.action,
            () if model is None else model.count_kept(plans, dtypes),
        )


def chosen_dtypes(
    dtype: object, mapping: MapArgument | DtypeMap | None, policy: object, role: str
) -> DtypeMap:
    """Return what a dtype, a map or a policy says of tensors; refuses what does not go together."""
    if (policy is None) == (dtype is None and mapping is None):
        raise CheckpointError(
            "give either dtype, dtype_map or policy; only dtype and dtype_map go together"
        )
    if policy is None and role != "variable" and not isinstance(dtype, DTypePolicy):
        raise CheckpointError(
            argument("role", role)
            + " chooses a dtype of a policy; give one "
            + parenthesis("policy")
        )
    for name, value in (("dtype_map", mapping), ("policy", policy)):
        refuse_url(name, value)
    refuse_map_name("dtype", dtype)
    refuse_map_name("policy", policy)
    if policy is not None:
        return DtypeMap.from_policy_argument(policy, role)
    if mapping is None:
        return DtypeMap.of(_check_dtype(dtype, "dtype"), role)
    if isinstance(mapping, str) and is_map_name(mapping):
        dtypes = named_map(mapping)
    elif isinstance(mapping, str | os.PathLike):
        dtypes = DtypeMap.from_file(checked_path(mapping))
    else:
        dtypes = DtypeMap.of(_check_dtype(mapping, "dtype_map"), role)
    if dtype is not None:
        return dtypes.with_default(typed_format(dtype, argument("dtype")))
    if dtypes.is_general:
        raise CheckpointError(
            f"{dtypes.origin} says what to keep; give the format of the others too "
            + parenthesis("dtype")
        )
    return dtypes


def _check_dtype(dtype: object, name: str) -> Any:  # noqa: ANN401  (as it is given)
    """Return a dtype, or a mapping to dtypes; refuse names that numpy alone knows."""
    return typed_values(dtype) if isinstance(dtype, dict) else typed_format(dtype, argument(name))
