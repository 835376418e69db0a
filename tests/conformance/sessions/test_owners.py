"""Sessions of several owners divide the slots that they pin ahead of their turns."""

from typing import Any

import numpy as np

import embstore
from embstore import Sgd, Uniform
from embstore import commands as c
from tests.conformance.cases import engine_of, total
from tests.conformance.sessions.training import LEASE_MS, until

STEPS, PARTS = 64, 40
"""Steps ahead, each with so small a part of the slots."""


class Ahead:
    """A session of one owner on a table of its own, with steps of other keys each."""

    def __init__(self, store: embstore.Store, owner: str, keys: int) -> None:
        self._store, self.keys = store, keys
        self.name = f"{owner.partition('/')[0]}:{owner}"
        self.table = f"{owner}/t".replace(":", "-")
        store.create_table(
            self.table, dim=64, rows=1 << 20, optimizer=Sgd(0.1), initializer=Uniform(-1.0, 1.0)
        )
        self._execute(
            c.OpenSession(self.name, (self.table,), STEPS, planner="window", lease_ms=LEASE_MS)
        )
        self.member = self._execute(c.JoinSession(self.name, 0)).member

    def _execute(self, command: c.Command[Any]) -> Any:
        return self._store.executor.execute(command)

    @property
    def session(self) -> Any:
        return engine_of(self._store).sessions._registry.sessions[self.name]

    def announce(self, steps: int) -> None:
        numbers = range(1, steps + 1)
        keys = {n: np.arange((n - 1) * self.keys, n * self.keys, dtype=np.int64) for n in numbers}
        made = [c.StepKeys(n, (c.StepTable(self.table, keys[n]),)) for n in numbers]
        self._execute(c.Announce(self.member, tuple(made)))

    def planned(self) -> int:
        """Return the last planned step, once the session waits for room."""
        until(lambda: self.session.waiting_since is not None)
        return int(self.session.planned_step)

    def close(self) -> None:
        self._execute(c.CloseSession(self.member))


def opened(store: embstore.Store, *owners: str) -> list[Ahead]:
    """Open a session of each owner; the first has announced what it can."""
    ahead = [Ahead(store, owner, 0) for owner in owners]
    slots = next(iter(engine_of(store).tables.pools.values())).slots.sizes.slots_max
    for one in ahead:
        one.keys = slots // PARTS
    ahead[0].announce(STEPS)
    return ahead


def test_owners_have_equal_parts_ahead_of_their_turns(tmp_path):
    def store(name: str) -> embstore.Store:
        return embstore.open(tmp_path / name, device="cpu", cache_bytes=4 << 20, threads=1)

    with store("one") as alone:
        first, _ = opened(alone, "same/one", "same/two")
        most = first.planned()
    with store("names") as named:  # a name of one's own with a colon makes nobody another owner
        first, _ = opened(named, "same/1:one", "same/2:two")
        assert first.planned() == most
    with store("two") as shared:
        first, second = opened(shared, "first", "second")
        part = first.planned()
        assert most // 2 - 1 <= part <= most // 2 + 2
        second.announce(part - 4)
        until(lambda: second.session.planned_step == part - 4)
        counts = [one.session.counts.steps_planned_again for one in (first, second)]
        assert counts == [0, 0]
        second.close()
        until(lambda: first.session.planned_step > part + 2)


def test_a_step_that_waits_for_its_share_evicts_nobodys_rows(tmp_path):
    """Room was made for it each time that it was tried again, of rows that others had read."""
    with embstore.open(tmp_path / "s", device="cpu", cache_bytes=4 << 20, threads=1) as store:
        first, second = opened(store, "first", "second")
        part = first.planned()
        slots = next(iter(engine_of(store).tables.pools.values())).slots
        other = store.create_table(
            "other", dim=64, rows=1 << 20, optimizer=Sgd(0.1), initializer=Uniform(-1.0, 1.0)
        )
        keys = np.arange(slots.sizes.slots_max - first.session.planned_step * first.keys - 64)
        other.lookup(keys)  # the slots are full: what is free is not enough for a step
        rest, second.keys = 8, 1
        second.announce(rest)
        until(lambda: second.session.planned_step == rest)
        before = total(store, "evictions_clean") + total(store, "evictions_dirty")
        planner = engine_of(store).sessions._planner
        for number in range(1, rest + 1):
            store.executor.execute(c.ReleaseStep(second.member, number))
            until(lambda: first.session.waits_at == planner._pinning.releases)
        assert first.session.planned_step == part
        assert total(store, "evictions_clean") + total(store, "evictions_dirty") == before
