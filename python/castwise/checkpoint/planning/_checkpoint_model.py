"""What the tensors of an opened checkpoint are, by their names in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from castwise.checkpoint._config import CONFIG
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.planning._stated_quantization import stated_of
from castwise.models import Model


def model_of(tensors: Iterable[TensorInfo], configs: Mapping[str, Any]) -> Model:
    """Return the model of a component, given its tensors and its parsed configurations."""
    config = configs.get(CONFIG)
    shapes = {info.name: info.shape for info in tensors}
    return Model(config if isinstance(config, dict) else {}, shapes)


def component_model(source: Checkpoint, component: Component) -> Model:
    """Return the model of a component of an opened checkpoint."""
    tensors, configs, _, _ = stated_of(source, component)
    return model_of(tensors, configs)


class CheckpointModel:
    """The models of all components, asked by names that begin with the folder of a component."""

    def __init__(self, source: Checkpoint) -> None:
        self._models = {
            component.prefix: component_model(source, component) for component in source.components
        }
        self._prefixes = sorted(self._models, key=len, reverse=True)

    def _prefix(self, name: str) -> str:
        return next(prefix for prefix in self._prefixes if name.startswith(prefix))

    def role(self, name: str) -> str:
        """Return the role of a tensor."""
        prefix = self._prefix(name)
        return self._models[prefix].role(name.removeprefix(prefix))

    def partners(self, name: str) -> tuple[str, ...]:
        """Name the weights that engines join with one, itself among them."""
        prefix = self._prefix(name)
        partners = self._models[prefix].partners(name.removeprefix(prefix))
        return tuple(prefix + partner for partner in partners)

    def layer_of_expert(self, name: str) -> str | None:
        """Name the layer of whose experts a weight is, one or all in one tensor; else None."""
        prefix = self._prefix(name)
        layer = self._models[prefix].layer_of_expert(name.removeprefix(prefix))
        return None if layer is None else prefix + layer
