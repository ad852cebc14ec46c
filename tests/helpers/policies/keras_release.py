"""A release of Keras in a folder of its own, which a worker asks in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def ask(requirement: str, folder: Path, worker: Path, question: object = None) -> Any:
    """Install a release without what it depends on, and return a worker's answer to a question."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*install, "--no-deps", "--target", str(folder), requirement], check=True, timeout=300
    )
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(worker)],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, "KERAS_BACKEND": "numpy"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
