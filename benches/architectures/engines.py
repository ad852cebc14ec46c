# ruff: noqa: PLR0911, PLR0912, S101 - one case for each kind of layer and of rule
"""Write `castwise/models/engines.txt` from the sources of vLLM, SGLang and mlx-lm.

Run by hand: `python engines.py WHEELS`, a folder of the unpacked wheels. Nothing of them is
imported: `sources.py` follows the constructors. A second run gives the same file byte for byte.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sources import (
    ANY,
    INDEX,
    QUANT,
    Class,
    External,
    Function,
    Instance,
    Interpreter,
    Items,
    Table,
    Values,
    union,
)

OUT = Path(__file__).resolve().parents[2] / "python" / "castwise" / "models" / "engines.txt"
ENDS = ("LinearBase", "VocabParallelEmbedding", "FusedMoE", "RoutedExperts")
"""The engines' own layers, which the quantization replaces."""

TEXTS = [
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
    "InternLM2ForCausalLM",
    "GptOssForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "GraniteForCausalLM",
]
"""What the language model of a composite model may be, whose class its configuration names."""

EXPERTS = ("gate_proj", "down_proj", "up_proj")
"""What experts are called if nothing else is said: gate, down, up."""

PLAIN = {"Linear": "linear", "Embedding": "embedding"}
COMPUTED = {"fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa")}
"""What loaders of SGLang put together in code (`deepseek_weight_loader.py`, `kimi_k3.py`)."""

QUANTIZED, PLAINLY, UNDECIDED = "quantized", "unquantized", "undecided"


@dataclass
class Leaf:
    """A layer of an engine: where it stands, and whether it is built with the quantization.

    `above` holds the modules around it, the outermost first, with the lengths of their paths.
    """

    path: tuple[str, ...]
    kind: str
    quant: Values
    prefix: Values
    above: tuple[tuple[Instance, int], ...]
    names: Values = ()

    @property
    def state(self) -> str:
        """Whether it is built with the quantization, as far as the source decides it."""
        if all(value is QUANT or isinstance(value, Instance) for value in self.quant):
            return QUANTIZED  # by the statement, or by one that the engine makes itself
        return PLAINLY if all(value is None for value in self.quant) else UNDECIDED


# What the interpreter does not follow


def _make_layers(run: Interpreter, args: list[Values], keywords: dict[str, Values]) -> Values:
    functions = keywords.get("layer_fn") or (args[1] if len(args) > 1 else ())
    prefixes = keywords.get("prefix") or (args[2] if len(args) == 3 else ("",))
    below = tuple(
        f"{prefix}.#" if prefix else "#" for prefix in prefixes if isinstance(prefix, str)
    )
    layers: Values = ()
    for function in functions:
        keys: dict[str, Values] = {"prefix": below or ANY}
        if isinstance(function, Function):
            names = [arg.arg for arg in function.node.args.args]
            keys |= {name: (INDEX,) for name in names if name in {"idx", "layer_id", "i"}}
        layers = union(layers, run.call(function, [], keys))
    return (Items([layers], is_layers=True, is_module=True),)


def _make_experts(run: Interpreter, args: list[Values], keywords: dict[str, Values]) -> Values:
    bound = {"quant_config": (None,), **keywords}
    return (Instance(External("FusedMoE"), "FusedMoE", bound),)


def _make_registered(run: Interpreter, args: list[Values], keywords: dict[str, Values]) -> Values:
    names = [
        name
        for value in keywords.get("architectures", ())
        if isinstance(value, Items)
        for values in value.values
        for name in values
        if isinstance(name, str)
    ]
    prefix = keywords.get("prefix", ("",))
    models = run.__dict__.setdefault("registered", {})
    instances: Values = ()
    for kind in (run.registry[name] for name in names or TEXTS if name in run.registry):
        key = (kind.name, prefix)
        if key not in models:
            models[key] = ANY  # of a model in itself
            models[key] = run.call(kind, [], {**ROOT, "prefix": prefix})
        instances += models[key]
    return instances


ROOT: Mapping[str, Values] = {
    "vllm_config": ANY,
    "config": ANY,
    "quant_config": (QUANT,),
    "prefix": ("",),
}
"""The arguments of the constructors of models, of which each takes some."""

NATIVES = {
    "make_layers": _make_layers,
    "make_layers_non_pp": _make_layers,
    "FusedMoEFactory": _make_experts,
    "init_vllm_registered_model": _make_registered,
    "get_rope": lambda run, args, keywords: ANY,
    "get_moe_impl_class": lambda run, args, keywords: (External("FusedMoEFactory"),),
}


# The layers of a model


def leaves(run: Interpreter, model: Instance) -> Iterator[Leaf]:
    """List the layers of a model, each at its first place."""
    visited_ids: set[int] = set()
    is_mlx = _is_mlx(model)

    def visit(
        value: Any, path: tuple[str, ...], above: tuple[tuple[Instance, int], ...]
    ) -> Iterator[Leaf]:
        if isinstance(value, Items | Table):
            parts = (
                [("#", part) for part in value.values]
                if isinstance(value, Items)
                else [(_part(key), part) for key, part in value.values.items()]
            )
            for name, values in parts:
                for part in values:
                    yield from visit(part, (*path, name), above)
            return
        if not isinstance(value, Instance) or id(value) in visited_ids:
            return
        visited_ids.add(id(value))
        leaf = _leaf(value, path, above)
        if leaf is not None and leaf.kind == "opaque" and path[-1] == "language_model":
            for part in _make_registered(run, [], {}):
                yield from visit(part, path, above)
        elif leaf is not None:
            yield leaf
        elif isinstance(value.kind, Class):
            for name, values in value.attributes.items():
                for part in values:
                    if is_mlx or not isinstance(part, Items | Table) or part.is_module:
                        yield from visit(part, (*path, name), (*above, (value, len(path))))

    yield from visit(model, (), ())


def _is_mlx(model: Instance) -> bool:
    """Return True for a model of mlx-lm, whose lists and arrays count as modules and parameters."""
    return isinstance(model.kind, Class) and model.kind.file.name.startswith("mlx_lm.")


def _part(key: Any) -> str:
    return "#" if not isinstance(key, str) or key.isdecimal() else key


def _leaf(
    value: Instance, path: tuple[str, ...], above: tuple[tuple[Instance, int], ...]
) -> Leaf | None:
    bound, name = value.bound, value.kind.name.rpartition(".")[2]
    prefix = bound.get("prefix", ())
    match value.base:
        case "LinearBase":
            return Leaf(path, "linear", bound["quant_config"], prefix, above)
        case "VocabParallelEmbedding":
            is_head = "Head" in value.kind.name
            quant = bound["quant_config"] if is_head else (None,)
            return Leaf(path, "head" if is_head else "embedding", quant, prefix, above)
        case "FusedMoE" | "RoutedExperts":
            names = bound.get("ckpt_names", ())
            return Leaf(path, "experts", bound["quant_config"], prefix, above, names)
        case "opaque":
            return Leaf(path, "opaque", bound.get("quant_config", ANY), prefix, above)
    if isinstance(value.kind, Class):
        if "to_quantized" in value.kind.members:  # of mlx-lm
            return Leaf(path, "linear", (QUANT,), (), above)
        return None
    if value.kind.name in {"mlx.nn.Linear", "mlx.nn.Embedding"}:
        return Leaf(path, "linear", (QUANT,), (), above)
    if "transformers" in value.kind.name or name == "MultiheadAttention":
        return Leaf(path, "tower", (None,), (), above)
    if name == "Parameter" or value.kind.name.startswith("mlx.core."):
        tensors = [value, *bound.get("data", ())]
        axes = {
            len(shape.values) if isinstance(shape, Items) else 0
            for tensor in tensors
            for shape in (tensor.bound.get("axes", ()) if isinstance(tensor, Instance) else ())
        }
        if not axes - {1}:
            return None  # a vector, or one whose shape no constructor states
        return Leaf(path, "parameter", (None,), (), above)
    return Leaf(path, PLAIN[name], (None,), (), above) if name in PLAIN else None


# What the checkpoint calls them


class Rename(NamedTuple):
    """One rule of an engine that renames what a checkpoint names."""

    kind: str
    old: str
    new: str


@dataclass
class Names:
    """How the loader of one class renames: in its own rules, those of joins first."""

    joins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    packed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    renames: Sequence[Rename] = ()
    experts: Sequence[Sequence[str]] = ()


def _texts(values: Values) -> list[str]:
    return [value for value in values if isinstance(value, str)]


def _dicts(values: Values) -> Iterator[tuple[str, Values]]:
    for value in values:
        if isinstance(value, Table):
            for key, part in value.values.items():
                if isinstance(key, str):
                    yield key, part


def _constant(node: ast.AST) -> str:
    """Return a text, with `#` for what is put into it; "" of others."""
    if isinstance(node, ast.JoinedStr):
        text = "".join(
            _constant(part) if isinstance(part, ast.Constant) else "#" for part in node.values
        )
        return "" if re.search(r"#\W*#|#\.?$", text) else text
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def read_names(run: Interpreter, instance: Instance) -> Names:
    """Return the renames of the class of a module, those of its loader's source too."""
    joins: dict[str, list[str]] = defaultdict(list)
    renames: list[Rename] = []
    for old, part in _dicts(run.attribute(instance, "remap_prefix")):
        renames += [Rename("prefix", old, new) for new in _texts(part)]
    mappers = ("hf_to_vllm_mapper", "hf_to_sglang_mapper")
    for mapper in (value for name in mappers for value in run.attribute(instance, name)):
        if not isinstance(mapper, Instance):
            continue
        for old, part in _dicts(mapper.attributes.get("orig_to_new_stacked", ())):
            for value in part:
                if isinstance(value, Items):
                    joins[_texts(value.values[0])[0]].append(old)
        for kind in ("suffix", "prefix", "substr"):
            for old, part in _dicts(mapper.attributes.get(f"orig_to_new_{kind}", ())):
                renames += [Rename(kind, old, new) for new in _texts(part)]
    experts: list[list[str]] = []
    for base in run.mro(instance.kind):
        if not isinstance(base, Class):
            continue
        for node in (n for m in base.members.values() for n in ast.walk(m)):
            match node:
                case ast.Tuple(elts=[first, second, _, *_]):
                    new, old = _constant(first), _constant(second)
                    if new and old and old not in joins[new]:
                        joins[new].append(old)
                case ast.Call(func=ast.Attribute(attr="replace"), args=[first, second]):
                    old, new = _constant(first), _constant(second)
                    if old and new:
                        renames.append(Rename("substr", old, new))
                case ast.Call():
                    words = {word.arg: _constant(word.value) for word in node.keywords}
                    if words.get("ckpt_gate_proj_name"):
                        keys = ("gate", "down", "up")
                        experts.append([words.get(f"ckpt_{key}_proj_name", "") for key in keys])
    for new, olds in COMPUTED.items():
        joins.setdefault(new, list(olds))
    packed_modules = {
        key: [
            name
            for value in part
            if isinstance(value, Items)
            for v in value.values
            for name in _texts(v)
        ]
        for key, part in _dicts(run.attribute(instance, "packed_modules_mapping"))
    }
    return Names(dict(joins), packed_modules, renames, experts)


def _ends(name: str, part: str) -> bool:
    return name == part or name.endswith("." + part)


def _split(name: str, joins: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the names in a checkpoint of what a layer joins, itself if it joins nothing."""
    for new, olds in sorted(joins.items(), key=lambda item: -len(item[0])):
        part = new.strip(".")
        if part and _ends(name, part):
            stem = name.removesuffix(part)
            return tuple(dict.fromkeys(stem + old.strip(".") for old in olds))
    return (name,)


def _invert(group: tuple[str, ...], renames: Sequence[Rename]) -> list[tuple[str, ...]]:
    """List what a checkpoint may call tensors that a loader renames to these names."""
    groups = []
    for rename in renames:
        olds = []
        for name in group:
            text = f"{name}.weight"
            match rename.kind:
                case "prefix" if text.startswith(rename.new):
                    old = rename.old + text.removeprefix(rename.new)
                case "suffix" if text.endswith(rename.new):
                    old = text.removesuffix(rename.new) + rename.old
                case "substr" if rename.new and rename.new in text:
                    old = text.replace(rename.new, rename.old, 1)
                case _:
                    break
            if not old.endswith(".weight"):
                break
            olds.append(old.removesuffix(".weight"))
        twice = any(_repeats(old) > _repeats(name) for old, name in zip(olds, group, strict=False))
        if len(olds) == len(group) and tuple(olds) != group and not twice:
            groups.append(tuple(olds))
    return groups


def _repeats(name: str) -> int:
    """Count the parts of a name that it has already; a rename that adds one is no inverse."""
    parts = [part for part in name.split(".") if part != "#"]
    return len(parts) - len(set(parts))


def checkpoint_names(leaf: Leaf, names: Mapping[int, Names]) -> list[tuple[str, ...]]:
    """List what a checkpoint may call the tensors that a layer joins."""
    groups: list[tuple[str, ...]] = [()]
    length = leaf.above[-1][1] if leaf.above else 0
    more_groups = [
        group
        for parts in (tuple(prefix.split(".")) for prefix in _texts(leaf.prefix))
        if parts[-1:] == leaf.path[-1:]
        and parts[:length] == leaf.path[:length]
        and parts != leaf.path
        for group in checkpoint_names(replace(leaf, path=parts, prefix=()), names)
    ]
    end = len(leaf.path)
    rules = [(names[id(instance)], length) for instance, length in reversed(leaf.above)]
    if leaf.kind == "experts":
        expert_names: Sequence[Sequence[str]] = [
            [name for v in value.values for name in _texts(v)]
            for value in leaf.names
            if isinstance(value, Items)
        ]
        expert_names = expert_names or next(
            (rule.experts for rule, _ in rules if rule.experts), [EXPERTS]
        )
        groups = [
            tuple(f"#.{name}" for name in (gate, up) if name) for gate, *_, up in expert_names
        ]
        path = ".".join(leaf.path)
        for key, olds in (item for rule, _ in rules for item in rule.joins.items()):
            match = re.fullmatch(r"\.?([\w.]+?)\.(?:routed_experts\.)?#?w13_weight", key)
            stem = match[1] if match is not None else ""
            if stem and _ends(path, stem):  # a loader's own names, from the whole path on
                more_groups.append(
                    tuple(
                        path.removesuffix(stem) + old.strip(".").removesuffix(".weight")
                        for old in olds
                    )
                )
    is_joined = leaf.kind == "experts"
    for rule, length in rules:
        prefix = ".".join(leaf.path[length:end])
        end = length
        groups = [
            tuple(".".join(filter(None, (prefix, name))) for name in group or ("",))
            for group in groups
        ]
        if not is_joined:
            split = [_split(group[0], rule.joins) for group in groups]
            is_joined = split != groups
            groups = [*split, *(groups if is_joined else ())]  # a file may hold the joint weight
        groups += [g for group in groups for g in _invert(group, rule.renames) if g not in groups]
    if not is_joined:
        for rule, _ in rules:
            split = [_split(group[0], rule.packed) for group in groups]
            if split != groups:
                return [*split, *groups, *more_groups]
    return [*groups, *more_groups]


# Rows


@dataclass
class Rows:
    """What an engine does with an architecture: joined names, and names by their state."""

    joined: set[tuple[str, ...]] = field(default_factory=set)
    states: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    reasons: Counter[str] = field(default_factory=Counter)

    def columns(self) -> tuple[tuple[str, ...], ...]:
        """Return what a block has: joined, unquantized and undecided names."""
        plain = {name for name, states in self.states.items() if states == {PLAINLY}}
        unclear = {
            name for name, states in self.states.items() if states - {PLAINLY, QUANTIZED}
        } | {name for name, states in self.states.items() if {PLAINLY, QUANTIZED} <= states}
        other_names = set(self.states) - plain
        parts = (
            [_braces(group) for group in self.joined],
            _shorten(plain, other_names),
            _shorten(unclear, set(self.states) - unclear),
        )
        return tuple(tuple(sorted(part)) for part in parts)


def _braces(group: Sequence[str]) -> str:
    """Write names with their common stem once: `a.{b,c}`."""
    parts = [name.split(".") for name in group]
    common = 0
    while all(len(part) > common + 1 for part in parts) and len({p[common] for p in parts}) == 1:
        common += 1
    stem = "".join(part + "." for part in parts[0][:common])
    return f"{stem}{{{','.join('.'.join(part[common:]) for part in parts)}}}"


def _shorten(names: set[str], other_names: set[str]) -> set[str]:
    """Write `a.*` for all names below `a` if there are two or more and no others."""
    stems = {
        name: {name[:i] for i, c in enumerate(name) if c == "."} for name in names | other_names
    }
    blocked_stems = set().union(*(stems[name] for name in other_names)) if other_names else set()
    counts = Counter(stem for name in names for stem in stems[name])
    rows = set()
    for name in names:
        free = [
            stem
            for stem in stems[name]
            if stem not in blocked_stems
            and counts[stem] > 1
            and not stem.endswith("#")
            and stem not in ROOTS
        ]
        rows.add(f"{min(free, key=len)}.*" if free else name)
    return rows


def canonical(name: str) -> str:
    """Return the name with one spelling of the parts that releases of transformers moved."""
    name = re.sub(r"(?:^|(?<=\.))vision_model\.", "", name)
    return re.sub(r"(?:^|(?<=\.))(?:model\.)?language_model\.(?:model\.)?", "language_model.", name)


ROOTS = ("model", "transformer", "language_model", "model.language_model", "language_model.model")


def rows(run: Interpreter, model: Instance) -> Rows:
    """Return what an engine does with a model."""
    result = Rows()
    names: dict[int, Names] = {}
    for leaf in leaves(run, model):
        for instance, _ in leaf.above:
            if id(instance) not in names:
                names[id(instance)] = read_names(run, instance)
        if any("rotary" in part for part in leaf.path):
            continue
        state = leaf.state if leaf.kind != "opaque" else UNDECIDED
        for group in checkpoint_names(leaf, names):
            if any("?" in name for name in group):
                result.reasons["a name that no source states"] += 1
                continue
            clean = tuple(canonical(name.removesuffix(".weight").strip(".")) for name in group)
            if leaf.kind in {"opaque", "tower"}:
                clean = tuple(f"{name}.*" for name in clean)
            if len(clean) > 1 and state != PLAINLY:
                result.joined.add(clean)
            for name in clean:
                if leaf.kind == "experts":
                    stem = name.rpartition(".")[0].removesuffix(".#")
                    result.states[f"{stem}.*" if _ends(stem, "experts") else name].add(state)
                else:
                    result.states[name].add(state)
    return result


# The engines


def _registry(run: Interpreter, name: str) -> dict[str, Class]:
    """Return the classes of vLLM by those of transformers."""
    file = run.file(name)
    assert file is not None
    classes: dict[str, Class] = {}
    for tables in file.names:
        if not re.fullmatch(r"_(?!SPEC|TRANS|VLLM|PREV)\w+_MODELS", tables):
            continue
        for table in run.look_up(file, tables):
            for key, values in _dicts((table,)):
                pairs = [value for value in values if isinstance(value, Items)]
                if not pairs or len(pairs[0].values) != 2:
                    continue
                module, kind = (_texts(part)[0] for part in pairs[0].values)
                full = module if "." in module else f"vllm.model_executor.models.{module}"
                source = run.file(full)
                kinds = run.look_up(source, kind) if source is not None else ()
                if kinds and isinstance(kinds[0], Class):
                    classes.setdefault(key, kinds[0])
    return classes


def read_vllm(wheels: Path) -> dict[str, Rows]:
    """Return what vLLM does with each class of its registry."""
    run = Interpreter({"vllm": wheels / "vllm"}, ENDS, NATIVES)
    run.registry = kinds = _registry(run, "vllm.model_executor.models.registry")
    tables = {}
    for name, kind in sorted(kinds.items()):
        (model,) = run.call(kind, [], dict(ROOT))
        tables[name] = rows(run, model)
    return tables


def read_sglang(wheels: Path) -> dict[str, Rows]:
    """Return what SGLang does with each class that a file names as its `EntryClass`."""
    run = Interpreter({"sglang": wheels / "sglang"}, ENDS, NATIVES)
    kinds: dict[str, Class] = {}
    run.registry = kinds
    for path in sorted((wheels / "sglang" / "srt" / "models").glob("*.py")):
        file = run.file(f"sglang.srt.models.{path.stem}")
        assert file is not None
        if "EntryClass" not in file.names or re.search(DRAFTS, path.stem):
            continue
        entries = run.look_up(file, "EntryClass")
        for kind in (
            value
            for entry in entries
            for part in (entry.values if isinstance(entry, Items) else [(entry,)])
            for value in part
        ):
            if isinstance(kind, Class) and not re.search(DRAFTS, kind.name):
                kinds[kind.name] = kind
    tables = {}
    for name, kind in sorted(kinds.items()):
        (model,) = run.call(kind, [], dict(ROOT))
        tables[name] = rows(run, model)
    return tables


def read_mlx(wheels: Path) -> dict[str, Rows]:
    """Return what mlx-lm does with each type of model, those too that it renames."""
    run = Interpreter({"mlx_lm": wheels / "mlx_lm"}, (), {})
    tables = {}
    for path in sorted((wheels / "mlx_lm" / "models").glob("*.py")):
        file = run.file(f"mlx_lm.models.{path.stem}")
        assert file is not None
        if "Model" not in file.names or "ModelArgs" not in file.names:
            continue
        (kind,) = run.look_up(file, "Model")
        (model,) = run.call(kind, [ANY], {})
        tables[path.stem] = rows(run, model)
    utils = run.file("mlx_lm.utils")
    assert utils is not None
    for name, values in _dicts(run.look_up(utils, "MODEL_REMAPPING")):
        tables.setdefault(name, tables[_texts(values)[0]])
    return tables


DRAFTS = re.compile(
    r"(?i)eagle|mtp|nextn|dflash|dspark|torch_?native|mindspore|^transformers|LiLiCorr"
)
"""Drafts of speculative decoding, and models that the engine takes from transformers."""

ENGINES = {"vllm": read_vllm, "sglang": read_sglang, "mlx-lm": read_mlx}
HEAD = """\
# What inference engines do with models. Made by benches/architectures/engines.py on {date}
# from {versions}; not edited by hand.
# The first part is an index: a class of models (of mlx-lm: a model_type), engines, their blocks.
# The second has a block a line, counted from 0, in three columns of numbers of rows: what the
# engine joins into one weight; what it builds without quantization; what the format or the
# configuration decides. The third has a row a line, the first is 0. Names are those of checkpoints
# without ".weight"; # is any number; a.{{b,c}} is a.b with a.c, for all experts if one of them is
# experts.#; a.* is all below a; language_model. stands for model.language_model. and for
# language_model.model., too, and vision_model. is left out. A row is about each module whose name
# ends with it, or is it but for its first part.
"""


BY_HAND = {
    "DbrxForCausalLM": (
        "transformer.blocks.#.ffn.experts.mlp.w1",
        "transformer.blocks.#.ffn.experts.mlp.v1",
    ),
}
"""Joins that loaders make of names that they compute (of both engines: `models/dbrx.py`)."""


def version(wheels: Path, name: str) -> str:
    """Return the name and the version of a wheel."""
    text = (wheels / name / "_version.py").read_text()
    match = re.search(r"version\w*\s*=\s*['\"]([0-9.]+)", text)
    assert match is not None, name
    return f"{name} {match[1]}"


def write(wheels: Path, date: str) -> str:
    """Return the text of the table."""
    tables = {engine: reader(wheels) for engine, reader in ENGINES.items()}
    for name, group in BY_HAND.items():
        for engine in ("vllm", "sglang"):
            tables[engine][name].joined.add(group)
    counts = Counter(
        row
        for table in tables.values()
        for rows in table.values()
        for part in rows.columns()
        for row in part
    )
    order = sorted(counts, key=lambda row: (-counts[row], row))
    numbers = {row: str(number) for number, row in enumerate(order)}
    blocks: dict[str, int] = {}
    index: dict[str, list[str]] = defaultdict(list)
    for engine, table in tables.items():
        for name, rows in table.items():
            if not rows.states:
                continue  # a class that is made by what its configuration names
            text = "\t".join(" ".join(numbers[row] for row in part) for part in rows.columns())
            index[name].append(f"{engine} {blocks.setdefault(text, len(blocks))}")
    versions = ", ".join(version(wheels, name.replace("-", "_")) for name in ENGINES)
    lines = ["\t".join([name, *engines]) for name, engines in sorted(index.items())]
    return (
        HEAD.format(date=date, versions=versions)
        + "\n\n".join("\n".join(part) for part in (lines, blocks, order))
        + "\n"
    )


def main() -> None:
    """Write the table."""
    sys.setrecursionlimit(20_000)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--date", required=True, help="the day that the head of the table states")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(write(arguments.wheels, arguments.date))


if __name__ == "__main__":
    main()
