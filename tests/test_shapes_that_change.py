"""Arrays that get another shape in the middle of a call, by their class or by another thread."""

from __future__ import annotations

import pytest
from processes import run_python

# A target of n rows that becomes one row of n while the call copies an overlapping source.
PROGRAM = """
import sys
import threading
import ml_dtypes
import numpy as np
import castwise
from castwise.loss_scale import DelayedScaling, unscale

n = 1 << 20
armed = False
float8 = ml_dtypes.float8_e4m3fn

class Meddling(np.ndarray):
    def __array_finalize__(self, other):
        if armed:
            target.shape = (1, n)

memory = np.ones(4 * n + 1, np.uint8)
source = memory[: 4 * n].view(np.float32).reshape(n, 1)

ones = np.ones(5000, np.float32)
view = ones[:-1].view(Meddling)
grads = [np.ones((n, 1), np.float32), view]

def call(source):
    if KIND == "cast":
        castwise.cast(source, out=target)
    elif KIND == "quantize":
        DelayedScaling(2).quantize(source, target)
    else:
        unscale(grads, 1.0, [target, ones[1:]])

target = memory[1 : n + 1].view(float8).reshape(n, 1)
if KIND == "unscale":
    target = np.zeros((n, 1), np.float32)
meddling = source.view(Meddling)
armed = True
call(meddling)
armed = False
target.shape = (n, 1)

# Without its lock, numpy reads and writes a shape at the same moment: its own functions fail then.
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    print("survived")
    sys.exit()

stop = threading.Event()

def meddle():
    while not stop.is_set():
        for shape in ((1, n), (n, 1)):
            try:
                target.shape = shape
            except AttributeError:
                pass  # these strides cannot have that shape

thread = threading.Thread(target=meddle)
thread.start()
for _ in range(40):
    try:
        call(source)
    except (ValueError, TypeError):
        pass  # the shapes differ at the moment of the call
stop.set()
thread.join()
print("survived")
"""


@pytest.mark.parametrize("kind", ["cast", "quantize", "unscale"])
def test_nothing_is_written_beyond_an_array(kind: str) -> None:
    run = run_python("-c", f"KIND = {kind!r}\n{PROGRAM}")
    assert (run.returncode, run.stdout) == (0, "survived\n"), run.stderr[-2000:]
