"""Rows of a host tier that are clean, compared with what a miss would find without it."""

import numpy as np

from embstore.arrays import EMPTY_KEY


def check_tier(pool):
    """Compare every clean row of a pool's host tier with storage's, or with its initial row."""
    tier = pool.tier
    if tier is None:
        return
    here = tier.slots.contents()
    slots = np.flatnonzero((here.keys != EMPTY_KEY) & ~here.dirty)
    keys, device = here.keys[slots], pool.device
    expected = np.zeros((len(keys), pool.layout.stride), pool.layout.element)
    found = np.zeros(len(keys), np.uint8)
    pool.storage.rows.read(keys, expected, found)
    new = np.flatnonzero(found == 0)
    if len(new):
        rows = device.memory.allocate_rows(len(new), pool.layout)
        pool.residency.initialize(rows, np.arange(len(new)), keys[new])
        expected[new] = device.rows.read_rows(rows, device.memory.upload(np.arange(len(new))))
    kept = device.rows.read_rows(tier.slots.memory.rows, device.memory.upload(slots))
    assert kept.tobytes() == expected.tobytes()
