"""Plan what the component of a quantised model becomes in a file of the whole model."""

from __future__ import annotations

from castwise.checkpoint._config import CONFIG
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import Reader, model_format
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.planning._derived_reader import DerivedTensor
from castwise.checkpoint.planning.transcode._transcode_plan import TranscodePlan
from castwise.checkpoint.planning.transcode._transcoded_weight import TranscodedWeight
from castwise.checkpoint.planning.transcode._whole_model import WholeModel
from castwise.quantization.producers import Statements


class WholeModelPlan(TranscodePlan):
    """The plan for a component that becomes a file of a whole model."""

    def _complete(self, source: Checkpoint) -> None:
        component, model = self._component, model_format(f".{self._recipe}")
        assert model is not None, "by `transcode_checkpoint`"  # noqa: S101
        folder = source.config_folder(component)
        config = self._configs.get(CONFIG)
        if not isinstance(config, dict):
            raise self._refusal("no config.json states its hyperparameters; name its folder")
        weights = {weight.weight.payload: weight for weight in self._transcoded}
        try:
            self._model = WholeModel(model, folder, config, self._stored, weights)
        except CheckpointError as error:
            raise self._refusal(str(error)) from error
        self.renamed = self._model.renamed
        self.left_out |= dict.fromkeys(self._model.left_out, "")
        self.consumed += [component.prefix + name for name in (CONFIG, *model.tokenizer_files)]

    def _new_tensors(self, weight: TranscodedWeight) -> list[DerivedTensor]:
        return self._model.tensors(weight)

    def _derive(self) -> None:
        TranscodePlan._derive(self)
        if self.weights:
            self.derived |= self._model.plain()

    def new_statements(self, *, is_file: bool) -> Statements | None:
        del is_file
        return Statements({}, {}, self._model.metadata) if self.weights else None

    def _metadata(self, reader: Reader) -> dict[str, str]:
        return {} if self.weights else reader.metadata
