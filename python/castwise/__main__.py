"""`python -m castwise`: the command line."""

import sys

from castwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
