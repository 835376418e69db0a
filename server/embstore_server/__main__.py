"""`python -m embstore_server` is the command `embstore`."""

import sys

from embstore_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
