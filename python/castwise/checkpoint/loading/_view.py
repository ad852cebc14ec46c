"""A checkpoint as those who load it see it: what is stated, and the tensors of each module."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from castwise.checkpoint._errors import LEAVE
from castwise.checkpoint.loading._compressed_tensors import Arguments
from castwise.checkpoint.loading.modules import WEIGHT, LoadingProblem, Module, is_wide
from castwise.models.architecture import stated_dtype, text_parts
from castwise.models.engines import EngineRules, find_engines
from castwise.quantization.producers.stated import CONFIG, SECTIONS, STATED_KEY, sides_of
from castwise.text.brief import shorten

if TYPE_CHECKING:
    from castwise.models.architecture import Architecture


IGNORE = "except it in the configuration"
NAME_IN_IGNORE = "name it in 'ignore' of the configuration"
# Elements that share a scale: OCP Microscaling Formats 1.0, 5.
_MXFP4_BLOCK = 32
_AXES_OF_BLOCKS = 4  # expert, row, block, byte

Read = Callable[[str], bytes]
"""Returns the bytes of a tensor by its name."""


QUANTIZATION_FILE = "hf_quant_config.json"
"""The file beside `config.json` in which ModelOpt states how it quantized."""


def section_of(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the first member of a configuration of these names, also of its text part."""
    for part in text_parts(config):
        for key in keys:
            if isinstance(part.get(key), Mapping):
                section = part[key]
                inner = section.get(STATED_KEY)
                return inner if isinstance(inner, Mapping) else section
    return {}


@dataclass(frozen=True, eq=False)
class View:
    """A checkpoint as one consumer sees it."""

    consumer: str
    architecture: Architecture  # what the model's tensors are
    config: Mapping[str, Any]  # the model's parsed `config.json`
    modules: Sequence[Module]  # the weights of the model, each with its tensors
    files: Mapping[str, Any]  # others that may state the quantization, parsed, by name
    read: Read | None  # for scales that must be equal; None if there is no data yet

    def section(self, *keys: str) -> Mapping[str, Any]:
        """Return the first member of the configuration of these names, also of its text part."""
        return section_of(self.config, *keys)

    def number(self, key: str) -> int | None:
        """Return a whole number of the configuration, or of its text part."""
        for part in reversed(text_parts(self.config)):
            if isinstance(part.get(key), int):
                return int(part[key])
        return None

    def dtype(self) -> str | None:
        """Return the dtype in which the model is loaded by default."""
        if (dtype := stated_dtype(self.config)) is not None:
            return dtype
        formats = Counter(
            info.format
            for module in self.modules
            for info in module.tensors.values()
            if is_wide(info)
        )
        return formats.most_common(1)[0][0] if formats else None

    @cached_property
    def rules(self) -> EngineRules | None:
        """What the consumer joins and builds without quantization; None if that is not known."""
        architecture = self.architecture
        return find_engines(architecture.name, architecture.model_type).get(self.consumer)

    @cached_property
    def by_name(self) -> dict[str, Module]:
        return {module.name: module for module in self.modules}

    def heads(self) -> list[str]:
        """Return the names of the heads, and of what shares their storage."""
        rows = self.architecture.parameters.values()
        return [row.name.removesuffix(WEIGHT) for row in rows if row.role == "head" or row.tied]

    def names_of(self, module: Module) -> list[str]:
        """Return the names that a module may have in the model: heads may have several."""
        own = self.architecture.module_names(module.name)
        if own != [module.name]:
            return own
        return [module.name, *self._heads] if module.role == "head" else [module.name]

    @cached_property
    def _heads(self) -> list[str]:
        rows = self.architecture.parameters.values()
        return [row.name.removesuffix(WEIGHT) for row in rows if row.role == "head"]

    def tied_layers(self) -> list[list[str]]:
        """Return the linear layers that share a storage, and that the file leaves out."""
        # Each with the names that it may have: in a file, and in the model.
        spellings: dict[str, list[str]] = {}
        for row in self.architecture.parameters.values():
            name = row.name.removesuffix(WEIGHT)
            if row.role in {"head", "linear"} and row.tied and "#" not in name:
                spellings.setdefault(name.rpartition(".")[2], []).append(name)
        return [names for names in spellings.values() if self.by_name.keys().isdisjoint(names)]

    def plain_problems(self, module: Module) -> Iterator[LoadingProblem]:
        """Yield what of a module is lost that the consumer builds without quantization."""
        if not module.is_quantized:
            return
        if module.role == "embedding":
            problem = f"{self.consumer} does not load a quantized embedding as the file states it"
        else:
            problem = (
                f"{self.consumer} builds it without quantization, and would drop "
                f"{self._dropped_name(module)}"
            )
        yield module.report(problem, LEAVE)

    @staticmethod
    def _dropped_name(module: Module) -> str:
        suffix = max(module.tensors, key=len)
        return repr(module.tensors[suffix].name)

    def arguments_problems(self, module: Module, arguments: Arguments) -> Iterator[LoadingProblem]:
        """Yield what a module lacks that the consumer builds as compressed-tensors states it."""
        if not module.is_quantized:
            yield module.report(
                f"{self.consumer} builds it as {arguments.scheme}, and the file has it as "
                f"{module.tensors[''].label}",
                f"{NAME_IN_IGNORE}, or quantize it",
            )
        elif module.parameter.axes.endswith("in out"):
            yield wrong_axis(module)
        elif (fault := arguments.fault(module)) is not None:
            yield module.report(
                f"{self.consumer} builds it as {arguments.scheme}: {fault}",
                "quantize it anew, or state how it is stored",
            )

    def mxfp4_problems(self, layers_left_out: Collection[str]) -> Iterator[LoadingProblem]:
        """Yield what keeps the consumer from loading experts in the form of gpt-oss."""
        is_gpt_oss = self.architecture.model_type == "gpt_oss"
        for module in self.modules:
            if not module.is_stack or module.layer in layers_left_out:
                yield from self.plain_problems(module)
            elif not is_gpt_oss:
                if module.is_quantized:
                    yield module.report(
                        f"{self.consumer} loads MXFP4 in the form of gpt-oss only for gpt-oss",
                        LEAVE,
                    )
            elif {"_blocks", "_scales"} - module.tensors.keys():
                yield module.report(
                    f"{self.consumer} builds it as MXFP4, and the file has no blocks and scales of "
                    "it",
                    "quantize all experts",
                )
            else:
                yield from self.blocks(module)

    def blocks(self, module: Module) -> Iterator[LoadingProblem]:
        """Yield what of experts in the form of gpt-oss is not along the inputs of the model."""
        shape, scales = module.tensors["_blocks"].shape, module.tensors["_scales"].shape
        outer, inner = self.number("hidden_size"), self.number("intermediate_size")
        rows_are_hidden = "down" in module.name
        if shape[:-1] != scales or len(shape) != _AXES_OF_BLOCKS:
            yield module.report(
                f"its blocks have the shape {shape}, its scales {scales}", "quantize anew"
            )
        elif outer is not None and inner is not None:
            rows, columns = (outer, inner) if rows_are_hidden else (2 * inner, outer)
            if (shape[1], shape[2] * _MXFP4_BLOCK) != (rows, columns):
                yield module.report(
                    f"its blocks are of {shape[1]} rows of {shape[2] * _MXFP4_BLOCK}, and the "
                    f"configuration needs {rows} of {columns}: they do not lie along the inputs",
                    "quantize the unquantized model anew",
                )


def wrong_axis(module: Module) -> LoadingProblem:
    """Return the problem of a matrix whose blocks lie along its outputs."""
    return module.report(
        "its matrices are (in, out), and its blocks lie along the outputs",
        LEAVE + ", or use a recipe that stores such experts (gpt-oss)",
    )


# Groups are two levels below the section, and the arguments of their weights three.
_LEVELS = 3

_EXPRESSION = "re:"
# A value is shown so far in a message, which also names its field.
_LETTERS = 60


def statement_problem(
    consumer: str, config: Mapping[str, Any], files: Mapping[str, Any]
) -> LoadingProblem | None:
    """Return the first field of a statement that has another type than its readers take."""
    fields = {**_FIELDS, **_EXPRESSIONS} if consumer == "transformers" else _FIELDS
    sections = {
        CONFIG: section_of(config, *SECTIONS),
        QUANTIZATION_FILE: files.get(QUANTIZATION_FILE),
    }
    for file, section in sections.items():
        fault = _fault(section, fields, "", _LEVELS) if isinstance(section, Mapping) else None
        if fault is not None:
            return LoadingProblem("", f"{file} states {fault}", "correct it")
    return None


def _fault(section: Mapping[str, Any], fields: _Fields, where: str, levels: int) -> str | None:
    for key, value in section.items():
        is_right, kind = fields.get(key, (None, ""))
        if is_right is not None and value is not None and not is_right(value):
            return f"{where}{key} as {shorten(repr(value), _LETTERS)}, which is not {kind}"
        if levels and isinstance(value, Mapping):
            fault = _fault(value, fields, f"{where}{key}.", levels - 1)
            if fault is not None:
                return fault
    return None


def _is_pattern(text: object) -> bool:
    """Return True for a text that matches names, as an expression where it begins like one."""
    if not isinstance(text, str):
        return False
    try:
        re.compile(text.removeprefix(_EXPRESSION) if text.startswith(_EXPRESSION) else "")
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _is_expression(text: object) -> bool:
    """Return True for a text that transformers can take for an expression."""
    return isinstance(text, str) and _is_pattern(_EXPRESSION + text.removeprefix(_EXPRESSION))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_block(value: object) -> bool:
    if not isinstance(value, list):
        return False
    rows_and_columns = 2
    return len(value) == rows_and_columns and all(_is_number(side) and side > 0 for side in value)


def _is_block_structure(value: object) -> bool:
    return _is_block(sides_of(value))


def _is_list_of(is_item: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(is_item, value))


_NAMES = (_is_list_of(_is_pattern), "a list of names and regular expressions")
_BLOCK = (_is_block, "a list of two positive whole numbers")
_NUMBER = (_is_number, "a whole number")
_Fields = Mapping[str, tuple[Callable[[object], bool], str]]
# What the rules of consumers read, with the types that they take; null stands for no field.
_FIELDS: _Fields = {
    "ignore": _NAMES,
    "ignored_layers": _NAMES,
    "exclude_modules": _NAMES,
    "targets": _NAMES,
    "modules_to_not_convert": _NAMES,
    "weight_block_size": _BLOCK,
    "block_structure": (_is_block_structure, "a list of two positive whole numbers"),
    "num_bits": _NUMBER,
    "group_size": _NUMBER,
    "format": (lambda value: isinstance(value, str), "a text"),
    "actorder": (lambda value: isinstance(value, (str, bool)), "a text"),
}
# What transformers takes for expressions, and engines for names.
_EXPRESSIONS: _Fields = {"modules_to_not_convert": (_is_list_of(_is_expression), _NAMES[1])}
