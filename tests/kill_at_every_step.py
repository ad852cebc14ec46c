"""Cast a checkpoint again and again, dying at one step later each time; a script, not a test.

Usage: kill_at_every_step.py SRC DST. For every line of standard input that holds a number N, a
child casts SRC to DST and ends without any clean-up at the N-th time that Python opens, renames,
removes or otherwise touches a file. Its exit code is printed: 9 if it died so, 0 if it finished.
"""

import os
import sys

from castwise import checkpoint


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


def main(source: str, destination: str) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            die_at(int(line))
            checkpoint.cast_file(source, destination, "bfloat16", overwrite=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
