"""Kept checkpoints under a store: exact after any number of folds and compactions."""

import numpy as np

from embstore import Sgd
from tests.unit.small_stores import generator, make_table, opened, settle, small_limits, storage_of

SEED = 73
OPTIONS = {"cache_bytes": 60_000, "limits": small_limits(), "checkpoints_keep": 4}


def test_the_log_is_bounded_by_what_the_checkpoints_need(tmp_path):
    """Records superseded between two labels go: each label needs one record a row at most."""
    rng = generator(SEED)
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, "a", optimizer=Sgd(0.1))
        for number in range(10):
            for _ in range(40):
                keys = rng.choice(400, 200, replace=False)
                table.update(keys, np.ones((200, 4), np.float32))
                table.flush()
                settle(store)
            store.checkpoint(f"{number}")
            settle(store)
        figures = storage_of(store).stats()
        rows_needed = 400 * (OPTIONS["checkpoints_keep"] + 1)
        assert figures["log_rows"] <= 400
        assert figures["log_records"] <= 2 * rows_needed
        assert figures["bytes_written"] > 4 * figures["log_bytes"]
