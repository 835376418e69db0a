"""What tables of the host's memory share, nearly full, so that runs wrap around their end."""

import numpy as np

from embstore.host.key_table import lower
from embstore.hotness.count_keys import count_keys, entries_of

SEED = 73
EACH_ONCE = np.empty(0, np.int64)


def entries(table, taken):
    keys, counts = np.empty(taken, np.int64), np.empty(taken, np.int64)
    entries_of(table, keys, counts)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def test_lowering_finds_every_entry_that_stays():
    random = np.random.default_rng(SEED)
    for amount in range(1, 60):
        table = np.zeros((64, 2), np.int64)
        keys = np.unique(random.integers(0, 10**6, 60))
        counts = random.integers(1, 60, len(keys))
        count_keys(table, keys, counts, 0, 0, 63)
        left = {
            k: c - amount for k, c in zip(keys.tolist(), counts.tolist(), strict=True) if c > amount
        }
        assert lower(table, amount, amount) == len(left)
        assert entries(table, len(left)) == left
        # Each is where it is looked for: counted once more, none takes a new place.
        again = np.array(list(left), np.int64)
        assert count_keys(table, again, EACH_ONCE, 0, len(left), len(left))[1] == len(left)
