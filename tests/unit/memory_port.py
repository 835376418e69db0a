"""A port of one session over tables in memory, which counts its calls; batches for it."""

import threading
from dataclasses import replace

import numpy as np

from embstore.arithmetic import pool_rows
from embstore.errors import InvalidArgumentError, SessionExpiredError
from embstore.handles.sessions import Serving
from embstore.results import AcknowledgedUpdate, Announced, Membership, SessionFacts

SEED = 59
ROWS, DIM = 200, 6
WAIT_S = 120


class MemoryPort:
    """One session over tables in memory; an update subtracts its gradients.

    `progress` is notified after every call, for tests that wait for one.
    """

    is_embedded = rounds_rows = False

    def __init__(self, tables=("a",)):
        rng = np.random.default_rng(SEED)
        self.tables = {t: rng.standard_normal((ROWS, DIM)).astype(np.float32) for t in tables}
        self.progress = threading.Condition()
        self.calls = []
        self.announced = {}
        self.last_step = 0
        self.facts = None
        self.member = None
        self.timeouts_s = {"renew": [], "close": []}
        self.updates = []
        self.refuses = {}
        self.announce_allowed = threading.Event()
        self.announce_allowed.set()
        self.announcing = threading.Event()

    def _called(self, *call):
        with self.progress:
            self.calls.append(call)
            self.progress.notify_all()
        if self.refuses.get(call[0]):
            raise self.refuses[call[0]].pop(0)

    def count(self, verb):
        with self.progress:
            return sum(call[0] == verb for call in self.calls)

    def wait_until(self, condition):
        with self.progress:
            assert self.progress.wait_for(condition, WAIT_S)

    def _check(self, member):
        if member is None or member != self.member:
            raise SessionExpiredError("no such member")

    def serving(self):
        return Serving("", 1)

    def open(self, name, tables, *, lookahead_steps_max, world_size, planner, shared,
             lease_ms, rank_timeout_ms, waits):  # fmt: skip
        self._called("open", name)
        self.facts = SessionFacts(
            name, self.last_step, tables, lookahead_steps_max, world_size, planner, shared,
            lease_ms, rank_timeout_ms, waits,
        )  # fmt: skip
        return self.facts

    def join(self, name, rank, *, member):
        self.member = member
        self._called("join", rank)
        return Membership(member, name, rank, self.last_step, 60_000)

    def announce(self, member, steps):
        self.announcing.set()
        assert self.announce_allowed.wait(WAIT_S)
        self._check(member)
        newest = max(self.announced, default=self.last_step)
        assert [*steps] == [*range(newest + 1, newest + 1 + len(steps))]
        assert max(steps) <= self.last_step + self.facts.lookahead_steps_max
        for keys in steps.values():
            for table, values in keys.items():
                assert values.dtype == np.int64 and len(np.unique(values)) == len(values)
                if (values >= ROWS).any():
                    raise InvalidArgumentError(f"table {table!r}: key out of range")
        self.announced |= steps
        self._called("announce", *steps)
        return Announced(max(steps), max(steps), False)

    def lookup_step(self, member, step):
        self._check(member)
        self._called("lookup", step)
        return {t: self.tables[t][keys] for t, keys in self.announced[step].items()}

    def prefetch_step(self, member, step):
        return None

    def lookup_step_pooled(self, member, step, bags):
        self._check(member)
        self._called("pooled", step)
        return {
            t: pool_rows(
                self.tables[t][self.announced[step][t][b.inverse]], b.offsets, b.mode, b.weights
            )
            for t, b in bags.items()
        }

    def _finish(self, member, step):
        self._check(member)
        assert step == self.last_step + 1 and step in self.announced
        self.last_step = step
        return AcknowledgedUpdate(step, {}, False)

    def update_step(self, member, step, gradients, *, learning_rate, gradient_scale, on_nonfinite):
        self._called("update", step)
        for table, values in gradients.items():
            assert values.shape == (len(self.announced[step][table]), DIM)
            self.tables[table][self.announced[step][table]] -= values
        self.updates.append({t: values.copy() for t, values in gradients.items()})
        return self._finish(member, step)

    def release_step(self, member, step):
        self._called("release", step)
        return self._finish(member, step)

    def skip_step(self, member, step):
        self._called("skip", step)
        return self._finish(member, step)

    def renew(self, member, *, timeout_s=None):
        self.timeouts_s["renew"].append(timeout_s)
        self._called("renew")
        return replace(self.facts, last_step=self.last_step)

    def close(self, member, *, forget, timeout_s):
        self._check(member)
        self.member = None
        self.timeouts_s["close"].append(timeout_s)
        self.announced = {s: k for s, k in self.announced.items() if s <= self.last_step}
        self._called("close", forget)


class PrefetchingPort(MemoryPort):
    """A port whose rows may be sent for before the loop asks."""

    def prefetch_step(self, member, step):
        self._called("prefetch", step)
        return Prefetched(self, step)


class Prefetched:
    """Rows that are read when they are waited for: after the step before is finished."""

    def __init__(self, port, step):
        self._port, self._step = port, step

    def result(self, timeout_s):
        assert self._port.last_step == self._step - 1
        return {t: self._port.tables[t][k] for t, k in self._port.announced[self._step].items()}


def batches_of(count, size=50):
    rng = np.random.default_rng(SEED)
    return [rng.zipf(1.3, size).clip(max=ROWS) - 1 for _ in range(count)]


def of_a(batch):
    return {"a": batch}


def gradients_of(batch):
    return np.random.default_rng(len(batch)).standard_normal((len(batch), DIM)).astype(np.float32)
