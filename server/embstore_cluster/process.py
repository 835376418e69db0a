"""A server that ends with its parent: `-m embstore_cluster.process PARENT [WORD ...] serve ...`.

A server that outlived its actor would keep the directory and the port that the next server needs.
So the system kills it (SIGKILL) when the thread that started it ends, for any reason. To a store
this is a crash, from which its command log recovers. If the parent ended before the system was
asked to do so, the server detects it by the parent's process id.

Words before `serve` are for `rollback`, which prepares the directory first.
"""

import ctypes
import os
import signal
import sys

from embstore.errors import EmbstoreError

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Tie this process to its parent's life, and run a command line of embstore."""
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
