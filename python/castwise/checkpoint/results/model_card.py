"""The model card of a conversion: what the source's says, and what was done."""

import json
import logging
import math
import reprlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from castwise._core import __version__
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.source_files import read_file
from castwise.checkpoint.results.sheets import TOTALS
from castwise.checkpoint.results.summary import CastSummary, summary_sheet
from castwise.rendering.text import text_lines
from castwise.text.brief import listed
from castwise.text.wording import parenthesis

CARD = "README.md"
_HUB_PAGE = "https://huggingface.co"
_TAG = "castwise"
# Cards are pages of text; what is larger is no card, and is not read into memory.
_MAX_CARD_BYTES = 10_000_000
_QUANTIZED_BITS = 10  # of an element with its scales
_LOGGER = logging.getLogger(__name__)


class Base(NamedTuple):
    """The repository that was converted, and the hash of its commit."""

    name: str
    commit: str


def read_card(path: Path | None) -> Any:  # noqa: ANN401  (a RepoCard of an optional package)
    """Read the card of the source, of which that of the result keeps text and metadata."""
    # Metadata that are not YAML are left out, which a warning says.
    from huggingface_hub import RepoCard  # noqa: PLC0415  (optional)

    name = f"{path}, which becomes the model card,"
    remedy = "mend it, or leave it out " + parenthesis("exclude", CARD)
    if path is not None and path.is_dir():
        raise CheckpointError(f"{name} is a folder; rename it, or leave it out")
    try:
        text = "" if path is None else read_file(path, _MAX_CARD_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{name} is not UTF-8 (byte {error.start:,}); " + remedy) from error
    except CheckpointError as error:
        raise CheckpointError(f"{error}; " + remedy) from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.lstrip().startswith("---"):
        text = f"---\n{{}}\n---\n{text}"
    try:
        card = RepoCard(text)
        str(card)
    except Exception as error:
        reason = " ".join(str(error).split())
        _LOGGER.warning("the metadata of %s is not kept: %s", CARD, reason)
        card = RepoCard(f"---\n{{}}\n---\n{text.partition('---')[2].partition('---')[2]}")
    tags = card.data.get("tags") or []
    tags = [tags] if isinstance(tags, str) else tags
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise CheckpointError(
            f"{name} has tags that are not a list of texts: {reprlib.repr(tags)}; " + remedy
        )
    card.data["tags"] = tags
    return card


def write_card(
    folder: Path,
    card: Any,  # noqa: ANN401  (as `read_card` returns it)
    summary: CastSummary,
    *,
    command: str,
    base: Base | None,
) -> None:
    """Write the card of a converted model, which keeps what that of the source says."""
    data = card.data
    if _TAG not in data["tags"]:
        data["tags"].append(_TAG)
    if base is not None:
        data["base_model"] = base.name
        data.pop("base_model_relation", None)
        if _is_quantized(summary):
            data["base_model_relation"] = "quantized"
    body = card.text.strip() or f"# {folder.name}"
    card.text = f"\n{body}\n\n{_section(summary, command, base)}"
    (folder / CARD).write_text(str(card), "utf-8", newline="\n")


def _is_quantized(summary: CastSummary) -> bool:
    """Return True if the tensors that changed take about 8 bits for an element, or fewer."""
    new_rows = [row for row in summary.rows if row.target not in {None, row.source}]
    count = sum(math.prod(row.shape) for row in new_rows)
    return 0 < 8 * sum(row.nbytes_after for row in new_rows) < _QUANTIZED_BITS * count


def _section(summary: CastSummary, command: str, base: Base | None) -> str:
    """Say what was converted, how, and what that lost; paths of this machine are not said."""
    source = "a checkpoint"
    if base is not None:
        source = f"[{base.name}]({_HUB_PAGE}/{base.name}) at commit `{base.commit}`"
    values = {name: value for name, value in summary.options.items() if value not in (None, [], {})}
    values["map"] = values.get("map") or _mapping(summary)
    options = "".join(f"- {name}: {_value(value)}\n" for name, value in values.items())
    public = replace(summary, source=base.name if base else Path(summary.source).name)
    table = "\n".join(text_lines(summary_sheet(public, TOTALS), width=None))
    losses = listed(finding.kind for finding in summary.findings()) or "none"
    return (
        f"## Conversion\n\n`castwise {command}` of castwise {__version__} made this of {source}.\n"
        f"\n{options}\nKinds of losses: {losses}.\n\n```\n{table}\n```\n"
    )


def _mapping(summary: CastSummary) -> Mapping[str, str]:
    """Return what the keys of a map, or the default, made of tensors."""
    return {
        row.pattern or "default": row.target
        for row in summary.rows
        if row.target is not None and row.decided_by is not None
    }


def _value(value: Any) -> str:  # noqa: ANN401  (of an option)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
