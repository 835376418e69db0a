"""Steps whose rows are spread and whose gradients are summed by the store: the same bits as by the
trainer, also for arrays in the device's memory."""

import numpy as np
import pytest

import embstore
from embstore import Adam, InvalidArgumentError, RowWiseAdagrad, Uniform
from embstore.arithmetic import bag_gradients, sum_by_key, unique
from embstore.device.gpu import GpuDevice
from embstore.handles.sessions import BagGradients, SomeGradients, StepBags
from tests.kernels.emulation.callers import CallersArray
from tests.kernels.emulation.runtime import EmulatedRuntime

ROWS, KEYS, BAGS = 500, 300, 40
TABLES = {"a": (12, RowWiseAdagrad(0.1)), "b": (12, RowWiseAdagrad(0.2)), "c": (5, Adam(0.1))}


@pytest.fixture(params=["cpu", "gpu", "gpu, logged"])
def device(request):
    return request.param


def opened(path, device, cache_bytes=1 << 20):
    how = {"device": "cpu"}
    if device != "cpu":
        how = {"device": GpuDevice(EmulatedRuntime(), 1), "host_cache_bytes": 0}
    durability = "interval" if "logged" in device else "checkpoint"
    store = embstore.open(path, cache_bytes=cache_bytes, durability=durability, **how)
    for name, (dim, optimizer) in TABLES.items():
        store.create_table(
            name, dim=dim, rows=ROWS, optimizer=optimizer, initializer=Uniform(-1, 1), seed=3
        )
    return store


class Trainer:
    """A member of a session, with steps of drawn keys."""

    def __init__(self, store, *, on_device=False, steps=6, world_size=1):
        self.sessions, self.on_device = store.sessions, on_device
        self.runtime = getattr(store.executor.device, "runtime", None)
        if self.on_device:
            self.runtime.turn = store.executor.tables.frame.turn
        self.sessions.open("s", [*TABLES], world_size=world_size)
        self.member = self.sessions.join("s", 0).member
        rng = np.random.default_rng(5)
        self.steps = []
        for number in range(1, steps + 1):
            keys = {name: np.minimum(rng.zipf(1.2, KEYS), ROWS) - 1 for name in TABLES}
            once = {name: unique(of) for name, of in keys.items()}
            self.sessions.announce(self.member, {number: {n: k for n, (k, _) in once.items()}})
            offsets = np.sort(rng.integers(0, KEYS, BAGS - 1))
            bags = {
                "a": StepBags(once["a"][1]),
                "b": StepBags(once["b"][1], np.array([0, *offsets, KEYS]), "mean"),
                "c": StepBags(
                    once["c"][1], np.array([0, *offsets, KEYS]), "sum",
                    rng.random(KEYS).astype(np.float32),
                ),
            }  # fmt: skip
            self.steps.append((number, once, bags))

    def array(self, content):
        return CallersArray.of(self.runtime, content) if self.on_device else content

    def content(self, rows):
        return rows.content() if isinstance(rows, CallersArray) else rows

    def gradients(self, number, name, count):
        rng = np.random.default_rng([number, *name.encode()])
        return rng.standard_normal((count, TABLES[name][0])).astype(np.float32)


def count_of(bags):
    return KEYS if bags.offsets is None else BAGS


def spread_by_the_trainer(trainer, seen):
    """Train as a trainer does that spreads, pools and sums itself."""
    for number, once, bags in trainer.steps:
        seen.append(
            trainer.sessions.lookup_step_pooled(
                trainer.member, number,
                {n: b if b.offsets is not None else StepBags(b.inverse, np.arange(KEYS + 1))
                 for n, b in bags.items()},
            )
        )  # fmt: skip
        sums = {}
        for name, (keys, inverse) in once.items():
            own, of = trainer.gradients(number, name, count_of(bags[name])), bags[name]
            if of.offsets is not None:
                own = bag_gradients(own, of.offsets, of.mode, of.weights)
            sums[name] = sum_by_key(inverse, len(keys), own)
        trainer.sessions.update_step(trainer.member, number, sums)


def spread_by_the_store(trainer, seen):
    for number, _, bags in trainer.steps:
        rows = trainer.sessions.lookup_step_pooled(
            trainer.member, number, bags, on_device=trainer.on_device
        )
        seen.append({name: trainer.content(of) for name, of in rows.items()})
        gradients = {
            name: BagGradients(of, trainer.array(trainer.gradients(number, name, count_of(of))))
            for name, of in bags.items()
        }
        trainer.sessions.update_step(trainer.member, number, gradients)


def digests(store):
    return {name: store.table(name).digest() for name in TABLES}


@pytest.mark.parametrize("cache_bytes", [1 << 20, 40_000])
@pytest.mark.parametrize("on_device", [False, True])
def test_the_store_spreads_and_sums_to_the_same_bits(tmp_path, device, on_device, cache_bytes):
    expected, found = [], []
    with opened(tmp_path / "a", "cpu") as store:
        spread_by_the_trainer(Trainer(store), expected)
        wanted = digests(store)
    with opened(tmp_path / "b", device, cache_bytes) as store:
        trainer = Trainer(store, on_device=on_device and device != "cpu")
        spread_by_the_store(trainer, found)
        assert digests(store) == wanted
    for theirs, own in zip(expected, found, strict=True):
        for name, rows in theirs.items():
            assert rows.tobytes() == own[name].tobytes(), name


def test_keys_that_do_not_occur_are_not_updated(tmp_path, device):
    """A part of the occurrences, of one table; t of the others stays."""
    results = []
    for way in ("store", "trainer"):
        with opened(tmp_path / way, device) as store:
            trainer = Trainer(store, steps=1)
            number, once, _ = trainer.steps[0]
            keys, inverse = once["a"]
            some, own = inverse[:100], trainer.gradients(1, "a", 100)
            given = BagGradients(StepBags(some), own)
            if way == "trainer":
                occur = np.unique(some)
                given = SomeGradients(occur, sum_by_key(some, len(keys), own)[occur])
            done = trainer.sessions.update_step(trainer.member, number, {"a": given})
            assert done.t == {"a": 1, "b": 0, "c": 0}
            results.append(digests(store))
    assert results[0] == results[1]


def test_a_log_replays_what_the_device_has_summed(tmp_path):
    with opened(tmp_path / "a", "gpu, logged") as store:
        spread_by_the_store(Trainer(store, on_device=True), [])
        wanted = digests(store)
        store.executor.log.wait()
        store.executor.abandon()
    with opened(tmp_path / "a", "cpu") as store:
        assert digests(store) == wanted
        assert store.sessions.open("s", [*TABLES]).last_step == 6


def test_gradients_that_are_refused_change_nothing(tmp_path, device):
    with opened(tmp_path, device) as store:
        trainer = Trainer(store, steps=1)
        _, once, bags = trainer.steps[0]
        before = digests(store)
        own = trainer.gradients(1, "a", KEYS)
        own[7] = np.inf
        given = {"a": BagGradients(bags["a"], own)}
        key = once["a"][0][once["a"][1][7]]
        with pytest.raises(InvalidArgumentError, match=f"found inf for key {key}"):
            trainer.sessions.update_step(trainer.member, 1, given)
        skipped = trainer.sessions.update_step(trainer.member, 1, given, on_nonfinite="skip")
        assert skipped.skipped and digests(store) == before


@pytest.mark.parametrize(
    ("inverse", "count", "match"),
    [
        (np.array([0, 10_000], np.int32), 2, r"inverse in \[0, .*found 10000"),
        (np.array([0, -1], np.int32), 2, "indices into the announced keys"),
        (np.array([0, 1], np.int32), 3, "a gradient for each of 2 occurrences"),
    ],
)
def test_occurrences_that_do_not_fit(tmp_path, inverse, count, match):
    with opened(tmp_path, "cpu") as store:
        trainer = Trainer(store, steps=1)
        given = BagGradients(StepBags(inverse), np.zeros((count, 12), np.float32))
        with pytest.raises(InvalidArgumentError, match=match):
            trainer.sessions.update_step(trainer.member, 1, {"a": given})
