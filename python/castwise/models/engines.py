"""What inference engines join into one weight and build unquantized: rows of `engines.txt`.

Tensors that no architecture of the table knows are what their names alone say.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ENGINES = ("vllm", "sglang", "mlx-lm")
"""The engines of the table."""

_TABLE = Path(__file__).with_name("engines.txt")
# Of a layer or an expert: a number that is a whole component.
_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
# Checkpoints spell the parents of a module in several ways; rows have one.
_MOVED = re.compile(r"(?<![^.])vision_model\.")
# Where models of images and texts have the language model: `model.language_model.layers.0`.
_LANGUAGE = re.compile(r"(?<![^.])(?:model\.)?language_model\.(?:model\.)?")
_ROW = r"([\w.#/-]*)(?:\{([\w.#/,-]+)\})?(?:\.\*)?"
_BELOW = ".*"
# The lines of models, blocks and rows; of a block its groups, plain and open modules.
_PARTS = 3


class EngineRules(NamedTuple):
    """What one engine does with the modules of one class of models."""

    # Groups of modules of which the engine makes one weight, so that they need one scheme.
    groups: tuple[tuple[str, ...], ...] = ()
    # Modules that the engine builds without quantization, whatever the statement says.
    plain_modules: tuple[str, ...] = ()
    # Modules that it builds with or without, as the format or the configuration of the model
    # decides; an unquantized one loads in both cases.
    open_modules: tuple[str, ...] = ()

    def keeps(self, module: str) -> bool:
        """Return True for a module that a file for the engine must store unquantized."""
        return _has_row((*self.plain_modules, *self.open_modules), canonical(module))

    def builds_plain(self, module: str) -> bool:
        """Return True for a module that the engine never builds quantized."""
        return _has_row(self.plain_modules, canonical(module))

    def keeps_alone(self, module: str) -> bool:
        """Return True for a module that it builds unquantized, beside others that it does not."""
        rows = tuple(row for row in self.plain_modules if not row.endswith(_BELOW))
        return _has_row(rows, canonical(module))

    def partners(self, module: str) -> tuple[str, ...]:
        """Name the modules that the engine joins with one, itself among them, in order."""
        name = canonical(module)
        for group in self.groups:
            for row in group:
                if matches(row, name):
                    return tuple(_rename(module, row, other) for other in group)
        return (module,)


def _has_row(rows: tuple[str, ...], name: str) -> bool:
    return any(matches(row, name) for row in rows)


def canonical(module: str) -> str:
    """Return the name that rows have for a module: `#` for numbers, one spelling of its parents."""
    return _LANGUAGE.sub("language_model.", _MOVED.sub("", _NUMBER.sub("#", module)))


def matches(row: str, name: str) -> bool:
    """Return True if a row of the table is about a module by its canonical name."""
    # The name ends with the row, or is the row but for its first part, as base models are stored
    # with and without the part that holds them; `a.*` is about all that is below `a`.
    if not row.endswith(_BELOW):
        return f".{name}".endswith(f".{row}") or name == row.partition(".")[2]
    stem = row.removesuffix(_BELOW)
    tail = stem.partition(".")[2]
    return f".{stem}." in f".{name}" or (tail != "" and name.startswith(f"{tail}."))


def find_engines(*keys: str) -> Mapping[str, EngineRules]:
    """Return what each engine does with a model, by the names of its class and of its type."""
    # Where an engine has rows for two keys, the first key counts.
    return read_engines(_TABLE, *keys)


def read_engines(path: Path, *keys: str) -> Mapping[str, EngineRules]:
    """Return the rules of a table in a file; as `find_engines`."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise _damage(path, "it is not UTF-8") from error
    parts = text.replace("\r\n", "\n").rstrip("\n").split("\n\n")
    if len(parts) != _PARTS:
        raise _damage(path, f"it has {len(parts)} parts in place of {_PARTS}")
    blocks, rows = parts[1].split("\n"), parts[2].split("\n")
    rules: dict[str, EngineRules] = {}
    for key in dict.fromkeys(filter(None, keys)):
        lines = re.findall(rf"^{re.escape(key)}\t(.*)$", parts[0], re.MULTILINE)
        if len(lines) > 1:
            raise _damage(path, f"it has {len(lines)} lines of {key}")
        for entry in (entry for line in lines for entry in line.split("\t")):
            engine, _, number = entry.partition(" ")
            if engine not in ENGINES:
                raise _damage(path, f"{key} has the unknown engine {engine!r}")
            if engine not in rules:
                rules[engine] = _rules(path, _line(path, blocks, number), rows)
    return rules


def _rules(path: Path, block: str, rows: list[str]) -> EngineRules:
    columns = block.split("\t")
    if len(columns) != _PARTS:
        raise _damage(path, f"a block has {len(columns)} columns in place of {_PARTS}")
    group_rows, plain_modules, open_modules = (
        tuple(_line(path, rows, number) for number in column.split()) for column in columns
    )
    groups = []
    for row in (*group_rows, *plain_modules, *open_modules):
        match = re.fullmatch(_ROW, row)
        if match is None or (match[2] is None) == (row in group_rows):
            raise _damage(path, f"{row!r} is no row of its column")
        if match[2] is not None:
            groups.append(tuple(match[1] + end for end in match[2].split(",")))
    return EngineRules(tuple(groups), plain_modules, open_modules)


def _line(path: Path, lines: list[str], number: str) -> str:
    if not number.isdecimal() or int(number) >= len(lines):
        raise _damage(path, f"it names a line {number!r} that it has not")
    return lines[int(number)]


def _rename(module: str, row: str, other: str) -> str:
    """Return what the partner of a module is called, of which the rows are known."""
    tail, partner, parts = row.split("."), other.split("."), module.split(".")
    while tail and partner and tail[0] == partner[0]:
        del tail[0], partner[0]
    start = len(parts) - len(tail)
    numbers = iter([part for part in parts[start:] if part.isdecimal()])
    return ".".join([*parts[:start], *(next(numbers, "#") if p == "#" else p for p in partner)])


def _damage(path: Path, fault: str) -> ValueError:
    return ValueError(f"{path} is damaged: {fault}; install castwise anew")


_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wq", "wk", "wv"),
    ("query", "key", "value"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("to_q", "to_k", "to_v"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
JOINED = {name: group for group in _FUSED for name in group}
"""What vLLM's and SGLang's `packed_modules_mapping` join in most models."""

# What a module is by its name; routers and heads also by that of the module that has it.
_ROLES = re.compile(
    r"(?P<norm>[^.]*norm[^.]*)|(?P<embedding>[^.]*embed[^.]*|wte|shared)"
    r"|(?P<position>wpe|rotary[^.]*|relative_attention_bias)"
    r"|(?P<router>gate|router|shared_expert_gate)"
    r"|(?P<head>classifier|(?:[a-z]{2,}_)?head|embed_out|output|score|decoder|proj_out"
    r"|vocab_projector|qa_outputs|dense_prediction|seq_relationship)"
)

# Names of heads that modules within a layer have, too, as `attention.output` of BERT.
_ONLY_AT_TOP = frozenset(("output", "decoder", "proj_out", "shared", "score"))
# What a head may be in that is not within a layer.
_TOP = frozenset(("model", "transformer", "cls", "predictions"))
_AROUND = r"(?s)(?:embed|norm|lora)[^.]*(?:\.[^.]+)?(?:\.weight)?$"
# `layers.0.mlp.experts.5.up_proj.weight`, or `switch_mlp` in the place of `experts` in MLX.
_EXPERTS = r"(?:(?P<layer>.*)\.)?(?P<module>\w*experts|switch_mlp)\.(?P<part>.+)"
# What joins a layer that predicts further tokens: `nn.Linear` in vLLM, SGLang or both.
_OF_NEXT_TOKENS = (".eh_proj.weight", ".mtp.fc.weight")

# The axes of a weight, and of the weights of all experts in one tensor.
_MATRIX, _STACK = 2, 3


def role_by_name(name: str, shape: Sequence[int]) -> str:
    """Return the role of a tensor by its name and its shape, which is empty if nobody knows it."""
    *parents, module = (name.removesuffix(".weight") or name).split(".")
    if len(shape) == 1:
        return "bias" if name.endswith("bias") else "norm" if "norm" in module else "other"
    is_matrix = len(shape) in {0, _MATRIX} and name.endswith(".weight")
    experts = experts_in(name)
    is_stack = experts is not None and "." not in experts["part"].removesuffix(".weight")
    if is_stack and not (shape and is_matrix):
        return "unknown" if len(shape) == _MATRIX else "experts"
    is_of_next = f".{name}".endswith(_OF_NEXT_TOKENS)
    role = "other" if is_of_next else _role_of(module, is_at_top=_TOP.issuperset(parents))
    if role is not None:
        return role
    if len(shape) > _STACK or (len(shape) == _STACK and "conv" in name):
        return "convolution"
    if (
        is_matrix
        and parents
        and (role := _role_of(parents[-1], is_at_top=False)) in {"router", "head"}
    ):
        return role
    return "linear" if is_matrix else "unknown"


@lru_cache(1 << 10)
def _role_of(module: str, *, is_at_top: bool) -> str | None:
    """Return the role of a module by its name; some have one at the top of a model alone."""
    if module in _ONLY_AT_TOP and not is_at_top:
        return None
    match = _ROLES.fullmatch(module)
    return None if match is None else match.lastgroup


def experts_in(name: str) -> re.Match[str] | None:
    """Find the module of experts in a tensor's name: its `layer`, the `module`, and the `part`."""
    if not ("experts." in name or "switch_mlp." in name):
        return None
    return re.fullmatch(_EXPERTS, name)


def is_in_name(name: str) -> bool:
    """Return True for a layer in an embedding, a norm or an adapter: producers leave those."""
    return re.search(_AROUND, name) is not None
