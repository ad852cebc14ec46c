"""Find the known name that a wrong one may have meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from castwise._core import nearest_texts


def nearest(wanted: Iterable[str], known: Iterable[str]) -> dict[str, str | None]:
    """Map each wrong name to the known name that is spelled most like it, or None."""
    names, there = list(wanted), list(known)
    places = nearest_texts(names, there)
    return {
        name: None if place is None else there[place]
        for name, place in zip(names, places, strict=True)
    }


def unused(hits: Mapping[str, int], seen: Iterable[str]) -> dict[str, str | None]:
    """Map each unused pattern, one without hits, to the seen name that is spelled most like it."""
    return nearest([pattern for pattern, count in hits.items() if count == 0], seen)
