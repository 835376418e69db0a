"""Outputs of a step's rows that are in a trainer's own memory of the server's GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from embstore.sharding import ShardMap
from embstore_client.shards.router import Router
from embstore_training.step import Step
from tests.kernels.emulation.peer import ClientArray, LentArray
from tests.service.device.samples import DIM, ROWS, WIDE, Trainer, assert_same, rng
from tests.service.device.test_steps import Member, drawn_keys
from tests.service.faults.losing import needs_compiler
from tests.serving import patient

pytestmark = needs_compiler

DIMS = {"narrow": DIM, "wide": WIDE}


class Made:
    """Makes a trainer's arrays for rows, and knows what it was asked for."""

    def __init__(self, trainer: Trainer, **how: Any) -> None:
        self._trainer, self._how = trainer, how
        self.asked: list[Any] = []

    def __call__(self, tables: Sequence[str], shapes: Sequence[tuple[int, int]]) -> list[Any]:
        self.asked.append(dict(zip(tables, shapes, strict=True)))
        return [self._trainer.out(*shape, **self._how) for shape in shapes]


@pytest.mark.parametrize("names_stream", [True, False])
def test_rows_are_written_where_the_trainer_reads_them(server, trainer, gpu, *, names_stream):
    """In announced order, whatever that of the tables is; one step after the other uses one
    segment, behind what reads the rows of the one before."""
    device, random = Member(trainer.store, "d", DIMS), rng()
    make, looked_up = Made(trainer, names_stream=names_stream), []
    for step in range(1, 5):
        keys = {name: random.permutation(ROWS)[: 50 + step] for name in ("wide", "narrow")}
        device.announce(step, keys)
        found = device.sessions.lookup_step(device.name, step, out=make)
        assert make.asked[-1] == {name: (len(of), DIMS[name]) for name, of in keys.items()}
        looked_up.append((keys, found))
        device.sessions.release_step(device.name, step)
    for keys, found in looked_up:
        for name, of_table in keys.items():
            assert isinstance(found[name], ClientArray)
            assert np.array_equal(found[name].content(), trainer.table(name).lookup(of_table))
    assert gpu.opened == 1


def test_outputs_of_some_tables_are_filled_and_the_others_lent(server, trainer):
    device, keys = Member(trainer.store, "d", DIMS), np.arange(9)
    device.announce(1, {"narrow": keys, "wide": keys})
    own = trainer.out(9, WIDE)
    found = device.sessions.lookup_step(device.name, 1, out={"wide": own})
    assert found["wide"] is own and isinstance(found["narrow"], LentArray)
    for name, rows in found.items():
        assert np.array_equal(rows.content(), trainer.table(name).lookup(keys))


def test_outputs_that_cannot_be_filled_are_refused_and_the_step_stays(server, trainer):
    with patient(f"unix:{server.socket}") as other:
        device = Member(other, "d", ["wide"])
        device.announce(1, {"wide": np.arange(9)})
        with pytest.raises(InvalidArgumentError, match="give on_device=True in place of out"):
            trainer.store.sessions.lookup_step(device.name, 1, out=Made(trainer))
        rows = trainer.store.sessions.lookup_step(device.name, 1, on_device=True)["wide"]
        wrong: list[tuple[Any, str]] = [
            ({"wide": trainer.out(9, DIM)}, "out of shape"),
            ({"wide": trainer.array(np.zeros((9, WIDE)))}, "float32"),
            (lambda *_: [np.empty((9, WIDE), np.float32)], "one on the host"),
        ]
        for out, match in wrong:
            with pytest.raises(InvalidArgumentError, match=match):
                device.sessions.lookup_step(device.name, 1, out=out)
        found = device.sessions.lookup_step(device.name, 1, out=Made(trainer))["wide"]
        assert np.array_equal(found.content(), rows.content())


def test_outputs_are_refused_where_no_memory_is_shared(server, trainer):
    with patient(server.address, transport="grpc") as store:
        device = Member(store, "d", ["wide"])
        device.announce(1, {"wide": np.arange(9)})
        for out in (Made(trainer), {"wide": trainer.out(9, WIDE)}):
            with pytest.raises(InvalidArgumentError, match="this connection is by gRPC"):
                device.sessions.lookup_step(device.name, 1, out=out)
        two = Router([store.executor] * 2, ShardMap.even("c", ["a:1", "b:2"]))
        with pytest.raises(InvalidArgumentError, match="of 2 shards are joined"):
            type(store.sessions)(two).lookup_step(device.name, 1, out=Made(trainer))


# Loops


def trained(
    trainer: Trainer, table: str, batches: Any, look_up: Callable[[Step], Any], **how: Any
) -> None:
    with trainer.store.session([table], lookahead=2, **how) as run:
        for step in run.steps(batches, lambda keys: {table: keys}):
            rows = look_up(step)
            content = rows.content() if isinstance(rows, ClientArray) else rows
            step.update_unique({table: trainer.array(content * np.float32(0.5))})


def test_a_loop_takes_rows_into_its_own_arrays(server, trainer):
    """Also of steps whose rows were sent for to the host, since those of the one before were."""
    random, make = rng(), Made(trainer)
    batches = [drawn_keys(random) for _ in range(6)]

    def into(step: Step) -> Any:
        assert step.reaches_device
        out = make if step.number % 2 else None
        rows = step.lookup_unique(out)["wide-2"][0]
        assert isinstance(rows, ClientArray) is (out is not None)
        return rows

    trained(trainer, "wide", batches, lambda step: step.lookup_unique()["wide"][0], rows="host")
    trained(trainer, "wide-2", batches, into)
    assert_same(server, ("wide", "wide-2"))


@pytest.mark.parametrize("how", [{"rows": "host"}, {"waits": "none"}])
def test_a_loop_with_rows_on_the_host_takes_no_outputs(server, trainer, how):
    def into(step: Step) -> Any:
        assert not step.reaches_device
        with pytest.raises(InvalidArgumentError, match="expected no `out`"):
            step.lookup_unique(Made(trainer))
        return step.lookup_unique()["wide"][0]

    with trainer.store.session(["wide"], lookahead=2, **how) as run:
        for step in run.steps([np.arange(9)], lambda keys: {"wide": keys}):
            step.update_unique({"wide": into(step)})
