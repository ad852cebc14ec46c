"""What a model is: the role of each of its tensors, its axes, and what engines join."""

from castwise.models._model import EXPERTS, LINEAR, MATRIX, STACK, WEIGHT, Model, has_last_outputs

__all__ = ["EXPERTS", "LINEAR", "MATRIX", "STACK", "WEIGHT", "Model", "has_last_outputs"]
