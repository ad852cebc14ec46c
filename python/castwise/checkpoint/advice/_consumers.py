"""What a consumer loads of a model: the recipe, and the schemes that its weights may get."""

from collections import Counter
from dataclasses import dataclass

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.registry import model_format
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.loading.modules import loads_by_default
from castwise.checkpoint.planning.written_schemes import consumer_named
from castwise.models.architecture import stated_dtype
from castwise.quantization import Consumer
from castwise.quantization.producers.consumers import Loading
from castwise.quantization.producers.registry import known_recipe, producer_of_model
from castwise.text.wording import setting


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits the candidates so that a consumer loads the result."""

    consumer: Consumer
    recipe: str
    loading: Loading
    dtype: str | None  # in which it loads the model by default; None if nothing tells

    def loads_by_default(self, scheme: str) -> bool:
        """Return False for a scheme that it loads only with another option than its defaults."""
        return loads_by_default(self.consumer.name, self.recipe, scheme, self.dtype)

    def loads(self, scheme: str) -> bool:
        """Return True if it loads weights of a scheme, be they of experts or others."""
        return scheme in self.loading.all_schemes


def limits_of(source: Checkpoint, name: object, recipe: str | None) -> Limits:
    """Return what limits the candidates of a model, by default with the consumer's own recipe."""
    # Experts that transformers loads only as one producer stores them have that one.
    consumer = consumer_named(name)
    types = {kind for part in source.components for kind in part.statement.model_types}
    owners = (producer_of_model(kind) for kind in types)
    owner = next((producer.name for producer in owners if producer is not None), "")
    all_loads = {loading.recipe: loading for loading in consumer.loads}
    loads = all_loads
    if consumer.form is not None:
        form = consumer.form if isinstance(source.file, WholeModelReader) else owner
        if form != consumer.form:
            _check_convertible(source, consumer, types)
        loads = {form: loads[form]} if form in loads else loads
    if recipe is None:
        loading = loads.get(owner) or next(iter(loads.values()))
        return Limits(consumer, loading.recipe, loading, _dtype(source))
    producer = known_recipe(recipe)
    if producer is None or producer.name not in loads:
        subject, reason = consumer.name, ""
        if producer is not None and producer.name in all_loads and [*loads] == [owner]:
            subject += f" loads of {' and '.join(sorted(types))}"
            schemes = " and ".join(loads[owner].all_schemes)
            reason = f": castwise makes only {schemes} of its plain experts, as {owner} stores it"
        else:
            subject += " loads"
        raise CheckpointError(
            setting("recipe", recipe) + f" is not one that {subject}{reason}; use "
            f"{', '.join(loads)}, or leave it out"
        )
    return Limits(consumer, recipe, loads[producer.name], _dtype(source))


def _dtype(source: Checkpoint) -> str | None:
    """Return the dtype that is stated, else that of the most floating tensors."""
    infos = source.tensors.values()
    formats = Counter(info.format for info in infos if info.kind == "float" and info.format)
    common = formats.most_common(1)
    dtypes = (stated_dtype(component.statement.config) for component in source.components)
    return next(filter(None, dtypes), common[0][0] if common else None)


def _check_convertible(source: Checkpoint, consumer: Consumer, types: set[str]) -> None:
    """Refuse a model that, once it is quantized, cannot be converted to what a consumer reads."""
    model = model_format(f".{consumer.form}")
    if model is not None and not types.intersection(model.model_types):
        raise CheckpointError(
            f"{source.path}: {consumer.name} reads {consumer.form}, which castwise makes of the "
            f"model_type {', '.join(model.model_types)} in config.json, not of "
            f"{', '.join(sorted(types)) or 'a model without one'}; use the consumer's own converter"
        )
