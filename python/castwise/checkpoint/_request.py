"""What a conversion is asked to do, and the plan that follows from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from castwise._dtype_map import DtypeMap
from castwise._spelling import checkpoint_format
from castwise.checkpoint._config import Config
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._filesystem import checked_path, resumable_folder
from castwise.checkpoint._journal import resumed_options
from castwise.checkpoint._other_files import Patterns
from castwise.checkpoint._quantized import refuse_changes
from castwise.checkpoint._remote import is_url
from castwise.checkpoint._targets import shard_bytes
from castwise.checkpoint._tensors import check_assume
from castwise.checkpoint._to_file import ToFile
from castwise.checkpoint._to_folder import Keeping, ToFolder
from castwise.checkpoint.containers import is_container, open_source
from castwise.checkpoint.containers._interface import Reader
from castwise.checkpoint.containers.folder import CheckpointFolder
from castwise.checkpoint.maps import is_map_name, named_map
from castwise.checkpoint.plan import CastOptions, plan, unused_patterns
from castwise.checkpoint.preview import CastPlan
from castwise.checkpoint.report import CastRow, CastSummary, Progress, ProgressMeter
from castwise.dtype_policies import DTypePolicy


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A conversion that has been planned."""

    run: ToFile | ToFolder
    options: CastOptions
    about: tuple[str, str, dict[str, Any]]
    unused: Mapping[str, str | None]

    def preview(self) -> CastPlan:
        """Return what the run would do; refuse what it would refuse from headers alone."""
        rows, room = self.run.preview(), self.run.room(self.options)
        return CastPlan(
            *self.about,
            rows,
            self.unused,
            needed_bytes=room.needed,
            free_bytes=room.free,
            left_out=[path for path, _ in room.left_out],
        )

    def write(
        self, progress: Callable[[Progress], None] | None, executor: Executor | None = None
    ) -> CastSummary:
        """Let the run write all of it."""
        meter = ProgressMeter(sum(one.info.nbytes for one in self.run.planned), progress)
        return self.summary(self.run.write(self.options, meter, executor))

    def summary(self, rows: Sequence[CastRow]) -> CastSummary:
        """Return what was done."""
        return CastSummary(*self.about, rows, self.unused)


def becomes_file(source: Reader | CheckpointFolder, new: Path, limit: int | None) -> bool:
    """Return True if a source becomes one file, as the destination names one."""
    is_file = is_container(new) and not new.is_dir()
    return is_file or (limit is None and not isinstance(source, CheckpointFolder))


def new_run(
    source: Reader | CheckpointFolder,
    new: Path,
    limit: int | None,
    patterns: Patterns,
    keeping: Keeping,
    *,
    overwrite: bool,
) -> ToFile | ToFolder:
    """Make the run that writes a file or a folder, as the destination names one."""
    if becomes_file(source, new, limit):
        return ToFile(source, new, limit, patterns, resumable=keeping.resumable)
    return ToFolder(source, new, limit, patterns, keeping, overwrite=overwrite)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that decides what is made of the source, as given to `cast_file`."""

    source: str | os.PathLike[str]
    dtype: Any
    dtype_map: Any
    policy: Any
    role: str
    rounding: str | None
    overflow: str
    nan: str
    seed: int | None
    assume: str | Mapping[str, str] | None
    overwrite: bool
    keep_config: bool
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    max_shard_size: int | str | None
    raw: bool
    as_bytes: bool

    def as_text(self) -> dict[str, Any]:
        """Return plain values, from which another process makes the same request.

        Raises
        ------
        TypeError
            A dtype, map or policy is an object that JSON cannot hold.

        """
        values = asdict(self)
        values["source"] = os.path.abspath(self.source)
        for name in ("dtype_map", "policy"):
            path = values[name]
            if isinstance(path, os.PathLike) or (isinstance(path, str) and os.path.isfile(path)):
                values[name] = os.path.abspath(path)
        try:
            return dict(json.loads(json.dumps(values)))
        except TypeError as error:
            raise TypeError(
                "with part, dtype, dtype_map, policy and assume must be text, or mappings of text, "
                f"so that the other parts and the end can be told of them: {error}"
            ) from error

    def check_part(self, **others: object) -> None:
        """Refuse what does not go together with `part`; `others` are arguments beside these.

        Raises
        ------
        CheckpointError
            One of `others` is true, or parts would draw from different seeds.

        """
        if given := sorted(name for name, value in others.items() if value):
            raise CheckpointError(
                f"part and {', '.join(given)} do not go together; leave out one of them"
            )
        if self.rounding == "stochastic" and self.seed is None:
            raise CheckpointError(
                "all parts must draw from the same seed; give one (seed, --seed) with part"
            )

    @contextmanager
    def planned(
        self,
        new: Path,
        threads: int | None = None,
        *,
        resumable: bool = False,
        resume: bool = False,
    ) -> Iterator[PlannedRun]:
        """Open the source for a block, and decide what becomes of every tensor."""
        old = checked_path(self.source, "source")
        check_assume(self.assume)
        dtypes = _dtypes(self.dtype, self.dtype_map, self.policy, self.role)
        options = CastOptions.checked(
            rounding=self.rounding,
            overflow=self.overflow,
            nan=self.nan,
            seed=self.seed,
            threads=threads,
        )
        limit = shard_bytes(self.max_shard_size)
        patterns = Patterns(self.include, self.exclude)
        config = None if self.keep_config else Config
        keeping = Keeping(resumable=resumable or resume, resume=resume, config=config)
        opened = open_source(old, self.assume, patterns.excludes)
        with nullcontext() if isinstance(opened, CheckpointFolder) else opened:
            run = new_run(opened, new, limit, patterns, keeping, overwrite=self.overwrite)
            if resume:  # of a folder, or it would have been refused
                kept = resumable_folder(new)
                options = resumed_options(kept, options, drawn=self.seed is None)
            run.plan(lambda tensors, prefix: plan(tensors, dtypes, prefix))
            if not self.raw:
                refuse_changes(opened, run.plans)
            if not self.as_bytes:
                for target in run.files:
                    target.check_codes()
            about = (str(old), str(new), options.to_dict())
            yield PlannedRun(run, options, about, unused_patterns(run.planned, dtypes))


def _dtypes(
    dtype: Any,
    dtype_map: Mapping[str, Any] | DtypeMap | str | os.PathLike[str] | None,
    policy: Any,
    role: str,
) -> DtypeMap:
    if (policy is None) == (dtype is None and dtype_map is None):
        raise CheckpointError(
            "give either dtype, dtype_map or policy; only dtype and dtype_map go together"
        )
    if policy is None and role != "variable" and not isinstance(dtype, DTypePolicy):
        raise CheckpointError(f"role={role!r} chooses a dtype of a policy; give one as policy")
    for name, value in (("dtype_map", dtype_map), ("policy", policy)):
        if is_url(value):
            raise CheckpointError(
                f"{name}={str(value)!r} is a URL, and castwise reads it from files of this machine "
                "only; copy it here and give its path, or give what it holds"
            )
    if policy is not None:
        return DtypeMap.from_policy_argument(policy, role)
    if dtype_map is None:
        return DtypeMap.of(_spelled(dtype), role)
    if isinstance(dtype_map, str) and is_map_name(dtype_map):
        dtypes = named_map(dtype_map)
    elif isinstance(dtype_map, str | os.PathLike):
        dtypes = DtypeMap.from_file(checked_path(dtype_map))
    else:
        dtypes = DtypeMap.of(_spelled(dtype_map), role)
    if dtype is not None:
        return dtypes.with_default(checkpoint_format(dtype))
    if dtypes.is_general:
        raise CheckpointError(
            f"{dtypes.origin} says what to keep; give the format of the others too (dtype, --dtype)"
        )
    return dtypes


def _spelled(dtype: Any) -> Any:
    """Return a dtype, or a mapping to dtypes, in which fp8 is a format."""
    if isinstance(dtype, dict):
        return {key: checkpoint_format(value) for key, value in dtype.items()}
    return checkpoint_format(dtype)
