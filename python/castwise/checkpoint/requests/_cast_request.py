"""What a cast is asked to do, and its plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from castwise._dtype_map import DtypeMap
from castwise._spelling import typed_format, typed_values
from castwise._wording import argument
from castwise.checkpoint._config import Config
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import check_assume
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.files import checked_path, is_url, resumable_folder
from castwise.checkpoint.maps import is_map_name, named_map, refuse_map_name, warn_of_other_models
from castwise.checkpoint.plan import CastOptions, plan, unused_patterns
from castwise.checkpoint.planning import CheckpointModel, checked_architecture, refuse_changes
from castwise.checkpoint.requests._request import PlannedRun, Request, new_run
from castwise.checkpoint.running import OutputOptions, Patterns, resumed_options, shard_bytes
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap


@dataclass(frozen=True, slots=True, kw_only=True)
class CastRequest(Request):
    """All that decides what is made of the source, as given to `cast_file`."""

    command: ClassVar[str] = "cast"
    action: ClassVar[str] = "cast"
    dtype: Any
    dtype_map: Any
    policy: Any
    role: str
    rounding: str | None
    overflow: str
    nan: str
    seed: int | None
    like: str | None
    assume: str | Mapping[str, str] | None
    architecture: str | os.PathLike[str] | None
    keep_config: bool
    raw: bool
    as_bytes: bool

    def __post_init__(self) -> None:
        """Take mappings as dicts, which can be sent to other processes."""
        for name in ("dtype", "dtype_map", "assume"):
            given = getattr(self, name)
            if isinstance(given, Mapping) and not isinstance(given, DTypePolicyMap):
                object.__setattr__(self, name, dict(given))

    def check_part(self, **arguments: object) -> None:
        """Refuse what does not go together with `part`, also that parts draw different seeds."""
        Request.check_part(self, **arguments)
        if self.rounding == "stochastic" and self.seed is None:
            raise CheckpointError(
                f"all parts must draw from the same seed; give one ({argument('seed')}) with "
                f"{argument('part')}"
            )

    @contextmanager
    def planned(
        self,
        destination: Path,
        threads: int | None = None,
        *,
        resumable: bool = False,
        resume: bool = False,
    ) -> Iterator[PlannedRun]:
        """Open the source for a block, and decide what becomes of every tensor."""
        source = source_path(self.source, "source")
        check_assume(self.assume)
        dtypes = chosen_dtypes(self.dtype, self.dtype_map, self.policy, self.role)
        architecture = checked_architecture(self.architecture)
        if architecture is not None and not dtypes.is_general:
            raise CheckpointError(
                f"{argument('architecture', self.architecture)} goes with the name of a map "
                f"({argument('dtype_map')}), which keeps tensors by what they are"
            )
        options = CastOptions.checked(
            rounding=self.rounding,
            overflow=self.overflow,
            nan=self.nan,
            seed=self.seed,
            threads=threads,
            like=self.like,
        )
        limit = shard_bytes(self.max_shard_size)
        patterns = Patterns(self.include, self.exclude)
        config = None if self.keep_config else Config
        output = OutputOptions(
            arguments=self.described(),
            overwrite=self.overwrite,
            limit=limit,
            patterns=patterns,
            resumable=resumable or resume,
            resume=resume,
            config=config,
        )
        opened = open_checkpoint(source, self.assume, patterns.excludes)
        with opened:
            run = new_run(opened, destination, output)
            model = CheckpointModel(opened, architecture) if dtypes.is_general else None
            if model is not None:
                model.check_rows(architecture)
                dtypes = model.bound(dtypes)
            if resume:  # of a folder, or it would have been refused
                kept = resumable_folder(destination)
                options = resumed_options(kept, options, drawn=self.seed is None)
            run.plan(lambda tensors, prefix: plan(tensors, dtypes, prefix), options)
            for tensor in run.planned:
                if tensor.is_cast:
                    options.for_tensor(tensor.info.name, tensor.info.format, tensor.target)
            if model is not None and isinstance(self.dtype_map, str):
                used = {tensor.pattern for tensor in run.planned}
                warn_of_other_models(self.dtype_map, used, model.unknown_types)
            if not self.raw:
                refuse_changes(opened, run.plans, partial(_decode_refusal, opened))
            if not self.as_bytes:
                for target in run.files:
                    target.check_codes()
            about = (str(source), str(destination), options.to_dict())
            unused = unused_patterns(run.planned, dtypes)
            stays = [] if model is None else model.kept(run.plans, dtypes)
            yield PlannedRun(run, about, unused, self.action, kept=stays)


def _decode_refusal(source: Checkpoint) -> str | None:
    """Say why a quantised checkpoint is not decoded, which few casts need to know."""
    from castwise.checkpoint.planning import decode_refusal  # noqa: PLC0415

    return decode_refusal(source)


def chosen_dtypes(
    dtype: object,
    dtype_map: Mapping[str, Any] | DtypeMap | str | os.PathLike[str] | None,
    policy: object,
    role: str,
) -> DtypeMap:
    """Return what a dtype, a map or a policy says of tensors; refuses what does not go together."""
    if (policy is None) == (dtype is None and dtype_map is None):
        raise CheckpointError(
            "give either dtype, dtype_map or policy; only dtype and dtype_map go together"
        )
    if policy is None and role != "variable" and not isinstance(dtype, DTypePolicy):
        raise CheckpointError(
            f"{argument('role', role)} chooses a dtype of a policy; give one ({argument('policy')})"
        )
    for name, value in (("dtype_map", dtype_map), ("policy", policy)):
        if is_url(value):
            raise CheckpointError(
                f"{argument(name, str(value))} is a URL, and castwise reads it from files of this "
                "machine only; copy it here and give its path, or give what it holds"
            )
    refuse_map_name("dtype", dtype)
    refuse_map_name("policy", policy)
    if policy is not None:
        return DtypeMap.from_policy_argument(policy, role)
    if dtype_map is None:
        return DtypeMap.of(_checked(dtype, "dtype"), role)
    if isinstance(dtype_map, str) and is_map_name(dtype_map):
        dtypes = named_map(dtype_map)
    elif isinstance(dtype_map, str | os.PathLike):
        dtypes = DtypeMap.from_file(checked_path(dtype_map))
    else:
        dtypes = DtypeMap.of(_checked(dtype_map, "dtype_map"), role)
    if dtype is not None:
        return dtypes.with_default(typed_format(dtype, "dtype"))
    if dtypes.is_general:
        raise CheckpointError(
            f"{dtypes.origin} says what to keep; give the format of the others too "
            f"({argument('dtype')})"
        )
    return dtypes


def _checked(dtype: object, name: str) -> Any:  # noqa: ANN401  (as it is given)
    """Return a dtype, or a mapping to dtypes; refuse names that numpy alone knows."""
    return typed_values(dtype) if isinstance(dtype, dict) else typed_format(dtype, name)
