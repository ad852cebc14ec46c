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
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import diffusers
import torch
import transformers
from castwise.models.architecture import (
    OPTIONAL_ROLES,
    find_architecture,
    normalize_name,
    read_architecture,
)
from configurations import (
    configurations,
    diffusion_arguments,
    flagged_configurations,
    mixed_configurations,
    numbers_of,
    parts_of,
)
from diffusers import ModelMixin
from kinds import common_keys, joined_sets, keys_of_lists, layers_of
from roles import Row, rows_of
from saved import saved_rows
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.core_model_loading import build_glob_alternation
from transformers.initialization import no_init_weights
from transformers.models.auto import modeling_auto
from writing import ClassDescription, table_text

_normalize = cache(normalize_name)  # the forms of a class have names in common
TABLE = Path(__file__).parents[2] / "python/castwise/models/architectures.txt"


def model_classes() -> Iterator[type[Any]]:
    """Yield the classes of transformers that a configuration can name."""
    folder = Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/modeling_*.py")):
        name = f"transformers.models.{file.parent.name}.{file.stem}"
        try:
            module = import_module(name)
        except ImportError as error:
            SKIPPED_FORMS.append((name, str(error)))
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
        config_classes = {kind.config_class for kind in public}
        yield from (
            kind for kind in kinds if kind in public or kind.config_class not in config_classes
        )


_SIGN = re.compile("([=~])")


def adopted_classes() -> Iterator[type[Any]]:
    """Yield classes of transformers that other types have than their own, each with that type."""
    kinds: dict[tuple[str, str], type[Any]] = {}
    for table in vars(modeling_auto):
        if not (table.startswith("MODEL_") and table.endswith("MAPPING_NAMES")):
            continue
        for model_type, names in getattr(modeling_auto, table).items():
            for name in (names,) if isinstance(names, str) else names:
                with suppress(AttributeError, ImportError, KeyError):
                    kind, config_class = getattr(transformers, name), CONFIG_MAPPING[model_type]
                    if kind.config_class.model_type != model_type:
                        body = {"config_class": config_class, "__module__": kind.__module__}
                        kinds[name, model_type] = type(name, (kind,), body)
    yield from (kind for _, kind in sorted(kinds.items()))


SKIPPED_FORMS: list[tuple[str, str]] = []
AMBIGUOUS_ROWS: list[tuple[str, str]] = []
GUESSES: Counter[str] = Counter()


def describe_type(kinds: Iterable[type[PreTrainedModel]]) -> list[ClassDescription]:
    """Return what the table has of the classes of one type of models.

    Each class has what its configurations bring; what flags bring beside that is found by the class
    with the most parameters, and is in the base model of all.
    """
    pairs = [(kind, each) for kind in kinds if (each := _describe_configurations(kind))]
    if not pairs:
        return []
    kind, widest = max(pairs, key=lambda pair: len(pair[1].rows))
    parts: list[ClassDescription] = []
    for number, config in enumerate(flagged_configurations(kind)):
        with suppress(Exception):  # flags that exclude each other
            parts.append(_describe(kind, config()))
            if number == 0:
                break
    paths = frozenset().union(*widest.keys.values())
    for config in mixed_configurations(kind, paths):
        with suppress(Exception):  # counts that lists of the configuration contradict
            parts.append(replace(_describe(kind, config()), rows={}, ties={}, modules={}))
    union = _unite([widest, *parts])
    return [_widen(each, widest, union) for _, each in pairs]


def _describe_configurations(kind: type[PreTrainedModel]) -> ClassDescription | None:
    """Return what a class has by its default configuration and by its forms."""
    parts = []
    for number, config in enumerate(configurations(kind)):
        try:
            parts.append(_describe(kind, config()))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            SKIPPED_FORMS.append((kind.__name__, f"form {number}: {reason}" if number else reason))
            if number == 0:
                return None
    if not any(part.rows for part in parts):
        SKIPPED_FORMS.append((kind.__name__, "it has no parameters"))
        return None
    return _unite(parts)


def _unite(parts: list[ClassDescription]) -> ClassDescription:
    """Put forms of a class together, but for what is a convolution in one, a layer in another."""
    rows: dict[str, str] = {}
    ties: dict[str, str] = {}
    modules: dict[str, str] = {}
    modules_by_type: dict[str, str] = {}
    for part in reversed(parts):
        rows |= part.rows
        ties |= part.ties
        modules |= part.modules
        modules_by_type |= part.parts
    for part in parts:
        for name, text in part.rows.items():
            if name in rows and {text.split()[0], rows[name].split()[0]} == {
                "linear",
                "convolution",
            }:
                del rows[name]
                AMBIGUOUS_ROWS.append((part.name, name))
    marks = "".join(sorted({mark for part in parts for mark in part.marks}))
    return replace(
        parts[0],
        rows=rows,
        ties=ties,
        modules=modules,
        parts=modules_by_type,
        marks=marks,
        sets=joined_sets(part.sets for part in parts),
        keys=common_keys(part.keys for part in parts),
    )


def _widen(
    each: ClassDescription, widest: ClassDescription, union: ClassDescription
) -> ClassDescription:
    """Return a class with what another of its type has more in the base model that both share."""
    prefix, own_prefix = _prefix(widest), _prefix(each)
    more_rows, modules = {}, {}
    for name, text in union.rows.items():
        module = union.modules.get(name, name)
        if name in widest.rows or not (module.startswith(prefix) or each is widest):
            continue
        label = own_prefix + name.removeprefix(prefix) if name.startswith(prefix) else name
        more_rows[label] = text
        if module.startswith(prefix):
            module = own_prefix + module.removeprefix(prefix)
        if label != module:
            modules[label] = module
    ties = {}
    for name, line in union.ties.items():
        part, sign, source = _SIGN.split(line, maxsplit=1)
        if name.startswith(prefix) and source.startswith(prefix):
            ties[own_prefix + name.removeprefix(prefix)] = (
                part + sign + own_prefix + source.removeprefix(prefix)
            )
    ties = {name: target for name, target in ties.items() if name in more_rows}
    labels = {
        pattern: own_prefix + pattern.removeprefix(prefix)
        if pattern.startswith(prefix)
        else pattern
        for pattern in union.sets.keys() | union.keys.keys()
        if pattern.startswith(prefix) or each is widest or pattern in each.sets
    }
    sets = {labels[name]: value for name, value in union.sets.items() if name in labels}
    keys = {labels[name]: value for name, value in union.keys.items() if name in labels}
    return replace(
        each,
        rows=more_rows | dict(each.rows),
        modules=modules | dict(each.modules),
        ties=ties | dict(each.ties),
        sets=joined_sets((each.sets, sets)),
        keys=common_keys((each.keys, keys)),
    )


def _prefix(each: ClassDescription) -> str:
    """Return what the names of a class's base model begin with."""
    prefix = f"{each.base}."
    return prefix if each.base and any(name.startswith(prefix) for name in each.rows) else ""


def _describe(
    kind: type[PreTrainedModel], config: transformers.PreTrainedConfig
) -> ClassDescription:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # what stays in float32 is so by the code
    try:
        with torch.device("meta"), no_init_weights():
            model = kind(config)
    finally:
        torch.set_default_dtype(default)
    base = model.base_model_prefix
    rows = _mark_float32(model, rows_of(model, _sizes_of_heads(config), base))
    layer_rows = rows
    rows_in_files = saved_rows(model, rows)
    names = {inner[0]: name for name, (_, inner) in reversed(rows_in_files.items())}
    rows = {name: row for name, (row, _) in rows_in_files.items()} | {
        name: row for name, row in rows.items() if name not in rows_in_files
    }
    targets = {name: _joined_names(inner) for name, (_, inner) in rows_in_files.items()}
    description = _texts(
        kind.__name__,
        config.model_type,
        base,
        rows,
        ties=_ties(model, names),
        targets=targets,
        namings=(rows_in_files, layer_rows),
        numbers=numbers_of(config),
    )
    parts = _replaceable_modules(model, names)
    layers = {_parent(name) for name, row in layer_rows.items() if row.role == "linear"}
    marks = "!" * _needs_weights(model, layers) + "~" * _widens_scales(model)
    return replace(description, parts=parts, marks=marks)


def _joined_names(names: list[str]) -> str:
    """Return names that differ in one part as one, `a.{b,c}.d`; else the first."""
    if len(names) == 1:
        return names[0]
    parts = [name.split(".") for name in names]
    if len({*map(len, parts)}) > 1:
        return names[0]
    columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
    if sum(len(column) > 1 for column in columns) > 1:
        return names[0]
    return ".".join(c[0] if len(c) == 1 else f"{{{','.join(c)}}}" for c in columns)


def _widens_scales(model: PreTrainedModel) -> bool:
    """Return True if a class keeps in float32 what is called a scale, and not its layer."""
    plan = list(model._get_dtype_plan(torch.bfloat16))
    pattern = build_glob_alternation(plan)[0] if plan else re.compile("(?!)")
    return bool(pattern.search("fc.weight_scale")) and not pattern.search("fc.weight")


def _needs_weights(model: PreTrainedModel, layers: Collection[str]) -> bool:
    """Return True if a class reads the weights of such layers when it fills in what a file lacks.

    A layer of packed codes has none, and `from_pretrained` fails.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name in layers:
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


def describe_diffusion(kind: type[ModelMixin]) -> ClassDescription | None:
    """Return what the table has of a class of diffusers; None if it does not build."""
    parts = []
    for number, arguments in enumerate(diffusion_arguments(kind.__name__)):
        try:
            with torch.device("meta"):
                model = kind(**arguments)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            SKIPPED_FORMS.append((kind.__name__, f"form {number}: {reason}" if number else reason))
            if number == 0:
                return None
            continue
        float32 = kind._keep_in_fp32_modules or []
        rows = {
            name: replace(row, float32=any(part in float32 for part in name.split(".")))
            for name, row in rows_of(model, frozenset(), "").items()
        }
        # Nobody is asked whether it loads such a model, so nothing of its layers is needed.
        texts = _texts(kind.__name__, "", "", rows, ties={}, targets={}, namings=(), numbers={})
        parts.append(texts)
    return _unite(parts)


def _texts(
    name: str,
    model_type: str,
    base: str,
    rows: Mapping[str, Row],
    *,
    ties: Mapping[str, str],
    targets: Mapping[str, str],
    namings: Iterable[Collection[str]],
    numbers: Mapping[str, int],
) -> ClassDescription:
    """Return an architecture with its names normalized; the first of equal names counts.

    `targets` are the names in the model of names in files; `namings` are both, each as a whole;
    `numbers` are those of the configuration that may count layers.
    """
    numbered = _keep_numbers(rows, targets)
    labels = {each: numbered.get(_parent(each), _normalize)(each) for each in rows}
    by_name = {labels[each]: row for each, row in reversed([*rows.items()])}
    modules = {
        labels[each]: labels.get(target, _normalize(target))
        for each, target in reversed([*targets.items()])
    }
    GUESSES.update(f"{name} {each}" for each, row in by_name.items() if row.is_guess)
    layers = [
        layers_of({each: labels[each] for each in naming if rows[each].role not in OPTIONAL_ROLES})
        for naming in namings
    ]
    lines: dict[str, str] = {}
    copies = set()  # of a layer's part in other layers, which files may leave out
    for tied, line in ties.items():
        part, sign, source = _SIGN.split(line, maxsplit=1)
        lines[labels[tied]] = part + sign + labels[source]
        if labels[tied] == labels[source]:
            copies.add(tied)
    without_copies = layers_of(
        {
            each: labels[each]
            for each in targets
            if each not in copies and rows[each].role not in OPTIONAL_ROLES
        }
    )
    return ClassDescription(
        name,
        model_type,
        base,
        {label: row.text() for label, row in by_name.items()},
        {tied: line for tied, line in lines.items() if tied != _SIGN.split(line, maxsplit=1)[2]},
        {label: target for label, target in modules.items() if label != target},
        sets=joined_sets(
            {pattern: frozenset((each,)) for pattern, each in sets.items()}
            for sets, _ in [*layers, *([without_copies] if copies else [])]
        ),
        keys=common_keys(keys_of_lists(lengths, numbers) for _, lengths in layers),
    )


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _keep_last_number(name: str) -> str:
    """Normalize a name but for the number of the module that has the parameter."""
    module, _, attribute = name.rpartition(".")
    outer, _, number = module.rpartition(".")
    return ".".join(filter(None, (_normalize(outer), number, attribute)))


def _keep_numbers(
    rows: Mapping[str, Row], targets: Mapping[str, str]
) -> dict[str, Callable[[str], str]]:
    """Name the modules of sequences whose numbers tell a layer from a norm, or have other names."""
    kinds: dict[str, set[tuple[str, str]]] = {}
    for name, row in rows.items():
        if _parent(name).rpartition(".")[2].isdecimal():
            role = "linear" if row.role == "head" else row.role
            target = _normalize(targets.get(name, name))
            kinds.setdefault(_normalize(name), set()).add((role, target))
    mixed_modules = {_parent(name) for name, pairs in kinds.items() if len(pairs) > 1}
    return {
        _parent(name): _keep_last_number
        for name in rows
        if _normalize(_parent(name)) in mixed_modules
    }


def _sizes_of_heads(config: transformers.PreTrainedConfig) -> frozenset[int]:
    """Return the numbers of outputs that are a model's: of tokens, labels and coordinates."""
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    labels = getattr(config, "num_labels", 2)
    return frozenset({labels, labels + 1, 1, 2, 4, *([vocabulary] if vocabulary else [])})


def _mark_float32(model: PreTrainedModel, rows: dict[str, Row]) -> dict[str, Row]:
    """Mark what the code keeps in float32: by the lists of its class, or as it is made."""
    plan = list(model._get_dtype_plan(torch.float16))
    pattern = build_glob_alternation(plan)[0] if plan else None
    names = {
        name
        for name, tensor in model.named_parameters(remove_duplicate=False)
        if tensor.dtype == torch.float32
    }
    return {
        name: replace(row, float32=name in names or bool(pattern and pattern.search(name)))
        if row.role != "buffer"
        else row
        for name, row in rows.items()
    }


def _ties(model: PreTrainedModel, names: dict[str, str]) -> dict[str, str]:
    """Return what shares its storage, by names in files, as `PART=SOURCE` or `PART~SOURCE`.

    `=` stands for what is tied by the configuration as it is, `~` for what it must ask for; `PART`
    is the path of the part that asks, empty for the configuration itself.
    """
    paths = {id(part): path for path, part in reversed([*parts_of(model.config)])}
    own_ties = set(_tied_names(model, paths))
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    for config in configs.values():
        if getattr(config, "tie_word_embeddings", True) is False:
            config.tie_word_embeddings = True
    with suppress(ValueError):  # a class that names what its default does not have
        all_ties = own_ties | set(_tied_names(model, paths))
        return {
            names[tied]: path + ("=" if (tied, path, source) in own_ties else "~") + names[source]
            for tied, path, source in sorted(all_ties)
            if tied in names and source in names
        }
    return {names[t]: f"{path}={names[s]}" for t, path, s in sorted(own_ties) if {t, s} <= {*names}}


def _tied_names(model: PreTrainedModel, paths: dict[int, str]) -> Iterator[tuple[str, str, str]]:
    """Yield what is tied to what, by names in the model, with the part that asks for it."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, PreTrainedModel):
            start = f"{prefix}." if prefix else ""
            path = paths.get(id(module.config), "")
            for name, source in module.get_expanded_tied_weights_keys().items():
                yield start + name, path, start + source


def _replaceable_modules(model: PreTrainedModel, names: dict[str, str]) -> dict[str, str]:
    """Name the modules of a type that a configuration chooses: `PART TYPE`, by prefixes of names.

    Each has the prefix of the model and that of files, if these differ.
    """
    paths = {id(part): path for path, part in reversed([*parts_of(model.config)])}
    lines: dict[str, str] = {}
    for prefix, module in model.named_modules():
        path = paths.get(id(getattr(module, "config", None)), "")
        if not prefix or not path or not isinstance(module, PreTrainedModel):
            continue
        outer, _, key = path.rpartition(".")
        owner = model.config
        for step in filter(None, outer.split(".")):
            owner = getattr(owner, step)
        default_configs = getattr(owner, "sub_configs_defaults", {})
        is_chosen = (
            key in default_configs and default_configs[key].config_class is transformers.AutoConfig
        )
        if is_chosen and not any(prefix.startswith(f"{outer_prefix}.") for outer_prefix in lines):
            ends = (name.removeprefix(prefix) for name in names if name.startswith(f"{prefix}."))
            end = next((end for end in ends if names[prefix + end].endswith(end)), "")
            line = f"{path} {module.config.model_type}"
            lines[prefix] = line
            lines[names[prefix + end].removesuffix(end) if end else prefix] = line
    return {_normalize(prefix): line for prefix, line in lines.items()}


def groups(names: Collection[str] | None = None) -> list[list[type]]:
    """Return the classes of each type of models, of all or of some names; first transformers'."""
    kinds: dict[str, list[type]] = {}
    for kind in (*model_classes(), *adopted_classes(), *diffusion_classes()):
        if not names or kind.__name__ in names:
            is_diffusion = issubclass(kind, ModelMixin)
            key = kind.__name__ if is_diffusion else kind.config_class.model_type or kind.__name__
            kinds.setdefault(("diffusers " if is_diffusion else "") + key, []).append(kind)
    return list(kinds.values())


def describe(group: list[type]) -> list[ClassDescription]:
    """Return what the table has of the classes of one type."""
    if issubclass(group[0], ModelMixin):
        return [each for kind in group if (each := describe_diffusion(kind))]
    return describe_type(group)


def _drop_repeats(descriptions: list[ClassDescription]) -> list[ClassDescription]:
    """Leave out a class of another type than its own that has the same parameters there."""
    firsts: dict[str, ClassDescription] = {}
    for each in descriptions:
        firsts.setdefault(each.name, each)
    return [
        each
        for each in descriptions
        if each is (first := firsts[each.name])
        or replace(each, model_type=first.model_type, sets=first.sets, keys=first.keys) != first
    ]


def head_lines() -> list[str]:
    """Say what wrote the table, of what, and when."""
    return [
        "What the parameters of models are, by benches/architectures/table.py; do not edit.",
        f"{date.today()}: {_versions()}",
    ]


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("transformers", "diffusers"))


def _describe_completely(group: list[type]) -> list[ClassDescription]:
    """Describe the classes of one type; none if some need a package that is not installed."""
    start = len(SKIPPED_FORMS)
    descriptions = describe(group)
    return (
        [] if any("ImportError" in reason for _, reason in SKIPPED_FORMS[start:]) else descriptions
    )


def check(seed: int) -> int:
    """Build a random fortieth again; print what differs from the table, and return an exit code."""
    if _versions() not in TABLE.read_text("utf-8").partition("\n\n")[0]:
        print(f"the table is not of {_versions()}: write it anew")
        return 2
    kinds = groups()
    drawn_groups = random.Random(seed).sample(kinds, len(kinds) // 40)
    differing_names = []
    count = 0
    for architecture in (each for group in drawn_groups for each in _describe_completely(group)):
        count += 1
        config: dict[str, object] = {"_class_name": architecture.name}
        if architecture.model_type:  # which tells apart types that share a class
            config = {"architectures": [architecture.name], "model_type": architecture.model_type}
        with TemporaryDirectory() as folder:
            file = Path(folder, "one.txt")
            file.write_text(table_text([], [architecture]), "utf-8")
            new_architecture, table_architecture = (
                read_architecture(file),
                find_architecture(config),
            )
            # A class with the same parameters in several types stands once, with its own layers.
            if table_architecture is not None and table_architecture.model_type != (
                kind := new_architecture.model_type
            ):
                new_architecture = new_architecture._replace(
                    lists=table_architecture.lists,
                    kinds=table_architecture.kinds,
                )
                table_architecture = table_architecture._replace(model_type=kind)
            if new_architecture != table_architecture:
                differing_names.append(architecture.name)
    print(f"seed {seed}: {count} architectures, {len(differing_names)} differ: {differing_names}")
    return 1 if differing_names or not count else 0


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
    descriptions = [each for group in groups(arguments.only) for each in describe(group)]
    text = table_text(head_lines(), _drop_repeats(descriptions))
    if arguments.only:
        print(text)
    else:
        TABLE.write_text(text, "utf-8")
    for name, reason in SKIPPED_FORMS:
        print(f"skipped {name}: {reason[:200]}")
    for name in sorted(GUESSES):
        print(f"without a role: {name}")
    for name, parameter in AMBIGUOUS_ROWS:
        print(f"a layer or a convolution, as configured: {name} {parameter}")
    total = sum(len(each.rows) for each in descriptions)
    print(
        f"{len(descriptions)} architectures, {total} parameters, {len(GUESSES)} without a role,"
        f" {len(SKIPPED_FORMS)} forms skipped, {len(text.encode()):,} bytes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
