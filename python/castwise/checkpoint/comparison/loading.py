"""Does a consumer load a checkpoint? Asked of its headers and of what is stated beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from castwise._options import ConsumerName
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.registry import model_format
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.loading.check import (
    CHECKED,
    LLAMA_CPP,
    check_file,
    check_loading,
    problem_lines,
    unchecked_method,
    unknown_tensors,
)
from castwise.checkpoint.loading.modules import LoadingProblem
from castwise.checkpoint.planning.checkpoint_model import (
    checked_architecture,
    component_model,
    contradictions_of_config,
)
from castwise.checkpoint.planning.stored_tensors import StoredTensors
from castwise.checkpoint.planning.written_schemes import consumer_named
from castwise.checkpoint.results.report import SCHEMA
from castwise.models.architecture import Architecture
from castwise.quantization.producers.stated import CONFIG
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet
from castwise.text.brief import brief, counted, plain_fields, shorten
from castwise.text.wording import parenthesis, setting

# Of the name of a model, which may be any text.
_LETTERS = 60


@dataclass(frozen=True, slots=True)
class LoadingCheck(Rendered):
    """The result of `verify_loading`.

    Attributes
    ----------
    source
        The checkpoint.
    consumer
        The program that will load it.
    architectures
        The architectures of its models that castwise knows.
    tensors
        How many tensors were checked.
    problems
        The reasons why the consumer does not load it as it is.
    unknown
        Sentences about parts that castwise cannot check.

    """

    source: str
    consumer: str
    architectures: Sequence[str]
    tensors: int
    problems: Sequence[LoadingProblem] = field(default_factory=tuple)
    unknown: Sequence[str] = field(default_factory=tuple)

    @property
    def loads(self) -> bool | None:
        """True if the consumer loads it; None if castwise has no rules for it."""
        if self.problems:
            return False
        return True if self.architectures else None

    def __repr__(self) -> str:
        return brief(
            self,
            f"{str(self.source)!r} for {self.consumer}",
            counted(self.tensors, "tensor"),
            "unknown" if self.loads is None else counted(len(self.problems), "problem"),
        )

    def __sheet__(self) -> Sheet:
        """Return a line for each kind of problem, and the verdict."""
        count_text = ""
        if self.architectures:
            names = ", ".join(self.architectures)
            count_text = f", {counted(self.tensors, 'tensor')} of {names} checked"
        if self.loads is None:
            verdict = []
        elif self.loads:
            verdict = [f"{self.consumer} loads it{count_text}"]
        else:
            count = counted(len(self.problems), "problem")
            verdict = [f"{self.consumer} does not load it as it is: {count}{count_text}"]
        return [Lines([*problem_lines(self.problems), *self.unknown, *verdict])]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"schema": SCHEMA, **plain_fields(self, loads="consumer")}


def verify_loading(
    source: str | os.PathLike[str],
    consumer: ConsumerName,
    *,
    architecture: str | os.PathLike[str] | None = None,
) -> LoadingCheck:
    """Check from headers whether a consumer loads a checkpoint as it is.

    castwise determines the modules that the consumer builds with quantized weights: from the
    configuration, the consumer's rules of targets and exceptions, and the table of architectures.
    The file must have the tensors of these modules, with the right shapes and dtypes, and no
    tensor that the consumer would drop.

    Parameters
    ----------
    source
        A file or a folder, as `inspect` takes.
    consumer
        "transformers", "vllm", "sglang", "llama.cpp" or "mlx-lm".
    architecture
        A file that describes the parameters of a model that castwise does not know.

    Returns
    -------
    The problems, module by module; `loads` is None if castwise does not know the model or the
    method of quantization.

    Raises
    ------
    CheckpointError
        There are no rules of that consumer, or a header or `architecture` cannot be read.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> print(checkpoint.verify_loading("model.safetensors", "vllm").loads)
    None

    """
    name = consumer_named(consumer).name
    if name not in CHECKED:
        raise CheckpointError(
            setting("consumer", name) + ": castwise has no rules of how it loads; it checks "
            f"{', '.join(CHECKED)}"
        )
    path = source_path(source, "source")
    parameters = checked_architecture(architecture)
    with open_checkpoint(path, decodes=True) as checkpoint:
        checks = [
            _check(checkpoint, component, name, parameters) for component in checkpoint.components
        ]
    return LoadingCheck(
        str(path),
        name,
        [name for check in checks for name in check.architectures],
        sum(check.tensors for check in checks),
        [problem for check in checks for problem in check.problems],
        [text for check in checks for text in check.unknown],
    )


def _check(
    source: Checkpoint, component: Component, consumer: str, parameters: Architecture | None
) -> LoadingCheck:
    statement = component.statement
    tensors, pairs, configs = statement.tensors, statement.metadata, statement.configs
    place = component.place if source.is_folder else str(source.path)
    formats = {
        model_format(source.suffix_of(reader))
        for reader in component.shards.values()
        if isinstance(reader, WholeModelReader)
    }
    file_format = next(iter(formats), None)
    form = consumer_named(consumer).form  # of one file, for a consumer that reads no folder
    form_wanted = model_format(f".{form}")
    architectures: list[str] = []
    problems: list[LoadingProblem] = []
    unknown, contradictions = "", []
    known_count = len(tensors)
    config = configs.get(CONFIG)
    if statement.unreadable:
        problems = [LoadingProblem("", statement.unreadable[0], "correct it")]
    elif form_wanted is not None and file_format is form_wanted:
        architectures = [pairs.get("general.architecture", f"a {form_wanted.label} file")]
        problems = check_file(form_wanted, tensors, pairs)
    elif form_wanted is not None:
        remedy = f"transcode it (castwise transcode --to {form})"
        problems = [LoadingProblem("", f"{consumer} reads only {form_wanted.label} files", remedy)]
    elif file_format is not None:
        unknown = f"castwise checks {file_format.label} files only for {LLAMA_CPP}"
    elif not isinstance(config, Mapping):
        unknown = (
            f"{place} has no {CONFIG}, which names the model: whether {consumer} loads it is not "
            "checked"
        )
    elif "_class_name" in config and not config.get("architectures"):
        unknown = (
            f"it is a model of diffusers ({shorten(str(config['_class_name']), _LETTERS)}), and "
            "castwise has no rules of how it loads"
        )
    elif (model := component_model(component, parameters)).architecture is None:
        unknown = (
            f"castwise does not know {_named_architecture(config)}: whether {consumer} loads it is "
            "not checked"
        )
    elif len(names := unknown_tensors(model, tensors)) == len(tensors):
        unknown = (
            f"{CONFIG} states {model.architecture.name}, and no tensor has a name of that: "
            f"whether {consumer} loads it is not checked; correct it, or say what they are "
            + parenthesis("architecture")
        )
    elif (method := unchecked_method(config, consumer)) is not None:
        unknown = (
            f"{CONFIG} states the quantization method {shorten(method, _LETTERS)!r}, and castwise "
            f"has no rules of how {consumer} loads that: whether it loads the model is not checked"
        )
    else:
        stored_tensors = StoredTensors(component.shards)
        architectures = [model.architecture.name]
        contradictions = contradictions_of_config(model)
        known_count -= len(names)
        if names:
            unknown = (
                f"castwise does not know {counted(len(names), 'tensor')} of "
                f"{model.architecture.name} ({names[0]!r} first): "
                f"whether {consumer} loads them is not checked"
            )
        problems = check_loading(
            model,
            config,
            tensors,
            [consumer],
            files=configs,
            read=lambda name: stored_tensors.read(name).tobytes(),
        )[consumer]
    count = known_count if architectures else 0
    unknown_parts = [text for text in (unknown, *contradictions) if text]
    return LoadingCheck(place, consumer, architectures, count, problems, unknown_parts)


def _named_architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else config.get("model_type")
    if not isinstance(name, str) or not name:
        return "a model without architectures"
    return f"the architecture {shorten(name, _LETTERS)!r}"
