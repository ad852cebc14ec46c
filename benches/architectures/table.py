"""Write the table of architectures: `python benches/architectures/table.py`.

It builds every model class of the installed transformers and diffusers on the meta device, from its
default configuration, and writes what each parameter is to `castwise/models/architectures.txt`.
It is run by hand, and its result is committed; backbones of timm need timm and torchvision.
`--check` builds a random fortieth again, and compares it with what is there.

Exit code 1 if `--check` finds a difference; 2 if the table is of other versions.
"""

from __future__ import annotations

import argparse
import inspect
import random
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import diffusers
import torch
import transformers
from castwise.models import find_architecture, normalize_name, read_architecture
from configurations import configurations, diffusion_arguments, flagged
from diffusers import ModelMixin
from roles import Row, rows_of
from saved import saved_rows
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import build_glob_alternation
from transformers.initialization import no_init_weights
from writing import Described, table_text

TABLE = Path(__file__).parents[2] / "python/castwise/models/architectures.txt"


def model_classes() -> Iterator[type[Any]]:
    """Yield the classes of transformers that a configuration can name."""
    folder = Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/modeling_*.py")):
        name = f"transformers.models.{file.parent.name}.{file.stem}"
        try:
            module = import_module(name)
        except ImportError as error:
            SKIPPED.append((name, str(error)))
            continue
        kinds: list[Any] = [
            kind
            for kind in vars(module).values()
            if inspect.isclass(kind)
            and issubclass(kind, PreTrainedModel)
            and kind.__module__ == name
            and not kind.__name__.endswith("PreTrainedModel")
        ]
        public = [kind for kind in kinds if kind.__name__ in getattr(module, "__all__", ())]
        configured = {kind.config_class for kind in public}
        yield from (kind for kind in kinds if kind in public or kind.config_class not in configured)


SKIPPED: list[tuple[str, str]] = []
DIFFERING: list[tuple[str, str]] = []
GUESSES: Counter[str] = Counter()


def describe_type(kinds: Iterable[type[PreTrainedModel]]) -> list[Described]:
    """Return what the table has of the classes of one type of models.

    Each class has what its configurations bring; what flags bring beside that is found by the class
    with the most parameters, and is in the base model of all.
    """
    found = [(kind, each) for kind in kinds if (each := _of_configurations(kind))]
    if not found:
        return []
    kind, widest = max(found, key=lambda pair: len(pair[1].rows))
    parts: list[Described] = []
    for number, config in enumerate(flagged(kind)):
        with suppress(Exception):  # flags that exclude each other
            parts.append(_described(kind, config()))
            if number == 0:
                break
    united = _united([widest, *parts])
    return [_widened(each, widest, united) for _, each in found]


def _of_configurations(kind: type[PreTrainedModel]) -> Described | None:
    """Return what a class has by its default configuration and by its forms."""
    parts = []
    for number, config in enumerate(configurations(kind)):
        try:
            parts.append(_described(kind, config()))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            SKIPPED.append((kind.__name__, f"form {number}: {reason}" if number else reason))
            if number == 0:
                return None
    if not any(part.rows for part in parts):
        SKIPPED.append((kind.__name__, "it has no parameters"))
        return None
    return _united(parts)


def _united(parts: list[Described]) -> Described:
    """Put forms of a class together, but for what is a convolution in one, a layer in another."""
    rows: dict[str, str] = {}
    ties: dict[str, str] = {}
    modules: dict[str, str] = {}
    for part in reversed(parts):
        rows |= part.rows
        ties |= part.ties
        modules |= part.modules
    for part in parts:
        for name, text in part.rows.items():
            if name in rows and {text.split()[0], rows[name].split()[0]} == {
                "linear",
                "convolution",
            }:
                del rows[name]
                DIFFERING.append((part.name, name))
    needs_weights = any(part.needs_weights for part in parts)
    return replace(parts[0], rows=rows, ties=ties, modules=modules, needs_weights=needs_weights)


def _widened(each: Described, widest: Described, united: Described) -> Described:
    """Return a class with what another of its type has more in the base model that both share."""
    prefix, own = _prefix(widest), _prefix(each)
    more = {
        own + name.removeprefix(prefix): text
        for name, text in united.rows.items()
        if name not in widest.rows and name.startswith(prefix)
    }
    if each is widest:
        more |= {name: text for name, text in united.rows.items() if name not in widest.rows}
    modules = {
        own + name.removeprefix(prefix): own + module.removeprefix(prefix)
        for name, module in united.modules.items()
        if name.startswith(prefix) and module.startswith(prefix)
    }
    modules = {name: module for name, module in modules.items() if name in more}
    ties = {
        own + name.removeprefix(prefix): target[0] + own + target[1:].removeprefix(prefix)
        for name, target in united.ties.items()
        if name.startswith(prefix) and target[1:].startswith(prefix)
    }
    ties = {name: target for name, target in ties.items() if name in more}
    return replace(
        each,
        rows=more | dict(each.rows),
        modules=modules | dict(each.modules),
        ties=ties | dict(each.ties),
    )


def _prefix(each: Described) -> str:
    """Return what the names of a class's base model begin with."""
    prefix = f"{each.base}."
    return prefix if each.base and any(name.startswith(prefix) for name in each.rows) else ""


def _described(kind: type[PreTrainedModel], config: transformers.PreTrainedConfig) -> Described:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # what stays in float32 is so by the code
    try:
        with torch.device("meta"), no_init_weights():
            model = kind(config)
    finally:
        torch.set_default_dtype(default)
    base = model.base_model_prefix
    rows = _with_float32(model, rows_of(model, _sizes_of_heads(config), base))
    found = saved_rows(model, rows)
    names = {inner: name for name, (_, inner) in reversed(found.items())}
    rows = {name: row for name, (row, _) in found.items()} | {
        name: row for name, row in rows.items() if name not in found
    }
    modules = {
        normalize_name(name): normalize_name(inner)
        for name, (_, inner) in found.items()
        if normalize_name(name) != normalize_name(inner)
    }
    described = _texts(kind.__name__, config.model_type, base, rows, _ties(model, names))
    return replace(described, modules=modules, needs_weights=_needs_weights(model))


def _needs_weights(model: PreTrainedModel) -> bool:
    """Return True if a class reads the weights of layers when it fills in what a file lacks.

    A layer of packed codes has none, and `from_pretrained` fails.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module._parameters.pop("weight", None)
    try:
        model.initialize_weights()
    except AttributeError as error:
        return error.name == "weight"
    except Exception:
        return False
    return False


def diffusion_classes() -> Iterator[type[ModelMixin]]:
    """Yield the classes of diffusers that a configuration can name."""
    for name in sorted(dir(diffusers)):
        with suppress(AttributeError, ImportError):
            kind = getattr(diffusers, name)
            if inspect.isclass(kind) and issubclass(kind, ModelMixin) and kind is not ModelMixin:
                yield kind


def describe_diffusion(kind: type[ModelMixin]) -> Described | None:
    """Return what the table has of a class of diffusers; None if it does not build."""
    parts = []
    for number, arguments in enumerate(diffusion_arguments(kind.__name__)):
        try:
            with torch.device("meta"):
                model = kind(**arguments)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            SKIPPED.append((kind.__name__, f"form {number}: {reason}" if number else reason))
            if number == 0:
                return None
            continue
        float32 = kind._keep_in_fp32_modules or []
        rows = {
            name: replace(row, float32=any(part in float32 for part in name.split(".")))
            for name, row in rows_of(model, frozenset(), "").items()
        }
        parts.append(_texts(kind.__name__, "", "", rows, {}))
    return _united(parts)


def _texts(
    name: str, model_type: str, base: str, rows: Mapping[str, Row], ties: Mapping[str, str]
) -> Described:
    """Return an architecture with its names normalised; the first of equal names counts."""
    by_name = {normalize_name(each): row for each, row in reversed([*rows.items()])}
    GUESSES.update(f"{name} {each}" for each, row in by_name.items() if row.is_guess)
    return Described(name, model_type, base, {n: row.text() for n, row in by_name.items()}, ties)


def _sizes_of_heads(config: transformers.PreTrainedConfig) -> frozenset[int]:
    """Return the numbers of outputs that are a model's: of tokens, labels and coordinates."""
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    labels = getattr(config, "num_labels", 2)
    return frozenset({labels, labels + 1, 1, 2, 4, *([vocabulary] if vocabulary else [])})


def _with_float32(model: PreTrainedModel, rows: dict[str, Row]) -> dict[str, Row]:
    """Mark what the code keeps in float32: by the lists of its class, or as it is made."""
    plan = list(model._get_dtype_plan(torch.float16))
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


def groups(names: Collection[str] | None = None) -> list[list[type]]:
    """Return the classes of each type of models, of all or of some names; first transformers'."""
    kinds: dict[str, list[type]] = {}
    for kind in (*model_classes(), *diffusion_classes()):
        if not names or kind.__name__ in names:
            is_diffusion = issubclass(kind, ModelMixin)
            key = kind.__name__ if is_diffusion else kind.config_class.model_type or kind.__name__
            kinds.setdefault(("diffusers " if is_diffusion else "") + key, []).append(kind)
    return list(kinds.values())


def describe(group: list[type]) -> list[Described]:
    """Return what the table has of the classes of one type."""
    if issubclass(group[0], ModelMixin):
        return [each for kind in group if (each := describe_diffusion(kind))]
    return describe_type(group)


def head_lines() -> list[str]:
    """Say what wrote the table, of what, and when."""
    return [
        "What the parameters of models are, by benches/architectures/table.py; do not edit.",
        f"{date.today()}: {_versions()}",
    ]


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("transformers", "diffusers"))


def _complete(group: list[type]) -> list[Described]:
    """Describe the classes of one type; none if some need a package that is not installed."""
    start = len(SKIPPED)
    described = describe(group)
    return [] if any("ImportError" in reason for _, reason in SKIPPED[start:]) else described


def check(seed: int) -> int:
    """Build a random fortieth again; print what differs from the table, and return an exit code."""
    if _versions() not in TABLE.read_text("utf-8").partition("\n\n")[0]:
        print(f"the table is not of {_versions()}: write it anew")
        return 2
    kinds = groups()
    chosen = random.Random(seed).sample(kinds, len(kinds) // 40)
    differing = []
    compared = 0
    for architecture in (each for group in chosen for each in _complete(group)):
        compared += 1
        key = "architectures" if architecture.model_type else "_class_name"
        value = [architecture.name] if architecture.model_type else architecture.name
        with TemporaryDirectory() as folder:
            file = Path(folder, "one.txt")
            file.write_text(table_text([], [architecture]), "utf-8")
            if read_architecture(file) != find_architecture({key: value}):
                differing.append(architecture.name)
    print(f"seed {seed}: {compared} architectures, {len(differing)} differ: {differing}")
    return 1 if differing or not compared else 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="classes to print, rather than to write all")
    parser.add_argument("--check", type=int, metavar="SEED", help="compare a random fortieth")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    diffusers.logging.set_verbosity_error()
    if arguments.check is not None:
        return check(arguments.check)
    described = [each for group in groups(arguments.only) for each in describe(group)]
    text = table_text(head_lines(), described)
    if arguments.only:
        print(text)
    else:
        TABLE.write_text(text, "utf-8")
    for name, reason in SKIPPED:
        print(f"skipped {name}: {reason[:200]}")
    for name in sorted(GUESSES):
        print(f"without a role: {name}")
    for name, parameter in DIFFERING:
        print(f"a layer or a convolution, as configured: {name} {parameter}")
    total = sum(len(each.rows) for each in described)
    print(
        f"{len(described)} architectures, {total} parameters, {len(GUESSES)} without a role,"
        f" {len(SKIPPED)} forms skipped, {len(text.encode()):,} bytes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
