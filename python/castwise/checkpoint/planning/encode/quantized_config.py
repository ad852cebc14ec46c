"""The configuration of a model whose weights are quantised."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from castwise.arrays.dtype_map import DTYPE
from castwise.checkpoint._config import Config
from castwise.checkpoint.containers.statement import ComponentStatement
from castwise.checkpoint.planning.decode.unquantized_config import without_quantization
from castwise.checkpoint.results.report import CastRow
from castwise.quantization.producers.written import Statements


class QuantizedConfig(Config):
    """A `config.json` that states how the weights of its model are quantised.

    `statements` are what states it; None if nothing of it changes.

    OSError: it cannot be read.
    """

    def __init__(
        self, statement: ComponentStatement, label: str, statements: Statements | None
    ) -> None:
        super().__init__(statement, label)
        self._statements = statements
        self._is_rewritten = statements is not None

    def following(self, rows: Sequence[CastRow]) -> str | None:
        """Return the text with the sections at its end; None if it is to stay.

        Its dtype follows what a map casts beside the weights, as in a cast.
        """
        text = super().following([row for row in rows if row.decided_by != DTYPE])
        if self._statements is None or not self._text:
            return text
        old_text = self._text
        text = text or old_text
        if self._statements.edit is not None:
            text = self._statements.edit(text)
        else:
            text = without_quantization(text)
            if self._statements.sections:
                text = _with_sections(text, self._statements.sections)
        return None if text == old_text else text


def _with_sections(text: str, sections: Mapping[str, object]) -> str:
    end = text.rindex("}")
    head, tail = text[:end].rstrip(), text[end:]
    comma = "" if head.endswith("{") else ","
    members = json.dumps(sections, indent=2)[2:-2]
    return f"{head}{comma}\n{members}\n{tail}"
