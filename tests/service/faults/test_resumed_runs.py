"""Training loops over a session, while their server is killed and started again.

Where commands are logged, and after a clean restart, the loop notices nothing: each step is applied
once, and the bits are those of a run that nobody disturbed. Where the server has lost commands, the
loop says which steps are gone, and where to go on from.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Adam, Constant, Sgd, Uniform
from embstore.errors import DeadlineError, SessionExpiredError
from embstore.handles.store import Store
from embstore.profiles.hotset import HotSet
from embstore_client import connect
from embstore_training.hotcold import HotColdRun
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S, until

SEED = 20_261_124
RANKS, KILLS, KEYS, ROWS, DIM = 2, 10, 40, 300, 4
LEASE_MS, RANK_TIMEOUT_MS = 30_000, 300_000
TABLES: dict[str, dict[str, Any]] = {
    "marks": {"dim": 1, "rows": 1 << 20, "optimizer": Sgd(1.0), "initializer": Constant(0.0)},
    "rows": {"dim": DIM, "rows": ROWS, "optimizer": Adam(0.01), "initializer": Uniform(-0.1, 0.1)},
}


class Progress:
    """The steps that ranks are given, as many to each, and how far they have come."""

    def __init__(self, last: int | None = None) -> None:
        self.finished = 0
        """By rank 0."""
        self.given = 0
        """The last step that any rank has been given."""
        self._last = last
        self._lock = threading.Lock()

    def end(self) -> None:
        """Give no rank a step that no other has been given."""
        with self._lock:
            self._last = self.given

    def batches(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yield rank and number of each step."""
        number = 0
        while True:
            with self._lock:
                if number == self._last:
                    return
                number += 1
                self.given = max(self.given, number)
            yield rank, number


def keys_of(batch: tuple[int, int]) -> dict[str, Any]:
    """Return the keys of a rank's share of a step; repeated ones too."""
    rank, number = batch
    keys = np.random.default_rng([number, rank]).integers(0, ROWS, KEYS)
    return {"marks": [number], "rows": keys}


def train(store: Store, rank: int, progress: Progress) -> None:
    """Train one rank's share of all steps; gradients are computed from rows."""
    with store.session(
        [*TABLES],
        name="pair",
        rank=rank,
        world_size=RANKS,
        lookahead=5,
        lease_ms=LEASE_MS,
        rank_timeout_ms=RANK_TIMEOUT_MS,
    ) as run:
        for step in run.steps(progress.batches(rank), keys=keys_of):
            rows = step.lookup()
            noise = np.random.default_rng([step.number, rank, 1]).standard_normal(DIM, np.float32)
            gradients = {"marks": np.ones((1, 1), np.float32), "rows": 0.1 * rows["rows"] + noise}
            if step.number % 7 == 3:
                step.skip()
                continue
            done = step.update(gradients, gradient_scale=1 / RANKS)
            applied = step.number - (step.number + 4) // 7
            assert done.t == dict.fromkeys(TABLES, applied)
            assert not done.skipped
            if rank == 0:
                progress.finished += 1


def make_tables(store: Store) -> None:
    """Make both tables."""
    for name, config in TABLES.items():
        store.create_table(name, **config)


def digests(store: Store) -> dict[str, str]:
    """Return the digest of each table."""
    return {name: store.table(name).digest() for name in TABLES}


def undisturbed(path: Path, steps: int) -> dict[str, str]:
    """Return the digests after a run that nobody disturbs."""
    with embstore.open(path, cache_bytes=1 << 22, threads=1) as store:
        make_tables(store)
        progress = Progress(steps)
        with ThreadPoolExecutor(RANKS) as pool:
            list(pool.map(lambda rank: train(store, rank, progress), range(RANKS)))
        return digests(store)


def applied_counts(store: Store, steps: int) -> list[int]:
    """Return how many times each step was applied."""
    marks = store.table("marks").lookup(np.arange(1, steps + 1), admit=False)[:, 0]
    return [int(-mark) for mark in marks]


class Ranks:
    """Ranks that train together, each through a store of its own. A context manager that ends
    them."""

    def __init__(self, stores: list[Store]) -> None:
        make_tables(stores[0])
        self._store = stores[0]
        self._progress, self._pool = Progress(), ThreadPoolExecutor(RANKS)
        self.work = [
            self._pool.submit(train, store, rank, self._progress)
            for rank, store in enumerate(stores)
        ]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.end()
        self._pool.shutdown()

    def await_steps(self, more: int) -> None:
        """Wait until so many more steps are finished, or a rank has ended."""
        wanted = self._progress.finished + more
        until(lambda: self._progress.finished >= wanted or any(one.done() for one in self.work))

    def end(self, path: Path) -> None:
        """End them; check that each step was applied once, with the bits of a run that nobody
        disturbed, which `path` is for."""
        self._progress.end()
        for one in as_completed(self.work, PATIENCE_S):
            one.result()
        steps = self._progress.given
        skipped = [number % 7 == 3 for number in range(1, steps + 1)]
        assert applied_counts(self._store, steps) == [int(not skip) for skip in skipped]
        assert digests(self._store) == undisturbed(path, steps)
        self._store.check_integrity()


def connected(address: str) -> Store:
    """Return a client of a server."""
    return connect(address, timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S)


@pytest.mark.parametrize("recovery_s", [30.0, 0.01], ids=["replayed", "committed"])
def test_ranks_go_on_over_kills_where_commands_are_logged(forks, quick_path, recovery_s, soak):
    """Whatever was out: a lookup, an announcement, one rank's update or both, or an answer."""
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    options = {"durability": "commands", "recovery_s": recovery_s}
    server = ForkedServer(forks, quick_path / "store", **options)
    server.start()
    with ExitStack() as stack:
        stores = [stack.enter_context(connected(server.address)) for _ in range(RANKS)]
        ranks = stack.enter_context(Ranks(stores))
        for n in range(KILLS):
            ranks.await_steps(int(rng.integers(0, 6)))
            if n % 10 == 9:
                server.stop()
            else:
                server.kill()
            server.start()
        ranks.end(quick_path / "other")
        assert stores[0].epoch == 1
    server.stop()


def test_a_loop_goes_on_over_clean_restarts_whatever_is_logged(forked, remote):
    remote.create_table("rows", **TABLES["rows"])
    with remote.session(["rows"]) as run:
        for step in run.steps(range(20), keys=lambda number: {"rows": [number]}):
            if step.number % 5 == 0:
                forked.stop()
                forked.start()
            done = step.update({"rows": step.lookup()["rows"]})
            assert done.t == {"rows": step.number}
    assert remote.epoch == 1


@pytest.mark.parametrize("waits", ["late", "none"])
def test_a_loop_goes_on_when_its_server_was_stopped_for_longer_than_its_lease(
    forked, remote, waits
):
    table = remote.create_table("rows", **TABLES["rows"])
    with remote.session(["rows"], lease_ms=400, waits=waits) as run:
        for step in run.steps(range(6), keys=lambda number: {"rows": [number]}):
            rows = step.lookup()["rows"]
            if step.number == 3:
                forked.pause(1.0)
            step.update({"rows": rows})
    assert table.t == 6


def test_ranks_end_together_over_kills(forks, quick_path):
    """The one that waits at the end says again that it has no more steps."""
    counts, kills = (4, 14), (5, 8, 13)

    def train_uneven(store: Store, rank: int, killed: Callable[[], None]) -> int:
        with store.session(
            [*TABLES], name="pair", rank=rank, world_size=RANKS, rank_timeout_ms=RANK_TIMEOUT_MS
        ) as run:
            batches = [(rank, number) for number in range(1, counts[rank] + 1)]
            for step in run.steps(batches, keys=keys_of):
                if step.number in kills:
                    killed()
                step.update(step.lookup())
            run.join()
            return run.last_step

    def trained(stores: list[Store], killed: Callable[[], None]) -> dict[str, str]:
        make_tables(stores[0])
        with ThreadPoolExecutor(RANKS) as pool:
            ranks = [pool.submit(train_uneven, s, n, killed) for n, s in enumerate(stores)]
            assert [rank.result(PATIENCE_S) for rank in ranks] == [max(counts)] * RANKS
        return digests(stores[0])

    server = ForkedServer(forks, quick_path / "store", durability="commands")
    server.start()

    def kill() -> None:
        server.kill()
        server.start()

    with ExitStack() as stack:
        stores = [stack.enter_context(connected(server.address)) for _ in range(RANKS)]
        found = trained(stores, kill)
        other = stack.enter_context(embstore.open(quick_path / "other", cache_bytes=1 << 22))
        assert found == trained([other] * RANKS, lambda: None)
    server.stop()


@pytest.mark.parametrize("finished", [2, 4, 6])
def test_a_loop_says_which_finished_steps_were_lost(forked, remote, finished):
    """With durability checkpoint, also where only steps of other clients may be lost."""
    table = remote.create_table("rows", **TABLES["rows"])
    kept = ""
    wanted = {
        2: "step 2 is the last one that the server has.* may be gone",
        4: "step 4, which was finished, is lost",
        6: "steps 4 to 6, which were finished, are lost",
    }
    with (
        pytest.raises(SessionExpiredError, match=wanted[finished]) as caught,
        remote.session(["rows"], name="run") as run,
    ):
        for step in run.steps(range(9), keys=lambda number: {"rows": [number]}):
            if step.number == min(finished, 3) + 1:
                remote.checkpoint("kept")
                kept = table.digest()
                if finished == 2:
                    remote.create_table("other", **TABLES["rows"])
            if step.number == finished + 1:
                forked.kill()
                forked.start()
            step.update({"rows": step.lookup()["rows"]})
    place = min(finished, 3)
    assert f"goes on after step {place}" in str(caught.value)
    with remote.session(["rows"], name="run", wait_s=0) as run:
        assert run.last_step == place
    assert table.t == place
    assert table.digest() == kept


@pytest.mark.parametrize("durability", ["checkpoint", "interval"])
def test_every_rank_is_told_of_lost_steps(forks, quick_path, durability):
    """Also one that had not been told that the last of them was finished."""
    server = ForkedServer(forks, quick_path / "store", durability=durability, sync_every_s=3600.0)
    server.start()
    with ExitStack() as stack:
        stores = [stack.enter_context(connected(server.address)) for _ in range(RANKS)]
        ranks = stack.enter_context(Ranks(stores))
        ranks.await_steps(5)
        server.kill()
        server.start()
        for rank in ranks.work:
            with pytest.raises(SessionExpiredError, match="the server was restarted, and"):
                rank.result(PATIENCE_S)
    server.stop()


def train_hot_and_cold(store: Store, progress: Progress) -> tuple[str, int]:
    """Train batches of hot rows at the trainer, others at the store; return digest and t."""
    rng = np.random.default_rng(SEED)
    chunks = [{"id": rng.integers(0, 20 if n % 2 else ROWS, 64)} for n in range(30)]
    hot_set = HotSet({"rows": np.arange(20)})
    table = store.create_table("rows", **TABLES["rows"])
    options: dict[str, Any] = {"batch_size": 8, "window_batches": 8, "lease_ms": LEASE_MS}
    with HotColdRun(store, hot_set, {"id": "rows"}, **options) as run:
        for step in run.steps(chunks):
            step.update({"rows": 0.1 * step.lookup()["rows"] + 1})
            progress.finished += 1
        assert run.stats()["switches"] > 3
    return table.digest(), table.t


def test_what_a_replica_pushes_is_put_once(forks, quick_path, soak):
    """A hot/cold run over kills, in phases of either kind and in exchanges."""
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    with embstore.open(quick_path / "other", cache_bytes=1 << 22, threads=1) as store:
        wanted = train_hot_and_cold(store, Progress())
    server = ForkedServer(forks, quick_path / "store", durability="commands")
    server.start()
    progress = Progress()
    with connect(server.address, timeout_s=PATIENCE_S) as store, ThreadPoolExecutor(1) as pool:
        training = pool.submit(train_hot_and_cold, store, progress)
        while not training.done():
            at = progress.finished + int(rng.integers(1, 12))
            until(lambda at=at: progress.finished >= at or training.done())
            server.kill()
            server.start()
        assert training.result() == wanted
    server.stop()


def test_a_replica_is_not_pushed_over_rows_of_another_client(forks, quick_path):
    """Written while the run's session was gone, after a restart in a hot phase."""
    server = ForkedServer(forks, quick_path / "store", durability="commands")
    server.start()
    options: dict[str, Any] = {"batch_size": 8, "window_batches": 8, "lease_ms": 300_000}
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        table = store.create_table("rows", **TABLES["rows"])
        run = HotColdRun(store, HotSet({"rows": np.arange(20)}), {"id": "rows"}, **options)
        with pytest.raises(SessionExpiredError, match="other clients have written"), run:
            steps = run.steps([{"id": np.arange(64) % 20} for _ in range(4)])
            for number, step in enumerate(steps, 1):
                step.update({"rows": step.lookup()["rows"]})
                if number == 12:
                    server.kill()
                    server.start()
                    with connect(server.address, timeout_s=PATIENCE_S) as other:
                        other.table("rows").assign([5], np.full((1, DIM), 7, np.float32))
        assert table.lookup([5]).tolist() == [[7] * DIM]
    server.stop()


# A server that is killed, and not started again: `rank_timeout_ms` is for other ranks, and who has
# none is told as soon as the connection's `timeout_s` says, by one error

TIMEOUT_S, FAR_MS = 4.0, 3_600_000
PATIENT_S = 300.0
"""Far below what ranks wait for one another, and far above what any machine takes."""

DOES: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda step: step.lookup(),
    "pooled lookup": lambda step: step.lookup_pooled({"a": [0, 10]}),
    "update": lambda step: step.update({"a": np.ones((10, 4), np.float32)}),
    "release": lambda step: step.release(),
}


@pytest.mark.parametrize(
    ("transport", "does"), [*(("grpc", does) for does in DOES), ("shared_memory", "update")]
)
def test_a_trainer_without_other_ranks_is_told_of_a_dead_server(
    forks, quick_path, caplog, transport, does
):
    server = ForkedServer(forks, quick_path / "store", durability="commands")
    server.start()
    killed_at = 0.0
    with connect(server.address, timeout_s=TIMEOUT_S, transport=transport) as store:
        store.create_table("a", dim=4, rows=99, optimizer=Sgd(0.1), initializer=Constant(1.0))
        with (
            caplog.at_level(logging.INFO),
            pytest.raises(DeadlineError) as told,
            store.session(["a"], lease_ms=600, rank_timeout_ms=FAR_MS) as run,
        ):
            for step in run.steps(range(50), keys=lambda n: {"a": np.arange(n, n + 10)}):
                if step.number == 4:
                    server.kill()
                    killed_at = monotonic()
                    DOES[does](step)
                step.update({"a": step.lookup()["a"]})
    assert monotonic() - killed_at < PATIENT_S
    assert server.address in str(told.value)
    lines = [
        line for record in caplog.records for line in caplog.handler.format(record).split("\n")
    ]
    assert len(lines) <= 2, lines
