"""A checkpoint whose tensors are derived from those of another: what is to be written of it."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from castwise._core import finfo
from castwise._numbers import BYTE_BITS
from castwise.arrays.dtype_map import DTYPE, DtypeMap
from castwise.checkpoint._config import Config
from castwise.checkpoint._tensors import Planned, TensorInfo
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component, ComponentStatement
from castwise.checkpoint.containers.registry import model_format
from castwise.checkpoint.containers.whole_models import ModelFiles, WholeModelReader
from castwise.checkpoint.plan import plan as plan_casts
from castwise.checkpoint.planning.component import Derived
from castwise.checkpoint.planning.written_schemes import loading_warning
from castwise.checkpoint.results.report import KeptTensors
from castwise.checkpoint.results.summary import ImportanceUse
from castwise.quantization.producers.producer import Statements
from castwise.quantization.producers.stated import CONFIG

_LOGGER = logging.getLogger(__name__)
# The consumer that warnings are about where nobody says who loads the result.
_TRANSFORMERS = "transformers"


class DerivedCheckpoint:
    """A checkpoint with tensors that are decoded, encoded or transcoded as they are read."""

    def __init__(
        self,
        source: Checkpoint,  # the checkpoint that is read
        plans: Sequence[Derived],  # what its components become
        dtypes: DtypeMap,  # what becomes of tensors that are not derived
        *,
        # Whether it becomes one file, which states in its metadata how weights are stored
        is_file: bool,
        recipe: str | None = None,  # the producer whose form it gets; None if it is not quantized
        # What a folder of a file of a whole model has beside its tensors.
        model: ModelFiles | None = None,
        # Patterns of a map that matched nothing, each with the nearest name.
        unused_patterns: Mapping[str, str | None] | None = None,
        consumer: str | None = None,  # who is to load the result; None if nobody says it
        # What stays as it is of a model that is quantized
        kept_tensors: Sequence[KeptTensors] = (),
        importance: ImportanceUse | None = None,  # how numbers of input channels are used
    ) -> None:
        components = [plan.component(is_file=is_file) for plan in plans]
        consumed_paths = {path for plan in plans for path in plan.consumed_paths}
        # A shard without any tensor is not written.
        consumed_paths.update(*({*plan.source.component.shards} for plan in plans))
        consumed_paths.difference_update(*(component.shards for component in components))
        # The readers that derive.
        self.source = source._replace(components=components, consumed=frozenset(consumed_paths))
        self.source.check_names()
        self.plans = plans
        self.unused_patterns = unused_patterns or {}
        self.kept_tensors = kept_tensors
        self.importance = importance
        self._dtypes = dtypes
        is_for_others = consumer not in {None, _TRANSFORMERS}
        self._recipe = None if is_file or is_for_others else recipe
        self._target, self._is_file, self._consumer = recipe, is_file, consumer
        self._model = model or ModelFiles()
        self._new_tensors = {
            plan.prefix + tensor.info.name: tensor
            for plan in plans
            for tensors in plan.tensors.values()
            for tensor in tensors
        }
        self._followers = {
            plan.prefix + name: dtype for plan in plans for name, dtype in plan.followers.items()
        }

    def decide(self, tensors: Iterable[TensorInfo], prefix: str) -> list[Planned]:
        """Plan what becomes of tensors: what is derived, what follows that, and all others."""

        def plan_tensor(info: TensorInfo) -> Planned:
            name = prefix + info.name
            if (tensor := self._new_tensors.get(name)) is not None:
                return Planned(
                    info, tensor.format, None, DTYPE, is_derived=True, label=tensor.scheme
                )
            if (dtype := self._followers.get(name)) is not None:
                return Planned(info, dtype, None, DTYPE)
            return plan_casts([info], self._dtypes, prefix)[0]

        return [plan_tensor(info) for info in tensors]

    def _plan_component(self, component: Component) -> list[Planned]:
        shards = component.shards.values()
        tensors = [info for shard in shards for info in shard.tensors.values()]
        return self.decide(tensors, component.prefix)

    def config(self, _statement: ComponentStatement, label: str) -> Config:
        """Return the `config.json` at the path `label`, which follows the tensors."""
        prefix = label.removesuffix(CONFIG)
        plans = (plan for plan in self.plans if plan.source.component.has_config)
        return next(plan for plan in plans if plan.prefix == prefix).new_config_file(label)

    def files_to_add(self) -> dict[str, str]:
        files: dict[str, str] = {}
        sections: Mapping[str, object] = {}
        for prefix, statements in self._statements():
            files |= {prefix + name: text for name, text in statements.files.items()}
            sections = statements.sections
            is_stated = self.source.is_folder and (self.source.path / prefix / CONFIG).is_file()
            if sections and not is_stated:
                files[prefix + CONFIG] = json.dumps(sections, indent=2) + "\n"
        return files | self._model.all_files(sections)

    def check_loading(self) -> None:
        """Refuse a folder that its consumer, or nobody, would load."""
        model = model_format(f".{self._target}") if self._is_file else None
        is_same_model = isinstance(self.source.file, WholeModelReader)
        if self._target is None or (self._is_file and (model is None or is_same_model)):
            return  # no library loads such a file by itself, or it is as it was
        from castwise.checkpoint.planning.consumers_check import check_consumers, refuse_file  # noqa: PLC0415  (of folders)

        for plan, component in zip(self.plans, self.source.components, strict=True):
            if plan.statements is None:
                continue
            plans = self._plan_component(component)
            infos = [
                tensor.info._replace(format=tensor.target or tensor.info.format) for tensor in plans
            ]
            path = self.source.path_of(component)
            if model is not None:
                refuse_file(path, model, infos, plan.statements.metadata or {})
                continue
            check_consumers(
                path,
                plan.source.model.architecture,
                plan.new_config(plan.statements),
                infos,
                {name: json.loads(text) for name, text in plan.statements.files.items()},
                recipe=self._target,
                schemes=set(plan.schemes),
                consumer=self._consumer,
            )

    def warn(self) -> None:
        """Warn of what is left out, and where transformers does not run the model as it stands."""
        for plan in self.plans:
            plan.warn()
        self._model.warn()
        if self._recipe is None:
            return
        prefixes = {prefix for prefix, statements in self._statements() if statements.sections}
        for component in self.source.components:
            if component.prefix not in prefixes:
                continue
            plans = self._plan_component(component)
            schemes = {tensor.label for tensor in plans if tensor.label}
            formats = Counter(
                tensor.target or tensor.info.format
                for tensor in plans
                if not tensor.is_derived
                and tensor.info.kind == "float"
                # Parts of quantized weights that are stored anew as they are.
                and finfo(tensor.target or str(tensor.info.format)).bits > BYTE_BITS
            )
            plain_format = formats.most_common(1)[0][0] if formats else None
            if (warning := loading_warning(self._recipe, schemes, plain_format)) is not None:
                _LOGGER.warning("%s: %s", self.source.path_of(component), warning)

    def _statements(self) -> Iterator[tuple[str, Statements]]:
        """Return what states how the tensors of components are stored, each with its prefix."""
        for plan in self.plans:
            if plan.statements is not None:
                yield plan.prefix, plan.statements
