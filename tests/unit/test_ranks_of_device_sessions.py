"""Ranks of a session give gradients in the device's memory: they stay there until the last rank's
come, and the digest is that of arrays of the host."""

import threading
from shutil import copytree

import numpy as np
import pytest

import embstore
from embstore import Adam, InvalidArgumentError
from embstore.handles.sessions import BagGradients, SomeGradients, StepBags
from tests.kernels.emulation.callers import CallersArray
from tests.unit import device_trainers
from tests.unit.device_trainers import ROWS, Arrays, digests, in_ranks, opened

KEYS, STEPS, FEW = 60, 4, 300
TABLES = device_trainers.TABLES | {"c": (12, Adam(0.2))}
OFFSETS = np.linspace(0, KEYS, 9).astype(np.int64)
FORMS = (*device_trainers.FORMS, "few tables")


def batches(rank):
    rng = np.random.default_rng([7, rank])
    return [{n: np.minimum(rng.zipf(1.3, KEYS), ROWS) - 1 for n in TABLES} for _ in range(STEPS)]


def update(step, form, array, rank):
    """Finish a step by gradients of keys, of distinct ones, of some, of bags, of occurrences."""
    inverse = {name: of for name, (_, of) in step.lookup_unique().items()}
    rng = np.random.default_rng(step.number)

    def gradients(name, count):
        return array(rng.standard_normal((count, TABLES[name][0])).astype(np.float32))

    if form == "keys":
        step.update({name: gradients(name, KEYS) for name in TABLES})
    elif form == "unique":
        step.update_unique({n: gradients(n, of.max() + 1) for n, of in inverse.items()})
    elif form == "bags":
        step.lookup_pooled({"a": OFFSETS, "b": None, "c": OFFSETS}, {"a": "mean"})
        counts = {"a": len(OFFSETS) - 1, "b": KEYS, "c": len(OFFSETS) - 1}
        step.update_pooled({name: gradients(name, count) for name, count in counts.items()})
    elif form == "some":
        some = {n: np.arange(0, of.max() + 1, 2) for n, of in inverse.items()}
        given = {n: SomeGradients(of, gradients(n, len(of))) for n, of in some.items()}
        step.update_unique(given)
    elif form == "occurrences":
        bags = {n: StepBags(of[::-2].copy()) for n, of in inverse.items()}
        given = {n: BagGradients(of, gradients(n, len(of.inverse))) for n, of in bags.items()}
        step.update_occurrences(given)
    else:
        step.update({"c": gradients("c", KEYS)})


def train(store, where, form, *, ranks=2, body=update, **session):
    """Train in so many ranks, each in a thread; return what each of them raised."""

    def train_rank(rank):
        here = where if isinstance(where, str) else where[rank]
        array, how = Arrays(store, here), {"name": "job", "rank": rank, "world_size": ranks}
        try:
            with store.session(tables=[*TABLES], **how, **session) as run:
                for step in run.steps(batches(rank), keys=lambda batch: batch):
                    body(step, form, array, rank)
        except InvalidArgumentError as exc:
            return exc

    return in_ranks(train_rank, ranks)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The digests on the CPU, of arrays of the host, by form and count of ranks."""
    found = {}
    for form in FORMS:
        for ranks in (2, 3):
            with opened(tmp_path_factory.mktemp("cpu"), "cpu", TABLES) as store:
                assert train(store, "host", form, ranks=ranks) == [None] * ranks
                found[form, ranks] = digests(store)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["device", "mixed", ("host", "device", "mixed")])
def test_one_digest_wherever_ranks_have_their_gradients(tmp_path, wanted, where, form):
    with opened(tmp_path, tables=TABLES) as store:
        assert train(store, where, form, ranks=3) == [None] * 3
        assert digests(store) == wanted[form, 3]


def rows_of(store):
    """Return weights and state of every row, by table."""
    return {name: store.table(name).read_rows(np.arange(ROWS)) for name in TABLES}


@pytest.mark.parametrize("planner", ["group:3", "window"])
def test_one_digest_for_every_planner(tmp_path, wanted, planner):
    with opened(tmp_path / "cpu", "cpu", TABLES) as store:
        train(store, "host", "keys")
        expected = rows_of(store)
    with opened(tmp_path / "gpu", tables=TABLES) as store:
        assert train(store, "device", "keys", planner=planner, rows="device") == [None, None]
        found = digests(store)
        for name, arrays in rows_of(store).items():  # a digest alone would not show which rows
            for own, right in zip(arrays, expected[name], strict=True):
                np.testing.assert_array_equal(own, right, err_msg=f"table {name}")
        assert found == wanted["keys", 2]


def test_what_is_logged_is_the_same_update(tmp_path, wanted):
    with opened(tmp_path / "store", tables=TABLES, durability="commands") as store:
        train(store, "device", "occurrences")
        assert digests(store) == wanted["occurrences", 2]
        log = store.executor.log
        log.files.wait(log.files.appended, written=True)
        copytree(tmp_path / "store", tmp_path / "killed")
    with embstore.open(tmp_path / "killed", cache_bytes=1 << 20) as store:
        assert store.executor.recovered_commands >= STEPS
        assert digests(store) == wanted["occurrences", 2]


def test_a_rank_is_told_of_its_own_gradients_and_may_skip(tmp_path):
    def body(step, form, array, rank):
        step.lookup_unique()
        if form == "told" and rank:
            given = np.ones((KEYS, 12), np.float32)
            given[3, 1] = np.nan
            wrong = np.unique(batches(1)[step.number - 1]["a"][3])
            with pytest.raises(InvalidArgumentError, match=rf"finite .* for key {wrong[0]};"):
                step.update({"a": array(given)})
        step.skip()

    with opened(tmp_path, tables=TABLES) as store:
        assert train(store, "device", "told", body=body) == [None, None]
        assert store.table("a").t == 0


@pytest.mark.parametrize("bad", [np.nan, 3e38])
def test_sums_that_rule_9_refuses_are_skipped_by_all_ranks(tmp_path, bad):
    seen = []

    def body(step, form, array, rank):
        step.lookup_unique()
        given = np.full((KEYS, 12), bad, np.float32)
        seen.append(step.update({"a": array(given)}, on_nonfinite="skip").skipped)

    with opened(tmp_path, tables=TABLES) as store:
        assert train(store, "device", "", body=body) == [None, None]
        assert store.table("a").t == 0
    assert seen == [True] * 2 * STEPS


def test_gradients_of_ranks_do_not_come_to_the_host(tmp_path):
    """Of keys their numbers come; nothing of a row, and nothing goes back up."""
    with opened(tmp_path, tables=TABLES) as store:
        runtime, sessions = store.executor.device.runtime, store.sessions
        sessions.open("job", [*TABLES], world_size=2)
        keys = {name: np.arange(FEW) for name in TABLES}
        members = [sessions.join("job", rank).member for rank in range(2)]
        for member in members:
            sessions.announce(member, {1: keys})
        for member in members:
            sessions.lookup_step(member, 1)
        given = {
            name: CallersArray.of(runtime, np.ones((FEW, dim), np.float32))
            for name, (dim, _) in TABLES.items()
        }
        before = runtime.uploaded_bytes, runtime.downloaded_bytes
        first = threading.Thread(target=sessions.update_step, args=(members[0], 1, given))
        first.start()
        sessions.update_step(members[1], 1, given)
        first.join()
        up, down = runtime.uploaded_bytes - before[0], runtime.downloaded_bytes - before[1]
    size = 4 * FEW * sum(dim for dim, _ in TABLES.values())
    assert down < size / 4
    assert up < size  # keys of both ranks, and zeros that counters of kernels begin with
