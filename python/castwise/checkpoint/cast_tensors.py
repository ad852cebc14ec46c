"""The loop over the tensors of one container: read one, cast it, write it, forget it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from castwise._core import cast
from castwise.checkpoint.options import CastOptions
from castwise.checkpoint.protocols import Reader, Writer
from castwise.checkpoint.summary import CastRow
from castwise.checkpoint.tensor_info import Planned


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: bytes of the source, and the tensor that is next (None at the end)."""

    done: int
    total: int
    name: str | None


class ProgressMeter:
    """Adds up the bytes of the source and tells whoever wants to know."""

    def __init__(self, total: int, listener: Callable[[Progress], None] | None) -> None:
        self._total = total
        self._done = 0
        self._listener = listener

    def starts(self, name: str | None) -> None:
        """The tensor `name` is next; None when there is no other."""
        if self._listener is not None:
            self._listener(Progress(self._done, self._total, name))

    def finished(self, nbytes: int) -> None:
        """Another `nbytes` of the source are done."""
        self._done += nbytes


def cast_tensors(
    reader: Reader,
    writer: Writer,
    planned: Sequence[Planned],
    options: CastOptions,
    meter: ProgressMeter,
    *,
    shard: str | None = None,
) -> Iterator[CastRow]:
    """Write every planned tensor in the writer's order; one at a time is in memory.

    Raises
    ------
    OverflowError, ValueError, TypeError
        As `castwise.cast`, with the tensor's name in front.
    MemoryError
        A tensor does not fit; the message names it.

    """
    plans = {plan.info.name: plan for plan in planned}
    for name in writer.order:
        meter.starts(name)
        yield _cast_one(reader, writer, plans[name], options, shard)
        meter.finished(plans[name].info.nbytes)


def _cast_one(
    reader: Reader, writer: Writer, plan: Planned, options: CastOptions, shard: str | None
) -> CastRow:
    info = plan.info
    report = None
    try:
        if plan.target is None:
            nbytes = writer.keep(info.name)
        else:
            array = reader.read(info.name)
            try:
                array, report = cast(
                    array, plan.target, report=True, **options.for_tensor(info.name)
                )
            except (OverflowError, ValueError, TypeError) as error:
                raise type(error)(f"tensor {info.name!r}: {error}") from error
            nbytes = writer.write(info.name, array)
    except MemoryError as error:
        raise MemoryError(
            f"tensor {info.name!r} of {info.nbytes:,} bytes and its result do not fit in memory"
        ) from error
    return CastRow(
        name=info.name,
        shape=info.shape,
        source=info.label,
        target=plan.target,
        nbytes_before=info.nbytes,
        nbytes_after=nbytes,
        report=report,
        shard=shard,
    )
