"""The quantized checkpoints that castwise writes: which schemes, for whom, and of what weights."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import get_args

from castwise._core import finfo
from castwise._numbers import is_real
from castwise._options import Inputs
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.loading.modules import loads_by_default
from castwise.quantization import Consumer, Scheme, schemes
from castwise.quantization.producers.block_types import MIXES
from castwise.quantization.producers.consumers import find_consumer
from castwise.quantization.producers.producer import EncodedModules, Encoding, Statements, Written
from castwise.quantization.producers.registry import (
    CALIBRATED,
    CONVERTED_TO,
    SEVERAL,
    TYPED,
    WRITTEN,
    WRITTEN_WITH_INPUTS,
    WRITTEN_WITH_ZEROS,
    find_recipe,
    known_recipe,
)
from castwise.quantization.producers.schemes import NO_PRESETS, PRESETS, scheme_of_files
from castwise.text.spelling import scheme_hint, suggestion
from castwise.text.wording import argument, join, parenthesis, setting

# The schemes whose codes the units of common GPUs multiply.
_MULTIPLIED = ("fp8_block", "fp8_channel", "int8_channel")


def scheme_named(name: object) -> Scheme:
    rows = {row.scheme: row for row in WRITTEN}
    if isinstance(name, str) and name in rows:
        return scheme_of_files(name)
    if name in {row.name for row in schemes()}:
        raise CheckpointError(
            setting("scheme", name) + ": castwise writes no checkpoint of it; it writes "
            f"{', '.join(rows)}"
        )
    presets = {**PRESETS, **NO_PRESETS}
    if isinstance(name, str) and (preset := presets.get(name.upper())) is not None:
        scheme, options = preset
        names = [argument(option, value) for option, value in options.items()]
        beside = " beside " + join(", ", names) if names else ""
        text = " is a preset of llm-compressor; here it is "
        if name.upper() in NO_PRESETS:
            text = " is no preset of llm-compressor; its weights are here "
        raise CheckpointError(setting("scheme", name) + text + argument("scheme", scheme) + beside)
    if isinstance(name, str) and name.upper() in CALIBRATED:
        raise CheckpointError(
            setting("scheme", name) + " is a method that needs data, which castwise does not "
            "take: use llm-compressor; without data, 4 bits are "
            + argument("scheme", "int4_group")
            + ", with less error beside "
            + argument("scales", "best")
        )
    hint = scheme_hint(name, rows)
    if hint.endswith("; "):  # of a type of llama.cpp, with those that castwise writes
        raise CheckpointError(
            setting("scheme", name) + " is not written: " + hint.removesuffix("; ")
        )
    raise CheckpointError(
        setting("scheme", name) + f" is not known: {hint}castwise writes "
        f"{', '.join(rows)}; and the mixes {', '.join(MIXES)}"
    )


def scheme_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.scheme for row in WRITTEN))


def scheme_beside(name: str) -> str | None:
    """Return the scheme that is written with codes like those of a format, and scales them."""
    # The scheme has codes of the format's kind and number of bits, and a scale for each
    # row where there is such a scheme; None if the format has more than 8 bits.
    format_info = finfo(name)
    kind = format_info.kind
    candidates = [row.row for row in WRITTEN if row.row.bits == format_info.bits]
    alike = [row.name for row in candidates if finfo(row.element).kind == kind]
    return min(alike, key=lambda scheme: not scheme.endswith("_channel"), default=None)


def recipes() -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.recipe for row in WRITTEN))


def written_schemes(recipe: object) -> tuple[str, ...]:
    """Return the schemes that a producer's checkpoints hold, without biases of groups."""
    written = [row for row in WRITTEN if row.symmetric]
    rows = [row.scheme for row in written if row.recipe == recipe]
    if not rows:
        recipes_by_name = dict.fromkeys(row.recipe for row in written)
        raise CheckpointError(
            setting("recipe", recipe) + f" is not one of {', '.join(recipes_by_name)}"
        )
    return tuple(dict.fromkeys(rows))


def most_versatile_recipe() -> str:
    """Return the producer whose checkpoints hold the most schemes."""
    counts = Counter(row.recipe for row in WRITTEN if row.symmetric and row.recipe != TYPED)
    return counts.most_common(1)[0][0]


def is_transcoded(source_form: tuple[str, str], target: tuple[str, str]) -> bool:
    """Return True if what one producer stores has a form of another, each with its scheme."""
    form = source_form[0], target[0]
    source, destination = known_recipe(source_form[1]), known_recipe(target[1])
    if source is None or destination is None:
        return False
    return form in source.transcoding.forms_from and form in destination.transcoding.forms_to


def form_names() -> tuple[str, ...]:
    """Return the producers in whose forms checkpoints can be transcoded."""
    return tuple(producer.name for producer in CONVERTED_TO)


def changed_schemes() -> tuple[str, ...]:
    """Return the schemes that others can become with the same values."""
    forms = (form for producer in CONVERTED_TO for form in producer.transcoding.forms_to)
    return tuple(dict.fromkeys(target for scheme, target in forms if target != scheme))


def consumer_named(name: object) -> Consumer:
    try:
        return find_consumer(name)
    except ValueError as error:
        raise CheckpointError(setting("consumer", name) + f" is not known: {error}") from None


def recipe_for(
    consumer: Consumer, names: Sequence[str], recipe: str | None, inputs: str | float | None = None
) -> str:
    """Return the producer whose checkpoints of some schemes a consumer loads."""
    # `inputs` is what these state of inputs; None for any.
    producer = known_recipe(recipe)
    recipe_name = recipe if producer is None else producer.name
    for loading in consumer.loads:
        is_loaded = {*names} <= {*loading.with_inputs(inputs)}
        states = all(_states(name, loading.recipe, inputs) for name in names)
        if recipe_name in {None, loading.recipe} and is_loaded and states:
            return recipe or loading.recipe
    rows = [
        (loading.recipe, loading.with_inputs(inputs))
        for loading in consumer.loads
        if inputs is None or states_inputs(loading.recipe)
    ]
    loads = ", ".join(f"{name} ({', '.join(each)})" for name, each in rows if each)
    storage_text = "" if recipe is None else f" as {recipe} stores it"
    storage_text += "" if inputs is None else " with " + argument("inputs", inputs)
    loaded = {
        name
        for loading in consumer.loads
        if recipe_name in {None, loading.recipe}
        for name in loading.with_inputs(inputs)
        if _states(name, loading.recipe, inputs)
    }
    together = " together in one checkpoint" if {*names} <= loaded and len({*names}) > 1 else ""
    raise CheckpointError(
        setting("consumer", consumer.name)
        + f" does not load {', '.join(names)}{together}"
        + storage_text
        + f"; it loads {loads or 'none so'}"
    )


def states_inputs(recipe: str) -> bool:
    """Return True if configurations, and not the types of tensors, state what a producer stores."""
    producer = find_recipe(recipe)
    return bool(producer.writing.rows) and producer.name != TYPED


def _states(scheme: str, recipe: str, inputs: str | float | None) -> bool:
    """Return True if a checkpoint of a producer can state inputs of a scheme so; None for any."""
    return inputs is None or any(
        (row.scheme, row.recipe) == (scheme, recipe) for row in _rows_with_inputs(inputs)
    )


def _rows_with_inputs(inputs: str | float) -> list[Written]:
    """Return the rows that state inputs so: a word, or a constant scale."""
    kind = inputs if isinstance(inputs, str) else "constant"
    return [row for row in (*WRITTEN, *WRITTEN_WITH_INPUTS) if row.inputs == kind]


def are_inputs_plain(schemes: Collection[str], recipe: str) -> bool:
    """Return True for codes that engines multiply only if inputs are stated as quantized, too."""
    # Few engines multiply codes of 4 bits; and those of MX in any case. False where another scheme
    # of the same checkpoint cannot state it.
    if not all(_states(scheme, recipe, "dynamic") for scheme in schemes):
        return False
    rows = [written_row(scheme, recipe) for scheme in schemes if scheme in _MULTIPLIED]
    return bool(rows) and all(row.inputs == "none" for row in rows)


def written_names(names: Collection[str | None]) -> list[str]:
    """Return the schemes among names of formats and schemes, each once."""
    return sorted({row.scheme for row in WRITTEN}.intersection(names) - {None})


def needed_inputs(consumer: str | None, recipe: str, scheme: str) -> str | None:
    """Return what must be stated of inputs for a consumer to load a scheme; None for anything."""
    if consumer is None:
        return None
    producer = find_recipe(recipe).name
    rows = (row for row in find_consumer(consumer).loads if row.recipe == producer)
    return "dynamic" if any(scheme in row.only_dynamic for row in rows) else None


def padding_problem(row: Written, rows: int, columns: int) -> str | None:
    """Say why a producer cannot hold a matrix without padding; None if it can."""
    if rows % row.tile[0] == 0 and columns % row.tile[1] == 0:
        return None
    high, wide = row.tile
    return (
        f"{row.recipe} stores {row.scheme} only in multiples of {high}x{wide}, so that its shape "
        "would be lost"
    )


def loading_warning(
    # The producer, None for one file, which transformers does not load; and the schemes of its
    # weights
    recipe: str | None,
    names: Collection[str],
    # The format of most floating tensors that are not quantized; None if there are none
    plain_format: str | None,
) -> str | None:
    """Say why transformers does not run a folder as it stands, with a remedy; None if it does."""
    producer = known_recipe(recipe)
    if producer is not None and producer.writing.loading_warning is not None:
        return producer.writing.loading_warning
    # Tried with transformers 5.23 and compressed-tensors 0.20.
    for name in sorted(names) if recipe else ():
        if not loads_by_default("transformers", recipe or "", name, plain_format):
            return (
                f"the quantized model needs dtype=torch.bfloat16 in transformers, which decodes "
                f"{name} to bfloat16 while the other tensors are {plain_format}; or cast the model "
                "to bfloat16 first"
            )
    return None


# That and its reciprocal are normal numbers of float32.
_LEAST_SCALE = 2.0**-126


@cache
def _names() -> frozenset[str]:
    return frozenset((*(scheme.name for scheme in schemes()), *scheme_names()))


def is_scheme(name: object) -> bool:
    return isinstance(name, str) and name in _names()


def is_scheme_or_mix(name: object) -> bool:
    """Return True for the name of a scheme, or of a mix of llama.cpp."""
    return is_scheme(name) or (isinstance(name, str) and name in MIXES)


def written_row(scheme: object, recipe: str | None, inputs: str | float | None = None) -> Written:
    """Return the row of a scheme and a producer, by default the first of the scheme."""
    # `inputs` is what it states of inputs; None for what its producer states by default.
    scheme_name = scheme_named(scheme).name
    rows = {row.recipe: row for row in WRITTEN if row.scheme == scheme_name}
    if recipe is None or recipe in rows:
        if inputs is None:
            return rows[recipe or next(iter(rows))]
        return _row_with_inputs(scheme_name, recipe, inputs)
    schemes_of_recipe = [row.scheme for row in WRITTEN if row.recipe == recipe]
    producers = dict.fromkeys(row.recipe for row in WRITTEN)
    hint = f"; {recipe} is written as {', '.join(schemes_of_recipe)}" if schemes_of_recipe else ""
    if not schemes_of_recipe and (near := suggestion(recipe, producers)):
        hint = f"; {near.rstrip()}"
    raise CheckpointError(
        setting("recipe", recipe)
        + " and "
        + setting("scheme", scheme_name)
        + f" do not go together: checkpoints of {scheme_name} "
        f"are written as by {', '.join(rows)}{hint}"
    )


def row_with_zeros(scheme: str, recipe: str, inputs: str | float | None) -> Written | None:
    """Return the row of a scheme that a producer stores with zero points; None if there is none."""
    rows = (row for row in WRITTEN_WITH_ZEROS if (row.scheme, row.recipe) == (scheme, recipe))
    return next((row for row in rows if inputs in {None, row.inputs}), None)


def check_zeros(names: Sequence[str], recipe: str, inputs: str | float | None) -> None:
    """Refuse zero points that none of some schemes has."""
    if any(row_with_zeros(name, recipe, inputs) for name in names):
        return
    problem = (
        argument("zero_points", True)
        + f": {recipe} stores {' and '.join(names)} without zero points"
        + ("" if inputs is None else " beside " + argument("inputs", inputs))
    )
    if any(row_with_zeros(name, recipe, None) for name in names):
        raise CheckpointError(
            problem + "; leave out " + argument("zero_points") + " or " + argument("inputs")
        )
    others: dict[str, list[str]] = {}
    for row in WRITTEN_WITH_ZEROS:
        others.setdefault(row.recipe, []).append(row.scheme)
    texts = (f"{', '.join(schemes)} of {name}" for name, schemes in others.items())
    beside = "" if inputs is None else ", without " + argument("inputs")
    raise CheckpointError(problem + f"; leave it out, or use {'; '.join(texts)}" + beside)


def checked_inputs(value: object) -> str | None:
    """Return what is to be stated of inputs without a scale."""
    if value is not None and not (isinstance(value, str) and value in get_args(Inputs)):
        raise CheckpointError(
            setting("inputs", value) + f" is not valid; use one of {', '.join(get_args(Inputs))}"
        )
    return None if value is None else str(value)


def checked_inputs_or_scale(value: object) -> str | float | None:
    """Return what is to be stated of inputs, or a constant scale of them."""
    if value is None or (isinstance(value, str) and value in get_args(Inputs)):
        return checked_inputs(value)
    try:
        number = float(value) if is_real(value) else math.nan
    except OverflowError:  # of an int
        number = math.inf
    if not _LEAST_SCALE <= number <= 1 / _LEAST_SCALE:
        raise CheckpointError(
            setting("inputs", value) + f" is not valid; use {', '.join(get_args(Inputs))}, or "
            f"a number from {_LEAST_SCALE:.3g} to {1 / _LEAST_SCALE:.3g}"
        )
    return number


def _row_with_inputs(scheme: str, recipe: str | None, inputs: str | float) -> Written:
    """Return the row of a scheme, by default the first, that states inputs so."""
    rows = _rows_with_inputs(inputs)
    fitting = [row for row in rows if row.scheme == scheme]
    fitting.sort(key=lambda row: recipes().index(row.recipe))
    row = next((row for row in fitting if recipe in {None, row.recipe}), None)
    if row is not None:
        return row
    others = dict.fromkeys(row.scheme for row in rows if recipe in {None, row.recipe})
    remedies = ["leave it out"]
    if others:
        remedies.append(f"use another scheme ({', '.join(others)})")
    if fitting:
        remedies.append(f"use another recipe ({', '.join(row.recipe for row in fitting)})")
    states = {
        "none": "not quantized",
        "dynamic": "quantized while the model runs",
        "float8": "quantized to float8 while the model runs",
    }
    state = states.get(str(inputs), "quantized with a constant scale")
    raise CheckpointError(
        setting("inputs", inputs) + f": a checkpoint {f'of {recipe} ' if recipe else ''}does not "
        f"state that inputs of {scheme} are {state}; {', or '.join(remedies)}"
    )


def encoding(row: Written, block: tuple[int, int] | None) -> Encoding:
    default = row.block or row.row.block
    if block is None or block == default:
        return Encoding(row, default)
    is_free = row.scheme.endswith("_block") or (row.scheme.endswith("_group") and block[0] == 1)
    is_free = is_free and not row.only_default
    if not is_free or min(block) < 1 or (row.square and block[0] != block[1]):
        rows, columns = default
        text = f"{rows}x{columns}" if min(default) else "what the scheme says"
        is_of_inputs = row.only_default and row.inputs
        beside = " beside " + argument("inputs", row.inputs) if is_of_inputs else ""
        raise CheckpointError(
            argument("block") + f" {block[0]}x{block[1]} is not one of {row.scheme}" + beside + "; "
            f"use {text}"
        )
    return Encoding(row, block)


def statements(
    encodings: Mapping[str, Encoding],
    plain_modules: Sequence[str],
    *,
    inputs: bool = False,
    embeddings: frozenset[str] = frozenset(),
) -> Statements:
    """Return what states how modules are stored, given those that are kept."""
    # `inputs` says that there are scales of their inputs, too; `embeddings` are those of the
    # modules that are no linear layers.
    recipe = next(iter(encodings.values())).written.recipe
    distinct = list(dict.fromkeys(encodings.values()))
    if len(distinct) > 1 and recipe not in SEVERAL:
        names = ", ".join(dict.fromkeys(encoding.written.scheme for encoding in distinct))
        raise CheckpointError(
            setting("recipe", recipe) + " states one scheme for a whole checkpoint, not "
            f"{names}; leave one " + parenthesis("ignore") + f", or use {', '.join(SEVERAL)}"
        )
    write = find_recipe(recipe).writing.write
    assert write is not None, "by `written`"  # noqa: S101
    return write(EncodedModules(encodings, plain_modules, inputs, embeddings))
