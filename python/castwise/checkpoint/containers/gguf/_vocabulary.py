"""The tokens of a model as llama.cpp wants them, from the files of its tokenizer."""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from castwise.checkpoint._errors import CheckpointError, damage
from castwise.checkpoint.containers.gguf._architectures import (
    BOOL,
    COUNT,
    INTEGER,
    TEXT,
    gguf_package,
)
from castwise.checkpoint.containers.gguf.writer import typed_text
from castwise.checkpoint.files.source_files import read_file

TOKENIZER, CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_MAX_BYTES = 1 << 28  # of a file; the largest tokenizers have 35 MB
FILES = (TOKENIZER, CONFIG, _TEMPLATE)
"""The files that are read."""

# `llama_token_type` of llama.cpp.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


class Split(NamedTuple):
    """How text is split: a row, whose fields `splits.toml` describes."""

    expressions: Sequence[str]
    normalizer: str | None = None
    ignores_merges: bool = False
    adds_bos: bool = False


SPLITS: Mapping[str, Split] = {
    name: Split(**row)
    for name, row in tomllib.loads(
        Path(__file__).with_name("splits.toml").read_text("utf-8")
    ).items()
}
_UNKNOWN = ("end_of_word_suffix", "continuing_subword_prefix", "byte_fallback")
# What llama.cpp does not do to such tokens, and to those that are added.
_STRIPPING = ("lstrip", "rstrip", "single_word")

IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # so it is spelled
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}
_SPECIAL = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
# Tokens that llama.cpp's converter takes for control tokens, whatever their files say.
_SPECIAL_TOO = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")


def vocabulary(folder: Path, config: Mapping[str, Any], size: int) -> dict[str, str]:
    """Return what a file states of so many tokens of a model, and its chat template."""
    with _blame_file(folder / CONFIG):
        settings = _parse_file(folder / CONFIG, must_exist=False)
        texts = {name: _token(settings, name) for name in IDS}
        templates = _templates(settings, folder)
    with _blame_file(folder / TOKENIZER):
        tokenizer = _parse_file(folder / TOKENIZER)
        is_added = _template(tokenizer, texts, folder)
        keys, split = _tokens(tokenizer, folder, size)
        pairs = _pairs(tokenizer["model"], folder)
        _check_ignored(tokenizer, split, pairs, folder)
        keys |= _special(tokenizer.get("added_tokens") or [], pairs, settings, config, size)
    for name in ("bos", "eos", "sep"):
        value = settings.get(f"add_{name}_token")
        if isinstance(value, bool) and is_added.setdefault(name, value) != value:
            raise CheckpointError(
                f"{folder / CONFIG} states add_{name}_token {value}, and the post-processor of "
                f"{TOKENIZER} does the other with {texts[name]!r}; mend the one that is wrong"
            )
    flags = {f"tokenizer.ggml.add_{n}_token": typed_text(BOOL, v) for n, v in is_added.items()}
    return {**keys, **flags, **templates}


def _special(
    added_tokens: Sequence[Mapping[str, Any]],
    pairs: list[list[str]],
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    size: int,
) -> dict[str, str]:
    """Return the merges and the numbers of special tokens, as the package gguf reads them."""
    # The package gets values that were read and checked here, as it reads only files of this
    # machine. Tokens and their types come from here: its `BpeVocab` makes control tokens of all.
    added_texts = {token["content"] for token in added_tokens}
    config_numbers = {
        name: config.get(f"{name}_token_id")
        for name in IDS
        if _token(settings, name) not in added_texts
    }
    for name, number in config_numbers.items():
        if number is None or isinstance(number, list):  # of several, none is the one
            continue
        if type(number) is not int or not 0 <= number < size:
            raise CheckpointError(
                f"config.json states {name}_token_id {number!r}, and GGUF needs a whole number "
                f"from 0 to {size - 1}, the last row of the embedding"
            )
    files = {
        TOKENIZER: {"model": {"merges": pairs}, "added_tokens": added_tokens},
        CONFIG: {f"{name}_token": settings.get(f"{name}_token") for name in IDS},
        "config.json": {f"{name}_token_id": number for name, number in config_numbers.items()},
    }
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_text(json.dumps(content), "utf-8")
        read = gguf_package().SpecialVocab(folder, load_merges=True, special_token_types=(*IDS,))
    numbers = ((key, read.special_token_ids.get(name)) for name, key in IDS.items())
    return {
        "tokenizer.ggml.merges": typed_text(TEXT, read.merges),
        **{f"tokenizer.ggml.{key}": typed_text(COUNT, n) for key, n in numbers if n is not None},
    }


@contextmanager
def _blame_file(path: Path) -> Iterator[None]:
    """Say of which file it is that something is missing or of another type."""
    try:
        yield
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{path} is not as tokenizer.save_pretrained of transformers writes it: "
            f"{type(error).__name__}: {error}; save it by that again"
        ) from error


def _tokens(tokenizer: Mapping[str, Any], folder: Path, size: int) -> tuple[dict[str, str], str]:
    """Return what is stated of tokens, and how text is split before; refuse others, and merges."""
    model, added_tokens = tokenizer["model"], tokenizer.get("added_tokens") or []
    vocab, path = model["vocab"], folder / TOKENIZER
    if model["type"] != "BPE":
        raise _refusal(folder, f"is of the type {model['type']!r}")
    for key in _UNKNOWN:
        if model.get(key) not in (None, "", False):
            raise _refusal(folder, f"states {key} {model[key]!r}")
    names: dict[int, str] = {}
    for text, number in (
        *vocab.items(),
        *((token["content"], token["id"]) for token in added_tokens),
    ):
        if type(number) is not int or names.get(number, text) != text:
            raise CheckpointError(
                f"{path} numbers {text!r} with {number!r}, and llama.cpp needs a whole number that "
                "no other token has; number it anew"
            )
        names[number] = text
    kinds = dict.fromkeys(names, NORMAL)
    for token in added_tokens:
        names[token["id"]], kinds[token["id"]] = _added_token(token, path)
    if not 0 <= min(names) <= max(names) < size:
        raise CheckpointError(
            f"{path} numbers tokens from {min(names)} to {max(names)}, and the "
            f"embedding has {size} rows; fetch both again"
        )
    tokens = [names.get(number, f"[PAD{number}]") for number in range(size)]
    ((most, count),) = Counter(tokens).most_common(1)
    if count > 1:
        raise CheckpointError(
            f"{path}: {count} tokens are {most!r} in a GGUF file, where each needs a text of its "
            "own ([PADn] is that of a number n without a token); rename one"
        )
    split = _pre_tokenizer(tokenizer, folder)
    return {
        "tokenizer.ggml.model": typed_text(TEXT, "gpt2"),
        "tokenizer.ggml.pre": typed_text(TEXT, split),
        "tokenizer.ggml.tokens": typed_text(TEXT, tokens),
        "tokenizer.ggml.token_type": typed_text(
            INTEGER, [kinds.get(n, UNUSED) for n in range(size)]
        ),
    }, split


def _check_ignored(
    tokenizer: Mapping[str, Any], split: str, pairs: Iterable[Sequence[str]], folder: Path
) -> None:
    """Refuse tokens that llama.cpp would merge otherwise than the tokenizer does."""
    model = tokenizer["model"]
    ignores = bool(model.get("ignore_merges"))
    if ignores == SPLITS[split].ignores_merges:
        return
    whole = {token["content"] for token in tokenizer.get("added_tokens") or []}
    text = _find_unmerged((text for text in model["vocab"] if text not in whole), pairs)
    if text is not None:
        raise CheckpointError(
            f"{folder / TOKENIZER} states ignore_merges {ignores}, and llama.cpp does the other "
            f"for {split}: its merges do not make the token {text!r}; state {not ignores} if that "
            "will do"
        )


def _refusal(folder: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{folder / TOKENIZER} {reason}, and castwise writes GGUF of tokenizers that merge bytes "
        f"as {', '.join(SPLITS)} do; convert_hf_to_gguf.py of llama.cpp writes others"
    )


def _added_token(token: Mapping[str, Any], path: Path) -> tuple[str, int]:
    text = token["content"]
    for key in _STRIPPING:
        if token.get(key):
            raise CheckpointError(
                f"{path} states {key} {token[key]!r} of the added token {text!r}, which GGUF has "
                "no key for; state false if that will do"
            )
    looks = any(text.startswith(begin) and text.endswith(end) for begin, end in _SPECIAL)
    if token.get("special") or looks or text in _SPECIAL_TOO:
        return text, CONTROL
    return text.replace("\u2581", " "), USER_DEFINED


def _pairs(model: Mapping[str, Any], folder: Path) -> list[list[str]]:
    """Return the merges, each of two tokens whose join is one."""
    if not model["merges"]:  # the package writes no empty array, and llama.cpp reads none without
        raise _refusal(folder, "has no merges")
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    for merge, pair in zip(model["merges"], pairs, strict=True):
        is_pair = isinstance(pair, list) and [type(half) for half in pair] == [str, str]
        if not is_pair or not {*pair, "".join(pair)} <= model["vocab"].keys():
            raise CheckpointError(
                f"{folder / TOKENIZER} merges {merge!r}, and llama.cpp needs two tokens whose join "
                "is a token; remove it or add what it lacks"
            )
    return pairs


def _pre_tokenizer(tokenizer: Mapping[str, Any], folder: Path) -> str:
    """Return what llama.cpp calls the way in which text is split, normalized as it must be."""
    whole = tokenizer["pre_tokenizer"]
    *splits, last = whole["pretokenizers"] if whole["type"] == "Sequence" else [whole]
    expressions = [step["pattern"]["Regex"] for step in splits if step["type"] == "Split"]
    name = next((name for name, split in SPLITS.items() if split.expressions == expressions), None)
    is_bytes = last["type"] == "ByteLevel" and not last.get("add_prefix_space")
    is_apart = all(step.get("behavior") == "Isolated" and not step.get("invert") for step in splits)
    is_whole = (
        is_apart
        and len(expressions) == len(splits)
        and bool(last.get("use_regex", True)) == (not expressions)
    )
    if name is None or not is_bytes or not is_whole:
        raise _refusal(folder, f"splits text by {whole}")
    normalizer = (tokenizer.get("normalizer") or {"type": None})["type"]
    if normalizer != SPLITS[name].normalizer:
        raise CheckpointError(
            f"{folder / TOKENIZER} states the normalizer {normalizer!r}, and all that split text "
            f"as {name} have {SPLITS[name].normalizer!r} in GGUF; state that if it will do"
        )
    return name


def _find_unmerged(texts: Iterable[str], pairs: Iterable[Sequence[str]]) -> str | None:
    """Return the first token that merges do not make, so that it matters if they are ignored."""
    ranks = {tuple(pair): rank for rank, pair in enumerate(pairs)}
    for text in texts:
        parts, last = list(text), len(ranks)
        while len(parts) > 1:
            in_order = (ranks.get(pair, last) for pair in pairwise(parts))
            rank, at = min((rank, at) for at, rank in enumerate(in_order))
            if rank == last:
                return text
            parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return None


def _token(settings: Mapping[str, Any], name: str) -> str | None:
    """Return the text of a special token, None if nothing states it."""
    token = settings.get(f"{name}_token")
    text = token["content"] if isinstance(token, dict) else token
    if text is not None and not isinstance(text, str):
        raise TypeError(f"{name}_token is {token!r}, which is not a text")
    return text


def _template(
    tokenizer: Mapping[str, Any], texts: Mapping[str, str | None], folder: Path
) -> dict[str, bool]:
    """Return which special tokens the tokenizer puts before and after a text."""
    whole = tokenizer.get("post_processor") or {"type": "ByteLevel"}
    flags = {"bos": False, "eos": False}
    for step in whole.get("processors", [whole]):
        if step["type"] == "TemplateProcessing":
            items = [item.get("SpecialToken", {}).get("id") for item in step["single"]]
            pattern = [texts["bos"]] * (items[0] is not None) + [None]
            pattern += [texts["eos"]] * (len(items) > 1 and items[-1] is not None)
            if items != pattern:
                raise _refusal(folder, f"puts {items} around a text (None)")
            flags = {"bos": items[0] is not None, "eos": items[-1] is not None}
        elif step["type"] != "ByteLevel":
            raise _refusal(folder, f"has a post-processor of the type {step['type']!r}")
    return flags


def _templates(settings: Mapping[str, Any], folder: Path) -> dict[str, str]:
    templates = settings.get("chat_template")
    if templates is None and (folder / _TEMPLATE).is_file():
        with _blame_file(folder / _TEMPLATE):
            templates = read_file(folder / _TEMPLATE, _MAX_BYTES).decode()
    if templates is None:
        return {}
    if isinstance(templates, str):
        templates = [{"name": "default", "template": templates}]
    pairs = {template["name"]: template["template"] for template in templates}
    for text in (*pairs, *pairs.values()):
        if not isinstance(text, str):
            raise TypeError(f"chat_template has {text!r}, which is not a text")
    # The package writes their names in the order of a set, which differs from process to process.
    key = "tokenizer.chat_template"
    default = {key: pairs.pop("default")} if "default" in pairs else {}
    files = {f"{key}.{name}": text for name, text in pairs.items()}
    keys = {**files, **({f"{key}s": [*pairs]} if pairs else {}), **default}
    return {key: typed_text(TEXT, value) for key, value in keys.items()}


def _parse_file(path: Path, *, must_exist: bool = True) -> Any:  # noqa: ANN401  (of JSON)
    """Parse a file of a tokenizer; nothing is stated by one that may be missing."""
    if not must_exist and not path.exists():
        return {}
    try:
        return json.loads(read_file(path, _MAX_BYTES).decode())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing, and a GGUF file has the tokens of its model; add it, as "
            "tokenizer.save_pretrained of transformers does"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}; make it a file that can"
        ) from error
    except CheckpointError:  # no regular file, or too large; it is a ValueError
        raise
    except (ValueError, RecursionError) as error:
        raise damage(f"{path} is not JSON: {error}") from error
