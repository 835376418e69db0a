"""A trainer beside a store of the CPU or an emulated GPU: its arrays, and how it ends steps."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import embstore
from embstore import Adam, InvalidArgumentError, RowWiseAdagrad, Uniform
from embstore.device.gpu import GpuDevice
from embstore.handles.sessions import BagGradients, SomeGradients, StepBags
from tests.kernels.emulation.callers import CallersArray
from tests.kernels.emulation.runtime import EmulatedRuntime

ROWS = 400
TABLES = {"a": (12, RowWiseAdagrad(0.1)), "b": (5, Adam(0.1))}
FORMS = ("keys", "unique", "bags", "some", "occurrences")


def opened(path, device="gpu", tables=TABLES, *, cache_bytes=1 << 20, **how):
    if device != "cpu":
        how["device"] = GpuDevice(EmulatedRuntime(), 1)
    store = embstore.open(path, cache_bytes=cache_bytes, **how)
    for name, (dim, optimizer) in tables.items():
        store.create_table(
            name, dim=dim, rows=ROWS, optimizer=optimizer, initializer=Uniform(-1, 1), seed=3
        )
    if device != "cpu":
        store.executor.device.runtime.turn = store.executor.tables.frame.turn
    return store


def digests(store):
    return {name: store.table(name).digest() for name in store.tables()}


class Arrays:
    """Makes a trainer's arrays: of the host, of the device, or of each in turn."""

    def __init__(self, store, where):
        self._runtime = getattr(store.executor.device, "runtime", None)
        self._where, self._count = where, 0

    def __call__(self, content):
        self._count += 1
        is_there = self._where == "device" or (self._where == "mixed" and self._count % 2)
        return CallersArray.of(self._runtime, content) if is_there else content


def content(rows):
    return rows.content() if isinstance(rows, CallersArray) else rows


def gradients(rows, count=None):
    """Return gradients that depend on the rows: what was looked up wrong is seen."""
    whole = content(rows) * np.float32(0.5) - np.float32(0.2)
    return np.resize(whole, (len(rows) if count is None else count, rows.shape[1]))


def trained(step, form, array, offsets, **options):
    """Look a step up, and finish it by gradients of keys, distinct ones, bags, or some; return the
    types of its rows' arrays."""
    unique = step.lookup_unique()
    rows = {name: of for name, (of, _) in unique.items()}
    inverse = {name: of for name, (_, of) in unique.items()}
    if form == "keys":
        rows = step.lookup()
        step.update({n: array(gradients(of)) for n, of in rows.items()}, **options)
    elif form == "unique":
        step.update_unique({n: array(gradients(of)) for n, of in rows.items()}, **options)
    elif form == "bags":
        rows = step.lookup_pooled(offsets, {"a": "mean"})
        step.update_pooled({n: array(gradients(of)) for n, of in rows.items()}, **options)
    elif form == "some":
        some = {name: np.arange(0, len(of), 2) for name, of in rows.items()}
        given = {n: SomeGradients(p, array(gradients(rows[n], len(p)))) for n, p in some.items()}
        step.update_unique(given, **options)
    else:
        count = len(inverse["a"])
        ends, weights = np.linspace(0, count, 9).astype(np.int64), np.linspace(0, 1, count)
        bags = StepBags(inverse["a"][::-1].copy(), ends, "sum", weights.astype(np.float32))
        half = StepBags(inverse["b"][::-2].copy())
        given = {
            "a": BagGradients(bags, array(gradients(rows["a"], len(ends) - 1))),
            "b": BagGradients(half, array(gradients(rows["b"], len(half.inverse)))),
        }
        step.update_occurrences(given, **options)
    return {type(of) for of in rows.values()}


def in_ranks(work, count=2):
    """Have each rank work in a thread of its own; return what they returned."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count)))


def check_rule_9(step, keys, array, bad, *, is_told=True):
    """See that a sum that is not finite is told with its key, where it is, and may be skipped."""
    given = {n: np.ones((len(of), TABLES[n][0]), np.float32) for n, of in keys.items()}
    given["a"][3, 1] = bad
    if is_told:
        with pytest.raises(InvalidArgumentError, match=rf"for key {keys['a'][3]};"):
            step.update({name: array(of) for name, of in given.items()})
    own = {name: array(of) for name, of in given.items()}
    assert step.update(own, on_nonfinite="skip").skipped


def check_misfits(step, count, array):
    """See that gradients and occurrences that do not fit a step of so many keys are refused."""
    for shape, dtype in (((count, 11), "f4"), ((count - 1, 12), "f4"), ((count, 12), "f8")):
        with pytest.raises(InvalidArgumentError, match="table 'a': "):
            step.update({"a": array(np.ones(shape, dtype))})
    rows = array(np.ones((2, 12), np.float32))
    for inverse in ([0, 999], [-1, 0]):
        bags = StepBags(np.array(inverse, np.int32))
        with pytest.raises(InvalidArgumentError, match="inverse"):
            step.update_occurrences({"a": BagGradients(bags, rows)})
    three = StepBags(np.array([0, 0], np.int32), np.array([0, 1, 3]))
    with pytest.raises(InvalidArgumentError, match="offsets to rise"):
        step.update_occurrences({"a": BagGradients(three, rows)})
    step.skip()
