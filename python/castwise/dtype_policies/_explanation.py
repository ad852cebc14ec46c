"""Report what a map does to the paths of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from castwise.dtype_policies._policy import DTypePolicy
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet, Table
from castwise.rendering.text import unused_lines
from castwise.text.brief import brief, brief_fields, counted, listed


@dataclass(frozen=True, slots=True)
class PathMatch:
    """The result of a map for one path.

    Attributes
    ----------
    key
        The key that is used; None if none matches, or if several do and the map does not choose.
    policy
        The policy of the path; None where a lookup would fail.
    exact
        Whether the key is the path itself.
    others
        The other keys that match, in the order in which they were set.

    """

    key: str | None
    policy: DTypePolicy | None
    exact: bool
    others: tuple[str, ...]

    __repr__ = brief_fields

    @property
    def matches(self) -> tuple[str, ...]:
        """All keys that match, the used one first."""
        return self.others if self.key is None else (self.key, *self.others)

    @property
    def ambiguous(self) -> bool:
        """Whether a lookup of the path fails."""
        return self.policy is None


@dataclass(frozen=True, slots=True)
class Explanation(Rendered):
    """The results of a map for many paths. Prints as a table.

    Attributes
    ----------
    paths
        Each path with its key and policy.
    keys
        Each key with the number of paths for which it is used.
    unused
        Each unused key, with the path that is spelled most like it.

    """

    paths: dict[str, PathMatch]
    keys: dict[str, int]
    unused: dict[str, str | None]

    def __repr__(self) -> str:
        ambiguous = sum(match.ambiguous for match in self.paths.values())
        return brief(
            self,
            f"{counted(len(self.paths), 'path')} by {counted(len(self.keys), 'key')}",
            f"{ambiguous:,} ambiguous" if ambiguous else None,
            f"unused: {listed(map(repr, self.unused))}" if self.unused else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the same in plain types, fit for JSON."""
        paths = {
            path: {
                "key": match.key,
                "policy": None if match.policy is None else match.policy.name,
                "exact": match.exact,
                "matches": list(match.matches),
            }
            for path, match in self.paths.items()
        }
        return {"paths": paths, "keys": dict(self.keys), "unused": dict(self.unused)}

    def __sheet__(self) -> Sheet:
        rows: list[tuple[str, ...]] = []
        for path, match in self.paths.items():
            policy = "(ambiguous)" if match.policy is None else match.policy.name
            rows.append((path, policy, match.key or "-", ", ".join(match.others)))
        header = ("path", "policy", "key", "also matched by")
        return [Table.of(header, rows), Lines(unused_lines(self.unused))]
