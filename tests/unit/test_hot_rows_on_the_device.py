"""A hot/cold run with rows="device": hot and mixed steps look up and update in the device's memory,
to the digests of arrays of the host."""

import threading

import numpy as np
import pytest

import embstore
from embstore import Adagrad, Adam, Ftrl, InvalidArgumentError, RowWiseAdagrad, Sgd, Uniform
from embstore.device.gpu import GpuDevice
from embstore.handles.sessions import BagGradients, SomeGradients, StepBags
from embstore_training.hotcold import HotColdRun
from tests.kernels.emulation.callers import CallersArray
from tests.kernels.emulation.runtime import EmulatedRuntime

ROWS, HOT, SAMPLES, CHUNKS = 300, 40, 60, 4
TABLES = {"a": (12, RowWiseAdagrad(0.1)), "b": (5, Adam(0.1))}
COLUMNS = {name: name for name in TABLES}
FORMS = ("keys", "unique", "bags", "some", "occurrences")


def opened(path, device="gpu", tables=TABLES):
    how = {} if device == "cpu" else {"device": GpuDevice(EmulatedRuntime(), 1)}
    store = embstore.open(path, cache_bytes=1 << 20, **how)
    for name, (dim, optimizer) in tables.items():
        store.create_table(
            name, dim=dim, rows=ROWS, optimizer=optimizer, initializer=Uniform(-1, 1), seed=3
        )
    if device != "cpu":
        store.executor.device.runtime.turn = store.executor.tables.frame.turn
    return store


def chunks(rank=0, tables=TABLES):
    rng = np.random.default_rng([4, rank])
    return [
        {name: np.minimum(rng.zipf(1.4, (SAMPLES, 2)), ROWS) - 1 for name in tables}
        for _ in range(CHUNKS)
    ]


class Arrays:
    """Makes a trainer's arrays: of the host, of the device, or of each in turn."""

    def __init__(self, store, where):
        self._runtime, self._where = getattr(store.executor.device, "runtime", None), where
        self._count = 0

    def __call__(self, content):
        self._count += 1
        is_there = self._where == "device" or (self._where == "mixed" and self._count % 2)
        return CallersArray.of(self._runtime, content) if is_there else content


def content(rows):
    return rows.content() if isinstance(rows, CallersArray) else rows


def gradients(rows, count):
    """Return gradients that depend on the rows: what was looked up wrong is seen."""
    return np.resize(content(rows) * np.float32(0.5) - np.float32(0.2), (count, rows.shape[1]))


def trained(step, form, array):
    """Look a step up, and finish it by gradients of keys, distinct ones, bags, or some."""
    unique = step.lookup_unique() if form != "keys" else {}
    if form == "keys":
        rows = step.lookup()
        step.update({n: array(gradients(of, len(step.keys[n]))) for n, of in rows.items()})
    elif form == "unique":
        rows = {name: of for name, (of, _) in unique.items()}
        step.update_unique({n: array(gradients(of, len(of))) for n, of in rows.items()})
    elif form == "bags":
        offsets = step.offsets | {"b": None}
        rows = step.lookup_pooled(offsets, {"a": "mean"})
        step.update_pooled({n: array(gradients(of, len(of))) for n, of in rows.items()})
    elif form == "some":
        rows = {name: of for name, (of, _) in unique.items()}
        some = {name: np.arange(0, len(of), 2) for name, of in rows.items()}
        given = {n: SomeGradients(p, array(gradients(rows[n], len(p)))) for n, p in some.items()}
        step.update_unique(given)
    else:
        rows = {name: of for name, (of, _) in unique.items()}
        inverse = {name: of for name, (_, of) in unique.items()}
        half = StepBags(inverse["b"][::-2].copy())
        some = inverse["a"][::2].copy()
        bags = StepBags(some, np.linspace(0, len(some), 5).astype(np.int64))
        step.update_occurrences(
            {
                "a": BagGradients(bags, array(gradients(rows["a"], len(bags.offsets) - 1))),
                "b": BagGradients(half, array(gradients(rows["b"], len(half.inverse)))),
            }
        )
    return {type(of) for of in rows.values()}


def train(store, where, form="keys", *, rows="device", tables=TABLES, body=trained, **how):
    """Train; return which arrays hot steps were given, and which mixed ones."""
    array, kinds = Arrays(store, where), {True: set(), False: set()}
    hot = {name: np.arange(HOT) for name in tables}
    columns = {name: name for name in tables}
    options = {"batch_size": 16, "window_batches": 2, "rows": rows} | how
    with HotColdRun(store, hot, columns, **options) as run:
        for step in run.steps(chunks(how.get("rank", 0), tables)):
            kinds[step.is_hot] |= body(step, form, array)
    return kinds


def digests(store):
    return {name: store.table(name).digest() for name in store.tables()}


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
            barrier, shares = threading.Barrier(2), {}

            def meet(rank, share, barrier=barrier, shares=shares):
                shares[rank] = share
                barrier.wait()
                answer = [shares[0], shares[1]]
                barrier.wait()
                return answer

            def rank_of(rank, store=store, where=where, rows=rows, meet=meet):
                how = {"rank": rank, "world_size": 2, "name": "job", "rows": rows}
                train(store, where, all_gather=lambda share: meet(rank, share), **how)

            other = threading.Thread(target=rank_of, args=(1,))
            other.start()
            rank_of(0)
            other.join()
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
        given = {n: np.ones((len(k), TABLES[n][0]), np.float32) for n, k in step.keys.items()}
        given["a"][3, 1] = bad
        if step.is_hot:
            with pytest.raises(InvalidArgumentError, match=rf"for key {step.keys['a'][3]};"):
                step.update({name: array(of) for name, of in given.items()})
        own = {name: array(of) for name, of in given.items()}
        assert step.update(own, on_nonfinite="skip").skipped
        return set()

    with opened(tmp_path) as store:
        train(store, "device", body=refused)
        assert {store.table(name).t for name in store.tables()} == {0}


def test_gradients_that_do_not_fit_are_refused(tmp_path):
    def refused(step, form, array):
        count = len(step.keys["a"])
        for shape, dtype in (((count, 11), "f4"), ((count - 1, 12), "f4"), ((count, 12), "f8")):
            with pytest.raises(InvalidArgumentError, match="table 'a': "):
                step.update({"a": array(np.ones(shape, dtype))})
        rows = array(np.ones((2, 12), np.float32))
        for bags in (StepBags(np.array([0, 999], np.int32)), StepBags(np.array([-1, 0], np.int32))):
            with pytest.raises(InvalidArgumentError, match="inverse"):
                step.update_occurrences({"a": BagGradients(bags, rows)})
        three = StepBags(np.array([0, 0], np.int32), np.array([0, 1, 3]))
        with pytest.raises(InvalidArgumentError, match="offsets to rise"):
            step.update_occurrences({"a": BagGradients(three, rows)})
        step.skip()
        return set()

    with opened(tmp_path) as store:
        train(store, "device", body=refused)


def test_a_store_elsewhere_or_a_replica_of_ones_own_is_refused(tmp_path):
    with opened(tmp_path) as store:
        hot = {name: np.arange(4) for name in TABLES}
        with pytest.raises(InvalidArgumentError, match="without `replica`"):
            HotColdRun(store, hot, COLUMNS, batch_size=4, rows="device", replica=lambda *_: None)
