"""The names of files of weights and their indexes: which belong together, which are other forms.

Loaders know files by their names, and so does a folder: safetensors before torch, a variant beside
the file without that part of its name, the adapter of peft beside the model that it adapts.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from castwise._options import SAFETENSORS

INDEX_SUFFIX = f"{SAFETENSORS}.index.json"
# Mistral's own files, beside those of transformers in the same folder.
CONSOLIDATED = "consolidated"
TORCH_SUFFIX = ".bin"

NOT_OF_THE_MODEL = (
    *(".git/", ".cache/"),
    *("optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt"),
    *("rng_state*.pth", "random_states_*.pkl", "training_args.bin", "global_step*/"),
)
"""What a repository, transformers' Trainer, accelerate and DeepSpeed keep beside a model."""

# `model.safetensors`, `model.bin.index.json`, and of a variant `model.safetensors.index.fp16.json`.
_FILE = (
    r"(?s)(?P<stem>.*)(?P<suffix>\.safetensors|\.bin)(?P<index>\.index(?P<variant>\.[^.]+)?\.json)?"
)
# As `split_torch_state_dict_into_shards` of huggingface_hub names them.
_SHARD = r"(?s)(.+)-[0-9]{5}-of-([0-9]{5})"
# What the names of torch's files begin with that transformers, diffusers and peft load.
_OF_TORCH = r"(?s)(?:(?:diffusion_)?pytorch|adapter)_model(?:[.-].+)?"

# What those of peft begin with, which stand beside a model or by themselves.
_ADAPTER = r"(?s)adapter_model(?:[.-].+)?"


def is_safetensors(name: str) -> bool:
    return name.endswith(SAFETENSORS)


def is_torch(name: str) -> bool:
    """Return True for a name that torch's files have, and many others."""
    return name.endswith(TORCH_SUFFIX)


def is_index(name: str) -> bool:
    """Return True for the name of an index, given that of a file of weights or an index."""
    return name.endswith(".json")


def holds_weights(names: Sequence[str]) -> bool:
    """Return True if a folder with files of these names has weights to cast."""
    return bool(families(names))


def families(names: Sequence[str]) -> list[dict[str, str]]:
    """Return what names of weights and indexes begin with, of a model, then of an adapter."""
    # Files of torch count only where there are no safetensors files.
    stems: dict[tuple[bool, str], dict[str, str]] = {}
    for name in names:
        if (match := re.fullmatch(_FILE, name)) is not None:
            stem = match["stem"] + (match["variant"] or "")
            if match["suffix"] == SAFETENSORS or re.fullmatch(_OF_TORCH, stem):
                family = re.fullmatch(_ADAPTER, stem) is not None, match["suffix"]
                stems.setdefault(family, {})[name] = stem
    families_of_both = (
        stems.get((is_adapter, SAFETENSORS)) or stems.get((is_adapter, TORCH_SUFFIX))
        for is_adapter in (False, True)
    )
    return [family for family in families_of_both if family]


def is_adapter(stems: Mapping[str, str]) -> bool:
    return all(re.fullmatch(_ADAPTER, stem) for stem in stems.values())


def torch_forms(names: Sequence[str], stems: Mapping[str, str]) -> list[str]:
    """List torch's files and indexes that a family of safetensors files takes the place of."""
    if not any(is_safetensors(name) for name in stems):
        return []
    of_adapter = is_adapter(stems)
    forms = [
        name
        for name in names
        if (match := re.fullmatch(_FILE, name)) is not None
        and match["suffix"] == TORCH_SUFFIX
        and re.fullmatch(_OF_TORCH, match["stem"])
        and (re.fullmatch(_ADAPTER, match["stem"]) is not None) == of_adapter
    ]
    if any(map(is_index, forms)):  # which names the tensors of its shards
        forms = [
            name for name in forms if not re.fullmatch(_SHARD, name.removesuffix(TORCH_SUFFIX))
        ]
    return forms


def other_torch_files(names: Sequence[str], stems: Mapping[str, str]) -> list[str]:
    """List files beside torch's of a family that may be torch's as well, and are not known."""
    if not any(is_torch(name) for name in stems):
        return []
    return [
        name
        for name in names
        if is_torch(name)
        and not re.fullmatch(_OF_TORCH, name.removesuffix(TORCH_SUFFIX))
        and not any(fnmatchcase(name, pattern) for pattern in NOT_OF_THE_MODEL)
    ]


def other_forms(stems: Mapping[str, str]) -> set[str]:
    """Return the files and indexes, given with their stems, whose tensors others hold as well."""
    every = set(stems.values())
    plain = {stem for stem in every if not stem.startswith(CONSOLIDATED)} or every
    variants = {stem for stem in plain if "." in stem and stem.rpartition(".")[0] in plain}
    return {name for name, stem in stems.items() if stem not in plain - variants}


def series_of(stem: str) -> str | None:
    """Return what the names of all shards of a model have, None if it is not a shard's."""
    match = re.fullmatch(_SHARD, stem)
    return match and f"{match[1]}-of-{match[2]}"


def safetensors_name(path: str) -> str:
    """Return the path of a file of torch, or of an index, as libraries call it in safetensors."""
    folder, slash, name = path.rpartition("/")
    match = re.fullmatch(_FILE, name)
    if match is None or match["suffix"] != TORCH_SUFFIX:
        return path
    stem = re.sub(r"^pytorch_model(?![^.-])", "model", match["stem"])
    return f"{folder}{slash}{stem}{SAFETENSORS}{match['index'] or ''}"
