"""Plan what a plain checkpoint is when its weights are quantised, and refuse what cannot be."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from castwise._core import PolicyMap, finfo
from castwise._dtype_map import DTYPE, KEEP, DtypeMap
from castwise._spelling import nearest
from castwise._wording import about, argument, given, quoted
from castwise.checkpoint._config import CONFIG, Config
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._layers import (
    MATRIX,
    STACK,
    WEIGHT,
    fused_with,
    is_experts,
    is_left,
    is_matrix,
    kept_modules,
    turned_type,
)
from castwise.checkpoint._tensors import Planned, TensorInfo
from castwise.checkpoint.containers._interface import Reader
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.decoding._decoded import DecodedWeight, with_tensors
from castwise.checkpoint.decoding._decoded_files import decoded_reader
from castwise.checkpoint.decoding._plain_config import without_quantization
from castwise.checkpoint.decoding._quantized import model_types
from castwise.checkpoint.decoding._stored import StoredTensors
from castwise.checkpoint.encoding._encoder import EncodedWeight, Kept, encoding_threads, share
from castwise.checkpoint.encoding._written_configs import Statements, statements
from castwise.checkpoint.encoding._written_schemes import (
    encoding,
    loading_warning,
    padding_problem,
    written,
)
from castwise.checkpoint.gguf._from_gguf import ModelFiles
from castwise.checkpoint.maps import warn_of_other_models
from castwise.checkpoint.plan import plan
from castwise.checkpoint.planning._component import ComponentPlan
from castwise.checkpoint.report import CastRow
from castwise.checkpoint.requests._quantizing import Made
from castwise.quantization import Quantization
from castwise.quantization.producers._written import Encoding

_LOGGER = logging.getLogger(__name__)
_BYTE_BITS = 8
KIND = "float"
"""Kind of the tensors that a weight becomes; their format as stored is None."""


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

    """

    scheme: str | None
    recipe: str
    block: tuple[int, int] | None
    ignore: Sequence[str]
    dtypes: DtypeMap
    schemes: Mapping[str, str]
    threads: int
    map_name: str | None = None

    @property
    def mapping(self) -> dict[str, str]:
        """What a map says, by its keys."""
        formats = dict(self.dtypes.keys.items())
        return {key: self.schemes.get(key) or formats[key] or KEEP for key in formats}

    def encoding(self, scheme: str) -> Encoding:
        """Return how a scheme is stored."""
        row = written(scheme, self.recipe)
        return encoding(row, self.block if scheme == self.scheme else None)


class Part(NamedTuple):
    """The format of a tensor that is made, and what reports call it."""

    format: str
    label: str


@dataclass(slots=True)
class Encoded:
    """A checkpoint as it is with quantised weights.

    Attributes
    ----------
    source
        The readers that encode.
    parts
        What is made, by full names.
    stated
        What states it, by the prefix of the component.
    dtypes
        What becomes of tensors that are not made.
    model
        What a folder of a GGUF file has beside its tensors.
    unused
        Patterns of a map that matched nothing, each with the nearest name.
    recipe
        The producer of a folder that is made; None for one file.

    """

    source: Checkpoint
    dtypes: DtypeMap
    recipe: str | None
    model: ModelFiles = field(default_factory=ModelFiles)
    parts: dict[str, Part] = field(default_factory=dict)
    stated: dict[str, Statements] = field(default_factory=dict)
    unused: dict[str, str | None] = field(default_factory=dict)

    def _decide(self, tensors: Iterable[TensorInfo], prefix: str) -> list[Planned]:
        """Plan what becomes of tensors: what is made, what a map casts, and all others."""
        planned: dict[str, Planned] = {}
        remaining = []
        for info in tensors:
            if (part := self.parts.get(prefix + info.name)) is None:
                remaining.append(info)
                continue
            planned[info.name] = Planned(
                info, part.format, None, "dtype", is_decoded=True, label=part.label
            )
        kept = {tensor.info.name: tensor for tensor in plan(remaining, self.dtypes, prefix)}
        return [planned.get(info.name) or kept[info.name] for info in tensors]

    def result(self) -> Made:
        """Return what is to be written."""
        return Made(self.source, self._decide, self._config, self._added, self.unused, self._warn)

    def _warn(self) -> None:
        """Warn of what is left out, and where transformers does not run the model as it stands."""
        self.model.tell()
        for component in self.source.components if self.stated else ():
            stated = self.stated.get(component.prefix)
            if stated is None or not stated.sections:
                continue
            tensors = [
                info for reader in component.shards.values() for info in reader.tensors.values()
            ]
            decided = self._decide(tensors, component.prefix)
            schemes = {tensor.label for tensor in decided if tensor.label}
            formats = Counter(
                tensor.target or tensor.info.format
                for tensor in decided
                if not tensor.label and tensor.info.kind == KIND
            )
            kept = formats.most_common(1)[0][0] if formats else None
            if (warning := loading_warning(self.recipe, schemes, kept)) is not None:
                _LOGGER.warning("%s: %s", self.source.path / component.prefix, warning)

    def _config(self, path: Path, label: str) -> Config:
        """Read a `config.json` to which what states the quantisation is added."""
        return QuantizedConfig(path, label, self.stated.get(label.removesuffix(CONFIG)))

    def _added(self, prefixes: Mapping[str, bool]) -> dict[str, str]:
        """Return the files to add, by path; `prefixes` say whether a folder has a configuration."""
        files: dict[str, str] = {}
        for prefix, statement in self.stated.items():
            files |= {prefix + name: text for name, text in statement.files.items()}
            if statement.sections and not prefixes.get(prefix, False):
                files[prefix + CONFIG] = json.dumps(statement.sections, indent=2) + "\n"
        for statement in self.stated.values() if self.model.config else ():
            files |= self.model.added(statement.sections)
        return files


class QuantizedConfig(Config):
    """A `config.json` that states how the weights of its model are quantised.

    `statement` says what states it; None if nothing of it changes.

    Raises
    ------
    OSError
        It cannot be read.

    """

    def __init__(self, path: Path, label: str, statement: Statements | None) -> None:
        super().__init__(path, label)
        self._statement = statement
        self._is_rewritten = statement is not None

    def following(self, rows: Sequence[CastRow]) -> str | None:
        """Return the text with the sections at its end; None if it is to stay.

        Its dtype follows what a map casts beside the weights, as in a cast.
        """
        text = super().following([row for row in rows if row.decided_by != DTYPE])
        if self._statement is None or not self._text:
            return text
        before = self._text
        text = text or before
        if self._statement.edit is not None:
            text = self._statement.edit(text)
        else:
            text = without_quantization(text)
            if self._statement.sections:
                text = _with_sections(text, self._statement.sections)
        return None if text == before else text


def _with_sections(text: str, sections: Mapping[str, object]) -> str:
    end = text.rindex("}")
    head, tail = text[:end].rstrip(), text[end:]
    comma = "" if head.endswith("{") else ","
    members = json.dumps(sections, indent=2)[2:-2]
    return f"{head}{comma}\n{members}\n{tail}"


def encoded(source: Checkpoint, encode: Encode, *, is_file: bool) -> Made:
    """Return an opened checkpoint as it is with quantised weights.

    `is_file` says that it becomes one file, which states in its metadata how they are stored.

    Raises
    ------
    CheckpointError
        It is quantised already; no weight of it would be; or the recipe cannot hold one.

    """
    result = Encoded(source, encode.dtypes, None if is_file else encode.recipe)
    plans = [_Plan(source, component, encode) for component in source.components]
    names = [name for component_plan in plans for name in component_plan.names]
    _check_used(encode, plans, names, result)
    if not any(component_plan.chosen for component_plan in plans):
        raise CheckpointError(
            f"{source.path}: no weight in it would be quantised: no linear layer's, and none that "
            f"a map ({argument('dtype_map')}) gives a scheme to"
        )
    components: list[Component] = []
    for component_plan in plans:
        components.append(component_plan.component(result, is_file=is_file))
    result.source = replace(source, components=components)
    return result.result()


def _check_used(
    encode: Encode, plans: Sequence[_Plan], names: Sequence[str], result: Encoded
) -> None:
    """Refuse patterns of `ignore` that match nothing; note those of a map."""
    used = {pattern for component_plan in plans for pattern in component_plan.used}
    for pattern in encode.ignore:
        if pattern not in used:
            near = nearest([pattern], names)[pattern]
            raise CheckpointError(
                f"{given('ignore', pattern)} matches no tensor"
                + (f"; did you mean {quoted(re.escape(near))}?" if near else "")
            )
    if encode.map_name is not None:
        warn_of_other_models(encode.map_name, used, model_types(result.source))
    else:
        result.unused = nearest(
            [key for key, _ in encode.dtypes.keys.items() if key not in used], names
        )


class _Plan(ComponentPlan):
    """The plan for one component."""

    purpose = "quantised"
    statement_text = "what may state how it is stored"

    def __init__(self, source: Checkpoint, component: Component, encode: Encode) -> None:
        ComponentPlan.__init__(self, source, component)
        self._encode = encode
        self._check_index()
        if self.quantization is not None:
            self._refuse_quantised(self.quantization)
        self._transposed_type = turned_type(self._configs)
        config = self._configs.get(CONFIG, {})
        if not isinstance(config, dict):
            raise self._refusal(f"{CONFIG} is not a JSON object, so it cannot state how")
        self._ignored = [(text, _pattern(text)) for text in encode.ignore]
        self.used: set[str] = set()
        self.names = [component.prefix + info.name for info in self._tensors]
        self.chosen: dict[str, Encoding] = {}
        self._left: list[str] = []
        for info in self._tensors:
            self._choose(info)

    def _refuse_quantised(self, quantization: Quantization) -> NoReturn:
        """Refuse what is quantised, or may be."""
        if quantization.orphans and not quantization.weights:
            raise self._refusal(
                f"{quantization.orphans[0]} ({len(quantization.orphans):,} such tensors)"
            )
        description = (
            f"tensor {quantization.weights[0].payload!r}"
            if quantization.weights
            else ", ".join(quantization.stated)
        )
        raise self._refusal(
            f"it is quantised already ({description or 'it'}); decode it first: castwise "
            "dequantize, checkpoint.dequantize_file"
        )

    def _choose(self, info: TensorInfo) -> None:
        """Decide whether a tensor is quantised."""
        if not self._component.has_config:
            return  # what states it is of the model
        name = self._component.prefix + info.name
        _, key, _ = self._encode.dtypes.decide(name, floating=False)
        module = name.removesuffix(WEIGHT)
        hits = [
            text
            for text, pattern in self._ignored
            if pattern.find(name) is not None or pattern.find(module) is not None
        ]
        self.used |= {*hits, *([key] if key else [])}
        scheme = self._encode.schemes.get(key or "")
        if scheme is None and key is None and not hits and is_matrix(info):
            scheme = None if is_left(info.name) else self._encode.scheme
        if scheme is not None and not hits:
            encoding = self._encode.encoding(scheme)
            if key is None and encoding.written.transposed and not is_experts(info.name):
                scheme = None  # its producer keeps what is not of experts
            else:
                self._check(info, encoding, is_named=key is not None)
                self.chosen[info.name] = encoding
        if info.name not in self.chosen and is_matrix(info):
            self._left.append(info.name)

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
        is_stack = len(shape) == STACK
        if is_stack and not row.stacks:
            raise refuse(
                f"it has the shape {shape}, experts in one tensor, and {row.recipe} stores the "
                f"weight of each as a tensor of its own; {leave}, or use a recipe that stacks them"
            )
        if row.transposed and not is_stack:
            raise refuse(f"it has the shape {shape}, and {row.recipe} stores experts only; {leave}")
        if not (row.transposed or info.name.endswith("weight")) and row.recipe == "mlx":
            raise refuse(
                f"it is not named as a weight, and {row.recipe} names its parts so; {leave}"
            )
        if self._transposed_type is not None and not is_named:
            raise refuse(
                f"models of type {self._transposed_type} keep matrices as (in, out), which no "
                f"producer quantises; {leave}, or name it in a map ({argument('dtype_map')})"
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

    def component(self, result: Encoded, *, is_file: bool) -> Component:
        """Return the component with quantised weights, and note what it has."""
        if not self.chosen:
            return self._component
        component, prefix = self._component, self._component.prefix
        stored = self._stored
        threads = encoding_threads(
            [(stored[name].shape, encoding) for name, encoding in self.chosen.items()],
            self._encode.threads,
        )
        kept = Kept()
        weights = {
            name: EncodedWeight(stored[name], stored, encoding, kept, threads)
            for name, encoding in self.chosen.items()
        }
        self._share(weights)
        stated = result.stated[prefix] = self._new_statements()
        metadata: dict[str, str] = {}
        if is_file:
            if stated.metadata is None:
                raise self._refusal(
                    f"{next(iter(self.chosen.values())).written.recipe} states how weights are "
                    "stored in config.json, which one file has not; name a folder"
                )
            metadata |= stated.metadata
        parts = {name: self._parts(weight) for name, weight in weights.items()}
        self._check_names(stored, parts)
        for name, tensors in parts.items():
            labels = [
                weights[name].encoding.written.scheme,
                *(tensor.format for tensor in tensors[1:]),
            ]
            for tensor, label in zip(tensors, labels, strict=True):
                result.parts[prefix + tensor.info.name] = Part(tensor.format, label)
        shards: dict[str, Reader] = {}
        for path, reader in component.shards.items():
            in_shard = {name: tensors for name, tensors in parts.items() if name in reader.tensors}
            if not in_shard and not metadata:
                shards[path] = reader
                continue
            shards[path] = decoded_reader(
                reader,
                stored,
                in_shard,
                left_out=(),
                metadata={**reader.metadata, **metadata},
                threads=threads,
            )
        made_of = {
            name: [tensor.info.name for tensor in tensors] for name, tensors in parts.items()
        }
        return with_tensors(component, shards, made_of)

    def _share(self, weights: Mapping[str, EncodedWeight]) -> None:
        """Let weights that engines fuse have the same global scale."""
        for name, weight in weights.items():
            if not weight.encoding.written.shares:
                continue
            fused = [weights[other] for other in fused_with(name) if other in weights]
            for other in fused:
                if other.info.format != weight.info.format:
                    raise CheckpointError(
                        f"tensors {weight.info.name!r} ({weight.info.format}) and "
                        f"{other.info.name!r} ({other.info.format}) are fused by engines and share "
                        "a global scale, so they need the same format; cast one of them first"
                    )
            share(fused)

    def _new_statements(self) -> Statements:
        modules = {name.removesuffix(WEIGHT): encoding for name, encoding in self.chosen.items()}
        return statements(modules, kept_modules(self._left, modules))

    def _parts(self, weight: EncodedWeight) -> list[DecodedWeight]:
        """Describe the tensors that a weight becomes, the payload first."""
        tensors = []
        sources = [sharer.info.name for sharer in weight.shared.weights]
        for number, part in enumerate(weight.parts):
            info = TensorInfo(
                _part_name(weight, part.key),
                None,
                KIND,
                weight.info.label,
                part.shape,
                0 if number else weight.info.nbytes,
            )
            slabs = partial(weight.slabs, part, not number)
            measured = None if number else weight.measured
            tensors.append(
                DecodedWeight(info, part.format, weight.info.name, sources, slabs, measured)
            )
        return tensors

    def _check_names(
        self, stored: StoredTensors, parts: Mapping[str, Sequence[DecodedWeight]]
    ) -> None:
        seen: set[str] = set()
        for name, tensors in parts.items():
            for tensor in tensors:
                new_name = tensor.info.name
                if (new_name in stored and new_name != name) or new_name in seen:
                    raise self._refusal(f"{name!r} is to become {new_name!r}, which is there too")
                seen.add(new_name)


def _pattern(text: str) -> PolicyMap:
    pattern = PolicyMap("fullmatch", "first")
    try:
        pattern.insert(text, True)
    except ValueError as error:
        raise ValueError(about(given("ignore", text), error)) from error
    return pattern


def _part_name(weight: EncodedWeight, key: str) -> str:
    """Name a part of a weight, from what its producer calls it."""
    name, suffix = weight.info.name, "weight"
    if weight.encoding.written.transposed:
        return f"{name}_{key}"
    if name.endswith(suffix):
        return name.removesuffix(suffix) + key
    return name + key.removeprefix(suffix)
