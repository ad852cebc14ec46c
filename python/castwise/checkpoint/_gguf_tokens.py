"""The tokens of a model as llama.cpp wants them, from the files of its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.gguf import BOOL, COUNT, INTEGER, TEXT, typed

_TOKENIZER, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
FILES = (_TOKENIZER, _CONFIG, _TEMPLATE)
"""The files that are read."""

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Mapping[Sequence[str], str] = {
    (
        rf"{_CASED}*{_SMALL}+{_SHORT}?|{_CASED}+{_SMALL}*{_SHORT}?|\p{{N}}{{1,3}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}",
    ): "gpt-4o",
    **{
        (
            rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}",
        ): name
        for digits, name in (("", "qwen2"), ("{1,3}", "llama-bpe"))
    },
    (): "gpt-2",
}
"""What llama.cpp calls the expressions by which text is split before bytes are merged."""

_IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # so it is spelled
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}
_ADDED = ("bos", "eos", "sep")
"""The tokens of which a file says whether they are added to a text."""

_SPECIAL = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
_SPECIAL_TOO = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
"""Tokens that llama.cpp's converter takes for control tokens, whatever their files say."""


def vocabulary(folder: Path, config: Mapping[str, Any], size: int) -> dict[str, str]:
    """Return what a file states of so many tokens of a model, and its chat template.

    Raises
    ------
    CheckpointError
        The tokenizer is not one of merged bytes, or splits text as llama.cpp cannot; or what states
        it is missing.

    """
    tokenizer, stated = _parsed(folder / _TOKENIZER), _parsed(folder / _CONFIG, required=False)
    try:
        return _vocabulary(tokenizer, stated, config, folder, size)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{folder / _TOKENIZER} is not as the library tokenizers writes it: "
            f"{type(error).__name__}: {error}"
        ) from error


def _vocabulary(
    tokenizer: Any, stated: Any, config: Mapping[str, Any], folder: Path, size: int
) -> dict[str, str]:
    model, added = tokenizer["model"], tokenizer.get("added_tokens") or []
    normalizer = (tokenizer.get("normalizer") or {"type": "NFC"})["type"]
    if model["type"] != "BPE" or normalizer != "NFC":
        raise _refusal(folder, f"is of the type {model['type']!r} after {normalizer!r}")
    names = {number: text for text, number in model["vocab"].items()}
    kinds = dict.fromkeys(names, _NORMAL)
    for one in added:
        names[one["id"]], kinds[one["id"]] = _added(one)
    if not 0 <= min(names) <= max(names) < size:
        raise CheckpointError(
            f"{folder / _TOKENIZER} numbers tokens from {min(names)} to {max(names)}, and the "
            f"embedding has {size} rows"
        )
    tokens = [names.get(number, f"[PAD{number}]") for number in range(size)]
    merges = [one if isinstance(one, str) else _merge(one) for one in model["merges"]]
    return {
        "tokenizer.ggml.model": typed(TEXT, "gpt2"),
        "tokenizer.ggml.pre": typed(TEXT, _pre_tokenizer(tokenizer, folder)),
        "tokenizer.ggml.tokens": typed(TEXT, tokens),
        "tokenizer.ggml.token_type": typed(INTEGER, [kinds.get(n, _UNUSED) for n in range(size)]),
        "tokenizer.ggml.merges": typed(TEXT, merges),
        **_special(tokenizer, stated, config, folder, size),
        **_templates(stated, folder),
    }


def _refusal(folder: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{folder / _TOKENIZER} {reason}, and castwise writes GGUF of tokenizers that merge bytes "
        f"as {', '.join(_SPLITS.values())} do; convert_hf_to_gguf.py of llama.cpp writes others"
    )


def _added(one: Mapping[str, Any]) -> tuple[str, int]:
    """Return an added token, and its type."""
    text = one["content"]
    looks = any(text.startswith(begin) and text.endswith(end) for begin, end in _SPECIAL)
    if one.get("special") or looks or text in _SPECIAL_TOO:
        return text, _CONTROL
    return text.replace("\u2581", " "), _USER_DEFINED


def _merge(pair: Sequence[str]) -> str:
    """Join a pair of tokens; a space in one of them is written as the byte that it is."""
    left, right = (one.replace(" ", "\u0120") for one in pair)
    return f"{left} {right}"


def _pre_tokenizer(tokenizer: Any, folder: Path) -> str:
    """Return what llama.cpp calls the way in which text is split."""
    whole = tokenizer["pre_tokenizer"]
    *splits, last = whole["pretokenizers"] if whole["type"] == "Sequence" else [whole]
    found = tuple(one["pattern"]["Regex"] for one in splits if one["type"] == "Split")
    name = _SPLITS.get(found)
    is_bytes = last["type"] == "ByteLevel" and not last.get("add_prefix_space")
    is_whole = len(found) == len(splits) and bool(last.get("use_regex", True)) == (not found)
    if name is None or not is_bytes or not is_whole:
        raise _refusal(folder, f"splits text by {whole}")
    return name


def _special(
    tokenizer: Any, stated: Any, config: Mapping[str, Any], folder: Path, size: int
) -> dict[str, str]:
    """Return the numbers of special tokens, and which are added to a text."""
    numbers = {one["content"]: one["id"] for one in reversed(tokenizer.get("added_tokens") or [])}
    found: dict[str, str] = {}
    texts: dict[str, str | None] = {}
    for name, key in _IDS.items():
        token = stated.get(f"{name}_token")
        texts[name] = token.get("content") if isinstance(token, dict) else token
        number = numbers.get(texts[name], config.get(f"{name}_token_id"))
        if type(number) is int:
            if not 0 <= number < size:
                raise ValueError(f"{name}_token_id {number} of {size} tokens")
            found[f"tokenizer.ggml.{key}"] = typed(COUNT, number)
    is_added = _template(tokenizer, texts, folder)
    for name in _ADDED:
        value = stated.get(f"add_{name}_token")
        value = value if isinstance(value, bool) else is_added.get(name)
        if value is not None:
            found[f"tokenizer.ggml.add_{name}_token"] = typed(BOOL, value)
    return found


def _template(tokenizer: Any, texts: Mapping[str, str | None], folder: Path) -> dict[str, bool]:
    """Return which special tokens the tokenizer puts before and after a text."""
    whole = tokenizer.get("post_processor") or {"type": "ByteLevel"}
    found = {"bos": False, "eos": False}
    for one in whole.get("processors", [whole]):
        if one["type"] == "TemplateProcessing":
            items = [each.get("SpecialToken", {}).get("id") for each in one["single"]]
            wanted = [texts["bos"]] * (items[0] is not None) + [None]
            wanted += [texts["eos"]] * (len(items) > 1 and items[-1] is not None)
            if items != wanted:
                raise _refusal(folder, f"puts {items} around a text (None)")
            found = {"bos": items[0] is not None, "eos": items[-1] is not None}
        elif one["type"] != "ByteLevel":
            raise _refusal(folder, f"has a post-processor of the type {one['type']!r}")
    return found


def _templates(stated: Any, folder: Path) -> dict[str, str]:
    """Return the chat templates."""
    found = stated.get("chat_template")
    if found is None and (folder / _TEMPLATE).is_file():
        found = (folder / _TEMPLATE).read_bytes().decode()
    if found is None:
        return {}
    if isinstance(found, str):
        found = [{"name": "default", "template": found}]
    key = "tokenizer.chat_template"
    texts = {one["name"]: typed(TEXT, one["template"]) for one in found}
    others = {f"{key}.{name}": text for name, text in texts.items() if name != "default"}
    names = {f"{key}s": typed(TEXT, [n for n in texts if n != "default"])} if others else {}
    default = {key: texts["default"]} if "default" in texts else {}
    return {**others, **names, **default}


def _parsed(path: Path, *, required: bool = True) -> Any:
    if not required and not path.is_file():
        return {}
    try:
        return json.loads(path.read_bytes().decode())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing, and a GGUF file has the tokens of its model; add it, as "
            "tokenizer.save_pretrained of transformers does"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
