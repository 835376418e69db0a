"""`store.session`: a training loop over batches, whose keys are in any order and repeated, is the
same training as plain calls with these keys."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

from embstore.arithmetic import sum_by_key
from embstore.config import Adam
from embstore.errors import InvalidArgumentError, TableHeldError
from tests.conformance.cases import assert_same, config, generator, normal, ones
from tests.conformance.sessions.training import assert_nothing_pinned
from tests.conformance.traces import cut_into_bags, values, zipf_keys

TABLES = {"a": config(dim=12, rows=3000), "b": config(dim=5, rows=3000, optimizer=Adam(0.01))}


class Batch(NamedTuple):
    """What a loader yields."""

    keys: dict[str, Any]
    gradients: dict[str, Any]


@pytest.fixture
def twin(open_twin):
    made = open_twin(**TABLES)
    return made


def batches(rng, count, draws=150):
    """Return batches of Zipf-like keys with repeats."""
    made = []
    for _ in range(count):
        keys = {name: zipf_keys(rng, given["rows"], draws) for name, given in TABLES.items()}
        made.append(Batch(keys, {n: values(rng, draws, TABLES[n]["dim"]) for n in TABLES}))
    return made


def keys_of(batch):
    return batch.keys


def share(batch):
    """Return a batch as an update takes it."""
    return {name: (batch.keys[name], batch.gradients[name]) for name in batch.keys}


def train(twin, step):
    """Update store and reference by a step's batch."""
    step.update(step.batch.gradients)
    twin.reference.update(share(step.batch))


@pytest.mark.parametrize("planner", ["per_step", "group:4", "window"])
@pytest.mark.parametrize("lookahead", [1, 4, 64])
def test_loop_trains_as_plain_calls(twin, planner, lookahead):
    loader = batches(generator(801), 20)
    session = twin.store.session(tables=["a", "b"], lookahead=lookahead, planner=planner)
    with session as run:
        for place, step in enumerate(run.steps(iter(loader), keys=keys_of)):
            assert step.number == place + 1
            assert step.batch is loader[place]
            rows = step.lookup()
            wanted = twin.reference.lookup(step.batch.keys)
            for name in TABLES:
                assert_same(rows[name], wanted[name])
            unique_rows, inverse = step.lookup_unique()["a"]
            assert len(unique_rows) == len(np.unique(step.batch.keys["a"]))
            assert_same(unique_rows[inverse], wanted["a"])
            options = {"learning_rate": 0.05, "gradient_scale": 0.5} if place % 3 else {}
            done = step.update(step.batch.gradients, **options)
            t = twin.reference.update(share(step.batch), **options)
            assert (done.command, done.t) == (twin.reference.command_number, t)
    twin.check()


def test_loop_over_bags(twin):
    rng = generator(802)
    loader = batches(rng, 12)
    with twin.store.session(tables=["a", "b"]) as run:
        for place, step in enumerate(run.steps(loader, keys=keys_of)):
            offsets = {name: cut_into_bags(rng, 150) for name in TABLES}
            mode = ("sum", "mean")[place % 2]
            pooled = step.lookup_pooled(offsets, mode=mode)
            grads = {}
            for name, given in TABLES.items():
                table = twin.reference.table(name)
                wanted = table.lookup_pooled(step.batch.keys[name], offsets[name], mode)
                assert_same(pooled[name], wanted)
                grads[name] = normal(rng, len(wanted), given["dim"])
            step.update_pooled(grads)
            spread_on_reference(twin, step.batch, offsets, grads, mode)
    twin.check()


def spread_on_reference(twin, batch, offsets, grads, mode):
    """Do on the reference one step of pooled gradients of every table: one command."""
    first = twin.reference.command_number
    for name in TABLES:
        table = twin.reference.table(name)
        table.update_pooled(batch.keys[name], offsets[name], grads[name], mode)
    twin.reference.command_number = first + 1


def test_weighted_bags(twin):
    rng = generator(803)
    loader = batches(rng, 5)
    with twin.store.session(tables=["a"], name="weighted") as run:
        for step in run.steps(loader, keys=lambda batch: {"a": batch.keys["a"]}):
            keys, offsets, weights = step.batch.keys["a"], cut_into_bags(rng, 150), values(rng, 150)
            table = twin.reference.table("a")
            pooled = step.lookup_pooled({"a": offsets}, mode="sum", weights={"a": weights})
            wanted = table.lookup_pooled(keys, offsets, "sum", weights)
            assert_same(pooled["a"], wanted)
            grads = normal(rng, len(wanted), 12)
            step.update_pooled({"a": grads}, gradient_scale=0.25)
            table.update_pooled(keys, offsets, grads, "sum", weights, gradient_scale=0.25)


def test_steps_that_are_not_finished_by_the_loop_are_released(twin):
    loader = batches(generator(804), 8)
    with twin.store.session(tables=["a", "b"], name="run") as run:
        for step in run.steps(loader, keys=keys_of):
            if step.number % 4 == 0:
                train(twin, step)
                continue
            if step.number % 4 == 1:
                step.skip()
            elif step.number % 4 == 2:
                step.release()
            twin.reference.command_number += 1
    with twin.store.session(tables=["a", "b"], name="run") as run:
        assert run.last_step == 8


def test_gradients_may_be_sums_by_key(twin):
    with twin.store.session(tables=["a", "b"]) as run:
        for step in run.steps(batches(generator(813), 5), keys=keys_of):
            sums = {}
            for name, (rows, inverse) in step.lookup_unique().items():
                sums[name] = sum_by_key(inverse, len(rows), step.batch.gradients[name])
            step.update_unique(sums, gradient_scale=0.5)
            twin.reference.update(share(step.batch), gradient_scale=0.5)
    twin.check()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_table_that_is_left_out_has_no_gradient(twin, world_size):
    """It keeps its t, unless another rank names it."""
    loaders = [batches(generator(814 + rank), 8) for rank in range(world_size)]

    def named(rank, number):
        return [["a"], ["a", "b"], ["b"], []][(number + rank) % 4]

    def work(rank):
        session = twin.store.session(["a", "b"], name="run", rank=rank, world_size=world_size)
        with session as run:
            for step in run.steps(loaders[rank], keys=keys_of):
                step.update({n: step.batch.gradients[n] for n in named(rank, step.number)})

    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(work, range(world_size)))
    for number, step in enumerate(zip(*loaders, strict=True), 1):
        twin.reference.update_ranks(
            [{n: share(b)[n] for n in named(rank, number)} for rank, b in enumerate(step)]
        )
    twin.check()


def test_update_twice_is_refused(twin):
    loader = batches(generator(805), 3)
    with twin.store.session(tables=["a", "b"]) as run:
        for step in run.steps(loader, keys=keys_of):
            train(twin, step)
            with pytest.raises(InvalidArgumentError):
                step.update(step.batch.gradients)


@pytest.mark.parametrize("place", [0, 1, 7])
def test_error_of_the_loader_is_raised_where_it_belongs(twin, place):
    good = batches(generator(806), place)

    def loader():
        yield from good
        raise OSError("no such sample")

    seen = []
    with (
        pytest.raises(OSError, match="no such sample"),
        twin.store.session(tables=["a", "b"], name="run") as run,
    ):
        for step in run.steps(loader(), keys=keys_of):
            seen.append(step.number)
            train(twin, step)
    assert seen == list(range(1, place + 1))
    twin.store.table("a").update([1], ones(1, 12))  # nobody holds the table
    twin.reference.update({"a": ([1], ones(1, 12))})


@pytest.mark.parametrize("how", ["break", "raise", "interrupt"])
def test_loop_left_early_goes_on_where_it_stood(twin, how):
    loader = batches(generator(807), 12)

    error = {"raise": RuntimeError, "interrupt": KeyboardInterrupt}.get(how)

    def first_half():
        with twin.store.session(tables=["a", "b"], name="run") as run:
            for step in run.steps(loader, keys=keys_of):
                if step.number == 6:
                    if error is None:
                        break
                    raise error
                train(twin, step)

    with pytest.raises(error) if error else nullcontext():
        first_half()
    with twin.store.session(tables=["a", "b"], name="run") as run:
        assert run.last_step == 5
        for step in run.steps(loader[run.last_step :], keys=keys_of):
            train(twin, step)
        assert step.number == 12


def test_ranks_of_one_loop_each(twin):
    """Four ranks share a session, each with a loader of its own."""
    loaders = [batches(generator(810 + rank), 10, 60) for rank in range(4)]

    def work(rank):
        session = twin.store.session(
            tables=["a", "b"], name="run", rank=rank, world_size=4, lookahead=4
        )
        with session as run:
            for step in run.steps(loaders[rank], keys=keys_of):
                step.lookup()
                step.update(step.batch.gradients, gradient_scale=0.25)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for step in zip(*loaders, strict=True):
        twin.reference.update_ranks([share(batch) for batch in step], gradient_scale=0.25)


def test_session_ends_with_its_block(open_twin):
    twin = open_twin(cache_bytes=64 << 10, a=TABLES["a"])
    loader = batches(generator(808), 4)
    with twin.store.session(tables=["a"]) as run:
        for step in run.steps(loader, keys=lambda batch: {"a": batch.keys["a"]}):
            with pytest.raises(TableHeldError):
                twin.store.table("a").update([1], ones(1, 12))
            step.update({"a": step.batch.gradients["a"]})
            twin.reference.update({"a": share(step.batch)["a"]})
    assert not twin.store.sessions.stats()
    assert_nothing_pinned(twin.store, "a")
