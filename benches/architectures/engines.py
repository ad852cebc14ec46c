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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sources import (
    ANY,
    INDEX,
    QUANT,
    UNKNOWN,
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
"""The engines' own layers, which the quantisation replaces."""

TEXTS = (
    "LlamaForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM Qwen2MoeForCausalLM Qwen3MoeForCausalLM"
    " Gemma2ForCausalLM Gemma3ForCausalLM Phi3ForCausalLM InternLM2ForCausalLM GptOssForCausalLM"
    " DeepseekV2ForCausalLM DeepseekV3ForCausalLM GraniteForCausalLM"
).split()
"""What the language model of a composite model may be, whose class its configuration names."""

EXPERTS = ("gate_proj", "down_proj", "up_proj")
"""What experts are called if nothing else is said: gate, down, up."""

PLAIN = {"Linear": "linear", "Embedding": "embedding", "Parameter": "parameter"}
QUANTIZED, PLAINLY, UNDECIDED = "quantised", "unquantised", "undecided"


@dataclass
class Leaf:
    """A layer of an engine: where it stands, and whether it is built with the quantisation.

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
        if all(value is QUANT for value in self.quant):
            return QUANTIZED
        return PLAINLY if all(value is None for value in self.quant) else UNDECIDED


# What the interpreter does not follow


def _make_layers(run: Interpreter, args: list[Values], keywords: dict[str, Values]) -> Values:
    functions = keywords.get("layer_fn") or (args[1] if len(args) > 1 else ())
    prefixes = keywords.get("prefix") or (args[2] if len(args) == 3 else ("",))
    below = tuple(f"{prefix}.#" if prefix else "#" for prefix in prefixes if isinstance(prefix, str))
    made: Values = ()
    for function in functions:
        keys: dict[str, Values] = {"prefix": below or ANY}
        if isinstance(function, Function):
            names = [arg.arg for arg in function.node.args.args]
            keys |= {name: (INDEX,) for name in names if name in {"idx", "layer_id", "i"}}
        made = union(made, run.call(function, [], keys))
    return (Items([made], is_layers=True, is_module=True),)


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
    known = run.__dict__.setdefault("registered", {})
    found: Values = ()
    for kind in (kind for name in names or TEXTS for kind in run.registry(name)):
        key = (kind.name, prefix)
        if key not in known:
            known[key] = ANY  # of a model in itself
            known[key] = run.call(kind, [], {"vllm_config": ANY, "prefix": prefix})
        found += known[key]
    return found


NATIVES = {
    "make_layers": _make_layers,
    "make_layers_non_pp": _make_layers,
    "FusedMoEFactory": _make_experts,
    "init_vllm_registered_model": _make_registered,
    "get_rope": lambda run, args, keywords: ANY,
    "get_moe_impl_class": lambda run, args, keywords: (External("FusedMoEFactory"),),
}


# The layers of a model


def leaves(model: Instance) -> Iterator[Leaf]:
    """List the layers of a model, each at its first place."""
    seen: set[int] = set()

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
        if not isinstance(value, Instance) or id(value) in seen:
            return
        seen.add(id(value))
        leaf = _leaf(value, path, above)
        if leaf is not None:
            yield leaf
        elif isinstance(value.kind, Class):
            for name, values in value.attributes.items():
                for part in values:
                    if not isinstance(part, Items | Table) or part.is_module:
                        yield from visit(part, (*path, name), (*above, (value, len(path))))

    yield from visit(model, (), ())


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
    if not isinstance(value.kind, External):
        return None
    if "transformers" in value.kind.name or name == "MultiheadAttention":
        return Leaf(path, "tower", (None,), (), above)
    if name == "Parameter":
        axes = {
            len(shape.values) if isinstance(shape, Items) else 0
            for data in bound.get("data", ())
            for shape in (data.bound.get("axes", ()) if isinstance(data, Instance) else ())
        }
        if not axes - {1}:
            return None  # a vector, or one whose shape no constructor states
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


def _constant(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def read_names(run: Interpreter, made: Instance) -> Names:
    """Return the renames of the class of a module, those of its loader's source too."""
    joins: dict[str, list[str]] = defaultdict(list)
    renames: list[Rename] = []
    for mapper in run.attribute(made, "hf_to_vllm_mapper"):
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
    for base in run.mro(made.kind):
        if not isinstance(base, Class):
            continue
        for node in (n for m in base.members.values() for n in ast.walk(m)):
            match node:
                case ast.Tuple(elts=[first, second, _]) if _constant(first) and _constant(second):
                    if _constant(second) not in joins[_constant(first)]:
                        joins[_constant(first)].append(_constant(second))
                case ast.Call(func=ast.Attribute(attr="replace"), args=[old, new]):
                    if _constant(old) and _constant(new):
                        renames.append(Rename("substr", _constant(old), _constant(new)))
                case ast.Call():
                    words = {word.arg: _constant(word.value) for word in node.keywords}
                    if words.get("ckpt_gate_proj_name"):
                        keys = ("gate", "down", "up")
                        experts.append([words.get(f"ckpt_{key}_proj_name") or "" for key in keys])
    packed = {
        key: [name for value in part if isinstance(value, Items) for v in value.values for name in _texts(v)]
        for key, part in _dicts(run.attribute(made, "packed_modules_mapping"))
    }
    return Names(dict(joins), packed, renames, experts)


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
    found = []
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
        twice = any(re.search(r"(?:^|\.)(\w+)\.\1(?:\.|$)", old) for old in olds)
        if len(olds) == len(group) and tuple(olds) != group and not twice:
            found.append(tuple(olds))
    return found


def checkpoint_names(leaf: Leaf, names: Mapping[int, Names]) -> list[tuple[str, ...]]:
    """List what a checkpoint may call the tensors that a layer joins."""
    groups: list[tuple[str, ...]] = [()]
    end = len(leaf.path)
    rules = [(names[id(made)], length) for made, length in reversed(leaf.above)]
    if leaf.kind == "experts":
        known = [[name for v in value.values for name in _texts(v)] for value in leaf.names if isinstance(value, Items)]
        known = known or next((rule.experts for rule, _ in rules if rule.experts), [EXPERTS])
        groups = [
            tuple(f"#.{name}" for name in (gate, up) if name) for gate, *_, up in known
        ]
    joined = leaf.kind == "experts"
    for rule, length in rules:
        prefix = ".".join(leaf.path[length:end])
        end = length
        groups = [
            tuple(".".join(filter(None, (prefix, name))) for name in group or ("",))
            for group in groups
        ]
        if not joined:
            split = [_split(group[0], rule.joins) for group in groups]
            joined = split != groups
            groups = split
        groups += [g for group in groups for g in _invert(group, rule.renames) if g not in groups]
    if not joined:
        for rule, _ in rules:
            split = [_split(group[0], rule.packed) for group in groups]
            if split != groups:
                return split
    return groups


# Rows


@dataclass
class Rows:
    """What an engine does with an architecture: joined names, and names by their state."""

    joined: set[tuple[str, ...]] = field(default_factory=set)
    states: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    reasons: Counter[str] = field(default_factory=Counter)

    def text(self) -> str:
        """Return the line of a block: joined, unquantised and undecided names."""
        plain = {name for name, states in self.states.items() if states == {PLAINLY}}
        unclear = {
            name for name, states in self.states.items() if states - {PLAINLY, QUANTIZED}
        } | {name for name, states in self.states.items() if {PLAINLY, QUANTIZED} <= states}
        others = set(self.states) - plain
        parts = (
            [_braces(group) for group in self.joined],
            _shorten(plain, others),
            _shorten(unclear, set(self.states) - unclear),
        )
        return "\t".join(" ".join(sorted(part)) for part in parts)


def _braces(group: Sequence[str]) -> str:
    """Write names with their common stem once: `a.{b,c}`."""
    parts = [name.split(".") for name in group]
    common = 0
    while all(len(part) > common + 1 for part in parts) and len({p[common] for p in parts}) == 1:
        common += 1
    stem = "".join(part + "." for part in parts[0][:common])
    return f"{stem}{{{','.join('.'.join(part[common:]) for part in parts)}}}"


def _shorten(names: set[str], others: set[str]) -> set[str]:
    """Write `a.*` for all names below `a` if there are two or more and no others."""
    stems = {name: {name[:i] for i, c in enumerate(name) if c == "."} for name in names | others}
    blocked = set().union(*(stems[name] for name in others)) if others else set()
    counts = Counter(stem for name in names for stem in stems[name])
    found = set()
    for name in names:
        free = [
            stem
            for stem in stems[name]
            if stem not in blocked and counts[stem] > 1 and not stem.endswith("#") and stem not in ROOTS
        ]
        found.add(f"{min(free, key=len)}.*" if free else name)
    return found


ROOTS = ("model", "transformer", "language_model", "model.language_model", "language_model.model")


def rows(run: Interpreter, model: Instance) -> Rows:
    """Return what an engine does with a model."""
    found = Rows()
    names: dict[int, Names] = {}
    for leaf in leaves(model):
        for made, _ in leaf.above:
            if id(made) not in names:
                names[id(made)] = read_names(run, made)
        if any("rotary" in part for part in leaf.path):
            continue
        state = leaf.state if leaf.kind != "opaque" else UNDECIDED
        for group in checkpoint_names(leaf, names):
            if any("?" in name for name in group):
                found.reasons["a name that no source states"] += 1
                continue
            clean = tuple(name.removesuffix(".weight") for name in group)
            if leaf.kind in {"opaque", "tower"}:
                clean = tuple(f"{name}.*" for name in clean)
            if len(clean) > 1 and state != PLAINLY:
                found.joined.add(clean)
            for name in clean:
                stem, _, last = name.rpartition(".")
                found.states[f"{stem}.*" if leaf.kind == "experts" else name].add(state)
    return found


# The engines


def _registry(run: Interpreter, name: str) -> dict[str, Class]:
    """Return the classes of vLLM by those of transformers."""
    file = run.file(name)
    assert file is not None
    found: dict[str, Class] = {}
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
                    found.setdefault(key, kinds[0])
    return found


def read_vllm(wheels: Path) -> dict[str, Rows]:
    run = Interpreter({"vllm": wheels / "vllm"}, ENDS, NATIVES)
    kinds = _registry(run, "vllm.model_executor.models.registry")
    run.registry = lambda name: [kinds[name]] if name in kinds else []  # type: ignore[attr-defined]
    found = {}
    for name, kind in sorted(kinds.items()):
        (model,) = run.call(kind, [], {"vllm_config": ANY, "prefix": ("",)})
        found[name] = rows(run, model)
    return found


ENGINES = {"vllm": read_vllm}
HEAD = """\
# What inference engines do with models, by the class of the model (of mlx-lm: its model_type).
# Made by benches/architectures/engines.py on {date} from {versions}; not edited by hand.
# First the index: a class, then an engine and its block. Then the blocks: a number; what the engine
# joins into one weight; what it builds without quantisation; what its source leaves undecided (the
# format or the configuration decides): of that nothing is quantised for this engine, either.
# Names are those of checkpoints without ".weight"; # is any number; a{{b,c}} is ab with ac; a.* is
# all below a. A name of a model matches one that it ends with, or that it is but for a first part.
"""


def version(wheels: Path, name: str) -> str:
    """Return the name and the version of a wheel."""
    text = (wheels / name / "_version.py").read_text()
    found = re.search(r"version\s*=\s*['\"]([0-9.]+)", text)
    assert found is not None, name
    return f"{name} {found[1]}"


def write(wheels: Path, date: str) -> str:
    """Return the text of the table."""
    blocks: dict[str, int] = {}
    index: dict[str, list[str]] = defaultdict(list)
    for engine, read in ENGINES.items():
        for name, found in read(wheels).items():
            block = blocks.setdefault(found.text(), len(blocks))
            index[name].append(f"{engine} {block}")
    versions = ", ".join(version(wheels, name.replace("-", "_")) for name in ENGINES)
    lines = ["\t".join([name, *engines]) for name, engines in sorted(index.items())]
    lines += [f"{number}\t{text}" for text, number in blocks.items()]
    return HEAD.format(date=date, versions=versions) + "\n".join(lines) + "\n"


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
