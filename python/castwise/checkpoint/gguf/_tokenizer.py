"""The files of a tokenizer, from the tokens of a GGUF file; its writer is `_tokens`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.gguf._tokens import (
    CONFIG,
    CONTROL,
    IDS,
    NORMAL,
    SPLITS,
    TOKENIZER,
    UNUSED,
    USER_DEFINED,
)

_OF = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_STATED = ("bos", "eos", "pad")
"""The tokens that a `config.json` has."""

_ENDS = (IDS["eos"], "eot_token_id", "eom_token_id")
"""The keys of tokens that end a text, a turn or a message."""


class Unstated(CheckpointError):  # noqa: N818  (it says what is missing)
    """A GGUF file does not state all that its tokenizer does."""


def special_numbers(stated: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the numbers of special tokens, as a configuration has them."""
    numbers = {name: _number(stated, IDS[name], size) for name in _STATED}
    return {f"{name}_token_id": number for name, number in numbers.items() if number is not None}


def generation(stated: Mapping[str, Any], size: int) -> dict[str, str]:
    """Return the file that says where texts end: at the tokens that the header names for that.

    llama.cpp ends at others, too, which it knows by their texts.
    """
    ends = [_number(stated, key, size) for key in _ENDS]
    found = [one for one in dict.fromkeys(ends) if one is not None]
    last = {"eos_token_id": found if len(found) > 1 else found[0]} if found else {}
    config = {**special_numbers(stated, size), **last}
    return {"generation_config.json": json.dumps(config, indent=2) + "\n"} if config else {}


def _number(stated: Mapping[str, Any], key: str, size: int) -> int | None:
    """Return the number of a special token; None if there is none of so many tokens."""
    one = stated.get(_OF + key)
    return one if type(one) is int and 0 <= one < size else None


def tokenizer_files(stated: Mapping[str, Any], size: int) -> dict[str, str]:
    """Return the files of a tokenizer of so many tokens, with their texts.

    Raises
    ------
    Unstated
        It is not one of merged bytes, or splits text in a way that castwise does not know.

    """
    texts = _texts(stated, size)
    named = {name: stated.get(_OF + key) for name, key in IDS.items()}
    for name, at in named.items():
        if at is not None and (type(at) is not int or at not in texts):
            raise Unstated(f"its {name} token is {at}, which is not a token")
    special = {f"{name}_token": texts[at][0] for name, at in named.items() if at is not None}
    is_added = {
        name: stated.get(f"{_OF}add_{name}_token", default)
        for name, default in (("bos", SPLITS[_split(stated)].adds_bos), ("eos", False))
    }
    for name, one in is_added.items():
        if not isinstance(one, bool):
            raise Unstated(f"its add_{name}_token is {one!r}, which is neither true nor false")
        if one and named[name] is None:
            raise Unstated(f"it adds a {name} token, and states none")
    around = {
        name: (special[f"{name}_token"], named[name]) for name, one in is_added.items() if one
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: text for name, text in special.items() if name != "seperator_token"},
        **{f"add_{name}_token": one for name, one in is_added.items()},
        **_templates(stated),
        "clean_up_tokenization_spaces": False,
    }
    made = {TOKENIZER: _tokenizer(stated, texts, around), CONFIG: config}
    return {
        name: json.dumps(one, indent=2, ensure_ascii=False) + "\n" for name, one in made.items()
    }


def _split(stated: Mapping[str, Any]) -> str:
    model, name = stated.get(_OF + "model"), stated.get(_OF + "pre")
    if model != "gpt2" or not isinstance(name, str) or name not in SPLITS:
        raise Unstated(
            f"its model is {model!r} and its split {name!r}, and castwise knows gpt2 with "
            f"{', '.join(SPLITS)}"
        )
    return name


def _texts(stated: Mapping[str, Any], size: int) -> dict[int, tuple[str, int]]:
    """Return the tokens and their types, by number."""
    tokens, types = (stated.get(_OF + key) for key in ("tokens", "token_type"))
    if not isinstance(tokens, list) or not isinstance(types, list):
        raise Unstated("it lacks tokens or their types")
    if not len(types) == len(tokens) <= size:
        raise Unstated(f"it has {len(tokens)} tokens of {len(types)} types, and {size} rows")
    known = (NORMAL, CONTROL, USER_DEFINED)
    if not all(isinstance(text, str) for text in tokens):
        raise Unstated("its tokens are not texts")
    found = {at: one for at, one in enumerate(zip(tokens, types, strict=True)) if one[1] != UNUSED}
    others = [one for one in found.values() if one[1] not in known]
    if others or len({text for text, _ in found.values()}) < len(found):
        what = (
            f"token {others[0][0]!r} is of the type {others[0][1]}"
            if others
            else "a token is there twice"
        )
        raise Unstated(what)
    return found


def _tokenizer(
    stated: Mapping[str, Any],
    texts: Mapping[int, tuple[str, int]],
    around: Mapping[str, tuple[str, Any]],
) -> dict[str, Any]:
    """Return what `tokenizer.json` states."""
    split = SPLITS[_split(stated)]
    vocab = {text: at for at, (text, _) in texts.items()}
    merges = stated.get(_OF + "merges")
    for one in merges if isinstance(merges, list) else [None]:
        pair = str(one).split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():  # noqa: PLR2004
            raise Unstated(f"it merges {one!r}, which are not two tokens whose join is one")
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    of_bytes = {**to_bytes, "use_regex": not split.expressions}
    apart = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in split.expressions
    ]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": at, "content": text, **added, "special": kind == CONTROL}
            for at, (text, kind) in texts.items()
            if kind != NORMAL
        ],
        "normalizer": split.normalizer and {"type": split.normalizer},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*apart, of_bytes]},
        "post_processor": _template(around) if around else of_bytes,
        "decoder": of_bytes,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": split.ignores_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _template(around: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Return what puts tokens before and after a text."""

    def of(kind: int) -> list[dict[str, Any]]:
        items: dict[str, dict[str, Any]] = {
            name: {"SpecialToken": {"id": text, "type_id": kind}}
            for name, (text, _) in around.items()
        }
        text = {"Sequence": {"id": "AB"[kind], "type_id": kind}}
        return [one for one in (items.get("bos"), text, items.get("eos")) if one is not None]

    return {
        "type": "TemplateProcessing",
        "single": of(0),
        "pair": of(0) + of(1),
        "special_tokens": {
            text: {"id": text, "ids": [number], "tokens": [text]}
            for text, number in around.values()
        },
    }


def _templates(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat templates as `tokenizer_config.json` has them."""
    names = stated.get(f"{_TEMPLATE}s", [])
    if not isinstance(names, list):
        raise Unstated(f"its chat_templates are {names!r}, which is not a list of names")
    keys = {"default": _TEMPLATE, **{str(name): f"{_TEMPLATE}.{name}" for name in names}}
    found = {name: one for name, key in keys.items() if isinstance(one := stated.get(key), str)}
    if [*found] == ["default"]:
        return {"chat_template": found["default"]}
    some = [{"name": name, "template": text} for name, text in found.items()]
    return {"chat_template": some} if some else {}
