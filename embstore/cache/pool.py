"""A pool: the resident rows of all tables that have the same layout and dense keys, or of one table
of sparse keys (`embstore.row_keys`).

Tables of one layout (`embstore.layout`) share slots, so a call over many tables launches each of
the kernels probe, gather and apply only once. The parts of a pool are

    slots       slabs of slots, the index, the free list          slots.py
    pins        slots that must not be evicted                    pins.py
    finder      the batch of a call, and the slots of its keys    finder.py
    scores      the order in which rows leave                     scores.py, policies.py
    evictor     slots for new rows; rows that leave               eviction.py
    residency   rows that are read into slots                     residency.py
    level two   rows that left level one's slots                  level_two.py
    exchange    rows that change levels                           exchange.py
    reader      rows gathered for calls                           reading.py
    writer      rows summed, changed and logged                   writing.py
    followers   callbacks with the keys of written rows           followers.py

The slots and their metadata are in the device's memory; the list of free slots is on the host.
`integrity.py` states the invariants between commands.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from embstore.cache.arena import Arena
from embstore.cache.counters import Counters
from embstore.cache.eviction import Evictor
from embstore.cache.exchange import Exchange
from embstore.cache.finder import Finder
from embstore.cache.followers import Followers
from embstore.cache.integrity import checks
from embstore.cache.level_two import LevelTwo
from embstore.cache.levels import Ranks
from embstore.cache.pins import PoolPins
from embstore.cache.policies import POLICIES, Policy
from embstore.cache.reading import PoolReader
from embstore.cache.residency import Residency
from embstore.cache.scores import Scores
from embstore.cache.slots import PoolSlots
from embstore.cache.writing import PoolWriter
from embstore.device.base import Device
from embstore.device.values import TableParameters
from embstore.layout import Layout
from embstore.row_keys import DENSE, RowKeys
from embstore.stages import Stages
from embstore.storage.storage import PoolStorage


class PoolName(NamedTuple):
    """The properties that all tables of a pool share. No two pools have the same name."""

    layout: Layout
    row_keys: RowKeys


class Pool:
    """The resident rows of some tables of one layout. Engine thread only.

    Raises
    ------
    CapacityError : the arena cannot grant this pool one slab.
    """

    def __init__(
        self,
        device: Device,
        storage: PoolStorage,
        arena: Arena,
        layout: Layout,
        policy_name: str,
        stages: Stages,
        host_arena: Arena | None = None,
        row_keys: RowKeys = DENSE,
    ) -> None:
        self.device, self.storage, self.arena, self.layout = device, storage, arena, layout
        self.tables: set[int] = set()
        self.parameters = _no_parameters(row_keys)
        self.counters = Counters()
        self.row_keys, self.ranks = row_keys, Ranks(row_keys)
        self.followers = Followers(device, row_keys)
        below_bytes = 0 if host_arena is None else host_arena.budget_bytes
        self.slots = slots = PoolSlots(
            device, layout, arena.budget_bytes, storage.irreversible, below_bytes,
            arena.note_growth, row_keys,
        )  # fmt: skip
        self.pins = pins = PoolPins(device, slots)
        self.finder = finder = Finder(device, slots)
        self.scores = scores = Scores(device, slots, POLICIES[policy_name], self.ranks.of)
        self.evictor = evictor = Evictor(
            device, storage, arena, layout, slots, pins, finder, scores, self.counters
        )
        self.residency = residency = Residency(
            device, storage, layout, self.parameters, slots, pins, finder, scores, self.ranks,
            evictor, self.counters, stages,
        )  # fmt: skip
        self.reader = PoolReader(device, storage, layout, slots, finder, residency)
        self.writer = PoolWriter(device, storage, arena, layout, slots, finder, evictor, residency)
        self.level_two: LevelTwo | None = None
        arena.join(evictor)
        try:
            slots.add_slab()
            if host_arena is not None:
                self.level_two = LevelTwo(
                    device, storage, host_arena, slots, layout, self.tables, self.counters
                )
        except BaseException:
            arena.leave(evictor)
            raise
        evictor.level_two = self.reader.level_two = self.level_two
        if self.level_two is not None:
            assert device.levels is not None
            residency.exchange = Exchange(
                device, device.levels, storage, slots, pins, finder, scores, evictor,
                self.level_two, self.counters, self.parameters,
            )  # fmt: skip
            self.writer.add_level(self.level_two.evictor)

    @property
    def name(self) -> PoolName:
        """The name of this pool, which is unique in the store."""
        return PoolName(self.layout, self.row_keys)

    @property
    def policy(self) -> Policy:
        """The eviction policy."""
        return self.scores.policy

    def set_policy(self, policy: Policy) -> None:
        """Change the eviction policy. The caller must then set the counts of all slots
        (`rank_again`)."""
        self.ranks.tables.clear()
        self.scores.set_policy(policy)

    @property
    def room(self) -> int:
        """The number of rows that can be added before a row must leave, if the arena grants all
        slabs that the budget allows."""
        slots = self.slots
        grown = slots.sizes.slots_max if slots.may_grow else slots.count
        return grown - slots.count + slots.free_count

    @property
    def slots_below(self) -> int:
        """The most slots that level two can have."""
        if self.level_two is None:
            return 0
        return self.slots.sizes.below_bytes // self.level_two.slots.sizes.slot_bytes

    def add_table(self, table_id: int, parameters: TableParameters) -> None:
        """Add a table; `parameters` has one entry, for this table."""
        number = self.row_keys.number(table_id)
        missing = number + 1 - len(self.parameters.seeds)
        for name, value in vars(parameters).items():
            array = getattr(self.parameters, name)
            if not isinstance(array, np.ndarray):
                continue
            if missing > 0:
                empty = np.zeros((missing, *array.shape[1:]), array.dtype)
                array = np.concatenate([array, empty])
                setattr(self.parameters, name, array)
            array[number] = value[0]
        self.tables.add(table_id)

    def remove_table(self, table_id: int) -> None:
        """Remove a table and its rows."""
        self.residency.purge(table_id)
        self.ranks.tables.pop(table_id, None)
        self.followers.leave(table_id)
        self.tables.discard(table_id)

    def close(self) -> None:
        """Leave the arena, and free all memory."""
        self.arena.leave(self.evictor)
        if self.level_two is not None:
            self.level_two.close()
        self.finder.close()
        self.followers.close()
        self.pins.close()
        self.slots.close()
        self.writer.close()

    def checks(self) -> Iterator[str]:
        """Check the invariants, slice by slice; see `integrity.checks`."""
        return checks(self)


def _no_parameters(row_keys: RowKeys) -> TableParameters:
    return TableParameters(
        scalars=np.zeros((0, 8), np.float32),
        initializer_kinds=np.zeros(0, np.int8),
        initializer_values=np.zeros((0, 2), np.float32),
        seeds=np.zeros(0, np.uint64),
        initial_state=np.zeros(0, np.float32),
        key_mask=row_keys.mask,
    )
