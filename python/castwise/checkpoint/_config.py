"""The dtype in a model's `config.json`, which must be that of its tensors.

transformers loads a model in the dtype that its configuration names, whatever its tensors are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from castwise.checkpoint._tensors import format_named
from castwise.checkpoint.report import CastRow

CONFIG = "config.json"

_LOGGER = logging.getLogger(__name__)
_KEYS = ("torch_dtype", "dtype")
_OTHERS = frozenset(("quantization_config", "compression_config"))  # of what is stored, not loaded
_LOADABLE = frozenset(("float32", "float16", "bfloat16"))
_MAX_BYTES = 10_000_000


def new_config(path: Path, rows: Sequence[CastRow]) -> str | None:
    """Return the text of a configuration that names the dtype of cast tensors.

    None if it is to stay: there is nothing to change, or it cannot be told to what; of that a
    warning is given.
    """
    formats = _float_formats(rows)
    if not formats or not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return None
    try:
        text = path.read_text("utf-8")
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    stale = [
        (part, key)
        for part in _parts(config)
        for key in _KEYS
        if (name := _name(part.get(key))) is not None and [name] != formats
    ]
    if not stale:
        return None
    part, key = stale[0]
    reason = _reason(config, formats)
    if reason is not None:
        _LOGGER.warning(
            "%s was copied unchanged; its %s still says %r: %s", path.name, key, part[key], reason
        )
        return None
    (target,) = formats
    for part, key in stale:
        part[key] = ("torch." if part[key].startswith("torch.") else "") + target
    return json.dumps(config, indent=2, ensure_ascii=False) + ("\n" if text[-1:] == "\n" else "")


def _float_formats(rows: Sequence[CastRow]) -> list[str]:
    """List what the floating tensors are now; nothing if none was cast."""
    if all(row.target is None for row in rows):
        return []
    found = {row.target or row.source for row in rows}
    kinds = {name: row for name in found if (row := format_named(name)) is not None}
    return sorted(name for name, row in kinds.items() if row.kind == "float")


def _reason(config: dict[str, Any], formats: Sequence[str]) -> str | None:
    """Say why a configuration cannot follow, and what to do; None if it can."""
    if not _OTHERS.isdisjoint(config):
        return "it is of a quantised model; set it to the dtype to compute in"
    if len(formats) > 1:
        return f"the tensors are now {' and '.join(formats)}; set it to the one to load them in"
    if formats[0] not in _LOADABLE:
        return f"no model is loaded in {formats[0]}; set it to the dtype to compute in"
    return None


def _parts(config: Any) -> Iterator[dict[str, Any]]:
    """Give the configuration, and those of the parts of its model."""
    if isinstance(config, dict):
        yield config
        for key, value in config.items():
            if key not in _OTHERS:
                yield from _parts(value)


def _name(dtype: object) -> str | None:
    """Return the format that a dtype of a configuration names; None if it is not a float."""
    row = format_named(dtype.removeprefix("torch.")) if isinstance(dtype, str) else None
    return row.name if row is not None and row.kind == "float" else None
