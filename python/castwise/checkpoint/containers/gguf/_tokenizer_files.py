"""The files of a tokenizer, from the tokens of a GGUF file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.gguf._vocabulary import (
    CONFIG,
    CONTROL,
    IDS,
    NORMAL,
    SPLITS,
    TOKENIZER,
    UNUSED,
    USER_DEFINED,
    Split,
)

_OF = "tokenizer.ggml."
# What `tokenizer.json` states of all of them, with one of the tokens that are added, and a step of
# those that split text.
_SKELETON = Path(__file__).with_name("tokenizer.json")

_TEMPLATE = "tokenizer.chat_template"
# The tokens that a `config.json` has.
_STATED = ("bos", "eos", "pad")

# The keys of tokens that end a text, a turn or a message.
_ENDS = (IDS["eos"], "eot_token_id", "eom_token_id")


class Unstated(CheckpointError):  # noqa: N818  (it says what is missing)
    """A GGUF file does not state all that its tokenizer does."""


def special_numbers(header: Mapping[str, Any], size: int) -> dict[str, Any]:
    numbers = {name: _number(header, IDS[name], size) for name in _STATED}
    return {f"{name}_token_id": number for name, number in numbers.items() if number is not None}


def generation(header: Mapping[str, Any], size: int) -> dict[str, str]:
    """Return the file that says where texts end: at the tokens that the header names for that."""
    # llama.cpp ends at others, too, which it knows by their texts.
    ends = [_number(header, key, size) for key in _ENDS]
    tokens = [token for token in dict.fromkeys(ends) if token is not None]
    last = {"eos_token_id": tokens if len(tokens) > 1 else tokens[0]} if tokens else {}
    config = {**special_numbers(header, size), **last}
    return {"generation_config.json": json.dumps(config, indent=2) + "\n"} if config else {}


def _number(header: Mapping[str, Any], key: str, size: int) -> int | None:
    """Return the number of a special token; None if there is none of so many tokens."""
    number = header.get(_OF + key)
    return number if type(number) is int and 0 <= number < size else None


def tokenizer_files(header: Mapping[str, Any], size: int) -> dict[str, str]:
    """Return the files of a tokenizer of so many tokens, with their texts; `Unstated` of others."""
    texts = _texts(header, size)
    model, split = header.get(_OF + "model"), header.get(_OF + "pre")
    if model != "gpt2" or not isinstance(split, str) or split not in SPLITS:
        raise Unstated(
            f"its model is {model!r} and its split {split!r}, and castwise knows gpt2 with "
            f"{', '.join(SPLITS)}"
        )
    numbers = {name: header[_OF + key] for name, key in IDS.items() if _OF + key in header}
    for name, number in numbers.items():
        if type(number) is not int or number not in texts:
            raise Unstated(f"its {name} token is {number}, which is not a token")
    special = {name: texts[number][0] for name, number in numbers.items()}
    is_added = {
        name: header.get(f"{_OF}add_{name}_token", default)
        for name, default in (("bos", SPLITS[split].adds_bos), ("eos", False))
    }
    for name, value in is_added.items():
        if not isinstance(value, bool):
            raise Unstated(f"its add_{name}_token is {value!r}, which is neither true nor false")
        if value and name not in numbers:
            raise Unstated(f"it adds a {name} token, and states none")
    around = {name: (special[name], numbers[name]) for name, value in is_added.items() if value}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": text for name, text in special.items()},
        **{f"add_{name}_token": value for name, value in is_added.items()},
        **_templates(header),
        "clean_up_tokenization_spaces": False,
    }
    files = {TOKENIZER: _tokenizer(header, SPLITS[split], texts, around), CONFIG: config}
    return {
        name: json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for name, content in files.items()
    }


def _texts(header: Mapping[str, Any], size: int) -> dict[int, tuple[str, int]]:
    """Return the tokens and their types, by number."""
    tokens, types = (header.get(_OF + key) for key in ("tokens", "token_type"))
    if not isinstance(tokens, list) or not isinstance(types, list):
        raise Unstated("it lacks tokens or their types")
    if not len(types) == len(tokens) <= size:
        raise Unstated(f"it has {len(tokens)} tokens of {len(types)} types, and {size} rows")
    if not all(isinstance(text, str) for text in tokens):
        raise Unstated("its tokens are not texts")
    entries = {
        at: entry for at, entry in enumerate(zip(tokens, types, strict=True)) if entry[1] != UNUSED
    }
    for text, kind in entries.values():
        if kind not in (NORMAL, CONTROL, USER_DEFINED):
            raise Unstated(f"token {text!r} is of the type {kind}")
    if len({text for text, _ in entries.values()}) < len(entries):
        raise Unstated("a token is there twice")
    return entries


def _tokenizer(
    header: Mapping[str, Any],
    split: Split,
    texts: Mapping[int, tuple[str, int]],
    around: Mapping[str, tuple[str, int]],
) -> dict[str, Any]:
    """Make what `tokenizer.json` states: tokens, merges, and how text is split and decoded."""
    vocab = {text: at for at, (text, _) in texts.items()}
    merges = header.get(_OF + "merges")
    for merge in merges if isinstance(merges, list) else [None]:
        pair = str(merge).split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():  # noqa: PLR2004
            raise Unstated(f"it merges {merge!r}, which are not two tokens whose join is one")
    file: dict[str, Any] = json.loads(_SKELETON.read_text("utf-8"))
    of_bytes = file["decoder"] | {"use_regex": not split.expressions}
    splits = [file["pre_tokenizer"] | {"pattern": {"Regex": text}} for text in split.expressions]
    added_tokens = file["added_tokens"]
    file["model"] |= {"ignore_merges": split.ignores_merges, "vocab": vocab, "merges": merges}
    return file | {
        "added_tokens": [
            {"id": at, "content": text, **added_tokens, "special": kind == CONTROL}
            for at, (text, kind) in texts.items()
            if kind != NORMAL
        ],
        "normalizer": split.normalizer and {"type": split.normalizer},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, of_bytes]},
        "post_processor": _template(around) if around else of_bytes,
        "decoder": of_bytes,
    }


def _template(around: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """Return what puts tokens before and after a text."""

    def of(kind: int) -> list[dict[str, Any]]:
        items = {n: {"SpecialToken": {"id": t, "type_id": kind}} for n, (t, _) in around.items()}
        text = {"Sequence": {"id": "AB"[kind], "type_id": kind}}
        return [item for item in (items.get("bos"), text, items.get("eos")) if item is not None]

    return {
        "type": "TemplateProcessing",
        "single": of(0),
        "pair": of(0) + of(1),
        "special_tokens": {
            text: {"id": text, "ids": [number], "tokens": [text]}
            for text, number in around.values()
        },
    }


def _templates(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat templates as `tokenizer_config.json` has them."""
    names = header.get(f"{_TEMPLATE}s", [])
    if not isinstance(names, list):
        raise Unstated(f"its chat_templates are {names!r}, which is not a list of names")
    keys = {"default": _TEMPLATE, **{str(name): f"{_TEMPLATE}.{name}" for name in names}}
    templates = [
        {"name": name, "template": text}
        for name, key in keys.items()
        if isinstance(text := header.get(key), str)
    ]
    if [template["name"] for template in templates] == ["default"]:
        return {"chat_template": templates[0]["template"]}
    return {"chat_template": templates} if templates else {}
