"""Beside the producers' own libraries, gigabytes of them: collected by `.ci/peers` alone."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave everything here out, unless a path of the command line is in this folder."""
    here = Path(__file__).parent
    named = any(
        here in [p := Path(a.partition("::")[0]).absolute(), *p.parents] for a in config.args
    )
    return None if named else True
