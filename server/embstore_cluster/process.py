"""A server that ends with its parent: `-m embstore_cluster.process PARENT [WORD ...] serve ...`.

A server that outlived its actor would keep the directory and the port that the next server needs.
Therefore each server asks the system to kill it (SIGKILL) when the thread that started the server
ends, for any reason. For the store this is a crash; its command log contains the commands since the
last commit. If the parent has ended before the server asks the system, the server detects that by
the parent's process id, and ends.

The words before `serve` are arguments for `rollback`, which prepares the directory first.
"""

import ctypes
import os
import signal
import sys

from embstore.errors import EmbstoreError

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Make this process end with its parent, and run a command line of embstore."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        return 1
    at = sys.argv.index("serve")
    if at > 2 and (status := _prepared(sys.argv[2:at])):
        return status
    from embstore_server.cli import main as embstore

    return embstore(sys.argv[at:])


def _prepared(words: list[str]) -> int:
    from embstore_cluster.rollback import prepare

    try:
        return prepare(words)
    except EmbstoreError as exc:
        sys.stderr.write(f"{type(exc).__name__}: {exc}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
