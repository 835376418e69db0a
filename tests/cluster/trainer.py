"""`python -m tests.cluster.trainer ADDRESS RANK STEPS`: one rank of a cluster's training.

It does what docs/guide/scale-out.md says: it opens the session again when that has ended, and goes
back to the last checkpoint of the cluster when it is told that a step is finished on some shards
only. Killed, it is started again with the same words. What happens is said on its standard output:
a word, a number, and the time of the system's monotonic clock. It does its last steps when its
standard input has ended.
"""

import sys
from contextlib import suppress
from threading import Event, Thread
from time import monotonic

from embstore.errors import (
    EmbstoreError,
    OutcomeUnknownError,
    RankFailedError,
    SessionExpiredError,
    TableHeldError,
)
from embstore.handles.store import Store
from embstore_client import connect
from tests.cluster.training import train

PATIENCE_S = 300.0
SESSION = {"lookahead": 4, "lease_ms": 3000, "rank_timeout_ms": 120_000}
_PAUSE_S = 0.1
_ENDED = SessionExpiredError, RankFailedError, OutcomeUnknownError, TableHeldError


def main(address: str, rank: int, steps: int) -> None:
    """Train all steps, whatever dies meanwhile."""
    may_end = Event()
    Thread(target=lambda: (sys.stdin.read(), may_end.set()), daemon=True).start()
    with connect(address, timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S) as store:
        tell("connected", 0)
        while True:
            try:
                train(
                    store,
                    rank,
                    steps,
                    lambda step: tell("finished", step),
                    may_end.wait,
                    **SESSION,
                )
                return
            except _ENDED as ended:
                sys.stderr.write(f"rank {rank}: {type(ended).__name__}: {ended}\n")
                tell("ended", 0)
                if "restore a checkpoint of the cluster" in str(ended):
                    roll_back(store)
                Event().wait(_PAUSE_S)


def roll_back(store: Store) -> None:
    """Restore the last checkpoint that all shards have; a shard may be killed meanwhile."""
    while True:
        with suppress(OutcomeUnknownError, SessionExpiredError):
            label = store.checkpoints()[-1].label
            store.restore(label, force=True)
            tell("back", int(label.rpartition("-")[2]))
            return


def tell(what: str, number: int) -> None:
    """Say what has happened."""
    sys.stdout.write(f"{what} {number} {monotonic()!r}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except EmbstoreError as failed:
        sys.exit(f"rank {sys.argv[2]}: {type(failed).__name__}: {failed}")
