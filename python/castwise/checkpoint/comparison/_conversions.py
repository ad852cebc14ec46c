"""What a map makes of a checkpoint, as it would be written, to compare another one with it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from castwise._options import MapArgument, PathArgument
from castwise.arrays.dtype_map import DtypeMap, mapping_in
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.comparison._sides import Side
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.maps import is_map_name
from castwise.checkpoint.plan import CastOptions, plan_by_map
from castwise.checkpoint.planning.checkpoint_model import CheckpointModel, checked_architecture
from castwise.checkpoint.planning.encode.encode import Encode
from castwise.checkpoint.planning.written_schemes import is_scheme_or_mix
from castwise.checkpoint.requests.cast import chosen_dtypes
from castwise.checkpoint.requests.options import Quantize
from castwise.checkpoint.requests.quantize import checked_encode, encoding_of, scheme_spelled
from castwise.models.architecture import Architecture
from castwise.quantization.producers.registry import TYPED
from castwise.text.wording import argument, join, parenthesis


@dataclass(frozen=True, slots=True)
class MapConversion:
    """A cast by a map of formats, or the quantization by one of schemes."""

    # What the map is called: its path or name, or "map".
    origin: str
    # The sha256 of the bytes of its file; of another its JSON.
    digest: str
    # Of the cast.
    options: CastOptions
    # The map of formats.
    dtypes: DtypeMap | None
    # What is quantized, and how; None for a cast.
    encode: Encode | None
    # What the parameters are, as a user says; None if nobody does.
    architecture: Architecture | None
    # Those of the quantization that are not the default.
    quantization: Mapping[str, Any]

    @classmethod
    def of_options(
        cls,
        dtype_map: MapArgument | DtypeMap,
        dtype: object,
        options: Mapping[str, Any],
        threads: int | None,
        *,
        architecture: PathArgument | None,
        quantization: Mapping[str, Any],
    ) -> MapConversion:
        """Take a map and options as `cast_file` or `quantize_file` does, with their refusals."""
        # `options` are those of a cast, and `quantization` those of the other that are not the
        # default.
        if options.get("rounding") == "stochastic" and options.get("seed") is None:
            raise CheckpointError(
                "without the seed of the conversion "
                + parenthesis("seed")
                + ", its stochastic rounding "
                "cannot be repeated; the report of the conversion has it"
            )
        cast_options = CastOptions.check(**options, threads=threads)
        is_file = isinstance(dtype_map, str | os.PathLike) and not (
            isinstance(dtype_map, str) and is_map_name(dtype_map)
        )
        values: Mapping[str, Any] = {}
        if is_file:
            values = mapping_in(Path(os.fspath(dtype_map)))  # type: ignore[arg-type]
        elif isinstance(dtype_map, Mapping):
            values = dtype_map
        dtypes = encode = None
        if any(is_scheme_or_mix(scheme_spelled(value)) for value in values.values()):
            map_argument: Any = dtype_map
            request = Quantize(
                source="A", dtype_map=map_argument, architecture=architecture, **quantization
            )
            encode = checked_encode(request, threads)
        elif quantization:
            raise CheckpointError(
                join(", ", map(argument, quantization))
                + ": options of a quantization go with a map that names schemes, and this one "
                + parenthesis("dtype_map")
                + " names none"
            )
        else:
            dtypes = chosen_dtypes(dtype, dtype_map, None, "variable")
        origin = str(dtype_map) if isinstance(dtype_map, str | os.PathLike) else "map"
        if is_file:
            digest = file_digest(Path(origin))
        else:
            text = json.dumps({key: str(value) for key, value in values.items()})
            digest = hashlib.sha256((text if values else str(dtype_map)).encode()).hexdigest()
        parameters = checked_architecture(architecture)
        return cls(origin, digest, cast_options, dtypes, encode, parameters, quantization)

    @property
    def is_typed(self) -> bool:
        """True if it writes files of llama.cpp, whose tensors state their types."""
        return self.encode is not None and self.encode.recipe == TYPED

    def side(self, source: Checkpoint, other: Checkpoint) -> Side:
        """Return what it makes of an opened checkpoint, as one file if `other` is one."""
        if self.encode is not None:
            derivation = encoding_of(self.encode)(source, is_file=not other.is_folder)
            return Side(derivation.source, derivation.decide, options=self.options)
        assert self.dtypes is not None, "it has no schemes"  # noqa: S101
        dtypes = self.dtypes
        if dtypes.is_general:
            dtypes = CheckpointModel(source, self.architecture).bind(dtypes)
        return Side(source, partial(plan_by_map, dtypes), options=self.options)

    def to_dict(self, side: Side, checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
        """Return plain values: what was asked, how many tensors it changes, and the digests."""
        original, copy = map(checkpoint_digest, checkpoints)
        digests = {"first": original, "second": copy, "map": self.digest}
        options = self.options.to_dict() if self.encode is None else dict(self.quantization)
        if self.encode is not None and self.encode.importance is not None:
            path = self.encode.importance.path
            options["importance"], digests["importance"] = path.name, file_digest(path)
        return {
            "map": self.origin,
            "options": options,
            "cast": sum(map(side.is_cast, side.names)),
            "sha256": digests,
        }


def checkpoint_digest(checkpoint: Checkpoint) -> str:
    """Return the sha256 of a file; of a folder that of the lines of its shards, by path."""
    if (reader := checkpoint.file) is not None:
        return file_digest(reader.path)
    lines = [
        f"{file_digest(shard.path)}  {path}\n" for path, shard in sorted(checkpoint.shards.items())
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def file_digest(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
