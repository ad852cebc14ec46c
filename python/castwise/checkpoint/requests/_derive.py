"""Plan what decodes, quantizes or transcodes a checkpoint."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from castwise._options import SAFETENSORS
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import is_container, open_checkpoint, source_path
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.registry import WHOLE_MODELS
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.planning.checkpoint_model import architecture_option, checked_architecture
from castwise.checkpoint.planning.decode.options import checked_threads, decoding_of
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.derived_reader import DerivedReader
from castwise.checkpoint.planning.written_schemes import (
    changed_schemes,
    checked_inputs,
    form_names,
    states_inputs,
)
from castwise.checkpoint.requests._planned import (
    PlannedConversion,
    becomes_file,
    new_writer,
    output_options,
    plain_values,
    plan_shards,
)
from castwise.checkpoint.requests.options import Dequantize, Quantize, Request, Run, Transcode
from castwise.checkpoint.running.other_files import Patterns
from castwise.quantization.producers.registry import TYPED
from castwise.text.spelling import scheme_hint, suggestion
from castwise.text.wording import setting

# Plans what is made of the opened source; `is_file` tells that it becomes one file.
Derive: TypeAlias = Callable[..., DerivedCheckpoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedOptions(CastOptions):
    """The options of a run that decodes, quantizes or transcodes, and casts the rest plainly."""

    report: Mapping[str, Any]  # what decides the result

    @property
    def suffix(self) -> str:
        """The suffix of a file that holds what is written; of llama.cpp's by a map alone, too."""
        return f".{TYPED}" if self.report.get("recipe") == TYPED else SAFETENSORS

    def for_tensor(self, name: str, source: str | None, target: str | None) -> dict[str, Any]:
        """Return the arguments of `castwise.cast` for a tensor that a map casts."""
        del name, source, target
        return CastOptions.to_dict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return those that decide the result, for the report."""
        return {"seed": None, **self.report}


def derivation(request: Request, threads: int | None) -> tuple[DerivedOptions, Derive]:
    """Check what is to be derived, and how; returns the options of the run, and what derives."""
    # Each command imports its own alone.
    match request:
        case Quantize():
            from castwise.checkpoint.requests.quantize import quantizing  # noqa: PLC0415

            report, derive = quantizing(request, threads)
        case Dequantize():
            from castwise.checkpoint.planning.decode.decode import decode_checkpoint  # noqa: PLC0415

            decode = decoding_of(request.dtype, request.arithmetic, request.only, threads)
            report = {"dtype": decode.format, "arithmetic": decode.arithmetic, "only": decode.only}
            derive = partial(decode_checkpoint, decode=decode)
        case Transcode():
            report, derive = _transcoding(request, threads)
        case _:
            raise TypeError(f"{type(request).__name__} derives nothing")
    return DerivedOptions(threads=threads, report=report), derive


def _transcoding(
    request: Transcode, threads: int | None
) -> tuple[dict[str, Any], partial[DerivedCheckpoint]]:
    """Check in which form a quantized checkpoint is to be stored; returns as `quantizing` does."""
    from castwise.checkpoint.planning.transcode.transcode import transcode_checkpoint  # noqa: PLC0415

    form, scheme = request.recipe, request.scheme
    if form not in form_names():
        raise CheckpointError(
            setting("recipe", form, option="--to") + ": "
            f"{suggestion(form, form_names())}castwise transcodes to "
            f"{', '.join(form_names())}; for others decode (castwise dequantize) and quantize "
            "(castwise quantize)"
        )
    if scheme is not None and scheme not in changed_schemes():
        raise CheckpointError(
            setting("scheme", scheme) + f": {scheme_hint(scheme, changed_schemes())}"
            "without rounding castwise makes "
            f"{', '.join(changed_schemes())} of others; leave it out to keep the scheme, or "
            "decode (castwise dequantize) and quantize (castwise quantize)"
        )
    rows = checked_architecture(request.architecture)
    inputs = checked_inputs(request.inputs)
    if inputs is not None and not states_inputs(form):
        raise CheckpointError(
            setting("inputs", inputs) + f": a checkpoint of {form} states no inputs; leave it out"
        )
    derive = partial(
        transcode_checkpoint,
        recipe=form,
        scheme=scheme,
        threads=checked_threads(threads),
        architecture=rows,
        inputs=inputs,
    )
    stated_inputs = {} if inputs is None else {"inputs": inputs}
    values = {"recipe": form, "scheme": scheme, **stated_inputs, **architecture_option(rows)}
    return values, derive


@contextmanager
def planned_derivation(
    request: Request, run: Run, destination: Path
) -> Iterator[PlannedConversion]:
    """Open the source for a block, and decide what becomes of every tensor."""
    options, derive = derivation(request, run.threads)
    suffix = options.suffix
    source = source_path(request.source, "source")
    output = output_options(request, run, None)
    excludes = output.patterns.excludes
    with open_checkpoint(source, None, excludes, decodes=request.decodes) as checkpoint:
        limit = output.limit
        if isinstance(checkpoint.file, WholeModelReader) and not is_container(destination):
            limit = limit or sys.maxsize  # a model in itself becomes a folder
        is_file = becomes_file(checkpoint, destination, limit, suffix)
        is_other = is_file and not request.is_plain
        is_other = is_other and destination.suffix.lower() != suffix
        # The rest is what cannot be a file of any kind; ToFile says what can.
        if is_other and (is_container(destination) or suffix != SAFETENSORS):
            text = f"{destination}: a quantized checkpoint is a folder or a {suffix} file; name one"
            if isinstance(request, Quantize) and destination.suffix.lower() in WHOLE_MODELS:
                text += ", or use a scheme of llama.cpp, such as q4_k"
            raise CheckpointError(text)
        if is_file and request.is_plain and destination.suffix.lower() in WHOLE_MODELS:
            raise CheckpointError(
                f"{destination}: castwise makes plain weights as a folder or a {SAFETENSORS} file; "
                "name one"
            )
        result = derive(checkpoint, is_file=is_file)
        result.check_loading()
        result.warn()
        values, threads = plain_values(request), run.threads
        replan = partial(replan_readers, type(request), values, threads, is_file=is_file)
        run_id = os.urandom(16)
        for reader in _readers(result.source).values():
            reader.replan = run_id, replan
        output = output._replace(
            limit=limit,
            make_config=result.config,
            files_to_add={} if is_file else result.files_to_add(),
            restates=True,
        )
        writer = new_writer(result.source, destination, output)
        writer.plan(plan_shards(result.source, result.decide), options)
        yield PlannedConversion(
            writer,
            (str(source), str(destination), options.to_dict()),
            result.unused_patterns,
            request.action,
            result.kept_tensors,
            importance=result.importance,
        )


def _readers(source: Checkpoint) -> dict[Path, DerivedReader]:
    readers = source.shards.values()
    return {reader.path: reader for reader in readers if isinstance(reader, DerivedReader)}


def replan_readers(
    request_type: type[Request], values: Mapping[str, Any], threads: int | None, *, is_file: bool
) -> dict[Path, DerivedReader]:
    """Plan a request again, in another process; returns the readers that make tensors."""
    request = request_type(**values)
    _, derive = derivation(request, threads)
    excludes = Patterns(request.include, request.exclude).excludes
    checkpoint = open_checkpoint(Path(request.source), None, excludes, decodes=request.decodes)
    return _readers(derive(checkpoint, is_file=is_file).source)
