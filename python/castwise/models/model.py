"""A model: the role of each of its tensors, its axes, and what engines join."""

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from castwise.environment.frameworks import entry_points_of, load_entry, package_of
from castwise.models.architecture import (
    Architecture,
    Parameter,
    fill_numbers,
    find_architecture,
    read_architecture,
    text_parts,
)
from castwise.models.engines import (
    JOINED,
    EngineRules,
    experts_in,
    find_engines,
    is_in_name,
    role_by_name,
)

GROUP = "castwise.architectures"
"""The group of entry points, which are named by the class or the `model_type` of a model."""


def offered_architecture(config: Mapping[str, Any]) -> Architecture | None:
    """Return what a package says of a model by its configuration; None if none does."""
    classes = config.get("architectures")
    names = [*(classes if isinstance(classes, list) else ()), config.get("model_type")]
    architectures = (_read(name) for name in names if isinstance(name, str))
    return next((architecture for architecture in architectures if architecture is not None), None)


@cache
def _read(name: str) -> Architecture | None:
    entry = entry_points_of(GROUP).get(name)
    if entry is None:
        return None
    subject = f"the architecture {name!r} of {package_of(entry)}"
    try:
        path: Any = load_entry(entry, subject)
        return read_architecture(os.fspath(path))
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{subject}: {error}; update or uninstall that package") from error


MATRIX, STACK = 2, 3
"""The axes of a matrix, and of those of all experts."""

WEIGHT = ".weight"
LINEAR, EXPERTS, UNKNOWN = "linear", "experts", "unknown"
# The last axes of a matrix whose outputs are its columns.
_IN_OUT = "in out"

_HEAD = "lm_head"
# The roles of weights that an engine would quantize, if no configuration excepted them.
_LAYERS_OF_MODULES = frozenset((LINEAR, EXPERTS, "head", "router", "recurrent", "other"))

# The roles of what is multiplied: all else is looked up, added or decides.
_NARROWED = frozenset((LINEAR, EXPERTS, "convolution"))

# Those that leave layers unquantized whatever a configuration says.
_ENGINES = ("vllm", "sglang")

# The rows and columns of an expert's matrix have at least a block of the narrowest scheme.
_LEAST_SIDE = 16

# Experts as `mlx_lm.models.switch_layers` names and stores them: (experts, out, in).
_OF_MLX = "switch_mlp"

# `encoder/dense/kernel` of flax, `layers/dense/vars/0` of Keras.
_LAST_OUTPUTS = r"(?s)(?:.*[./])?(?:kernel|vars/[0-9]+)"


class Model:
    """What the tensors of a model are."""

    def __init__(
        self,
        # Its parsed `config.json`; empty if it has none.
        config: Mapping[str, Any],
        # The shapes of its tensors, by their names.
        shapes: Mapping[str, tuple[int, ...]],
        # What its parameters are; by default what the table has of the class or the type that
        # `config` states.
        architecture: Architecture | None = None,
    ) -> None:
        if architecture is None:
            architecture = find_architecture(config) or offered_architecture(config)
        # As given or found; None if nobody knows the model.
        self.architecture = architecture
        self._config = config
        self._shapes = shapes
        self._role_of: dict[str, str] = {}
        self._parameters: dict[str, Parameter | None] = {}

    @property
    def names(self) -> Iterable[str]:
        """The names of its tensors."""
        return self._shapes.keys()

    @property
    def stated_type(self) -> str:
        """The `model_type` of its configuration; empty if it states none."""
        kind = self._config.get("model_type")
        return kind if isinstance(kind, str) else ""

    @property
    def type_of_class(self) -> str:
        """The `model_type` of its class, if the configuration states another one; else empty."""
        of_class = "" if self.architecture is None else self.architecture.model_type
        return "" if self.stated_type in {"", of_class} else of_class

    @property
    def title(self) -> str:
        """What messages call it: the type or the class that it states."""
        name = "" if self.architecture is None else self.architecture.name
        return self.stated_type or name or "the model"

    def find(self, name: str) -> Parameter | None:
        """Return what the table has of a tensor; None if it has nothing."""
        if self.architecture is None:
            return None
        if name not in self._parameters:
            parameter = self.architecture.find(name)
            if parameter is not None and parameter.conversion == "either":
                parameter = self._as_stored(parameter, self._shapes.get(name, ()))
            self._parameters[name] = parameter
        return self._parameters[name]

    def _as_stored(self, parameter: Parameter, shape: tuple[int, ...]) -> Parameter:
        """Return a row with the axes of a stack that transformers turns if its shape says so."""
        place = -1 if parameter.joint else -MATRIX  # of the inputs or outputs of the whole layer
        is_as_in_model = len(shape) >= MATRIX and shape[place] in self._hidden_sizes
        return parameter._replace(axes="experts out in") if is_as_in_model else parameter

    @cached_property
    def _hidden_sizes(self) -> list[Any]:
        parts = text_parts(self._config)
        return [part["hidden_size"] for part in parts if "hidden_size" in part]

    def role(self, name: str) -> str:
        """Return the role of a tensor: one of `ROLES`, or "unknown"."""
        if name not in self._role_of:
            self._role_of[name] = self._role(name)
        return self._role_of[name]

    def _role(self, name: str) -> str:
        parameter = self.find(name)  # which keeps it
        if parameter is not None:
            return parameter.role
        return role_by_name(name, self._shapes.get(name, ()))

    def axes(self, name: str) -> tuple[str, ...]:
        """Return what the axes of a matrix or a stack are; empty for all others."""
        # "experts*out" is one axis with the outputs of all experts.
        parameter = self.find(name)
        if parameter is not None:
            return tuple(parameter.axes.split())
        if self.role(name) == LINEAR:
            return ("out", "in")
        return ("experts", "out", "in") if self.is_switch(name) else ()

    def is_in_out(self, name: str) -> bool:
        """Return True for matrices whose outputs are their columns."""
        parameter = self.find(name)  # without one, outputs are rows
        return parameter is not None and parameter.axes.endswith(_IN_OUT)

    def is_matrix(self, name: str) -> bool:
        """Return True for what may be the weight of a linear layer, or those of experts."""
        shape = self._shapes[name]
        if len(shape) == MATRIX and name.endswith(WEIGHT):
            return True
        return len(shape) >= MATRIX and self.role(name) == EXPERTS

    def may_be_experts(self, name: str) -> bool:
        """Return True for a tensor without a row that may be the weights of all experts."""
        # Such a tensor has the axes of experts, or a name of experts without the number of one.
        shape = self._shapes.get(name, ())
        if len(shape) != STACK and (len(shape) != MATRIX or name.endswith(WEIGHT)):
            return False
        if min(shape[-MATRIX:]) < _LEAST_SIDE or name.endswith("bias"):
            return False
        if self.find(name) is not None or self.is_switch(name) or has_last_outputs(name):
            return False
        role = self.role(name)
        if len(shape) == STACK:
            return role in {EXPERTS, UNKNOWN} and shape[0] > 1
        return role == UNKNOWN and experts_in(name) is not None

    def is_kept(self, name: str, consumer: str | None = None) -> bool:
        """Return True for a weight that stays as it is unless a user names it."""
        return self.reason(name, consumer) is not None

    def reason(self, name: str, consumer: str | None = None) -> str | None:
        """Say why a weight stays as it is unless a user names it; None if it does not."""
        role = self.role(name)
        if role not in {LINEAR, EXPERTS}:
            is_stored_by_none = role == "convolution"
            return "no recipe stores them" if is_stored_by_none else "kept unless a map names them"
        if not all(self._shapes.get(name, ())):
            return "they have no elements"
        parameter = self._parameters.get(name)
        if parameter is not None and (parameter.float32 or parameter.name in self._shared_rows):
            reason = "the code of transformers keeps them in float32"
            return reason if parameter.float32 else "other layers share their storage"
        if self._engines and self._is_unquantized(name, consumer):
            return "engines hold them unquantized"
        is_in_head = parameter is not None and role_by_name(name, ()) == "head"
        if is_in_head or is_in_name(name):
            return "in an embedding, a norm, an adapter or a head"
        return None

    def _is_unquantized(self, name: str, consumer: str | None) -> bool:
        """Return True for a weight that a consumer builds unquantized, or joins with such a one."""
        if consumer is not None:
            rules = self._engines.get(consumer)
            partner_names = (
                other for other in self.partners(name, consumer) if other in self._shapes
            )
            return rules is not None and any(
                rules.keeps(other.removesuffix(WEIGHT)) for other in {name, *partner_names}
            )
        # Without a consumer: a single layer, and no tower, that all engines build unquantized.
        module = name.removesuffix(WEIGHT)
        engines = [self._engines[engine] for engine in _ENGINES if engine in self._engines]
        return bool(engines) and all(rules.keeps_alone(module) for rules in engines)

    def keeps(self, name: str) -> bool:
        """Return True for a tensor that keeps its format where layers become narrower."""
        parameter = self.find(name)
        return parameter is not None and (parameter.float32 or parameter.role not in _NARROWED)

    def partners(self, name: str, consumer: str | None = None) -> tuple[str, ...]:
        """Name the weights that a consumer, or any, joins with one, itself among them."""
        # For a model without rules, only the names of weights tell the partners.
        partners = self.engine_partners(name, consumer)
        has_rules = bool(self._engines) if consumer is None else consumer in self._engines
        if len(partners) > 1 or (has_rules and self.find(name) is not None):
            return partners
        stem = name.removesuffix(WEIGHT)
        prefix, dot, module = stem.rpartition(".")
        end = name[len(stem) :]
        return tuple(f"{prefix}{dot}{part}{end}" for part in JOINED.get(module, (module,)))

    def engine_partners(self, name: str, consumer: str | None = None) -> tuple[str, ...]:
        """Name the weights that the rules of a consumer, or of any engine, join with one."""
        stem = name.removesuffix(WEIGHT)
        engines = self._engines if consumer is None else self._engines.keys() & {consumer}
        groups = [self._engines[engine].partners(stem) for engine in sorted(engines)]
        partners = max(groups, key=len, default=(stem,))
        return tuple(partner + name[len(stem) :] for partner in partners)

    @cached_property
    def _engines(self) -> Mapping[str, EngineRules]:
        classes = self._config.get("architectures")
        names = [*(classes if isinstance(classes, list) else ()), self.stated_type]
        if self.architecture is not None:
            names += [self.architecture.name, self.architecture.model_type]
        return find_engines(*(name for name in names if isinstance(name, str)))

    def layer_of_expert(self, name: str) -> str | None:
        """Name the layer of whose experts a weight is, one or all in one tensor; else None."""
        experts = experts_in(name)
        if experts is not None and experts["module"] in {EXPERTS, _OF_MLX}:
            return experts["layer"] or ""
        is_stack = self.role(name) == EXPERTS or self.may_be_experts(name)
        return name.removesuffix(WEIGHT).rpartition(".")[0] if is_stack else None

    def is_switch(self, name: str) -> bool:
        """Return True for experts in one tensor as MLX names and stores them."""
        experts = experts_in(name)
        is_weight = experts is not None and re.fullmatch(r"\w+\.weight", experts["part"])
        return experts is not None and experts["module"] == _OF_MLX and bool(is_weight)

    def is_head(self, name: str) -> bool:
        """Return True for a matrix of logits: a head, or an embedding that is one, too."""
        role = self.role(name)
        if role != "embedding" or self._has_head:
            return role == "head"
        if self.architecture is None:
            return self._config.get("tie_word_embeddings") is True
        tied = (row.tied for row in self.architecture.parameters.values() if row.role == "head")
        return any(other and self.architecture.find(other) == self.find(name) for other in tied)

    @cached_property
    def _has_head(self) -> bool:
        return any(self.role(name) == "head" for name in self._shapes)

    def excepted_modules(self, names: Iterable[str], modules: Container[str]) -> list[str]:
        """Return the modules that a configuration excepts, given the weights that stay."""
        # Engines build the experts of a layer as one module, `experts`.
        stems: list[str] = []
        for name in names:
            role = EXPERTS if self.may_be_experts(name) else self.role(name)
            is_unknown = self.architecture is not None and self.find(name) is None
            if role in _LAYERS_OF_MODULES or is_unknown:
                stems.append(name.removesuffix(WEIGHT))
            if role == EXPERTS and f"{self.layer_of_expert(name)}.experts" not in stems:
                stems.append(f"{self.layer_of_expert(name)}.experts")
        stems += [name for name in self._shapes if self._is_split_alone(name)]
        stems += [stem for stem in self._tied() if stem not in modules and stem not in stems]
        if self.architecture is None:
            return stems
        module_names = (name for stem in stems for name in self.architecture.module_names(stem))
        # engines know either name
        return [
            *stems,
            *(name for name in module_names if name not in stems and name not in modules),
        ]

    def _is_split_alone(self, name: str) -> bool:
        """Return True for what is no weight of a layer, and of which transformers makes some."""
        row = None if name.endswith(WEIGHT) else self.find(name)
        return row is not None and row.role == LINEAR and row.conversion.startswith("split")

    @cached_property
    def _shared_rows(self) -> frozenset[str]:
        """The rows that others share, of whose names a file has only one."""
        rows = () if self.architecture is None else self.architecture.parameters.values()
        return frozenset(row.tied for row in rows if row.role in _LAYERS_OF_MODULES)

    def _tied(self) -> list[str]:
        """Name the layers that share the weight of another, whose own may be absent."""
        if self.architecture is None:
            return [_HEAD]
        rows = self.architecture.parameters.values()
        tied = [row for row in rows if row.tied and row.role in _LAYERS_OF_MODULES]
        stems = [row.name.removesuffix(WEIGHT) for row in tied if "#" not in row.name]
        stem_of = {row.tied: row.name.removesuffix(WEIGHT) for row in tied if "#" in row.name}
        for name in self._shapes if stem_of else ():
            source = self.find(name)
            if source is not None and source.name in stem_of:
                stems.append(fill_numbers(stem_of[source.name], name))
        heads = [_HEAD] if self.find(_HEAD + WEIGHT) else []
        return [*dict.fromkeys([*stems, *heads])]

    def contradictions(self, exceptions: Container[str] = ()) -> Iterator[str]:
        """Say which tensors, but for some, have shapes that their rows do not allow."""
        sizes = self._hidden_sizes
        for name, shape in () if self.architecture is None else self._shapes.items():
            parameter = None if name in exceptions else self.find(name)
            if parameter is None or not parameter.axes:
                continue
            axes = parameter.axes.split()
            if len(shape) < len(axes) or (parameter.role != EXPERTS and len(shape) > len(axes)):
                yield f"{name!r} has the shape {shape}, and is ({', '.join(axes)})"
            elif parameter.role == EXPERTS and parameter.joint:
                size = dict(zip(axes[::-1], shape[::-1], strict=False))
                if sizes and size["in"] not in sizes and size.get("out") in sizes:
                    yield (
                        f"{name!r} has the shape {shape}, and is ({', '.join(axes)}), with inputs "
                        "as many as hidden_size"
                    )


def has_last_outputs(name: str) -> bool:
    """Return True for the kernel of a layer of Keras or flax, whose last axis is its outputs."""
    return re.fullmatch(_LAST_OUTPUTS, name) is not None
