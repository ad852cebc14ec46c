"""Which known name a wrong one may have meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from castwise._core import nearest_texts


def nearest(wanted: Iterable[str], known: Iterable[str]) -> dict[str, str | None]:
    """Give each wrong name the known one that is spelled most like it; None if none is close."""
    names, there = list(wanted), list(known)
    places = nearest_texts(names, there)
    return {
        name: None if place is None else there[place]
        for name, place in zip(names, places, strict=True)
    }


def unused(hits: Mapping[str, int], seen: Iterable[str]) -> dict[str, str | None]:
    """Give each pattern that matched none of the seen names the name that it may have meant."""
    return nearest([pattern for pattern, count in hits.items() if count == 0], seen)
