"""A run with waits="none" and rows="device": its rows in flight are in the device's memory, and the
digest is that of a run that waits, with arrays of the host."""

import threading

import numpy as np
import pytest

import embstore
from embstore import Adam, InvalidArgumentError, ReplicaMismatchError, RowWiseAdagrad, Uniform
from embstore.device.gpu import GpuDevice
from embstore.handles.sessions import BagGradients, Sessions, SomeGradients, StepBags
from tests.kernels.emulation.callers import CallersArray
from tests.kernels.emulation.runtime import EmulatedRuntime

ROWS, KEYS, STEPS = 400, 80, 10
TABLES = {"a": (12, RowWiseAdagrad(0.1)), "b": (5, Adam(0.1))}
OFFSETS = np.linspace(0, KEYS, 9).astype(np.int64)
FORMS = ("keys", "unique", "bags", "some", "occurrences")


def opened(path, device="gpu", cache_bytes=60_000, **how):
    if device != "cpu":
        how["device"] = GpuDevice(EmulatedRuntime(), 1)
    store = embstore.open(path, cache_bytes=cache_bytes, **how)
    for name, (dim, optimizer) in TABLES.items():
        store.create_table(
            name, dim=dim, rows=ROWS, optimizer=optimizer, initializer=Uniform(-1, 1), seed=3
        )
    if device != "cpu":
        store.executor.device.runtime.turn = store.executor.tables.frame.turn
    return store


def batches(rank=0):
    rng = np.random.default_rng([4, rank])
    return [{n: np.minimum(rng.zipf(1.3, KEYS), ROWS) - 1 for n in TABLES} for _ in range(STEPS)]


class Arrays:
    """Makes a trainer's arrays: of the host, of the device, or of each in turn."""

    def __init__(self, store, where):
        self._runtime, self._where = getattr(store.executor.device, "runtime", None), where
        self._count = 0

    def __call__(self, content):
        self._count += 1
        is_there = self._where == "device" or (self._where == "mixed" and self._count % 2)
        return CallersArray.of(self._runtime, content) if is_there else content


def gradients(rows, count):
    """Return gradients that depend on the rows: what was looked up wrong is seen."""
    content = rows.content() if isinstance(rows, CallersArray) else rows
    return np.resize(content * np.float32(0.5) - np.float32(0.2), (count, rows.shape[1]))


def trained(step, form, array, options):
    """Look a step up, and finish it by gradients of keys, distinct ones, bags, or some."""
    unique = step.lookup_unique()
    rows = {name: of for name, (of, _) in unique.items()}
    inverse = {name: of for name, (_, of) in unique.items()}
    if form == "keys":
        rows = step.lookup()
        step.update({n: array(gradients(of, KEYS)) for n, of in rows.items()}, **options)
    elif form == "unique":
        step.update_unique({n: array(gradients(r, len(r))) for n, r in rows.items()}, **options)
    elif form == "bags":
        rows = step.lookup_pooled({"a": OFFSETS, "b": None}, {"a": "mean"})
        step.update_pooled({n: array(gradients(r, len(r))) for n, r in rows.items()}, **options)
    elif form == "some":
        some = {name: np.arange(0, len(of), 2) for name, of in rows.items()}
        given = {n: SomeGradients(p, array(gradients(rows[n], len(p)))) for n, p in some.items()}
        step.update_unique(given, **options)
    else:
        bags = StepBags(
            inverse["a"][::-1].copy(), OFFSETS, "sum", np.linspace(0, 1, KEYS, dtype="f4")
        )
        half = StepBags(inverse["b"][::-2].copy())
        given = {
            "a": BagGradients(bags, array(gradients(rows["a"], len(OFFSETS) - 1))),
            "b": BagGradients(half, array(gradients(rows["b"], len(half.inverse)))),
        }
        step.update_occurrences(given, **options)
    return {type(of) for of in rows.values()}


def train(store, where, form="keys", *, rank=0, options=None, body=trained, **session):
    array, kinds = Arrays(store, where), set()
    how = {"rows": "device", "waits": "none", "rank": rank} | session
    with store.session(tables=[*TABLES], **how) as run:
        for step in run.steps(batches(rank), keys=lambda batch: batch):
            kinds |= body(step, form, array, options or {})
    return kinds


def digests(store):
    return {name: store.table(name).digest() for name in TABLES}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The digests on the CPU, of arrays of the host, in a session that waits, by form."""
    found = {}
    for form in FORMS:
        with opened(tmp_path_factory.mktemp(form), "cpu") as store:
            train(store, "host", form, rows="host", waits="late")
            found[form] = digests(store)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["device", "host", "mixed"])
def test_one_digest_wherever_gradients_are(tmp_path, wanted, where, form):
    with opened(tmp_path) as store:
        assert train(store, where, form) == {CallersArray}
        assert digests(store) == wanted[form]


@pytest.mark.parametrize(
    "how",
    [{"depth": 1}, {"lookahead": 2}, {"planner": "group:3"}, {"planner": "window", "depth": 6}],
    ids=str,
)
def test_one_digest_however_far_it_runs_ahead(tmp_path, wanted, how):
    with opened(tmp_path) as store:
        train(store, "device", "occurrences", **how)
        assert digests(store) == wanted["occurrences"]


def test_what_is_logged_is_the_same_update(tmp_path, wanted):
    with opened(tmp_path, durability="commands") as store:
        train(store, "device", "bags")
        assert digests(store) == wanted["bags"]


def test_rates_and_scales_are_applied_to_the_same_bits(tmp_path):
    options, found = {"learning_rate": 0.3, "gradient_scale": 0.7}, []
    for device, how in (("cpu", {"rows": "host", "waits": "late"}), ("gpu", {})):
        with opened(tmp_path / device, device) as store:
            where = "host" if device == "cpu" else "device"
            train(store, where, options=options, **how)
            found.append(digests(store))
    assert found[0] == found[1]


def test_on_the_cpu_the_devices_memory_is_the_hosts(tmp_path, wanted):
    with opened(tmp_path, "cpu") as store:
        assert train(store, "host") == {np.ndarray}
        assert digests(store) == wanted["keys"]


def train_ranks(store, where, **session):
    barrier, shares = threading.Barrier(2), {}

    def met(rank, share):
        shares[rank] = share
        barrier.wait()
        answer = [shares[0], shares[1]]
        barrier.wait()
        return answer

    def train_rank(rank):
        how = {"name": "job", "world_size": 2} | session
        if how.get("waits", "none") == "none":
            how["all_gather"] = lambda share: met(rank, share)
        train(store, where[rank], "occurrences", rank=rank, **how)

    other = threading.Thread(target=train_rank, args=(1,))
    other.start()
    train_rank(0)
    other.join()


@pytest.mark.parametrize("where", ["device", "host"])
def test_ranks_meet_in_their_hook(tmp_path, where):
    with opened(tmp_path / "cpu", "cpu") as store:
        train_ranks(store, ["host"] * 2, rows="host", waits="late")
        wanted = digests(store)
    with opened(tmp_path / "gpu") as store:
        train_ranks(store, ["device", where])
        assert digests(store) == wanted


@pytest.mark.parametrize("bad", [np.nan, 3e38])
def test_what_rule_9_refuses_changes_nothing(tmp_path, bad):
    def refused(step, form, array, options):
        keys = step.batch["a"]
        given = {n: np.ones((KEYS, dim), np.float32) for n, (dim, _) in TABLES.items()}
        given["a"][3, 1] = bad
        with pytest.raises(InvalidArgumentError, match=rf"for key {keys[3]};"):
            step.update({name: array(of) for name, of in given.items()})
        own = {name: array(of) for name, of in given.items()}
        assert step.update(own, on_nonfinite="skip").skipped
        return set()

    with opened(tmp_path) as store:
        train(store, "device", body=refused)
        assert {store.table(name).t for name in TABLES} == {0}


def test_the_store_is_sent_the_checksum_of_the_rows(tmp_path, monkeypatch):
    """It compares it; and where another rank's row is here, it refuses the step."""
    sent, update_step = [], Sessions.update_step

    def noted(sessions, *args, rows_checksum=None, **how):
        sent.append(rows_checksum)
        wrong = int(rows_checksum) ^ (len(sent) == STEPS)
        return update_step(sessions, *args, rows_checksum=wrong, **how)

    monkeypatch.setattr(Sessions, "update_step", noted)
    with opened(tmp_path) as store:
        with pytest.raises(ReplicaMismatchError):
            train(store, "device")
        assert {store.table(name).t for name in TABLES} == {STEPS - 1}
    assert len(sent) == STEPS


def test_a_step_of_rows_that_are_here_downloads_nothing_in_the_loop(tmp_path):
    """Its rows are taken, and its gradients summed and applied, where they are."""
    seen = []

    def counted(step, form, array, options):
        given = {n: array(np.ones((KEYS, dim), np.float32)) for n, (dim, _) in TABLES.items()}
        step.lookup_unique()  # all new rows have come
        before = runtime.downloaded_bytes
        step.lookup()
        seen.append(runtime.downloaded_bytes - before)
        step.update(given)
        return set()

    with opened(tmp_path, cache_bytes=1 << 20) as store:
        runtime = store.executor.device.runtime
        train(store, "device", body=counted, depth=1, lookahead=1)
    assert max(seen) < KEYS * 4, seen


def test_gradients_that_do_not_fit_are_refused(tmp_path):
    def refused(step, form, array, options):
        for shape, dtype in (((KEYS, 11), "f4"), ((KEYS - 1, 12), "f4"), ((KEYS, 12), "f8")):
            with pytest.raises(InvalidArgumentError, match="table 'a': "):
                step.update({"a": array(np.ones(shape, dtype))})
        rows = array(np.ones((2, 12), np.float32))
        for inverse in ([0, 999], [-1, 0]):
            with pytest.raises(InvalidArgumentError, match="inverse"):
                bags = StepBags(np.array(inverse, np.int32))
                step.update_occurrences({"a": BagGradients(bags, rows)})
        step.skip()
        return set()

    with opened(tmp_path) as store:
        train(store, "device", body=refused)
