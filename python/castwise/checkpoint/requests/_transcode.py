"""Check in which form a quantized checkpoint is to be stored."""

from functools import partial
from typing import Any

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.planning.checkpoint_model import architecture_option, checked_architecture
from castwise.checkpoint.planning.decode.options import checked_threads
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.transcode.transcode import transcode_checkpoint
from castwise.checkpoint.planning.written_schemes import (
    changed_schemes,
    checked_inputs,
    form_names,
    states_inputs,
)
from castwise.checkpoint.requests.options import Transcode
from castwise.text.spelling import scheme_hint, suggestion
from castwise.text.wording import setting


def transcoding(
    request: Transcode, threads: int | None
) -> tuple[dict[str, Any], partial[DerivedCheckpoint]]:
    """Return what decides the result, and what plans it."""
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
