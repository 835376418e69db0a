"""Loops over sessions whose keys, rows and gradients are on the host, the device, or both: one
digest."""

import threading
from functools import partial

import numpy as np
import pytest

from embstore import InvalidArgumentError
from embstore.handles.sessions import BagGradients, StepBags
from embstore_training.hotcold import HotColdRun
from tests.kernels.emulation.callers import CallersArray
from tests.unit import device_trainers
from tests.unit.device_trainers import ROWS, TABLES, Arrays, content, digests, gradients, in_ranks

KEYS, STEPS, BAGS = 120, 8, 15
VERBS = ("keys", "unique", "bags", "some")
SOME = {"a": BAGS, "b": KEYS // 2}
OFFSETS = np.linspace(0, KEYS, BAGS + 1).astype(np.int64)


def opened(path, device="gpu"):
    return device_trainers.opened(path, device, cache_bytes=60_000)


def batches():
    rng = np.random.default_rng(4)
    return [{n: np.minimum(rng.zipf(1.3, KEYS), ROWS) - 1 for n in TABLES} for _ in range(STEPS)]


def update_some(step, gradients):
    """Finish a step by occurrences that a caller names: bags, and every second key."""
    inverse = {name: of for name, (_, of) in step.lookup_unique().items()}
    bags = StepBags(inverse["a"][::-1].copy(), OFFSETS, "mean")
    some = StepBags(inverse["b"][::2].copy())
    step.update_occurrences(
        {"a": BagGradients(bags, gradients["a"]), "b": BagGradients(some, gradients["b"])}
    )


def train(store, *, where, rows, verb="keys", **session):
    array = Arrays(store, where)
    kinds = set()
    with store.session(tables=[*TABLES], rows=rows, **session) as run:
        keyed = ({n: array(of) for n, of in batch.items()} for batch in batches())
        for step in run.steps(keyed, keys=lambda batch: batch):
            if verb == "keys":
                found, finish = step.lookup(), step.update
            elif verb == "unique":
                found = {name: rows for name, (rows, _) in step.lookup_unique().items()}
                finish = step.update_unique
            elif verb == "bags":
                found = step.lookup_pooled({"a": OFFSETS, "b": None}, {"a": "mean"})
                finish = step.update_pooled
            else:
                found, finish = step.lookup(), partial(update_some, step)
            kinds |= {type(of) for of in found.values()}
            if verb == "some":
                found = {n: content(found[n])[:count] for n, count in SOME.items()}
            finish({name: array(gradients(of)) for name, of in found.items()})
    return kinds, digests(store)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The digests on the CPU, of arrays of the host."""
    found = {}
    for verb in VERBS:
        with opened(tmp_path_factory.mktemp(verb), "cpu") as store:
            found[verb] = train(store, where="host", rows="host", verb=verb)[1]
    return found


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("where", "rows", "kind"),
    [
        ("device", "auto", CallersArray),
        ("host", "auto", np.ndarray),
        ("device", "host", np.ndarray),
        ("host", "device", CallersArray),
        ("mixed", "device", CallersArray),
    ],
)
def test_one_digest_wherever_arrays_are(tmp_path, wanted, verb, where, rows, kind):
    with opened(tmp_path) as store:
        kinds, found = train(store, where=where, rows=rows, verb=verb)
    assert found == wanted[verb]
    assert kinds == {kind}


@pytest.mark.parametrize("planner", ["per_step", "group:3", "window"])
@pytest.mark.parametrize("lookahead", [1, 6])
def test_one_digest_for_every_planner(tmp_path, wanted, planner, lookahead):
    with opened(tmp_path) as store:
        _, found = train(store, where="device", rows="auto", planner=planner, lookahead=lookahead)
    assert found == wanted["keys"]


@pytest.mark.parametrize("verb", ["keys", "bags", "some"])
def test_a_run_that_waits_for_nothing_takes_gradients_of_the_device(tmp_path, wanted, verb):
    with opened(tmp_path) as store:
        kinds, found = train(store, where="device", rows="auto", verb=verb, waits="none")
    assert found == wanted[verb]
    assert kinds == {np.ndarray}


def test_on_the_cpu_the_devices_memory_is_the_hosts(tmp_path, wanted):
    with opened(tmp_path, "cpu") as store:
        kinds, found = train(store, where="host", rows="device")
    assert found == wanted["keys"]
    assert kinds == {np.ndarray}


@pytest.mark.parametrize("where", ["host", "device"])
def test_ranks_give_gradients_of_the_device(tmp_path, where):
    found = []
    for device in ("cpu", "gpu"):
        with opened(tmp_path / f"{device}-{where}", device) as store:
            array = Arrays(store, where if device == "gpu" else "host")

            def train_rank(rank, store=store, array=array):
                how = {"name": "job", "rank": rank, "world_size": 2}
                with store.session(tables=[*TABLES], **how) as run:
                    own = [{n: of[rank::2] for n, of in batch.items()} for batch in batches()]
                    for step in run.steps(own, keys=lambda batch: batch):
                        rows = step.lookup()
                        step.update({n: array(gradients(of)) for n, of in rows.items()})

            in_ranks(train_rank)
            found.append(digests(store))
    assert found[0] == found[1]


def test_rows_that_cannot_be_on_the_device_are_refused_at_once(tmp_path):
    with opened(tmp_path, "cpu") as store:
        with pytest.raises(InvalidArgumentError, match='rows to be "auto" or "host" or "device"'):
            store.session(tables=["a"], rows="gpu")


def test_a_caller_makes_the_arrays_for_rows(tmp_path):
    with opened(tmp_path) as store, store.session(tables=[*TABLES]) as run:
        array = Arrays(store, "device")
        for step in run.steps(batches()[:1], keys=lambda batch: batch):
            wanted = step.lookup_unique()
            made = {}

            def make(tables, shapes, array=array, made=made):
                pairs = zip(tables, shapes, strict=True)
                made |= {name: array(np.empty(shape, np.float32)) for name, shape in pairs}
                return list(made.values())

            found = step.lookup_unique(make)
            for name, (rows, inverse) in found.items():
                assert rows is made[name]
                np.testing.assert_array_equal(rows.content(), wanted[name][0])
                np.testing.assert_array_equal(inverse, wanted[name][1])
            step.skip()


def test_a_caller_is_given_distinct_keys_in_the_readers_thread(tmp_path):
    seen = []
    with opened(tmp_path, "cpu") as store, store.session(tables=[*TABLES]) as run:

        def prepare(batch, once):
            assert threading.current_thread().name == "embstore-reader"
            for name, keys in batch.items():
                np.testing.assert_array_equal(once[name].keys[once[name].inverse], keys)
            seen.append(batch)

        given = batches()
        for step in run.steps(given, keys=lambda batch: batch, prepare=prepare):
            assert any(step.batch is batch for batch in seen)
            step.skip()
    assert len(seen) == len(given)


@pytest.mark.parametrize("waits", ["late", "none"])
def test_what_a_step_is_not_given_is_refused(tmp_path, waits):
    with opened(tmp_path, "cpu") as store, store.session(tables=["a"], waits=waits) as run:
        for step in run.steps([{"a": [3, 3, 5]}], keys=lambda batch: batch):
            rows = np.ones((2, 12), np.float32)
            for inverse in ([0, 2], [-1, 0]):
                given = {"a": BagGradients(StepBags(np.array(inverse, np.int32)), rows)}
                with pytest.raises(InvalidArgumentError, match=r"inverse"):
                    step.update_occurrences(given)
            three = {"a": BagGradients(StepBags(np.array([0, 1, 1], np.int32)), rows)}
            with pytest.raises(InvalidArgumentError, match=r"shape \(3, dim\), found \(2, 12\)"):
                step.update_occurrences(three)
            if waits == "none":
                with pytest.raises(InvalidArgumentError, match="expected no `out`"):
                    step.lookup_unique(lambda tables, shapes: [])
            step.skip()


@pytest.mark.parametrize("where", ["host", "device", "mixed"])
def test_hot_and_mixed_steps_take_gradients_of_the_device(tmp_path, where):
    found = []
    for device in ("cpu", "gpu"):
        with opened(tmp_path / device, device) as store:
            array = Arrays(store, where if device == "gpu" else "host")
            hot = {name: np.arange(20) for name in TABLES}
            columns = {name: name for name in TABLES}
            kinds = set()
            with HotColdRun(store, hot, columns, batch_size=10, window_batches=2) as run:
                for step in run.steps(batches()):
                    kinds.add(step.is_hot)
                    rows = step.lookup()
                    step.update({n: array(gradients(of)) for n, of in rows.items()})
            assert kinds == {True, False}
            found.append(digests(store))
    assert found[0] == found[1]
