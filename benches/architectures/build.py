"""Write the table of architectures: `python benches/architectures/build.py`.

It builds every model class of the installed transformers and diffusers on the meta device, from its
default configuration, and writes what each parameter is to `castwise/models/architectures.txt`.
It is run by hand, and its result is committed; `--check` compares a tenth with what is there.

Exit code 1 if `--check` finds a difference.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from configurations import configurations
from roles import Row, rows_of
from saved import saved_rows
from transformers import PreTrainedModel
from transformers.core_model_loading import build_glob_alternation
from transformers.initialization import no_init_weights
from writing import Described, table_text

from castwise.models import normalize_name

TABLE = Path(__file__).parents[2] / "python/castwise/models/architectures.txt"


def model_classes() -> Iterator[type[PreTrainedModel]]:
    """Yield the classes of transformers that a configuration can name."""
    folder = Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/modeling_*.py")):
        name = f"transformers.models.{file.parent.name}.{file.stem}"
        try:
            module = import_module(name)
        except ImportError as error:
            SKIPPED.append((name, str(error)))
            continue
        for kind in vars(module).values():
            is_model = inspect.isclass(kind) and issubclass(kind, PreTrainedModel)
            if is_model and kind.__module__ == name and not kind.__name__.endswith("PreTrainedModel"):
                yield kind


SKIPPED: list[tuple[str, str]] = []
GUESSES: Counter[str] = Counter()


def describe(kind: type[PreTrainedModel]) -> Described | None:
    """Return what the table has of a class: of all its configurations; None if none builds."""
    parts = []
    for number, config in enumerate(configurations(kind)):
        try:
            parts.append(_described(kind, config()))
        except Exception as error:  # noqa: BLE001 - whatever a constructor raises is a reason
            if number == 0:
                SKIPPED.append((kind.__name__, " ".join(f"{type(error).__name__}: {error}".split())))
                return None
    rows: dict[str, str] = {}
    ties: dict[str, str] = {}
    if not any(part.rows for part in parts):
        SKIPPED.append((kind.__name__, "it has no parameters"))
        return None
    for part in reversed(parts):
        rows |= part.rows
        ties |= part.ties
    return replace(parts[0], rows=rows, ties=ties)


def _described(kind: type[PreTrainedModel], config: transformers.PreTrainedConfig) -> Described:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # what stays in float32 is so by the code
    try:
        with torch.device("meta"), no_init_weights():
            model = kind(config)
    finally:
        torch.set_default_dtype(default)
    base = model.base_model_prefix if hasattr(model, model.base_model_prefix or "-") else ""
    sizes = _sizes_of_heads(config)
    rows = _with_float32(model, rows_of(model, sizes, base))
    found = saved_rows(model, rows)
    names = {inner: name for name, (_, inner) in reversed(found.items())}
    texts = {normalize_name(name): row for name, row in reversed(rows.items())}
    texts |= {normalize_name(name): row for name, (row, _) in reversed(found.items())}
    for row_name, row in texts.items():
        if row.is_guess:
            GUESSES[f"{kind.__name__} {row_name}"] += 1
    return Described(
        kind.__name__,
        config.model_type,
        base,
        {name: row.text() for name, row in texts.items()},
        _ties(model, names),
    )


def _sizes_of_heads(config: transformers.PreTrainedConfig) -> frozenset[int]:
    """Return the numbers of outputs that are a model's: of tokens, labels and coordinates."""
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    labels = getattr(config, "num_labels", 2)
    return frozenset({vocabulary, labels, labels + 1, 1, 2, 4} - {None})


def _with_float32(model: PreTrainedModel, rows: dict[str, Row]) -> dict[str, Row]:
    """Mark what the code keeps in float32: by the lists of its class, or as it is made."""
    plan = list(model._get_dtype_plan(torch.float16))  # noqa: SLF001
    pattern = build_glob_alternation(plan)[0] if plan else None
    made = {
        name
        for name, tensor in model.named_parameters(remove_duplicate=False)
        if tensor.dtype == torch.float32
    }
    return {
        name: replace(row, float32=name in made or bool(pattern and pattern.search(name)))
        if row.role != "buffer"
        else row
        for name, row in rows.items()
    }


def _ties(model: PreTrainedModel, names: dict[str, str]) -> dict[str, str]:
    """Return what shares its storage, by the configuration as it is, or if that asks for it."""
    own = set(model.get_expanded_tied_weights_keys(all_submodels=True).items())
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    for config in configs.values():
        if getattr(config, "tie_word_embeddings", True) is False:
            config.tie_word_embeddings = True
    try:
        able = set(model.get_expanded_tied_weights_keys(all_submodels=True).items())
    except ValueError:  # a class that names what its default does not have
        able = own
    ties = {}
    for tied, source in sorted(own | able):
        if tied in names and source in names:
            first, second = normalize_name(names[tied]), normalize_name(names[source])
            if first != second:
                ties[first] = ("=" if (tied, source) in own else "~") + second
    return ties


def head_lines() -> list[str]:
    """Say what wrote the table, of what, and when."""
    versions = (f"{name} {version(name)}" for name in ("transformers", "diffusers", "torch"))
    return [
        "What the parameters of models are, by benches/architectures/build.py; do not edit.",
        f"{date.today()}: {', '.join(versions)}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="classes to print, rather than to write all")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    kinds = [k for k in model_classes() if not arguments.only or k.__name__ in arguments.only]
    described = [each for kind in kinds if (each := describe(kind))]
    text = table_text(head_lines(), described)
    if arguments.only:
        print(text)
    else:
        TABLE.write_text(text, "utf-8")
    total = sum(len(each.rows) for each in described)
    print(f"{len(described)} architectures, {total} parameters, {len(GUESSES)} without a role")
    for name, reason in SKIPPED:
        print(f"skipped {name}: {reason[:200]}")
    for name in sorted(GUESSES):
        print(f"without a role: {name}")
    print(f"{len(text.encode()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
