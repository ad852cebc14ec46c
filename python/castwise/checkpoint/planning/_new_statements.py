"""What states how the weights of a quantised checkpoint are stored, as its producer writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from castwise.checkpoint._errors import CheckpointError
from castwise.quantization.producers.registry import SEVERAL, find_recipe
from castwise.quantization.producers.written import EncodedModules, Encoding, Statements
from castwise.text.wording import argument, given


def statements(
    encodings: Mapping[str, Encoding],
    plain_modules: Sequence[str],
    *,
    inputs: bool = False,
    embeddings: frozenset[str] = frozenset(),
) -> Statements:
    """Return what states how modules are stored, given those that are kept.

    `inputs` says that there are scales of their inputs, too; `embeddings` are those of the modules
    that are no linear layers.

    CheckpointError: the producer cannot state several schemes in one checkpoint.
    """
    recipe = next(iter(encodings.values())).written.recipe
    distinct = list(dict.fromkeys(encodings.values()))
    if len(distinct) > 1 and recipe not in SEVERAL:
        names = ", ".join(dict.fromkeys(encoding.written.scheme for encoding in distinct))
        raise CheckpointError(
            f"{given('recipe', recipe)} states one scheme for a whole checkpoint, not "
            f"{names}; leave one "
            f"({argument('ignore')}), or use {', '.join(SEVERAL)}"
        )
    write = find_recipe(recipe).writing.write
    assert write is not None, "by `written`"  # noqa: S101
    return write(EncodedModules(encodings, plain_modules, inputs, embeddings))
