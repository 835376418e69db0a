"""Servers that come and go under a trainer, by SIGTERM and by SIGKILL.

After SIGTERM everything acknowledged is there; after SIGKILL the store is what it was at its last
checkpoint, and updates after that are gone as a whole. The trainer goes on by itself: it gets an
answer, or is told that nobody knows the outcome. Where commands are logged it is told nothing.
"""

import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from time import monotonic
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.errors import CheckpointExistsError, InvalidArgumentError, OutcomeUnknownError
from embstore.handles.store import Store
from embstore_client import connect
from embstore_proto.verbs import VERBS
from tests.service.faults.ledger import Ledger, applied_counts, gradients, make_tables
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S, until

SEED = 20_261_123
RESTARTS = 20
UPDATES_PER_CHECKPOINT = 7
TRAINERS, KILLS = 3, 15


class Trainer:
    """Sends one update after the other on a thread, and writes down what it was told."""

    def __init__(self, store: Store, ledger: Ledger, numbers: Iterable[int] = count()) -> None:
        self._store, self._ledger, self._numbers = store, ledger, numbers
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for n in self._numbers:
                if self._over.is_set():
                    return
                self._update(n)
                if n % UPDATES_PER_CHECKPOINT == 0:
                    self._checkpoint(n)
        except BaseException as exc:
            self._error = exc

    def _update(self, n: int) -> None:
        try:
            command = self._store.update(gradients(n)).command
        except OutcomeUnknownError:
            self._ledger.unknown.add(n)
        else:
            self._ledger.acknowledged[n] = command

    def _checkpoint(self, n: int) -> None:
        try:
            self._store.checkpoint(f"update-{n}")
        except (OutcomeUnknownError, CheckpointExistsError):
            return  # it is there, or the next one will be

    def await_progress(self, updates: int) -> None:
        """Wait until so many more updates are acknowledged."""
        wanted = len(self._ledger.acknowledged) + updates
        until(lambda: len(self._ledger.acknowledged) >= wanted or self._error)
        assert self._error is None

    def stop(self) -> None:
        """Let it end."""
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert self._error is None


def roll_back(ledger: Ledger, command: int) -> None:
    """Take back what a store that was opened at `command` does not have."""
    for n, number in list(ledger.acknowledged.items()):
        if number > command:
            del ledger.acknowledged[n]
            ledger.refused.add(n)


READS = {
    "lookup": lambda store: store.table("rows").lookup(np.arange(3)),
    "pooled": lambda store: store.table("rows").lookup_pooled(np.arange(3), np.array([0, 3])),
    "rows": lambda store: store.table("rows").read_rows(np.arange(3)),
    "t": lambda store: store.table("rows").t,
    "digest": lambda store: store.table("rows").digest(),
    "tables": lambda store: store.tables(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_reader_is_told_once_that_rows_were_rolled_back(forked, remote, read):
    """And so is a writer, which may be another part of the program."""
    ledger = Ledger()
    make_tables(remote)
    remote.checkpoint("tables")
    remote.update(gradients(1))
    read(remote)
    forked.kill()
    forked.start()
    assert remote.epoch == 2  # what asks how the server is, is answered
    with pytest.raises(OutcomeUnknownError, match="the store is in epoch 2, what this client read"):
        read(remote)
    read(remote)
    with pytest.raises(OutcomeUnknownError, match="this call is of epoch 1, the store is in 2"):
        remote.update(gradients(2))
    read(remote)
    ledger.first_command = remote.command + 1
    ledger.refused |= {1, 2}
    ledger.acknowledged[3] = remote.update(gradients(3)).command
    ledger.check(remote)


def test_whoever_restores_is_not_told_of_its_own_epoch(forks, quick_path):
    server = ForkedServer(forks, quick_path / "store")
    server.start()
    with (
        connect(server.address, timeout_s=PATIENCE_S) as store,
        connect(server.address, timeout_s=PATIENCE_S) as other,
    ):
        make_tables(store)
        store.checkpoint("tables")
        store.update(gradients(1))
        other.table("rows").lookup(np.arange(3))
        store.restore("tables")
        store.table("rows").lookup(np.arange(3))
        store.update(gradients(2))
        with pytest.raises(
            OutcomeUnknownError, match="the store is in epoch 2, what this client read"
        ):
            other.table("rows").lookup(np.arange(3))
    server.stop()


def test_clean_restart_goes_unnoticed(forked, remote):
    ledger = Ledger()
    make_tables(remote)
    ledger.acknowledged[1] = remote.update(gradients(1)).command
    forked.stop()
    forked.start()
    assert remote.epoch == 1
    ledger.acknowledged[2] = remote.update(gradients(2)).command
    ledger.check(remote)


def test_another_store_at_the_address_is_neither_read_nor_written(forks, quick_path):
    server, other = (ForkedServer(forks, quick_path / name) for name in ("store", "other"))
    other.address = server.address
    server.start()
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        make_tables(store)
        server.stop()
        other.start()
        with connect(other.address, timeout_s=PATIENCE_S) as beside:
            make_tables(beside)
            before = beside.command
            with pytest.raises(InvalidArgumentError, match="connect again"):
                _ = store.tables()
            with pytest.raises(InvalidArgumentError, match="connect again"):
                store.update(gradients(1))
            assert beside.command == before
    other.stop()


def test_trainer_goes_on_over_restarts(forked, remote):
    sys.stdout.write(f"seed {SEED}\n")
    rng = np.random.default_rng(SEED)
    ledger = Ledger()
    lost = 0
    make_tables(remote)
    remote.checkpoint("tables")
    trainer = Trainer(remote, ledger)
    for n in range(RESTARTS):
        trainer.await_progress(int(rng.integers(1, 30)))
        if n % 2:
            forked.stop()
            told = max(ledger.acknowledged.values())
            command = forked.start()
            assert command >= told, "SIGTERM lost what was acknowledged"
        else:
            forked.kill()
            before = len(ledger.acknowledged)
            roll_back(ledger, forked.start())
            lost += before - len(ledger.acknowledged)
    trainer.await_progress(5)
    trainer.stop()
    ledger.check(remote)
    remote.check_integrity()
    assert lost, "some rounds lost updates after a checkpoint"
    assert ledger.unknown, "some rounds cut a call off"


@pytest.mark.parametrize("recovery_s", [30.0, 0.01], ids=["replayed", "committed"])
def test_no_trainer_notices_a_kill_where_commands_are_logged(forks, quick_path, recovery_s, soak):
    """Nothing acknowledged is lost, nothing is applied twice, and no outcome is unknown: what was
    out at the kill is sent again by the client, and answered by what the log says of it."""
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    ledger = Ledger()
    options = {"durability": "commands", "recovery_s": recovery_s}
    server = ForkedServer(forks, quick_path / "store", **options)
    server.start()
    with ExitStack() as stack:
        stores = [
            stack.enter_context(connect(server.address, timeout_s=PATIENCE_S))
            for _ in range(TRAINERS)
        ]
        make_tables(stores[0])
        trainers = [Trainer(store, ledger, count(i, TRAINERS)) for i, store in enumerate(stores)]
        for n in range(KILLS):
            trainers[0].await_progress(int(rng.integers(1, 20)))
            told = max(ledger.acknowledged.values())
            if n % 10 == 9:
                server.stop()
            else:
                server.kill()
            assert server.start() >= told
        trainers[0].await_progress(5)
        for trainer in trainers:
            trainer.stop()
        assert not ledger.unknown
        ledger.check(stores[0])
        assert {store.epoch for store in stores} == {1}
        stores[0].check_integrity()
    server.stop()


@pytest.mark.parametrize("options", [{"durability": "commands"}], indirect=True)
def test_an_answer_that_was_lost_is_given_again_after_two_kills(forked, remote):
    """Also where a commit has the command, so that it is executed no more."""
    make_tables(remote)
    acknowledged = remote.update(gradients(1))
    for _ in range(2):
        forked.kill()
        forked.start()
        assert again(remote, c.Update, 3) == acknowledged
    remote.checkpoint("one")
    sequence = remote.executor.transport._origins._last
    label = remote.checkpoints()[-1]
    for _ in range(2):
        forked.kill()
        forked.start()
        assert again(remote, c.Checkpoint, sequence).label == label.label
        assert len(remote.checkpoints()) == 1
    assert applied_counts(remote)[1] == 1


@pytest.mark.parametrize("point", ["commit:synced", "commit:renamed"])
def test_a_checkpoint_that_ends_with_its_server_is_made_once(forks, quick_path, point):
    """Its client sends it again, and hears of no checkpoint that is kept already."""
    made = ForkedServer(forks, quick_path / "store", durability="commands")
    made.start()
    with connect(made.address, timeout_s=PATIENCE_S) as store:
        make_tables(store)
        store.update(gradients(1))
    made.kill()
    server = made.changed(dies_at=point)
    server.start()
    with connect(server.address, timeout_s=PATIENCE_S) as store, ThreadPoolExecutor(1) as pool:
        kept = pool.submit(store.checkpoint, "one", {"step": 17})
        server.await_death()
        server.start()
        assert kept.result(PATIENCE_S).metadata == {"step": 17}
        assert [one.label for one in store.checkpoints()] == ["one"]
    server.stop()


def again(store: Any, command: type[c.Command[Any]], sequence: int) -> Any:
    """Send the call of a sequence again, whatever it is about: its answer is remembered."""
    transport = store.executor.transport
    commands: dict[Any, c.Command[Any]] = {
        c.Update: c.Update(()),
        c.Checkpoint: c.Checkpoint("again", {}),
    }
    verb = VERBS[command.__name__]
    origin = replace(transport._origins.begin(monotonic() + PATIENCE_S), sequence=sequence)
    origin = replace(origin, attempt=1, finished_below=1)
    request = verb.outgoing(commands[command])
    deadline = monotonic() + PATIENCE_S
    store.tables()  # waits for a server that is starting
    reply = transport.wire.send(verb, request.serialised(origin), request.message, 0, deadline)
    return verb.answer(reply).value
