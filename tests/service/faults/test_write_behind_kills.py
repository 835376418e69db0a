"""Trainers that run ahead of the store, killed at random moments, and their servers, and both.

Whatever dies, training goes on behind the last step that the store has, from its rows: in the same
process where the server has lost nothing, else by opening the session's name again, with all
batches, of which those of finished steps are left out. In the end each step has been applied once,
and the bits are those of plain calls.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.errors import OutcomeUnknownError, RankFailedError, SessionExpiredError
from embstore.handles.store import Store
from embstore_client import connect
from tests.conformance.meeting import Meeting
from tests.faults.forks import Child
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S
from tests.service.faults.test_resumed_runs import (
    DIM,
    ROWS,
    TABLES,
    applied_counts,
    digests,
    make_tables,
)

SEED = 20_261_125
KILLS, STEPS_A_KILL, KEYS = 12, 8, 40
LAST = KILLS * STEPS_A_KILL + 20
LEASE_MS = 30_000
ENDS = (SessionExpiredError, OutcomeUnknownError, RankFailedError, threading.BrokenBarrierError)
"""How a run may end when its server was killed: open the session again."""


def keys_of(number: int, rank: int = 0) -> dict[str, Any]:
    """Return the keys of a step; repeated ones too, and many of the steps before."""
    keys = {"rows": np.random.default_rng([number, rank]).integers(0, ROWS, KEYS)}
    return keys if rank else keys | {"marks": np.array([number])}


def gradients_of(number: int, rows: Any) -> dict[str, Any]:
    """Return gradients that depend on the rows: what is wrong in one step is in all after it."""
    noise = np.random.default_rng([number, 1]).standard_normal(DIM, np.float32)
    gradients = {"rows": np.float32(0.1) * rows["rows"] + noise}
    return gradients | {"marks": np.ones_like(rows["marks"])} if "marks" in rows else gradients


def is_skipped(number: int) -> bool:
    """Tell whether a step is finished without an update."""
    return number % 7 == 3


def train(reports: Connection, address: str, ranks: int) -> None:
    """The child: trains what is left, whatever happens to the server; reports each step."""
    with ThreadPoolExecutor(ranks) as pool:
        is_done = False
        while not is_done:
            meeting = Meeting(ranks, PATIENCE_S)
            work = [
                pool.submit(train_on, address, reports, n, ranks, meeting) for n in range(ranks)
            ]
            ends = [one.result() for one in work]
            is_done = all(ends)
    reports.send(None)


def train_on(address: str, reports: Connection, rank: int, ranks: int, meeting: Meeting) -> bool:
    """Train behind the last finished step; tell whether that was all."""
    session: dict[str, Any] = {"waits": "none", "depth": 4, "lookahead": 9, "resume": True}
    if ranks > 1:
        session |= {"rank": rank, "world_size": ranks, "all_gather": meeting.of(rank)}
    how = {"name": "run", "lease_ms": LEASE_MS, "wait_s": PATIENCE_S}
    try:
        with (
            connect(address, timeout_s=PATIENCE_S) as store,
            store.session([*TABLES], **how, **session) as run,
        ):
            for step in run.steps(range(1, LAST + 1), lambda number: keys_of(number, rank)):
                assert step.batch == step.number
                rows = step.lookup()
                if rank == 0:
                    reports.send(step.number)
                if is_skipped(step.number):
                    step.skip()
                else:
                    step.update(gradients_of(step.number, rows))
        return True
    except BaseException as end:
        meeting.leave()
        if isinstance(end, ENDS):
            return False
        raise


def plain(path: Path, ranks: int) -> dict[str, str]:
    """Return the digests after plain calls."""
    with embstore.open(path, cache_bytes=1 << 22, threads=1) as store:
        make_tables(store)
        for number in range(1, LAST + 1):
            if not is_skipped(number):
                given = [keys_of(number, rank) for rank in range(ranks)]
                found = [gradients_of(number, store.lookup(keys)) for keys in given]
                store.update_ranks(
                    [{n: (k[n], g[n]) for n in k} for k, g in zip(given, found, strict=True)]
                )
        return digests(store)


def check(store: Store, path: Path, ranks: int) -> None:
    """Check that each step was applied once, with the bits of plain calls, which `path` is for."""
    assert applied_counts(store, LAST) == [int(not is_skipped(n)) for n in range(1, LAST + 1)]
    assert digests(store) == plain(path, ranks)
    store.check_integrity()


def advanced(trainer: Child, steps: int) -> bool:
    """Wait until a trainer has begun so many steps more; tell whether it has ended all."""
    for _ in range(steps):
        assert trainer.reports.poll(PATIENCE_S)
        if trainer.reports.recv() is None:
            return True
    return False


def end_session(address: str) -> None:
    """End the session of a trainer that was killed, as its lease would in a while."""
    with connect(address, timeout_s=PATIENCE_S) as store, suppress(SessionExpiredError):
        store.sessions.end("run")


@pytest.mark.parametrize(
    ("durability", "ranks"), [("commands", 1), ("checkpoint", 1), ("commands", 2)]
)
def test_training_goes_on_over_kills_of_trainer_server_and_both(
    forks, quick_path, durability, ranks, soak
):
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    server = ForkedServer(forks, quick_path / "store", durability=durability)
    server.start()
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        make_tables(store)
        store.checkpoint("made")
    trainer = forks.start(train, server.address, ranks)
    for n in range(KILLS):
        if advanced(trainer, int(rng.integers(0, STEPS_A_KILL))):
            break
        victim = ("trainer", "server", "both")[int(rng.integers(0, 3))]
        if victim != "server":
            trainer.kill()
        if victim != "trainer":
            if n % 4 == 3:
                with connect(server.address, timeout_s=PATIENCE_S) as store:
                    store.checkpoint(f"kept-{n}")
            server.kill()
            server.start()
        if victim != "server":
            end_session(server.address)
            trainer = forks.start(train, server.address, ranks)
    while not advanced(trainer, 1):
        pass
    assert trainer.wait() == 0
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        check(store, quick_path / "plain", ranks)
    server.stop()
