"""Cast a checkpoint again and again, dying at one step later each time; a script, not a test.

For every line of standard input, a number N and two paths SRC and DST with tabs between them, a
child casts SRC to DST and ends without any clean-up at the N-th time that Python opens, renames,
removes or otherwise touches a file. Its exit code is printed: 9 if it died so, 0 if it finished.
"""

import os
import sys

from castwise import checkpoint
from castwise.checkpoint.containers import npz, safetensors

IMPORTED = checkpoint.cast_file, npz, safetensors
"""What the children use: an import would be a step of each."""


def die_at(last: int) -> None:
    """End this process at the `last`-th step from now."""
    steps = 0

    def hook(event: str, _arguments: object) -> None:
        nonlocal steps
        if event.startswith(("open", "os.", "shutil.", "fcntl.", "ctypes.")):
            steps += 1
            if steps == last:
                os._exit(9)

    sys.addaudithook(hook)


def main() -> None:
    for line in sys.stdin:
        step, source, destination = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            die_at(int(step))
            checkpoint.cast_file(source, destination, "bfloat16", overwrite=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
