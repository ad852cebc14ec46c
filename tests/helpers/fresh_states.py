"""Fixtures that give a test the global state of a fresh process, on both sides, and put it back.

A file asks for one of them: `pytestmark = pytest.mark.usefixtures("keras_state")`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# What asks the real packages is imported by the files of tests that need it.


@pytest.fixture
def keras_state() -> Iterator[None]:
    """Give Keras 3 and castwise the state of a fresh process."""
    from keras_systems import state  # noqa: PLC0415

    with state():
        yield


@pytest.fixture
def tf_keras_state() -> Iterator[None]:
    """Give tf_keras and castwise's dialect of TF 2 the state of a fresh process."""
    from tf2_sides import fresh_state  # noqa: PLC0415

    with fresh_state():
        yield


@pytest.fixture
def tf24_state() -> Iterator[None]:
    """Take the global policy of TF 2.4 and of castwise's dialect of it away."""
    from tf24_sides import reset  # noqa: PLC0415

    reset()
    yield
    reset()
