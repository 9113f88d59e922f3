"""`python -m tofuse`: the command line."""

import sys

from tofuse.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
