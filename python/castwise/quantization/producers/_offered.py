"""The producers that packages offer as entry points, and what stands in the way of one.

They are checked as a whole before castwise takes one in, so that little that a package got wrong
shows only when a checkpoint is read. What its functions raise then is said with its name: some of
them are asked about every checkpoint.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import Any, TypeVar, get_args

from castwise._core import formats
from castwise._entry_points import is_offered, loaded, offered, package_of
from castwise._options import Packing
from castwise.quantization.producers._layouts import (
    ACTIVATION,
    E4M3,
    E8M0,
    GLOBAL,
    OF_REAL,
    OTHER,
    SCALE,
    USES,
    ZERO,
    Layout,
    Part,
    Storage,
)
from castwise.quantization.producers._producer import (
    Configuration,
    Marker,
    Producer,
    Transcoding,
    Writing,
)
from castwise.quantization.producers._schemes import find_scheme, has_bias, may_hold, schemes
from castwise.quantization.producers._stated import Stated
from castwise.quantization.producers._stored_weight import Given, Undecodable
from castwise.quantization.producers._written import Statements, Written

GROUP = "castwise.producers"
"""The group of entry points by which packages offer producers."""

_Row = TypeVar("_Row", bound=Producer | Configuration | Writing | Transcoding | Marker)
_RETURNED = {"rule": Given, "write": Statements, "metadata_reader": Stated}
"""What functions return, by the names of their fields."""

_OWN = "castwise's own"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_ROLES = (SCALE, GLOBAL, ZERO, ACTIVATION, OTHER)
_CONFIG = "config.json"
_MATRIX = 2
_OF_WEIGHTS = OF_REAL[1:]
"""The formats that scales have where they have that of the weight; of float64 they are float32."""


def offered_producers(built_in: Sequence[Producer]) -> tuple[Producer, ...]:
    """Return the producers that packages offer; of one that cannot be used warn instead."""
    if not is_offered(GROUP):
        return ()
    names = {name: _OWN for row in built_in for name in (row.name, *row.also)}
    accepted: list[Producer] = []
    for name, entry in offered(GROUP, names, kind="a producer named {}").items():
        if name in names:
            continue
        subject = f"the producer {name}, {entry.value} of {package_of(entry)},"
        try:
            producer = loaded(entry, subject)
            problem = producer_problem(producer, name, (*built_in, *accepted))
        except ImportError as error:
            _warn(str(error))
            continue
        if problem is not None:
            _warn(f"{subject} cannot be used: {problem}. Mend it, or update or uninstall it.")
        elif isinstance(producer, Producer):
            accepted.append(_guarded(producer, subject.rstrip(",")))
    return tuple(accepted)


def _guarded(row: _Row, subject: str) -> _Row:
    """Return a producer, or a part of it, whose functions raise nothing but `Undecodable`."""
    guarded: dict[str, Any] = {}
    for field in fields(row):
        name, value = field.name, getattr(row, field.name)
        if isinstance(value, Configuration | Writing | Transcoding | Marker):
            guarded[name] = _guarded(value, subject)
        elif name == "readers":
            guarded[name] = {
                method: _guard(read, subject, Stated) for method, read in value.items()
            }
        elif callable(value):
            guarded[name] = _guard(value, subject, _RETURNED.get(name))
    return replace(row, **guarded)


def _guard(function: Callable[..., Any], subject: str, returned: type | None) -> Callable[..., Any]:
    """Return a function that says of what package it is if it fails, or returns another type.

    A reader of statements returns a function that returns them.
    """

    @wraps(function)
    def call(*arguments: object, **keywords: object) -> Any:  # noqa: ANN401  (of any function)
        try:
            value = function(*arguments, **keywords)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(
                f"{subject} fails ({type(error).__name__}: {error}); update or uninstall it"
            ) from error
        if returned is Stated and callable(value):
            return _guard(value, subject, Stated)
        if returned is not None and not isinstance(value, returned):
            raise Undecodable(
                f"{subject} fails (it returns {value!r}, not {returned.__name__}); update or "
                "uninstall it"
            )
        return value

    return call


def _warn(text: str) -> None:
    warnings.warn(
        f"{text} castwise goes on as if it were not installed.", UserWarning, stacklevel=2
    )


def producer_problem(producer: object, name: str, others: Sequence[Producer]) -> str | None:
    """Say what of a producer is wrong, beside others that are there before it; None if nothing."""
    if not isinstance(producer, Producer):
        return "it is not a castwise.quantization.producers.protocol.Producer"
    try:
        return next(_problems(producer, name, others), None)
    except Exception as error:  # of a value of another type than its field has
        return f"it has a field of another type ({type(error).__name__}: {error})"


def _problems(producer: Producer, name: str, others: Sequence[Producer]) -> Iterator[str]:
    yield from _wrong_types(producer)
    if producer.name != name:
        yield f"its name is {producer.name!r}, and the entry point is named {name!r}"
    taken = {other_name: row.name for row in others for other_name in (row.name, *row.also)}
    for spelling in (producer.name, *producer.also):
        if not _NAME.fullmatch(spelling):
            yield f"{spelling!r} is not a name of small letters, digits and hyphens"
        if spelling in taken:
            yield f"the name {spelling!r} is that of {taken[spelling]}"
    if len({producer.name, *producer.also}) != 1 + len(producer.also):
        yield f"also={producer.also!r} has a name twice"
    marker = producer.model_marker
    yield from _clashes("model_marker", [marker], others, lambda row: [row.model_marker])
    yield from _clashes("model_type", [producer.model_type], others, lambda row: [row.model_type])
    if not producer.layouts:
        yield "it has no layouts, by which its weights are recognised"
    for number, layout in enumerate(producer.layouts):
        for problem in _problems_of_layout(layout):
            yield f"layouts[{number}]: {problem}"
    if producer.scales != "weight" and producer.scales not in formats():
        yield f"scales={producer.scales!r} is neither 'weight' nor a format"
    for field, valid in (("channels", (1, 2)), ("blocks", (2, 4)), ("axis", (-1, -2, 0))):
        if getattr(producer, field) not in valid:
            yield f"{field}={getattr(producer, field)!r} is not one of {valid}"
    if set(producer.scalar) - {1}:
        yield f"scalar={producer.scalar!r} is not a shape of one element"
    yield from _problems_of_configuration(producer.configuration, others)
    yield from _problems_of_writing(producer, others)
    yield from _problems_of_transcoding(producer)


def _wrong_types(producer: Producer) -> Iterator[str]:
    """Say which fields that hold several values, or objects of castwise, hold something else."""
    for field, value, kind in (
        ("name", producer.name, str),
        ("layouts", producer.layouts, tuple),
        ("also", producer.also, tuple),
        ("scalar", producer.scalar, tuple),
        ("configuration", producer.configuration, Configuration),
        ("writing", producer.writing, Writing),
        ("transcoding", producer.transcoding, Transcoding),
        ("marker", producer.marker, Marker | None),
    ):
        if not isinstance(value, kind):
            yield f"{field}={value!r} is not of {getattr(kind, '__name__', kind)}"
    yield from _uncallable(producer, ("rule",))
    yield from _uncallable(
        producer.configuration,
        ("undecodable", "file_section", "is_own_form", "unnamed_method", "powers_stated"),
    )
    yield from _uncallable(
        producer.configuration, ("metadata_section", "metadata_reader", "described_tensors")
    )
    yield from _uncallable(producer.writing, ("write",))
    yield from _uncallable(producer.transcoding, ("name_form", "block_of_form"))
    if producer.marker is not None:
        yield from _uncallable(producer.marker, ("read", "state"))


def _uncallable(row: object, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(row, name)
        if value is not None and not callable(value):
            yield f"{name}={value!r} of its {type(row).__name__} is not a function"


def _clashes(
    field: str,
    values: Iterable[str | None],
    others: Sequence[Producer],
    of: Callable[[Producer], Iterable[str | None]],
) -> Iterator[str]:
    """Say which values another producer has, which would be taken for the other's."""
    taken = {value: row.name for row in others for value in of(row) if value is not None}
    for value in values:
        if value is not None and value in taken:
            yield f"{field} has {value!r}, which {taken[value]} has"


def _problems_of_layout(layout: Layout) -> Iterator[str]:
    if not isinstance(layout, Layout):
        yield f"{layout!r} is not a Layout"
    for field in ("formats", "parts", "families", "parameters"):
        if not isinstance(getattr(layout, field), tuple):
            yield f"{field}={getattr(layout, field)!r} is not a tuple"
    if not layout.parts:
        yield "it has no parts, and a payload alone is known by nothing"
    for part in layout.parts:
        if not isinstance(part, Part) or not isinstance(part.formats, tuple) or not part.name:
            yield f"{part!r} is not a Part with a name and a tuple of formats"
        if part.role not in _ROLES:
            yield f"the part {part.name!r} has the role {part.role!r}; use {', '.join(_ROLES)}"
        if part.use and part.use not in USES:
            yield f"the part {part.name!r} has the use {part.use!r}; use {', '.join(USES)}"
    every = (layout.formats, *(part.formats for part in layout.parts))
    for name in (name for names in every for name in names):
        if name not in formats():
            yield f"{name!r} is not a format, one of castwise.formats()"
    if layout.block is not None and len(layout.block) != _MATRIX:
        yield f"block={layout.block!r} is not (rows, columns)"
    if layout.storage is not None:
        yield from _problems_of_storage(layout, layout.storage)


def _problems_of_storage(layout: Layout, storage: Storage) -> Iterator[str]:
    if not isinstance(storage, Storage):
        yield f"storage={storage!r} is not a Storage"
    if not any(may_hold(layout, scheme.name) for scheme in schemes()):
        yield (
            f"scheme={layout.scheme!r} and families={layout.families!r} are the begin of no scheme "
            "of castwise.quantization.schemes(), so that nothing is decoded; leave out storage"
        )
    if not storage.packing or set(storage.packing) - set(get_args(Packing)):
        valid = ", ".join(get_args(Packing))
        yield f"packing={storage.packing!r} is not a tuple of these: {valid}"


def _problems_of_configuration(
    configuration: Configuration, others: Sequence[Producer]
) -> Iterator[str]:
    """Say what of the statements is wrong, or is what another producer states."""
    readers = configuration.readers
    yield from _clashes("readers", readers, others, lambda row: row.configuration.readers)
    for method, read in readers.items():
        if not callable(read):
            yield f"readers has {read!r} for {method!r}, which is not a function"
    for method in configuration.kept_keys:
        if method not in readers:
            yield f"kept_keys has {method!r}, which readers does not have"
    file = configuration.config_file
    yield from _clashes("config_file", [file], others, lambda row: [row.configuration.config_file])
    if file is not None and (file == _CONFIG or re.search(r"[/\\]", file) or not file):
        yield f"config_file={file!r} is not the name of a file of its own"
    key = configuration.metadata_key
    yield from _clashes("metadata_key", [key], others, lambda row: [row.configuration.metadata_key])
    for together in (
        ("config_file", "file_section"),
        ("metadata_section", "metadata_reader"),
        ("own_section", "is_own_form"),
    ):
        missing = [field for field in together if getattr(configuration, field) is None]
        if len(missing) == 1:
            yield f"{' and '.join(together)} go together, and {missing[0]} is left out"


def _problems_of_writing(producer: Producer, others: Sequence[Producer]) -> Iterator[str]:
    """Say what stands in the way of writing the rows of a producer."""
    writing = producer.writing
    if writing.rows and writing.write is None:
        yield "it has rows to write, and no write that states them"
    named = [row.scheme for row in writing.rows if isinstance(row, Written)]
    if len(named) != len(writing.rows) or len(set(named)) != len(named):
        yield "rows are not of Written, one for each scheme"
    for row in writing.rows:
        scheme = find_scheme(row.scheme)
        if writing.arithmetic not in scheme.recipes:
            yield (
                f"arithmetic={writing.arithmetic!r} is not one of {row.scheme}; use "
                f"{' or '.join(scheme.recipes) or 'another scheme'}"
            )
            continue
        teacher = next(
            (other for other in others if writing.arithmetic in (other.name, *other.also)), None
        )
        layouts = [
            None if side is None else side.written_layout(scheme, symmetric=row.symmetric)
            for side in (producer, teacher)
        ]
        if layouts[0] is None:
            yield f"no layout with storage holds {row.scheme}, which it has a row to write for"
            continue
        formats_of_scale = layouts[0].parts[0].formats
        written = _OF_WEIGHTS if producer.scales == "weight" else (producer.scales,)
        if (
            scheme.scale not in {E4M3, E8M0}
            and formats_of_scale
            and set(written) - {*formats_of_scale}
        ):
            yield (
                f"it writes scales of {row.scheme} as {' or '.join(written)} (scales="
                f"{producer.scales!r}), and {layouts[0].parts[0].name!r} has other formats"
            )
        traits = [
            _traits(layout, is_global=scheme.global_scale)
            for layout in layouts
            if layout is not None
        ]
        if traits[0] != traits[-1]:
            yield (
                f"it stores {row.scheme} with other factors, or with another bias, than the "
                f"arithmetic of {writing.arithmetic} makes (global_use, global_unit, divides)"
            )


def _traits(layout: Layout, *, is_global: bool) -> tuple[Any, ...]:
    """Return what decides which scales the arithmetic of a producer makes."""
    storage = layout.storage or Storage()
    of_global = (storage.global_use, storage.global_unit) if is_global else ()
    return has_bias(layout), storage.divides, storage.after, *of_global


def _problems_of_transcoding(producer: Producer) -> Iterator[str]:
    """Say what stands in the way of storing weights of others as a producer does."""
    transcoding = producer.transcoding
    written = {row.scheme for row in producer.writing.rows}
    for scheme, target in (*transcoding.forms_from, *transcoding.forms_to):
        find_scheme(scheme)
        find_scheme(target)
    for _, target in transcoding.forms_to:
        if written and target not in written:
            yield f"forms_to has {target}, which it has no row to write for"
    stated = transcoding.statements_of_form
    if stated is not None and not isinstance(stated, Statements):
        yield f"statements_of_form={stated!r} is not of Statements"
    if transcoding.forms_to and not written and stated is None:
        yield "it has forms_to, and neither rows to write nor statements_of_form"
