"""Advise which format or scheme each weight of a checkpoint gets."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from castwise._numbers import BYTE_BITS, is_real
from castwise._options import SAFETENSORS, ConsumerName, PathArgument, Scales, WrittenRecipe
from castwise.arrays.dtype_map import KEEP
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.advice._candidates import (
    WIDE_FORMATS,
    Candidates,
    EntrySizes,
    find_candidates,
    plain_encode,
)
from castwise.checkpoint.advice._consumers import limits_of
from castwise.checkpoint.advice._knapsack import Option, Solution, front, hull, solve
from castwise.checkpoint.advice._result import check_result, file_bytes
from castwise.checkpoint.advice._surveying import Surveyed, survey_weights
from castwise.checkpoint.advice.advice import Advice, Alternative, Choice, FrontPoint
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.files.paths import checked_path, refuse_url
from castwise.checkpoint.loading.modules import UnloadableError
from castwise.checkpoint.planning.checkpoint_model import checked_architecture
from castwise.checkpoint.planning.component import pattern_of
from castwise.checkpoint.planning.decode.options import checked_threads
from castwise.checkpoint.planning.encode.encode import TABLES, statement_sizes
from castwise.checkpoint.planning.importance import OLD_SUFFIXES, Importance, are_numbers, as_array
from castwise.checkpoint.planning.written_schemes import is_scheme
from castwise.checkpoint.requests.quantize import checked_embeddings, checked_scales
from castwise.checkpoint.results.report import KeptTensors, Progress, kept_tensors
from castwise.checkpoint.running.other_files import OtherFiles, Patterns
from castwise.checkpoint.running.sharding import size_in_bytes
from castwise.models.model import MATRIX, WEIGHT
from castwise.quantization.producers.registry import TYPED
from castwise.text.spelling import nearest
from castwise.text.wording import argument, function, join, parenthesis, quote, setting

# As in `model.layers.0.mlp.experts.5.up_proj.weight`.
_EXPERT = re.compile(r"\.experts\.\d+\.")
# A model of many layers has thousands of points, which no picture tells apart.
_FRONT_POINTS = 200
# How much a sum of thousands of float64 may be off, relatively: as many ulps, of 2**-53 each.
_ROUNDING = 1e-12
# How many times the part of an error counts that is above that of the best single scheme that fits.
# What weights count is a guess: where it is wrong, a choice that takes bits from some weights loses
# to that scheme. `benches/README.md` has the measurements.
_CAUTION = 1.5
# By how much more error one scheme for all may be predicted, and is chosen all the same. Where the
# prediction differs by less, outputs need not: `benches/real` has the measurements.
_MARGIN = 0.15

# Bytes of a header or an index without its entries and metadata, at most.
_HEAD_BYTES = 96

# A header of safetensors ends at a multiple of 8 bytes.
_ALIGNMENT = 8
_BESIDE = "files and headers"


def advise(
    source: str | os.PathLike[str],
    *,
    budget: int | str | None = None,
    bits: float | None = None,
    error: float | None = None,
    formats: Sequence[str] | None = None,
    recipe: WrittenRecipe | None = None,
    consumer: ConsumerName | None = None,
    groups: Mapping[str, str] | Sequence[str] | None = None,
    importance: Mapping[str, float] | str | os.PathLike[str] | None = None,
    ignore: str | Sequence[str] = (),
    quantize_embeddings: bool | None = None,
    scales: Scales = "amax",
    architecture: PathArgument | None = None,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Advice:
    """Advise which format or scheme each weight gets, within bytes, bits or an error.

    castwise reads and surveys every weight once, and predicts from the survey the losses of each
    format and scheme. The choices have the least sum of relative squared errors (the loss of a
    model grows with this sum: Malinovskii and others, HIGGS, arXiv 2411.17525). The losses of types
    of llama.cpp are measured, on 65,536 elements of each weight or more. castwise chooses
    one scheme for all weights if it fits and its sum is at most 15 % larger. Of an error above that
    of the best single scheme that fits, the part above it counts 1.5 times. Weights that engines
    fuse (q, k and v; gate and up), and the experts of a layer, share a choice. Routers get at least
    16 bits, and so do embeddings and heads for consumers that do not load them quantized. Norms and
    other one-dimensional tensors do not change.

    Parameters
    ----------
    source
        A checkpoint that is not quantized, as `quantize_file` takes it, also a .gguf file.
    budget
        Bytes that the whole checkpoint may take: scales, headers and copied files included. A
        number, or text such as "24GB" or "22GiB".
    bits
        Instead of `budget`: bits of the whole checkpoint per element of its floating tensors.
    error
        Instead of `budget`: the largest mean relative squared error of the weights. The result has
        the fewest bytes with this error: 1e-3 is about that of float8, 1e-2 that of 4 bits.
    formats
        The schemes and formats to choose from: schemes that the recipe writes, "bfloat16",
        "float16"; for a .gguf file schemes only. By default all. Any weight may also remain
        unchanged.
    recipe
        The producer whose schemes are considered; by default that of the most schemes, or the first
        of the consumer, and "gguf" of a .gguf file. If it states one scheme for a whole checkpoint,
        castwise tries each scheme for all weights.
    consumer
        The program that will load the result: one of `castwise.quantization.consumers()`. castwise
        considers the schemes that it loads, and for experts those that it loads for experts. None:
        all schemes.
    groups
        Regular expressions of weights that share a choice: their whole names match the same
        expression, with the same text in each of its groups.
    importance
        How much the loss of the model grows with the relative squared error of each weight: a
        mapping from names to numbers that are not negative, or its file (JSON, npz or
        safetensors). The unit is free. By default each counts by the logarithm of its elements, but
        a head, and an embedding that is one too, as much as all others together; else each weight
        that may change needs a number, and other names are ignored. Of use are the loss with only
        that weight quantized over its relative squared error, and its Fisher trace times the mean
        of its squared elements (the loss grows by half the trace times the mean squared error: Dong
        and others, HAWQ-V2, arXiv 1911.03852).
    ignore
        Regular expressions of weights that you do not use, or of modules that hold them, such as
        "pooler". Their errors do not count, and they get the fewest bytes.
    quantize_embeddings
        Whether embeddings and heads may get schemes. None: they may if no consumer is named, or if
        the consumer loads them quantized.
    scales
        Which scale each block gets, as in `quantize_file`. The losses of schemes that have such a
        choice are predicted with it.
    architecture
        As in `quantize_file`.
    threads
        How many threads may survey.
    progress
        Called when a tensor begins, and at the end.

    Returns
    -------
    Advice
        The choices, the map that `quantize_file` takes, and the front of bytes and errors.

    Raises
    ------
    CheckpointError
        Nothing fits, with the bytes by role; the checkpoint is quantized; a group, an importance or
        what to ignore names no weight; or the consumer is not known, or does not load the recipe, a
        format, quantized embeddings that are asked for, or such a model.
    ValueError, TypeError
        An argument is wrong.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> weight = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
    >>> checkpoint.save("model.safetensors", {"fc.weight": weight})
    >>> advice = checkpoint.advise("model.safetensors", bits=9)
    >>> [(choice.tensors, choice.target) for choice in advice.choices]
    [(('fc.weight',), 'mxfp6_e2m3')]

    """
    limit = _Limit.of(budget, bits, error)
    path = source_path(source, "source")
    workers = checked_threads(threads)
    with open_checkpoint(path, decodes=True) as checkpoint:
        limits = None if consumer is None else limits_of(checkpoint, consumer, recipe)
        candidates = find_candidates(
            checkpoint,
            formats,
            recipe,
            workers,
            limits,
            embeddings=checked_embeddings(quantize_embeddings, consumer),
            architecture=checked_architecture(architecture),
        )
        targets = dict.fromkeys(name for row in candidates.nbytes.values() for name in row)
        checked_scales(scales, [*filter(is_scheme, targets)], candidates.recipe)
        is_typed = candidates.recipe == TYPED
        if is_typed or (limits is not None and limits.consumer.form is not None):
            # Before weights are read, which takes longer.
            check_result(checkpoint, candidates, _any_schemes(candidates))
        weights = _importances(importance, candidates)
        weights |= dict.fromkeys(_ignored_weights(ignore, candidates), 0.0)
        weight_groups = _groups(groups, candidates)
        surveys = survey_weights(checkpoint, candidates, scales, workers, progress)
        exponents = [_sum_exponents(names, surveys) for names in weight_groups]
        size = _Size.of(checkpoint, candidates)
        statement_sizes = _StatementSizes(checkpoint, candidates, workers)

        def best_of(rows: Candidates) -> Advice:
            problems = [
                _Problem(
                    str(source),
                    alternative,
                    weight_groups,
                    surveys,
                    weights,
                    (size, limit, statement_sizes),
                    exponents=exponents,
                )
                for alternative in rows.alternatives()
            ]
            problems.sort(key=_Problem.least_bytes)
            return _best([problem.advice for problem in problems])

        def loadable(rows: Candidates) -> Advice:
            """Choose, and choose again without the schemes of weights that would not be loaded."""
            advice = best_of(rows)
            while advice.quantizes:
                try:
                    check_result(checkpoint, rows, advice.map)
                    break
                except UnloadableError as refusal:
                    schemes = _unloadable_schemes(advice, refusal)
                    if not schemes:
                        raise
                    rows = rows.without(schemes)
                    try:
                        advice = best_of(rows)
                    except CheckpointError:  # what is left does not fit
                        raise refusal from None
            return advice

        advice = _first_loadable(loadable, candidates)
        advice = replace(advice, scales=scales, stays=_stays(checkpoint, candidates))
    if limits is not None and limits.consumer.form is not None and not advice.quantizes:
        raise CheckpointError(
            f"{source} would keep every weight as it is, and castwise makes {limits.consumer.form} "
            f"of quantized models only; use {limits.consumer.name}'s own converter, or limit more"
        )
    return advice


def _any_schemes(candidates: Candidates) -> dict[str, str]:
    """Return a scheme for each weight that may get one, by the keys of a map."""
    return {_key(name): scheme for name, scheme in _first_schemes(candidates).items()}


def _first_schemes(candidates: Candidates) -> dict[str, str]:
    schemes = {name: [*filter(is_scheme, sizes)] for name, sizes in candidates.nbytes.items()}
    return {name: targets[0] for name, targets in schemes.items() if targets}


def _first_loadable(loadable: Callable[[Candidates], Advice], candidates: Candidates) -> Advice:
    """Return advice with what is loaded by default, mixed or of one scheme, or with the rest."""
    refusals: list[CheckpointError] = []
    defaults = candidates.by_default()
    for rows in [defaults] if defaults is candidates else [defaults, candidates]:
        for is_alone in (False, True):
            try:
                parts = rows.each_alone() if is_alone else [rows]
                return _best([partial(loadable, part) for part in parts])
            except CheckpointError as refusal:
                refusals.append(refusal)
                if not isinstance(refusal, UnloadableError):
                    break
    raise refusals[0]


def _unloadable_schemes(advice: Advice, refusal: UnloadableError) -> dict[str, str]:
    """Return the schemes of weights in modules that would not be loaded."""
    modules = {problem.module for problem in refusal.problems}
    return {
        name: choice.target
        for choice in advice.choices
        if is_scheme(choice.target)
        for name in choice.tensors
        if not modules.isdisjoint((text := name.removesuffix(WEIGHT), text.rpartition("/")[2]))
    }


def _stays(checkpoint: Checkpoint, candidates: Candidates) -> tuple[KeptTensors, ...]:
    """Count by role and reason what has no scheme to choose from."""
    infos = checkpoint.tensors
    rows = (
        (info, candidates.model.role(name), _reason(name, candidates))
        for name, info in infos.items()
        if not any(map(is_scheme, candidates.nbytes.get(name, ())))
    )
    return tuple(kept_tensors(rows, sum(info.nbytes for info in infos.values())))


def _reason(name: str, candidates: Candidates) -> str:
    """Say why a tensor has no scheme to choose from."""
    model, limits = candidates.model, candidates.limits
    if model.role(name) in TABLES:
        if limits is not None and not limits.consumer.embeddings:
            return f"{limits.consumer.name} loads none that is quantized"
        if not candidates.embeddings:
            return argument("quantize_embeddings") + " says so"
    reason = model.reason(name, None if limits is None else limits.consumer.name)
    return reason or f"{candidates.recipe} stores no such weights"


def _best(choosers: Sequence[Callable[[], Advice]]) -> Advice:
    """Return the best advice of all; the refusal of the first if none of them fits."""
    # Its gap is to the least that any of them might have.
    advices: list[Advice] = []
    refusals: list[CheckpointError] = []
    for choose in choosers:
        try:
            advices.append(choose())
        except CheckpointError as error:
            refusals.append(error)
    if not advices:
        raise refusals[0]
    if advices[0].gap is None:  # the error was limited
        best = min(advices, key=lambda advice: (advice.nbytes, advice.error))
        gaps = (best.nbytes - advice.nbytes + (advice.nbytes_gap or 0) for advice in advices)
        return replace(best, nbytes_gap=max(gaps))
    best = min(advices, key=lambda advice: (advice.error, advice.nbytes))
    return replace(
        best, gap=max(best.error - advice.error + (advice.gap or 0.0) for advice in advices)
    )


@dataclass(frozen=True, slots=True)
class _Limit:
    """What is limited: bytes, bits of an element, or the mean error."""

    nbytes: int | None
    bits: float | None
    error: float | None

    @classmethod
    def of(cls, budget: object, bits: object, error: object) -> _Limit:
        limits = {"budget": budget, "bits": bits, "error": error}
        names = [name for name, value in limits.items() if value is not None]
        if len(names) != 1:
            raise ValueError(
                f"give one of {', '.join(map(argument, limits))}"
                + (f", not {len(names)}" if names else "")
            )
        name = names[0]
        if name == "budget":
            return cls(size_in_bytes("budget", budget), None, None)
        value = limits[name]
        if not is_real(value):
            raise TypeError(setting(name, value) + " is not a number")
        if not (math.isfinite(value) and value > 0):
            raise ValueError(setting(name, value) + " is not valid; use a number above 0")
        return cls(None, value if name == "bits" else None, value if name == "error" else None)


def _groups(
    given_groups: Mapping[str, str] | Sequence[str] | None, candidates: Candidates
) -> list[list[str]]:
    """Return the weights that share a choice, in the order of the checkpoint."""
    if isinstance(given_groups, str | bytes):
        raise TypeError(
            argument("groups") + " must be a list of regular expressions, or names with one each, "
            f"not {given_groups!r}; give [{given_groups!r}]"
        )
    if not isinstance(given_groups, Iterable | None):
        raise TypeError(
            setting("groups", given_groups)
            + " is not a list of regular expressions, or names with one each"
        )
    texts = list(given_groups.values() if isinstance(given_groups, Mapping) else given_groups or ())
    patterns = [(text, pattern_of("groups", text)) for text in texts]
    used: set[str] = set()
    members: dict[Any, list[str]] = {}
    alike = "matrix" if candidates.limits is None else candidates.limits.loading.alike
    consumer = None if candidates.limits is None else candidates.limits.consumer.name
    for name in candidates.tensors:
        key: Any = _usual_group(name, alike, candidates, consumer)
        for text, pattern in patterns:
            if pattern.find(name) is not None:
                used.add(text)
                key = text, () if text == name else tuple(pattern.groups(text, name))
                break
        members.setdefault(key, []).append(name)
    for text, pattern in patterns:
        if text not in used:
            example = next((name for name in candidates.tensors if pattern.find(name)), None)
            raise CheckpointError(
                setting("groups", text)
                + " matches no weight that may change; the first of these is "
                f"{next(iter(candidates.tensors))!r}"
                if example is None
                else setting("groups", text) + " matches weights of groups before it alone, as "
                f"{example!r}; put it first, or leave it out"
            )
    return list(members.values())


def _ignored_weights(ignore: str | Sequence[str], candidates: Candidates) -> list[str]:
    if not isinstance(ignore, str | Sequence):
        raise TypeError(f"ignore is a regular expression or several, not {ignore!r}")
    names: list[str] = []
    for text in (ignore,) if isinstance(ignore, str) else ignore:
        pattern = pattern_of("ignore", text)
        matches = [
            name
            for name in candidates.tensors
            # The names of the modules that hold it, the outermost first, and its own.
            for parents in [itertools.accumulate(name.split("."), "{}.{}".format)]
            if any(pattern.find(module) is not None for module in parents)
        ]
        if not matches:
            near = nearest([text], candidates.tensors)[text]
            raise CheckpointError(
                setting("ignore", text)
                + " matches no weight that may change"
                + ("; did you mean " + quote(re.escape(near)) + "?" if near else "")
            )
        names += matches
    if len(set(names)) == len(candidates.tensors):
        raise CheckpointError(
            setting("ignore", ignore) + " matches every weight that may change; leave some out"
        )
    return names


def _usual_group(name: str, alike: str, candidates: Candidates, consumer: str | None) -> str:
    """Return what weights share that engines fuse, or that are experts of a layer or model."""
    model = candidates.model
    layer = model.layer_of_expert(name)
    if layer is not None and alike != "matrix":
        return f"{layer if alike == 'layer' else ''}.experts.*"
    # llama.cpp fuses none, and its own mixes have other types for q, k and v.
    partners = (name,) if candidates.recipe == TYPED else model.partners(name, consumer)
    return _EXPERT.sub(".experts.*.", min(partners))


def _importances(
    importance: Mapping[str, float] | str | os.PathLike[str] | None, candidates: Candidates
) -> dict[str, float]:
    """Return how much the error of each weight counts."""
    if importance is None:
        # `benches/real` has figures. No norm or sum is between the error of a head and the logits.
        infos = candidates.tensors
        counts = {name: _count(info.shape, name, candidates) for name, info in infos.items()}
        heads = [name for name in infos if candidates.model.is_head(name)]
        rest = sum(counts[name] for name in infos if name not in heads) or 1.0
        return counts | dict.fromkeys(heads, rest)
    origin, rows = "importance", importance
    if not isinstance(rows, Mapping):
        refuse_url("importance", rows)
        path = checked_path(rows, "importance")
        origin, is_old = str(path), path.suffix.lower() in OLD_SUFFIXES
        rows = {} if is_old else Importance.open(path)
        if is_old or (isinstance(rows, Importance) and rows.is_by_channel):
            raise CheckpointError(
                f"{path} has numbers of input channels, which "
                + function("quantize")
                + " takes; give one number for each weight: how much the loss grows with its "
                "relative squared error"
            )
    numbers = {
        name: _number(f"{origin}: {name!r}", rows[name])
        for name in rows
        if name in candidates.tensors
    }
    if not numbers:
        raise CheckpointError(
            f"{origin} names no weight that may change; the first of these is "
            f"{next(iter(candidates.tensors))!r}"
        )
    missing = [name for name in candidates.tensors if name not in numbers]
    if missing:
        raise CheckpointError(
            f"{origin} has no number for {missing[0]!r} and {len(missing) - 1:,} other weights; "
            "give one for each"
        )
    if not math.isfinite(sum(numbers.values())):
        raise CheckpointError(
            f"{origin} adds up to more than a float holds; divide all of its numbers by the largest"
        )
    if not any(numbers.values()):
        raise CheckpointError(
            f"{origin} is 0 for every weight that may change; give a number above 0 for at least "
            "one, or leave " + argument("importance") + " out"
        )
    return numbers


def _count(shape: Sequence[int], name: str, candidates: Candidates) -> float:
    """Return how much a weight counts that is no head: the experts of a stack as each alone."""
    is_stack = len(shape) > MATRIX and candidates.model.layer_of_expert(name) is not None
    experts = shape[0] if is_stack else 1
    return experts * math.log1p(math.prod(shape[is_stack:]))


def _number(origin: str, value: Any) -> float:  # noqa: ANN401  (of a file)
    array = as_array(value)
    if array.size != 1:
        raise CheckpointError(
            f"{origin} has {array.size:,} elements; give one number for each weight: how much the "
            "loss grows with its relative squared error. Numbers by input channel are not taken"
        )
    if not are_numbers(array):
        raise CheckpointError(f"{origin} is {value!r}; use a number such as 0.5")
    number = float(array.reshape(()))
    if not (math.isfinite(number) and number >= 0):
        raise CheckpointError(f"{origin} is {number}; use a finite number that is not negative")
    return number


class _TooFewBytesError(Exception):
    """Nothing fits."""


@dataclass(frozen=True, slots=True)
class _Size:
    """The bytes of the checkpoint, those that no choice changes, and its elements."""

    nbytes_before: int
    fixed_bytes: int
    # What the sum counts too much where every weight stays: entries of headers are at most so.
    excess: int
    parameters: int
    # The bytes that no choice changes, by the role of the tensor.
    roles: Mapping[str, int]

    @classmethod
    def of(cls, checkpoint: Checkpoint, candidates: Candidates) -> _Size:
        shards = checkpoint.shards
        infos, entries = checkpoint.tensors, EntrySizes.of(checkpoint, candidates.recipe)
        others = [name for name in infos if name not in candidates.tensors]
        heads = sum(_HEAD_BYTES + len(json.dumps(shard.metadata)) for shard in shards.values())
        side_bytes, indices = _beside_bytes(checkpoint)
        heads += _HEAD_BYTES * max(len(indices), 1) if checkpoint.is_folder else 0
        roles = Counter[str]()
        for name in others:
            roles[candidates.model.role(name)] += infos[name].nbytes + entries.nbytes(name)
        is_typed = candidates.recipe == TYPED
        roles[_BESIDE] = (
            _fixed_bytes(checkpoint, candidates, entries) - roles.total()
            if is_typed
            else heads + side_bytes
        )
        paths = (
            [checkpoint.path / name for name in shards]
            if checkpoint.is_folder
            else [checkpoint.path]
        )
        nbytes_before = sum(path.stat().st_size for path in (*paths, *indices)) + side_bytes
        fixed_bytes = roles.total()
        whole = fixed_bytes + sum(sizes[KEEP] for sizes in candidates.nbytes.values())
        return cls(
            nbytes_before,
            fixed_bytes,
            max(whole - nbytes_before, 0)
            if all(path.suffix == SAFETENSORS for path in paths) and not is_typed
            else 0,
            sum(math.prod(info.shape) for info in infos.values() if info.kind == "float"),
            roles,
        )


def _fixed_bytes(checkpoint: Checkpoint, candidates: Candidates, entries: EntrySizes) -> int:
    """Return the bytes of a file of a whole model without the weights that may change."""
    schemes = _first_schemes(candidates)
    nbytes = file_bytes(checkpoint, candidates, _any_schemes(candidates))
    for name, sizes in candidates.nbytes.items():
        nbytes -= sizes[schemes.get(name, KEEP)] - entries.nbytes(name)
    return nbytes


def _beside_bytes(checkpoint: Checkpoint) -> tuple[int, list[Path]]:
    """Return the bytes of the files beside the shards that the result has, too, and the indices."""
    # The entries of these are counted with the tensors.
    if not checkpoint.is_folder:
        return 0, []
    copy_bytes, _ = OtherFiles(checkpoint, Patterns(), keeps_all=False).size(checkpoint.path)
    names = {component.index_name for component in checkpoint.components} - {None}
    paths = [checkpoint.path / name for name in checkpoint.consumed]
    files = [path for path in paths if path.is_file()]
    indices = [path for path in files if str(path.relative_to(checkpoint.path)) in names]
    nbytes = sum(path.stat().st_size for path in files if path not in indices)
    return copy_bytes + nbytes, indices


def _key(name: str) -> str:
    """Return the key of a map that is of one weight; in parentheses none is "default"."""
    return f"({re.escape(name)})"


class _StatementSizes:
    """The bytes of what states the schemes of any choice for a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, candidates: Candidates, threads: int) -> None:
        self._checkpoint, self._candidates, self._threads = checkpoint, candidates, threads
        self._count_bytes: Callable[[Mapping[str, str]], int] | None = None
        self._known: dict[frozenset[tuple[str, str]], int] = {}

    def nbytes(self, choices: Iterable[tuple[Sequence[str], str]]) -> int:
        """Return the bytes for the names of groups with their schemes."""
        rows = [(names, target) for names, target in choices if is_scheme(target)]
        if not rows:
            return 0
        # Weights of a group have its choice, and choices within other limits are often the same.
        key = frozenset((names[0], target) for names, target in rows)
        if key in self._known:
            return self._known[key]
        schemes = {name: target for names, target in rows for name in names}
        if self._count_bytes is None:
            encode = plain_encode(self._candidates.recipe, self._threads)
            is_file = not self._checkpoint.is_folder
            self._count_bytes = statement_sizes(self._checkpoint, encode, is_file=is_file)
        self._known[key] = self._count_bytes(schemes)
        return self._known[key]


def _sum_exponents(names: Sequence[str], surveys: Mapping[str, Surveyed]) -> dict[int, int]:
    """Return how many elements of some weights have each exponent."""
    counts: dict[int, int] = defaultdict(int)
    for name in names:
        for exponent, count in surveys[name].exponents.items():
            counts[exponent] += count
    return dict(sorted(counts.items()))


class _Problem:
    """The choices, and what limits them."""

    def __init__(  # noqa: PLR0917
        self,
        source: str,
        candidates: Candidates,
        groups: Sequence[Sequence[str]],
        surveys: Mapping[str, Surveyed],
        importance: Mapping[str, float],
        limits: tuple[_Size, _Limit, _StatementSizes],
        *,
        exponents: Sequence[dict[int, int]],  # of each group
    ) -> None:
        self._source, self._candidates, self._groups = source, candidates, groups
        self._size, self._limit, self._statement_sizes = limits
        self._surveys = surveys
        self._total = sum(importance.values()) or 1.0
        self._options: list[list[Alternative]] = []
        self._exponents = exponents
        for names in groups:
            rows = [surveys[name] for name in names]
            sizes = [candidates.nbytes[name] for name in names]
            weights = [importance[name] for name in names]
            shared_targets = {*sizes[0]}.intersection(*sizes[1:])
            options = [
                Alternative(
                    target,
                    sum([size[target] for size in sizes]),
                    sum([w * row.errors[target] for w, row in zip(weights, rows, strict=True)]),
                )
                for target in sizes[0]
                if target in shared_targets
            ]
            # In other formats some values would be infinite. That weights stay is among the rest.
            self._options.append([option for option in options if math.isfinite(option.error)])

    def advice(self) -> Advice:
        """Choose, and say what else there was, or refuse a limit that nothing fits."""
        try:
            return self._choose()
        except _TooFewBytesError:
            raise self._refusal() from None

    def _choose(self) -> Advice:
        """Choose one scheme for all, if that is as good, else the best mixture."""
        limit = self._most_bytes()
        if limit is not None and limit >= self._size.nbytes_before:
            limit += self._size.nbytes_before  # every weight may stay: nothing is limited
        first = self._solve(self._weighed_options, limit, 0)
        if limit is None:
            assert self._limit.error is not None  # noqa: S101
            most_bytes, most_error = self._nbytes(first), self._limit.error * self._total
            uniforms = [
                row for row in self._uniforms() if row.weight <= most_error * (1 + _ROUNDING)
            ]
        else:
            most_bytes, uniforms = limit, self._uniforms()
        uniform = next((row for row in uniforms if self._nbytes(row) <= most_bytes), None)
        if limit is None:
            solution = uniform or first
            more_bytes = math.ceil(max(solution.cost - first.cost + first.gap, 0.0))
            return self._advice(solution, nbytes_gap=more_bytes + self._statement_bytes(solution))
        solution = self._fit(self._cautious_options(uniform), limit)
        solution = self._solution(solution.indices)
        if uniform is not None and uniform.cost <= solution.cost * (1 + _MARGIN):
            solution = uniform
        excess = max(solution.cost - first.cost + first.gap, 0.0)
        return self._advice(solution, gap=excess / self._total)

    def _fit(self, groups: Sequence[Sequence[Option]], limit: int) -> Solution:
        """Choose within a limit, with room for what states the schemes."""
        reserve = 0
        solution = self._solve(groups, limit, reserve)
        while (nbytes := self._nbytes(solution)) > limit:
            reserve += nbytes - limit  # how much states the schemes follows from the choices
            try:
                solution = self._solve(groups, limit, reserve)
            except _TooFewBytesError:
                solution = self._lightest()
                if self._nbytes(solution) > limit:
                    raise
        return solution

    def _cautious_options(self, uniform: Solution | None) -> list[list[Option]]:
        """Return the options, where errors above those of one scheme for all count more."""
        if uniform is None:
            return self._weighed_options
        return [
            [
                Option(row.error + (_CAUTION - 1) * max(row.error - least.error, 0), row.nbytes)
                for row in options
            ]
            for options, least in zip(self._options, self._chosen(uniform.indices), strict=True)
        ]

    def _uniforms(self) -> list[Solution]:
        """Return the choices of one scheme for all, the best first."""
        # A weight that cannot have the scheme has the best of what is not one, and in half of them
        # embeddings and heads do, too.
        rows: list[Solution] = []
        targets = dict.fromkeys(option.target for row in self._options for option in row)
        for scheme, tables in itertools.product(filter(is_scheme, targets), (True, False)):
            indices: list[int] = []
            for names, options in zip(self._groups, self._options, strict=True):
                is_table = self._candidates.model.role(names[0]) in TABLES
                places = {option.target: place for place, option in enumerate(options)}
                place = places.get(scheme) if tables or not is_table else None
                indices.append(self._wide(options) if place is None else place)
            rows.append(self._solution(indices))
        return sorted(rows, key=lambda row: (row.cost, row.weight))

    @staticmethod
    def _wide(options: Sequence[Alternative]) -> int:
        """Return the option that loses least: of 16 bits, of none that is a scheme, or of all."""
        wide = [place for place, option in enumerate(options) if option.target in WIDE_FORMATS]
        others = [place for place, option in enumerate(options) if not is_scheme(option.target)]
        return min(wide or others or range(len(options)), key=lambda place: options[place].error)

    def _chosen(self, indices: Sequence[int]) -> list[Alternative]:
        """Return what each group becomes."""
        return [row[place] for row, place in zip(self._options, indices, strict=True)]

    def _solution(self, indices: Sequence[int]) -> Solution:
        """Return a choice with its sums: of what is to be the least, and of what is limited."""
        chosen = self._chosen(indices)
        error = sum(option.error for option in chosen)
        nbytes = sum(option.nbytes for option in chosen)
        cost, weight = (error, nbytes) if self._limit.error is None else (nbytes, error)
        return Solution(tuple(indices), cost, weight, 0.0)

    def _statement_bytes(self, solution: Solution) -> int:
        targets = (option.target for option in self._chosen(solution.indices))
        return self._statement_sizes.nbytes(zip(self._groups, targets, strict=True))

    def _nbytes(self, solution: Solution) -> int:
        """Return the bytes of the whole checkpoint."""
        chosen = self._chosen(solution.indices)
        nbytes = self._size.fixed_bytes + sum(option.nbytes for option in chosen)
        return nbytes - self._excess(chosen) + self._statement_bytes(solution)

    def _advice(
        self, solution: Solution, *, gap: float | None = None, nbytes_gap: int | None = None
    ) -> Advice:
        choices = [self._choice(number, index) for number, index in enumerate(solution.indices)]
        limits = self._candidates.limits
        statement_bytes = self._statement_bytes(solution)
        return Advice(
            self._source,
            self._candidates.recipe,
            tuple(sorted(choices, key=lambda choice: -choice.error)),
            self._size.nbytes_before,
            self._nbytes(solution),
            self._size.parameters,
            sum(choice.error for choice in choices) / self._total,
            gap,
            nbytes_gap,
            self._front(statement_bytes),
            None if limits is None else limits.consumer.name,
        )

    def _excess(self, chosen: Sequence[Alternative]) -> int:
        """Return by how much the sum of bytes is too large: none where tensors are added."""
        if any(is_scheme(option.target) for option in chosen):
            return 0
        # A header names "BF16" for "F32", and ends at a multiple of 8 bytes.
        rows = zip(self._groups, chosen, strict=True)
        changes = sum(len(names) for names, option in rows if option.target != KEEP)
        longer = changes + _ALIGNMENT if changes else 0
        return max(self._size.excess - longer, 0)

    def least_bytes(self) -> int:
        """Return the bytes of the smallest choices, without what states the schemes."""
        least = (min(option.nbytes for option in row) for row in self._options)
        return self._size.fixed_bytes + sum(least)

    def _most_bytes(self) -> int | None:
        """Return the bytes that the checkpoint may take; None if its error is limited."""
        if self._limit.bits is None:
            return self._limit.nbytes
        return int(self._limit.bits * self._size.parameters / BYTE_BITS)

    def _solve(
        self, groups: Sequence[Sequence[Option]], limit: int | None, reserve: int
    ) -> Solution:
        """Choose within a limit, of which some bytes are for what states the schemes."""
        if limit is None:
            assert self._limit.error is not None  # noqa: S101
            rows = [[Option(option.weight, option.cost) for option in row] for row in groups]
            # A mean that was read off a choice allows that choice.
            solution = solve(rows, self._limit.error * self._total * (1 + _ROUNDING))
            if solution is None:
                raise CheckpointError(
                    setting("error", self._limit.error) + " is less than that of any choice"
                )
            return solution
        solution = solve(groups, limit - self._size.fixed_bytes - reserve)
        if solution is None:
            raise _TooFewBytesError
        return solution

    def _lightest(self) -> Solution:
        """Return the choices of the fewest bytes; what states a mixture may cost more than one."""
        places = [
            min(range(len(row)), key=lambda place: row[place].nbytes) for row in self._options
        ]
        return min((self._solution(places), *self._uniforms()), key=self._nbytes)

    def _refusal(self) -> CheckpointError:
        """Say the bytes of the smallest choices, by role, and what makes them smaller."""
        lightest = self._lightest()
        least = self._nbytes(lightest)
        limit = (
            setting("budget", self._limit.nbytes)
            if self._limit.nbytes is not None
            else setting("bits", self._limit.bits)
        )
        least_bits = BYTE_BITS * least / max(self._size.parameters, 1)
        floor = self._floor(lightest, self._statement_bytes(lightest))
        return CheckpointError(
            limit + f" is less than the {least:,} bytes ({least_bits:.2f} bits) of the smallest "
            f"choices: {floor}. Use more" + self._remedies()
        )

    def _floor(self, lightest: Solution, reserve: int) -> str:
        """Say the bytes of the smallest choices by role, the most first."""
        roles = Counter(self._size.roles)
        roles[_BESIDE] += reserve
        rows = zip(self._groups, self._options, lightest.indices, strict=True)
        for names, options, place in rows:
            roles[self._candidates.model.role(names[0])] += options[place].nbytes
        return ", ".join(f"{role} {nbytes:,}" for role, nbytes in roles.most_common() if nbytes)

    def _remedies(self) -> str:
        """Say what else than more bytes makes the smallest choices smaller."""
        remedies: list[str] = []
        candidates = self._candidates
        roles = {*self._size.roles, *map(candidates.model.role, candidates.tensors)}
        loads = candidates.limits is None or candidates.limits.consumer.embeddings
        if loads and not candidates.embeddings and roles.intersection(TABLES):
            remedies.append(
                ", or quantize embeddings and heads "
                + parenthesis("quantize_embeddings", True, typed="yes")
            )
        if candidates.has_formats:
            remedies.append(", or consider more formats " + parenthesis("formats"))
        return join("", remedies)

    def _choice(self, number: int, index: int) -> Choice:
        names, options = self._groups[number], self._options[number]
        alternative = options[index]
        worst = max(self._surveys[name].errors[alternative.target] for name in names)
        on_hull = [options[place] for place in self._hulls[number]]
        cheaper = [option for option in on_hull if option.nbytes < alternative.nbytes]
        dearer = [option for option in on_hull if option.nbytes > alternative.nbytes]
        return Choice(
            tuple(names),
            alternative.target,
            sum(self._candidates.tensors[name].nbytes for name in names),
            alternative.nbytes,
            alternative.error,
            -10 * math.log10(worst) if worst else math.inf,
            cheaper[-1] if cheaper else None,
            dearer[0] if dearer else None,
            self._exponents[number],
        )

    @cached_property
    def _weighed_options(self) -> list[list[Option]]:
        """What each group may become: its error, and its bytes, which are limited."""
        return [[Option(row.error, row.nbytes) for row in options] for options in self._options]

    @cached_property
    def _hulls(self) -> list[list[int]]:
        """Of each group what is on the lower convex hull."""
        return [hull(options) for options in self._weighed_options]

    def _mean(self, cost: float) -> float:
        """Return the mean error of a sum; 0 for what differs from 0 by the sum's rounding."""
        return cost / self._total if cost > _ROUNDING * self._total else 0.0

    @cached_property
    def _front_points(self) -> list[Option]:
        points = front(self._weighed_options)
        step = max(len(points) // _FRONT_POINTS, 1)
        return [*points[:-1:step], points[-1]]

    def _front(self, statement_bytes: int) -> tuple[FrontPoint, ...]:
        fixed_bytes = self._size.fixed_bytes + statement_bytes
        return tuple(
            FrontPoint(fixed_bytes + round(point.weight), self._mean(point.cost))
            for point in self._front_points
        )
