"""Dropped tables: their files stay while a checkpoint names them, and then disappear."""

import numpy as np

from tests.unit.small_stores import make_table, opened, rows_of, settle, small_limits, storage_of

KEYS = np.arange(600)
OPTIONS = {"cache_bytes": 60_000, "limits": small_limits(), "checkpoints_keep": 2}


def tables_in_base(store):
    """Return the ids of the tables whose rows the files of the base have."""
    return storage_of(store).base.table_ids().tolist()


def base_bytes(path):
    return sum(file.stat().st_size for file in (path / "base").glob("*"))


def log_bytes(path):
    return sum(file.stat().st_size for file in (path / "log").glob("*.log"))


def filled(store, name):
    table = make_table(store, name)
    table.assign(KEYS, rows_of(KEYS))
    return table


def test_the_base_has_no_rows_of_a_table_that_no_commit_named(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        filled(store, "stays")
        filled(store, "goes")
        store.drop_table("goes")
        store.checkpoint("a")
        settle(store)
        assert tables_in_base(store) == [0]


def test_rows_stay_while_a_checkpoint_names_them_and_then_go(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        filled(store, "stays")
        filled(store, "goes")
        store.checkpoint("with")
        settle(store)
        store.drop_table("goes")
        store.checkpoint("without-1")
        settle(store)
        assert tables_in_base(store) == [0, 1]
        before = base_bytes(tmp_path)
        store.checkpoint("without-2")
        settle(store)
        assert tables_in_base(store) == [0]
        assert base_bytes(tmp_path) < 0.65 * before
        store.check_integrity()
    with opened(tmp_path, **OPTIONS) as store:
        assert store.tables() == ["stays"]
        assert tables_in_base(store) == [0]


def test_a_file_with_rows_of_dropped_tables_only_goes_with_the_commit(tmp_path):
    with opened(tmp_path, **OPTIONS | {"checkpoints_keep": 1}) as store:
        filled(store, "goes")
        store.checkpoint("a")
        settle(store)
        assert tables_in_base(store) == [0]
        store.drop_table("goes")
        store.checkpoint("b")
        assert tables_in_base(store) == []
        settle(store)
        assert base_bytes(tmp_path) == 0


def test_the_log_lets_dropped_rows_go(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        filled(store, "goes")
        store.checkpoint("a")
        store.drop_table("goes")
        for label in ("b", "c", "d"):
            filled(store, "small").assign(KEYS[:1], rows_of(KEYS[:1]))
            store.checkpoint(label)
            settle(store)
        assert storage_of(store).log.index.size <= len(KEYS)
        assert log_bytes(tmp_path) < 3 * len(KEYS) * 48 + 64_000


def test_stats_tell_the_bytes_that_wait_for_a_checkpoint(tmp_path):
    def waiting(store):
        return storage_of(store).stats()["checkpoints_bytes"]

    with opened(tmp_path, **OPTIONS) as store:
        filled(store, "stays").assign(KEYS, rows_of(KEYS, version=1))
        store.executor.commits.commit()
        assert waiting(store) == 0
        filled(store, "goes")
        store.checkpoint("old")
        settle(store)
        before = storage_of(store).stats()["base_bytes"]
        assert waiting(store) == 0
        store.table("stays").assign(KEYS, rows_of(KEYS, version=2))
        store.executor.commits.commit()
        settle(store)
        figures = storage_of(store).stats()
        newer = figures["base_bytes"] + figures["log_bytes"] - before
        assert waiting(store) == newer > 0
        store.drop_table("goes")
        store.executor.commits.commit()
        settle(store)
        assert waiting(store) >= newer
        store.table("stays").assign(KEYS, rows_of(KEYS, version=3))
        for label in ("new", "newer"):
            store.checkpoint(label)
            settle(store)
        assert waiting(store) == 0
