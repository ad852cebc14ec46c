"""How the numbers of a file of importance were used: what a summary says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from castwise.models.architecture import normalize_name
from castwise.text.brief import brief_fields, counted
from castwise.text.plain import plain_fields


@dataclass(frozen=True, slots=True)
class ImportanceUse:
    """How the numbers of input channels were used.

    Attributes
    ----------
    path
        Their file.
    weighted
        How many weights have scales that were searched by them.
    unweighted
        The weights that were searched without them, wholly or some experts, each with the reason.
    unused
        The names in the file that are those of no weight that was searched.

    """

    path: str
    weighted: int
    unweighted: Mapping[str, str]
    unused: Sequence[str]

    __repr__ = brief_fields

    def lines(self) -> list[str]:
        """Write what a person should know, names of all layers in one."""
        lines = [f"by {self.path}: the scales of {counted(self.weighted, 'weight')} are searched"]
        reasons = dict.fromkeys(self.unweighted.values())
        for reason in reasons:
            names = [name for name, other in self.unweighted.items() if other == reason]
            lines.append(f"searched without importance, since {reason}: {_names_text(names)}")
        if self.unused:
            lines.append(f"names in it that match no searched weight: {_names_text(self.unused)}")
        return lines

    to_dict = plain_fields


def _names_text(names: Iterable[str]) -> str:
    """List names, those of several layers as one with their count."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(normalize_name(name), []).append(name)
    return ", ".join(
        each[0] if len(each) == 1 else f"{group} ({len(each):,})" for group, each in groups.items()
    )
