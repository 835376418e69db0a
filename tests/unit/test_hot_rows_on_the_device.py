"""A hot/cold run with rows="device": hot and mixed steps look up and update in the device's memory,
to the digests of arrays of the host."""

import numpy as np
import pytest

from embstore import Adagrad, Adam, Ftrl, InvalidArgumentError, Sgd, Uniform
from embstore_training.hotcold import HotColdRun
from tests.conformance.meeting import Meeting
from tests.kernels.emulation.callers import CallersArray
from tests.unit.device_trainers import (
    FORMS,
    ROWS,
    TABLES,
    Arrays,
    check_misfits,
    check_rule_9,
    digests,
    in_ranks,
    opened,
    trained,
)

HOT, SAMPLES, CHUNKS = 40, 60, 4
COLUMNS = {name: name for name in TABLES}


def chunks(rank=0, tables=TABLES):
    rng = np.random.default_rng([4, rank])
    return [
        {name: np.minimum(rng.zipf(1.4, (SAMPLES, 2)), ROWS) - 1 for name in tables}
        for _ in range(CHUNKS)
    ]


def finished(step, form, array):
    return trained(step, form, array, step.offsets | {"b": None})


def train(store, where, form="keys", *, rows="device", tables=TABLES, body=finished, **how):
    """Train; return which arrays hot steps were given, and which mixed ones."""
    array, kinds = Arrays(store, where), {True: set(), False: set()}
    hot = {name: np.arange(HOT) for name in tables}
    columns = {name: name for name in tables}
    options = {"batch_size": 16, "window_batches": 2, "rows": rows} | how
    with HotColdRun(store, hot, columns, **options) as run:
        for step in run.steps(chunks(how.get("rank", 0), tables)):
            kinds[step.is_hot] |= body(step, form, array)
    return kinds


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The digests on the CPU, of arrays of the host, by form."""
    found = {}
    for form in FORMS:
        with opened(tmp_path_factory.mktemp(form), "cpu") as store:
            train(store, "host", form, rows="host")
            found[form] = digests(store)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["device", "host", "mixed"])
def test_one_digest_wherever_gradients_are(tmp_path, wanted, where, form):
    with opened(tmp_path) as store:
        kinds = train(store, where, form)
        assert digests(store) == wanted[form]
    assert kinds == {True: {CallersArray}, False: {CallersArray}}


@pytest.mark.parametrize("optimizer", [Sgd(0.5), Adagrad(0.1), Ftrl(0.1)], ids=type)
def test_every_optimizer_applies_to_the_same_bits(tmp_path, optimizer):
    tables, found = {"a": (33, optimizer)}, []
    for device, where in (("cpu", "host"), ("gpu", "device")):
        with opened(tmp_path / device, device, tables) as store:
            train(store, where, tables=tables, rows="host" if device == "cpu" else "device")
            found.append(digests(store))
    assert found[0] == found[1]


def test_hot_rows_of_sparse_keys_have_the_same_bits(tmp_path):
    ids = np.random.default_rng(5).integers(0, 2**64 - 1, ROWS, np.uint64)
    ids[:4] = 0, 2**63 - 1, 2**63, 2**64 - 2
    given = {"dim": 12, "optimizer": Adagrad(0.1), "initializer": Uniform(-1.0, 1.0)}
    found = []
    for device, rows in (("cpu", "host"), ("gpu", "device")):
        with opened(tmp_path / device, device, {}) as store:
            store.create_table("a", **given, key_space="sparse")
            array = Arrays(store, rows)
            how = {"batch_size": 16, "window_batches": 2, "rows": rows}
            with HotColdRun(store, {"a": ids[:HOT]}, {"a": "a"}, **how) as run:
                for step in run.steps({"a": ids[of["a"]]} for of in chunks(tables=["a"])):
                    trained(step, "keys", array, step.offsets)
            found.append(digests(store))
    assert found[0] == found[1]


def test_on_the_cpu_the_devices_memory_is_the_hosts(tmp_path, wanted):
    with opened(tmp_path, "cpu") as store:
        assert train(store, "host") == {True: {np.ndarray}, False: {np.ndarray}}
        assert digests(store) == wanted["keys"]


def test_ranks_meet_in_their_hook(tmp_path):
    """Of a rank on the device too: its sums come to the host for the hook."""
    found = []
    for device, where in (("cpu", "host"), ("gpu", "device")):
        with opened(tmp_path / device, device) as store:
            rows = "host" if device == "cpu" else "device"
            meeting, how = Meeting(2), {"world_size": 2, "name": "job", "rows": rows}

            def rank_of(rank, store=store, where=where, meeting=meeting, how=how):
                train(store, where, all_gather=meeting.of(rank), rank=rank, **how)

            in_ranks(rank_of)
            found.append(digests(store))
    assert found[0] == found[1]


def test_rows_and_gradients_of_hot_steps_cross_no_bus(tmp_path):
    """Keys go up, and a few numbers come down."""
    seen = []

    def counted(step, form, array):
        given = {n: array(np.ones((len(step.keys[n]), 12), np.float32)) for n in ("a",)}
        before = runtime.uploaded_bytes, runtime.downloaded_bytes
        kinds = {type(of) for of in step.lookup().values()}
        step.update(given)
        if step.is_hot:
            up, down = runtime.uploaded_bytes - before[0], runtime.downloaded_bytes - before[1]
            seen.append((up, down))
        return kinds

    tables = {"a": (12, Adam(0.1))}
    with opened(tmp_path, tables=tables) as store:
        runtime = store.executor.device.runtime
        train(store, "device", tables=tables, body=counted)
    size = 4 * 32 * 12
    assert seen
    assert all(down < size / 4 for _, down in seen), seen


@pytest.mark.parametrize("bad", [np.nan, 3e38])
def test_what_rule_9_refuses_changes_nothing(tmp_path, bad):
    def refused(step, form, array):
        check_rule_9(step, step.keys, array, bad, is_told=step.is_hot)
        return set()

    with opened(tmp_path) as store:
        train(store, "device", body=refused)
        assert {store.table(name).t for name in store.tables()} == {0}


def test_gradients_that_do_not_fit_are_refused(tmp_path):
    def refused(step, form, array):
        check_misfits(step, len(step.keys["a"]), array)
        return set()

    with opened(tmp_path) as store:
        train(store, "device", body=refused)


def test_a_store_elsewhere_or_a_replica_of_ones_own_is_refused(tmp_path):
    with opened(tmp_path) as store:
        hot = {name: np.arange(4) for name in TABLES}
        with pytest.raises(InvalidArgumentError, match="without `replica`"):
            HotColdRun(store, hot, COLUMNS, batch_size=4, rows="device", replica=lambda *_: None)
