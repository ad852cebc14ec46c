"""Plan what an unquantised model is when its weights are quantised, or refuse it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from castwise._core import finfo
from castwise._dtype_map import KEEP, DtypeMap, is_whole_name
from castwise._spelling import nearest
from castwise._wording import argument, function, given, quoted
from castwise.checkpoint._config import CONFIG
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo, may_be_float
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.maps import warn_of_other_models
from castwise.checkpoint.planning._checkpoint_model import check_rows, check_shapes
from castwise.checkpoint.planning._component import ComponentPlan, pattern_of
from castwise.checkpoint.planning._derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning._derived_reader import DerivedTensor
from castwise.checkpoint.planning._new_statements import statements
from castwise.checkpoint.planning._written_schemes import (
    consumer_named,
    encoding,
    padding_problem,
    written,
)
from castwise.checkpoint.planning.decode._decode import decode_refusal
from castwise.checkpoint.planning.encode._encoded_weight import (
    EncodedWeight,
    Kept,
    encoding_threads,
    share,
)
from castwise.checkpoint.report import kept_tensors, kept_text
from castwise.models import (
    EXPERTS,
    LINEAR,
    MATRIX,
    STACK,
    WEIGHT,
    Architecture,
    pattern_of_names,
)
from castwise.quantization import Quantization
from castwise.quantization.producers import (
    WRITTEN,
    Encoding,
    Statements,
    Written,
    find_recipe,
    producer_of_model,
)

_LOGGER = logging.getLogger(__name__)
_BYTE_BITS = 8
_OWN_MODULES = ("router", "recurrent", "other")
"""The roles of parameters that modules of a model's own code have, which no library replaces."""
_LOOKED_UP = ("embedding", "position")
"""The roles of tables, of which a row is taken: no layer of theirs is a linear one."""

TABLES = ("embedding", "head")
"""The roles of matrices with a row for each token, which most consumers load unquantised."""


@dataclass(frozen=True, slots=True)
class Encode:
    """What is quantised, and how.

    Attributes
    ----------
    scheme
        The scheme of linear layers; None if only those that a map names are quantised.
    recipe
        The producer.
    block
        The (rows, columns) that share a scale; None for the default.
    ignore
        Regular expressions that match the whole names of tensors, or modules, to leave.
    dtypes
        What a map says of formats.
    schemes
        What it says of schemes, by its keys.
    threads
        How many threads may encode.
    map_name
        The name of a map that comes with castwise.
    leaves_unfit
        Leave a weight that the recipe cannot hold as it is, instead of refusing it.
    consumer
        Who is to load the result; None if nobody says it.
    embeddings
        Quantise embeddings and heads as linear layers, which stay otherwise.
    architecture
        What the parameters are, as a user says; None if nobody does.

    """

    scheme: str | None
    recipe: str
    block: tuple[int, int] | None
    ignore: Sequence[str]
    dtypes: DtypeMap
    schemes: Mapping[str, str]
    threads: int
    map_name: str | None = None
    leaves_unfit: bool = False
    consumer: str | None = None
    embeddings: bool = False
    architecture: Architecture | None = None

    @property
    def mapping(self) -> dict[str, str]:
        """What a map says, by its keys."""
        formats = dict(self.dtypes.keys.items())
        return {key: self.schemes.get(key) or formats[key] or KEEP for key in formats}

    def encoding(self, scheme: str) -> Encoding:
        """Return how a scheme is stored."""
        row = written(scheme, self.recipe)
        return encoding(row, self.block if scheme == self.scheme else None)


def encode_checkpoint(source: Checkpoint, encode: Encode, *, is_file: bool) -> DerivedCheckpoint:
    """Return an opened checkpoint with quantised weights.

    `is_file` says that it becomes one file, which states in its metadata how they are stored.

    Raises
    ------
    CheckpointError
        It is quantised already; no weight of it would be; or the recipe cannot hold one.

    """
    check_rows([name for part in source.components for name in part.names()], encode.architecture)
    plans = [EncodePlan(source, component, encode) for component in source.components]
    unused = _check_used(source, encode, plans)
    kept = kept_tensors(
        (row for plan in plans for row in plan.kept_rows()),
        sum(info.nbytes for info in source.tensors.values()),
    )
    if not any(plan.chosen for plan in plans):
        raise CheckpointError(
            f"{source.path}: no weight in it would be quantised: no linear layer's, and none that "
            f"a map ({argument('dtype_map')}) gives a scheme to"
            + (f"; {kept_text(kept)}" if kept else "")
        )
    return DerivedCheckpoint(
        source,
        plans,
        encode.dtypes,
        is_file=is_file,
        recipe=encode.recipe,
        unused=unused,
        consumer=encode.consumer,
        kept=kept,
    )


def candidate_parts(
    source: Checkpoint, encodes: Sequence[Encode]
) -> Iterator[tuple[list[str], dict[str, Sequence[DerivedTensor]]]]:
    """Yield the weights of each kind, and what the first of them would become, by scheme.

    Weights of a kind have one shape and format, and names that tell the same.

    Raises
    ------
    CheckpointError
        The checkpoint is quantised already, or cannot be.

    """
    for component in source.components if encodes else ():
        plan = EncodePlan(source, component, replace(encodes[0], leaves_unfit=True))
        for infos in plan.kinds():
            parts: dict[str, Sequence[DerivedTensor]] = {}
            for encode in encodes:
                plan.choose_again(infos[0], replace(encode, leaves_unfit=True))
                if plan.derived:
                    parts[encode.scheme or ""] = plan.derived[infos[0].name]
            yield [component.prefix + info.name for info in infos], parts


def _check_used(
    source: Checkpoint, encode: Encode, plans: Sequence[EncodePlan]
) -> dict[str, str | None]:
    """Refuse patterns of `ignore` that match nothing; return those of a map."""
    names = [name for plan in plans for name in plan.names]
    used = {pattern for plan in plans for pattern in plan.used}
    for pattern in encode.ignore:
        if pattern not in used:
            near = nearest([pattern], names)[pattern]
            raise CheckpointError(
                f"{given('ignore', pattern)} matches no tensor"
                + (f"; did you mean {quoted(re.escape(near))}?" if near else "")
            )
    if encode.map_name is not None:
        unknown = [plan.model.stated_type for plan in plans if plan.model.architecture is None]
        warn_of_other_models(encode.map_name, used, unknown)
        return {}
    return nearest([key for key, _ in encode.dtypes.keys.items() if key not in used], names)


def statement_sizes(
    source: Checkpoint, encode: Encode, *, is_file: bool
) -> Callable[[Mapping[str, str]], int]:
    """Return a function of the schemes of keys: the bytes of what states how weights are stored.

    These are beside what is there before. It raises as `encode_checkpoint` does.
    """
    plain = replace(encode, schemes={})
    plans = [EncodePlan(source, component, plain) for component in source.components]

    def count_bytes(schemes: Mapping[str, str]) -> int:
        for plan in plans:
            plan.choose_all(replace(encode, schemes=schemes))
        stated = [plan.new_statements(is_file=is_file) for plan in plans]
        return sum(_statement_bytes(text) for text in stated if text is not None)

    return count_bytes


def _statement_bytes(stated: Statements) -> int:
    if stated.metadata is not None and not stated.sections:
        return len(json.dumps(dict(stated.metadata)))
    files = sum(len(text.encode()) for text in stated.files.values())
    metadata = json.dumps(dict(stated.metadata or {}))
    return max(len(json.dumps(dict(stated.sections), indent=2)) + files, len(metadata))


def _encodings(encode: Encode) -> dict[str, Encoding]:
    """Return how the schemes of a request are stored."""
    schemes = {encode.scheme, *encode.schemes.values()} - {None}
    return {scheme: encode.encoding(scheme) for scheme in schemes if scheme is not None}


class EncodePlan(ComponentPlan):
    """The plan for one component."""

    derivation = "encode"
    purpose = "quantised"
    statement_text = "what may state how it is stored"

    def __init__(self, source: Checkpoint, component: Component, encode: Encode) -> None:
        ComponentPlan.__init__(self, source, component, encode.architecture)
        self._encode = encode
        self._source = source
        if self.quantization is not None:
            self._refuse_quantised(self.quantization)
        config = self._configs.get(CONFIG, {})
        if not isinstance(config, dict):
            raise self._refusal(f"{CONFIG} is not a JSON object, so it cannot state how")
        self._ignored = [(text, pattern_of("ignore", text)) for text in encode.ignore]
        self.used: set[str] = set()
        self.names = [component.prefix + info.name for info in self._tensors]
        self.chosen: dict[str, Encoding] = {}
        self._left: list[str] = []
        self._keys = [self._key_of(info) for info in self._tensors if component.has_config]
        keys = zip(self._tensors, self._keys, strict=False)
        left = {info.name for info, (_, is_ignored) in keys if is_ignored}
        check_shapes(self.model, left, encode.architecture)
        self.choose_all(encode)

    def kinds(self) -> list[list[TensorInfo]]:
        """Return the matrices by what decides how they may be quantised."""
        kinds: dict[Any, list[TensorInfo]] = {}
        for info in self._tensors if self._component.has_config else ():
            if self._is_matrix(info) and not self._stays(info.name):
                model, name = self.model, info.name
                named = name.endswith("weight"), model.is_switch(name), model.is_in_out(name)
                kind = info.shape, info.format, model.role(name), *named
                kinds.setdefault(kind, []).append(info)
        return [*kinds.values()]

    def _stays(self, name: str) -> bool:
        """Return True for a weight that is quantised only if a map names it."""
        is_taken = self._encode.embeddings and self.model.role(name) in TABLES
        return self._reason(name) is not None and not is_taken

    def _reason(self, name: str) -> str | None:
        """Say why a weight stays unless a map names it; None if it does not."""
        reason, consumer = self.model.reason(name, self._encode.consumer), self._encode.consumer
        if reason is None and consumer is not None:
            rows = (
                row for row in consumer_named(consumer).loads if row.recipe == self._encode.recipe
            )
            if any(text in name for row in rows for text in row.plain):
                reason = f"{consumer} holds them unquantised in models of {self._encode.recipe}"
        return reason

    def choose_all(self, encode: Encode) -> None:
        """Choose what each tensor becomes, as a request with the same keys and patterns has it."""
        self._encode, self._encodings = encode, _encodings(encode)
        self.chosen, self._left = {}, []
        refused: dict[str, CheckpointError] = {}
        # What states a component without a configuration is of the model.
        for info, key in zip(self._tensors, self._keys, strict=False):
            try:
                self._choose(info, *key)
            except CheckpointError as error:
                refused[self._component.prefix + info.name] = error
        for refusal in refused.values():
            if len(refused) == 1:
                raise refusal
            raise CheckpointError(
                f"{refusal} ({len(refused):,} tensors are refused; all stay with "
                f"{argument('ignore')} {pattern_of_names(refused)!r})"
            )

    def choose_again(self, info: TensorInfo, encode: Encode) -> None:
        """Plan what one tensor becomes, as another request has it."""
        self._encode, self._encodings = encode, _encodings(encode)
        self.chosen, self.derived = {}, {}
        self._choose(info, *self._key_of(info))
        self._derive()

    def _refuse_quantised(self, quantization: Quantization) -> NoReturn:
        """Refuse what is quantised, or may be."""
        self._check_method(quantization)
        if not quantization.weights:
            self._check_orphans(quantization)
            raise self._refusal(
                f"no weight is quantised, and {', '.join(quantization.stated)} states it; "
                f"{function('dequantize')} of the folder removes that"
            )
        reason = decode_refusal(self._source)
        remedy = "decode it first: castwise dequantize, checkpoint.dequantize_file"
        if reason is not None:
            remedy = f"{function('dequantize')} refuses it: {reason}"
        raise self._refusal(
            f"it is quantised already (tensor {quantization.weights[0].payload!r}); {remedy}"
        )

    def _key_of(self, info: TensorInfo) -> tuple[str | None, bool]:
        """Return the key of the map that names a tensor, and whether a pattern excepts it."""
        name = self._component.prefix + info.name
        _, key, _ = self._encode.dtypes.decide(name, may_be_float(info))
        is_whole = key is not None and is_whole_name(key, name)
        if key in self._encode.schemes and not is_whole:
            # As a float dtype of a pattern, its scheme leaves what no scheme is for.
            key = key if may_be_float(info) and len(info.shape) >= MATRIX else None
        module = name.removesuffix(WEIGHT)
        hits = [
            text
            for text, pattern in self._ignored
            if pattern.find(name) is not None or pattern.find(module) is not None
        ]
        self.used |= {*hits, *([key] if key else [])}
        return key, bool(hits)

    def _choose(self, info: TensorInfo, key: str | None, is_ignored: bool) -> None:
        """Decide whether a tensor is quantised."""
        scheme = self._encode.schemes.get(key or "")
        is_default = scheme is None and key is None and not is_ignored
        if is_default and self._is_matrix(info):
            scheme = None if self._stays(info.name) else self._encode.scheme
        elif is_default and info.kind == "float" and self.model.may_be_experts(info.name):
            scheme = self._encode.scheme
        if scheme is not None and not is_ignored:
            encoding = self._encodings[scheme]
            if key is None and encoding.written.transposed and not self._is_stack(info):
                scheme = None  # its producer keeps what is not of experts
            elif self._holds(info, encoding, is_named=key is not None):
                self.chosen[info.name] = encoding
        if info.name not in self.chosen and (self._is_matrix(info) or self._is_stack(info)):
            self._left.append(info.name)

    def kept_rows(self) -> Iterator[tuple[TensorInfo, str, str]]:
        """Yield the floating tensors that stay, each with its role and why it does."""
        for info, (key, is_ignored) in zip(self._tensors, self._keys, strict=False):
            if info.name in self.chosen or info.kind != "float":
                continue
            reason = self._reason(info.name)
            if is_ignored:
                reason = f"{argument('ignore')} names them"
            elif key is not None:
                if self._encode.dtypes.decide(self._component.prefix + info.name, True).target:
                    continue  # it is cast
                reason = "the map keeps them"
            elif reason is None and self._encode.scheme is None:
                reason = "the map gives them no scheme"
            elif reason is None:
                reason = f"{self._encode.recipe} stores no such weights"
            yield info, self.model.role(info.name), reason

    def _is_stack(self, info: TensorInfo) -> bool:
        """Return True for what may be the weights of all experts."""
        return self.model.role(info.name) == EXPERTS or self.model.may_be_experts(info.name)

    def _holds(self, info: TensorInfo, encoding: Encoding, *, is_named: bool) -> bool:
        """Return False for a weight that the recipe cannot hold, or refuse it."""
        try:
            self._check(info, encoding, is_named=is_named)
        except CheckpointError:
            if self._encode.leaves_unfit:
                return False
            raise
        return True

    def _check(self, info: TensorInfo, encoding: Encoding, *, is_named: bool) -> None:
        """Refuse a weight that the recipe cannot hold."""
        row, shape = encoding.written, info.shape
        leave = f"leave it as it is ({argument('ignore')})"

        def refuse(reason: str) -> CheckpointError:
            return CheckpointError(f"tensor {info.name!r}: {reason}")

        if info.kind != "float" or info.format is None:
            raise refuse(f"it is stored as {info.stored}, and weights are floating; {leave}")
        if finfo(info.format).bits <= _BYTE_BITS:
            raise refuse(f"it is {info.format}, which would be rounded twice; {leave}, or cast it")
        if len(shape) not in (MATRIX, STACK) or not all(shape):
            raise refuse(f"it has the shape {shape}, and a weight is a matrix; {leave}")
        self._check_role(info, row, leave, is_named=is_named)
        if row.only_named and not info.name.endswith("weight"):
            raise refuse(
                f"it is not named as a weight, and {row.recipe} names its parts so; {leave}"
            )
        rows, columns = shape[-2:][:: -1 if row.transposed else 1]
        width = encoding.block[1]
        if width and encoding.block[0] == 1 and columns % width:
            raise refuse(
                f"it has the shape {shape}, and {row.recipe} stores {row.scheme} in whole blocks "
                f"of {width} along {columns} columns; {leave}"
            )
        if row.square and rows <= encoding.block[0] and columns <= width:
            raise refuse(
                f"it has the shape {shape}, which is one block, and {row.recipe} gives one "
                f"scale to such weights that are fused; {leave}, or use a smaller block"
            )
        if (problem := padding_problem(row, rows, columns)) is not None:
            raise refuse(f"it has the shape {shape}, and {problem}; {leave}")

    def _check_role(self, info: TensorInfo, row: Written, leave: str, *, is_named: bool) -> None:
        """Refuse a weight that no consumer would find where the recipe stores it."""
        name, shape, model, role = info.name, info.shape, self.model, self.model.role(info.name)
        is_stack = len(shape) == STACK or role == EXPERTS

        def refuse(reason: str) -> CheckpointError:
            return CheckpointError(f"tensor {name!r}: {reason}")

        if role == EXPERTS and (not row.stacks or len(shape) < STACK):
            raise refuse(
                f"it has the shape {shape}, experts in one tensor, and {row.recipe} stores the "
                f"weight of each as a tensor of its own; {leave}{self._own_recipe()}"
            )
        if not is_named and role != LINEAR and model.may_be_experts(name):
            raise refuse(
                f"it has the shape {shape} and may be the weights of all experts, and nothing "
                f"tells their axes; say what it is ({argument('architecture')}), name it in a map "
                f"({argument('dtype_map')}), or {leave}"
            )
        if is_stack and not row.stacks:
            raise refuse(f"it has the shape {shape}, and {row.recipe} stores matrices; {leave}")
        if row.transposed and not is_stack:
            raise refuse(f"it has the shape {shape}, and {row.recipe} stores experts only; {leave}")
        own_type = find_recipe(row.recipe).model_type if row.transposed else None
        if own_type and model.architecture and model.architecture.model_type != own_type:
            raise refuse(
                f"it is of the model_type {model.architecture.model_type!r}, and {row.recipe} "
                f"stores experts of {own_type} only; {leave}, or use another recipe"
            )
        if row.only_named and is_stack and not model.is_switch(name):
            raise refuse(
                f"it is the experts of a layer, and {row.recipe} stores those named switch_mlp; "
                f"convert the model with the library that loads it first, or {leave}"
            )
        if not is_stack and model.architecture is not None and model.is_in_out(name):
            raise refuse(
                f"{model.title} keeps it as (in, out), and {row.recipe} stores (out, in); {leave}"
            )
        if role in _LOOKED_UP or (role in _OWN_MODULES and model.find(name) is not None):
            self._check_module(name, row, leave)

    def _own_recipe(self) -> str:
        """Return the remedy that names the producer of such a model, if there is one."""
        kind = None if self.model.architecture is None else self.model.architecture.model_type
        producer = producer_of_model(kind)
        return "" if producer is None else f", or use {argument('recipe', producer.name)}"

    def _check_module(self, name: str, row: Written, leave: str) -> None:
        """Refuse what is no linear layer where no consumer of the recipe loads it quantised."""
        embeddings, consumer = find_recipe(row.recipe).writing.embeddings, self._encode.consumer
        role = self.model.role(name)
        is_loaded = consumer is None or consumer_named(consumer).embeddings
        is_named = embeddings == "named" and is_loaded and role in _LOOKED_UP
        if embeddings == "loaded" or is_named:
            return
        loader = "no library loads" if consumer is None else f"{consumer} does not load"
        recipes = dict.fromkeys(written_row.recipe for written_row in WRITTEN)
        loaded = [name for name in recipes if find_recipe(name).writing.embeddings == "loaded"]
        raise CheckpointError(
            f"tensor {name!r}: it is no linear layer (its role: {role}), and "
            f"{loader} one that is quantised as by {row.recipe}; {leave}, "
            f"or use another recipe ({argument('recipe')}): {', '.join(loaded)}"
        )

    def warn(self) -> None:
        """Warn of a model that is not what it states, and of embeddings that castwise decodes."""
        ComponentPlan.warn(self)
        if self.model.architecture is not None and not any(map(self.model.find, self.model.names)):
            _LOGGER.warning(
                "%s: %s states %s, and no tensor has a name of that: their names alone tell what "
                "they are; correct it, or say what they are (%s)",
                self._path,
                CONFIG,
                self.model.title,
                argument("architecture"),
            )
        tables = (name for name in self.chosen if self.model.role(name) in _LOOKED_UP)
        name = next(tables, None)
        recipe = self._encode.recipe
        if name is not None and find_recipe(recipe).writing.embeddings == "named":
            _LOGGER.warning(
                "%s: %r is an embedding, and no library loads one that is quantised as by %s: "
                "castwise decodes it (%s)",
                self._path,
                name,
                recipe,
                function("dequantize"),
            )

    def _derive(self) -> None:
        if not self.chosen:
            return
        stored = self._stored
        self.threads = encoding_threads(
            [(stored[name].shape, encoding) for name, encoding in self.chosen.items()],
            self._encode.threads,
        )
        kept = Kept()
        weights = {
            name: EncodedWeight(stored[name], stored, encoding, kept, self.threads)
            for name, encoding in self.chosen.items()
        }
        self._share(weights)
        self.derived = {name: weight.tensors() for name, weight in weights.items()}

    def _share(self, weights: Mapping[str, EncodedWeight]) -> None:
        """Let weights that engines fuse have the same global scale."""
        for name, weight in weights.items():
            if not weight.encoding.written.shares:
                continue
            partners = self.model.partners(name, self._encode.consumer)
            fused = [weights[other] for other in partners if other in weights]
            for other in fused:
                if other.info.format != weight.info.format:
                    raise CheckpointError(
                        f"tensors {weight.info.name!r} ({weight.info.format}) and "
                        f"{other.info.name!r} ({other.info.format}) are fused by engines and share "
                        "a global scale, so they need the same format; cast one of them first"
                    )
            share(fused)

    def new_schemes(self) -> set[str]:
        return {encoding.written.scheme for encoding in self.chosen.values()}

    def new_statements(self, *, is_file: bool) -> Statements | None:
        if not self.chosen:
            return None
        modules = {name.removesuffix(WEIGHT): encoding for name, encoding in self.chosen.items()}
        tables = [name for name in self.chosen if self.model.role(name) in _LOOKED_UP]
        stated = statements(
            modules,
            self.model.excepted_modules(self._left, modules),
            embeddings=frozenset(name.removesuffix(WEIGHT) for name in tables),
        )
        if is_file and stated.metadata is None:
            raise self._refusal(
                f"{next(iter(self.chosen.values())).written.recipe} states how weights are "
                "stored in config.json, which one file has not; name a folder"
            )
        return stated
