"""What the tensors of an opened checkpoint are, by their names in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from castwise._options import PathArgument
from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint._errors import LEAVE, CheckpointError
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.files.paths import checked_path
from castwise.checkpoint.results.report import KeptTensors, kept_tensors
from castwise.models.architecture import Architecture, normalize_name, read_architecture
from castwise.models.model import Model
from castwise.quantization.producers.stated import CONFIG
from castwise.text.spelling import nearest
from castwise.text.wording import argument, parenthesis

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def checked_architecture(path: PathArgument | None) -> Architecture | None:
    """Read the architecture of a file that a user names; None if that is None."""
    if path is None:
        return None
    try:
        return read_architecture(checked_path(path, "architecture"))
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def architecture_option(architecture: Architecture | None) -> dict[str, str]:
    """Return what a report says of the architecture that a user gives; nothing of none."""
    return {} if architecture is None else {"architecture": architecture.name}


def component_model(component: Component, architecture: Architecture | None = None) -> Model:
    # An architecture that a user gives is that of the components with tensors of its names.
    shapes = {info.name: info.shape for info in component.statement.tensors}
    reader = next(iter(component.shards.values()))
    if isinstance(reader, WholeModelReader) and (own := reader.architecture()) is not None:
        return Model({}, shapes, architecture or own)
    if architecture is not None and not any(map(architecture.find, shapes)):
        architecture = None
    try:
        return Model(component.statement.config, shapes, architecture)
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def check_shapes(
    model: Model,  # what the tensors are
    names_left: Collection[str],  # the names of those that a user leaves as they are
    architecture: Architecture | None,  # the one that a user gives; None if the table has it
) -> None:
    """Refuse a model with tensors of shapes that their rows of the table do not allow."""
    text = next(model.contradictions(names_left), None)
    if text is None:
        return
    remedy = "correct " + argument("architecture")
    if architecture is None:
        remedy = (
            f"correct architectures and model_type in {CONFIG}, or say what it is "
            + parenthesis("architecture")
        )
    raise CheckpointError(f"tensor {text} in {model.title}; " + remedy + ", or " + LEAVE)


def contradictions_of_config(model: Model) -> list[str]:
    """Write that a configuration has a type and a class of another; nothing if it has not."""
    # transformers' Auto classes read the type, and vLLM and SGLang the class.
    if model.architecture is None or not model.type_of_class:
        return []
    return [
        f"{CONFIG} states the model_type {model.stated_type!r} and {model.architecture.name}, a "
        f"class of {model.type_of_class!r}: transformers reads the former, engines the latter; "
        "correct one"
    ]


def check_rows(names: Collection[str], architecture: Architecture | None) -> None:
    """Refuse a row of a user's architecture that is that of none of these tensors."""
    if architecture is None:
        return
    used = {row.name for name in names if (row := architecture.find(name)) is not None}
    for row_name in architecture.parameters:
        if row_name not in used:
            near = nearest([row_name], map(normalize_name, names))[row_name]
            hint = "" if near is None else f"; did you mean {near!r}?"
            raise CheckpointError(
                argument("architecture") + f": the row {row_name!r} of {architecture.name} is that "
                f"of no tensor{hint}"
            )


def _ask_model(
    method: Callable[Concatenate[Model, str, Arguments], Answer],
    name_answer: Callable[[str, Answer], Answer] = lambda _, answer: answer,
) -> Callable[Concatenate[CheckpointModel, str, Arguments], Answer]:
    """Return a method that asks the model of the folder that a tensor's name begins with."""
    # `name_answer` puts the folder before the names of an answer.

    @wraps(method)
    def ask(
        self: CheckpointModel, name: str, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Answer:
        prefix, model, rest = self._split(name)
        return name_answer(prefix, method(model, rest, *args, **kwargs))

    return ask


def _add_prefix(prefix: str, name: str | None) -> str | None:
    return None if name is None else prefix + name


def _each(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


class CheckpointModel:
    """The models of all components, asked by names that begin with the folder of a component."""

    def __init__(self, source: Checkpoint, architecture: Architecture | None = None) -> None:
        self._models = {
            component.prefix: component_model(component, architecture)
            for component in source.components
        }
        self._shards = {component.prefix: [*component.shards] for component in source.components}
        self._prefixes = sorted(self._models, key=len, reverse=True)

    def _split(self, name: str) -> tuple[str, Model, str]:
        """Return the folder of a tensor, the model there, and the name in that."""
        for prefix in self._prefixes:
            if name.startswith(prefix):
                return prefix, self._models[prefix], name.removeprefix(prefix)
        raise AssertionError("each tensor is of a component")

    @property
    def unknown_types(self) -> list[str]:
        """What the configurations call the models that the table does not have; "" of none."""
        models = self._models.values()
        return [model.stated_type for model in models if model.architecture is None]

    def check_rows(self, architecture: Architecture | None) -> None:
        """Refuse a row of a user's architecture that is that of no tensor: see `check_rows`."""
        check_rows([name for model in self._models.values() for name in model.names], architecture)

    def bind(self, dtypes: DtypeMap) -> DtypeMap:
        return replace(dtypes, keeps=self._keeps)

    def count_kept(
        self, plans: Mapping[str, Sequence[Planned]], dtypes: DtypeMap
    ) -> list[KeptTensors]:
        """Count what a map that comes with castwise keeps, given the plans of shards."""
        nbytes = sum(tensor.info.nbytes for shard in plans.values() for tensor in shard)
        return kept_tensors(
            (
                (tensor.info, model.role(tensor.info.name), f"{dtypes.origin} keeps them")
                for prefix, model in self._models.items()
                for shard in self._shards[prefix]
                for tensor in plans[shard]
                if tensor.target is None and tensor.info.kind == "float"
            ),
            nbytes,
        )

    role = _ask_model(Model.role)
    is_in_out = _ask_model(Model.is_in_out)
    is_kept = _ask_model(Model.is_kept)
    is_head = _ask_model(Model.is_head)
    reason = _ask_model(Model.reason)
    partners = _ask_model(Model.partners, _each)
    layer_of_expert = _ask_model(Model.layer_of_expert, _add_prefix)
    _keeps = _ask_model(Model.keeps)
