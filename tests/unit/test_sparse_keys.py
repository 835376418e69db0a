"""Rows all over a huge range of keys take what rows take: in files, in maps, in a digest."""

from pathlib import Path

import numpy as np
import pytest

from embstore.arithmetic import BLOCK_KEYS
from embstore.tables import hashing
from tests.unit.small_stores import generator, make_table, opened, rows_of, settle, storage_of

SEED = 89
ROWS = 60_000


def maps_of(path):
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if f"{path}/" in line]


@pytest.mark.parametrize("span", [1 << 17, 1 << 32, 1 << 40], ids=["dense", "2^32", "2^40"])
def test_rows_cost_what_is_written_not_what_is_spanned(tmp_path, span, monkeypatch):
    rng = generator(SEED)
    keys = np.unique(rng.integers(0, span, ROWS))
    order = rng.permutation(keys)
    options = {"cache_bytes": 1 << 20, "checkpoints_keep": 1}
    with opened(tmp_path, **options) as store:
        table = make_table(store, rows=span)
        for part in np.array_split(order, 12):
            table.assign(part, rows_of(part % 1000))
        before = table.digest()
        for label in ("a", "b"):
            store.checkpoint(label)
        storage = storage_of(store)
        storage.merges._contents.limits = type(storage.merges._contents.limits)(fold_bytes=1)
        storage.log.changes += 1
        settle(store)
        assert storage.log.index.size == 0
        files = list((tmp_path / "base").iterdir())
        size = sum(p.stat().st_size for p in files)
        assert len(files) <= 3
        assert size < len(keys) * (32 + 48) + len(files) * 8192
        assert len(maps_of(tmp_path)) <= len(files) + 3
    asked = []
    with opened(tmp_path, **options) as store:
        table = store.table("t")
        reader = type(store.executor.tables.find("t", 0).pool.reader)
        look = reader.look
        monkeypatch.setattr(
            reader, "look", lambda self, keys: asked.append(len(keys)) or look(self, keys)
        )
        assert table.digest() == before
        assert sum(asked) == len(keys), "no key is asked for that was not written"
        assert max(asked) <= hashing.SLICE_ROWS + BLOCK_KEYS
        table.assign(keys[:3], rows_of([1, 2, 3]))
        changed = table.digest()
        assert sum(asked) <= len(keys) + 3 * BLOCK_KEYS
        sample = keys[:: len(keys) // 500]
        assert (table.lookup(sample)[3:] == rows_of(sample % 1000)[3:]).all()
    with opened(tmp_path, **options) as store:
        assert store.table("t").digest() == changed
