"""`store.session`: a training loop over batches, whose keys are in any order and repeated, is the
same training as plain calls with these keys."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pytest

from embstore.config import Adam
from embstore.errors import DeadlineError, InvalidArgumentError, TableHeldError
from embstore.handles.sessions import SomeGradients
from tests.conformance.cases import assert_same, config, generator, ones
from tests.conformance.sessions.training import assert_nothing_pinned, pause
from tests.conformance.traces import values, zipf_keys

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


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_key_that_is_left_out_has_no_gradient(twin, world_size):
    """It keeps its row, also under Adam, which a gradient of 0 would change."""
    loaders = [batches(generator(816 + rank), 8) for rank in range(world_size)]

    def parts(rank, batch, number):
        """Return which distinct keys of each table have a gradient, and these."""
        rng = generator(1000 * rank + number)
        for name, keys in batch.keys.items():
            count = len(np.unique(keys))
            positions = np.flatnonzero(rng.random(count) < [0.0, 0.5, 1.0][number % 3])
            yield name, positions, values(rng, len(positions), TABLES[name]["dim"])

    announced = [[] for _ in range(world_size)]

    def work(rank):
        session = twin.store.session(["a", "b"], name="run", rank=rank, world_size=world_size)
        with session as run:
            for step in run.steps(loaders[rank], keys=keys_of):
                keys = {}
                for name, (rows, inverse) in step.lookup_unique().items():
                    keys[name] = np.empty(len(rows), np.int64)
                    keys[name][inverse] = step.batch.keys[name]
                announced[rank].append(keys)
                given = {n: SomeGradients(p, g) for n, p, g in parts(rank, step.batch, step.number)}
                step.update_unique(given)

    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(work, range(world_size)))
    for number in range(1, 9):
        shares = []
        for rank, loader in enumerate(loaders):
            keys, of_step = announced[rank][number - 1], parts(rank, loader[number - 1], number)
            shares.append({name: (keys[name][p], g) for name, p, g in of_step})
        twin.reference.update_ranks(shares)
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


def test_a_run_that_resumes_is_given_the_whole_stream(twin):
    """However often it is left, each batch is trained once."""
    loader = batches(generator(815), 12)
    for last in (3, 4, 8, 12):
        with twin.store.session(["a", "b"], name="resumed", resume=True, lookahead=4) as run:
            for step in run.steps(loader, keys=keys_of):
                assert step.batch is loader[step.number - 1]
                train(twin, step)
                if step.number == last:
                    break
            assert run.last_step == run.stats().skipped + run.stats().steps == last
    assert twin.store.table("a").t == 12


def test_released_and_skipped_steps_say_their_command_number(twin):
    with twin.store.session(["a"]) as run:
        for step in run.steps([[1], [2], [3]], keys=lambda keys: {"a": keys}):
            done = step.skip() if step.number == 2 else step.release()
            twin.reference.command_number += 1
            assert done.command == twin.reference.command_number


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


def test_a_looked_up_step_that_is_not_finished_is_warned_of_once(twin):
    loader = batches(generator(811), 6)
    with twin.store.session(tables=["a", "b"]) as run, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in run.steps(loader, keys=keys_of):
            if step.number in (2, 4):
                step.lookup()
            elif step.number == 5:
                step.lookup()
                step.release()
            twin.reference.command_number += 1
    (only,) = told
    assert "step 2 was looked up, and neither updated, released nor skipped" in str(only.message)
    assert only.filename == __file__


def test_stats_tell_where_the_time_went(twin):
    def slowly(given):
        for one in given:
            pause(0.02)
            yield one

    began = perf_counter()
    with twin.store.session(tables=["a", "b"], lookahead=1) as run:
        assert run.stats() == (0, 0.0, 0.0, 0.0, 0.0, 0)
        for step in run.steps(slowly(batches(generator(812), 4)), keys=keys_of):
            step.lookup()
            pause(0.03)
            train(twin, step)
            assert run.stats().steps == step.number
    whole, found = perf_counter() - began, run.stats()
    assert found.steps == 4
    assert found.compute_s >= 4 * 0.03
    assert min(found.batch_s, found.lookup_s, found.send_s) > 0
    assert sum(found) - found.steps <= whole


def test_positions_of_a_rank_that_waits_are_its_own(open_twin, backend):
    """They are used when the other rank has come; the caller may change its arrays before."""
    twin = open_twin(a=TABLES["a"])
    sessions = twin.store.sessions
    how = {"world_size": 2, "lease_ms": 600_000, "rank_timeout_ms": 600_000}
    sessions.open("run", ["a"], **how)
    members = [sessions.join("run", rank).member for rank in range(2)]
    for member in members:
        sessions.announce(member, {1: {"a": np.array([3, 4, 5])}})
    positions, gradients = np.array([0], np.uint32), ones(1, 12)
    arrives_s = 5 if backend.is_remote else 0.01  # at a busy server, too
    with pytest.raises(DeadlineError):
        sessions.update_step(
            members[0], 1, {"a": SomeGradients(positions, gradients)}, timeout_s=arrives_s
        )
    positions[:], gradients[:] = 9, 7
    sessions.update_step(members[1], 1, {"a": ones(3, 12)}, timeout_s=600)
    twin.reference.update_ranks([{"a": ([3], ones(1, 12))}, {"a": ([3, 4, 5], ones(3, 12))}])


def test_a_rank_without_gradients_takes_part_by_nothing(open_twin):
    twin = open_twin(a=TABLES["a"])

    def work(rank):
        how = {"name": "run", "rank": rank, "world_size": 2}
        with twin.store.session(["a"], **how) as run:
            for step in run.steps([[1, 2]], keys=lambda keys: {"a": keys}):
                step.lookup()
                step.update_unique({"a": ones(2, 12)} if rank else {}, gradient_scale=0.5)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    twin.reference.update_ranks([{}, {"a": ([1, 2], ones(2, 12))}], gradient_scale=0.5)
