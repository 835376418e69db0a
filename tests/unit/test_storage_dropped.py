"""Dropped tables: their files stay while a checkpoint names them, and then disappear."""

import numpy as np

from tests.unit.small_stores import (
    make_table,
    opened,
    rows_of,
    settle,
    small_limits,
    storage_of,
)

KEYS = np.arange(600)
OPTIONS = {"cache_bytes": 60_000, "limits": small_limits(), "checkpoints_keep": 2}


def base_of(path, table_id):
    return path / "base" / str(table_id)


def log_bytes(path):
    return sum(file.stat().st_size for file in (path / "log").glob("*.log"))


def filled(store, name):
    table = make_table(store, name)
    table.assign(KEYS, rows_of(KEYS))
    return table


def test_a_table_that_no_commit_named_is_gone_at_the_next(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        filled(store, "stays")
        filled(store, "goes")
        store.drop_table("goes")
        store.checkpoint("a")
        assert base_of(tmp_path, 0).exists() and not base_of(tmp_path, 1).exists()


def test_files_stay_while_a_checkpoint_names_them_and_then_go(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        filled(store, "stays")
        filled(store, "goes")
        store.checkpoint("with")
        settle(store)
        store.drop_table("goes")
        store.checkpoint("without-1")
        settle(store)
        assert base_of(tmp_path, 1).exists()
        store.checkpoint("without-2")
        assert not base_of(tmp_path, 1).exists()
        settle(store)
        store.check_integrity()
    with opened(tmp_path, **OPTIONS) as store:
        assert store.tables() == ["stays"]
        assert not base_of(tmp_path, 1).exists()


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


def test_the_catalogue_forgets_the_bitmap_of_a_table_that_is_gone(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        for number in range(3):
            filled(store, f"t{number}")
            for label in ("a", "b"):
                store.checkpoint(f"{label}{number}")
            settle(store)
            store.drop_table(f"t{number}")
        for label in ("x", "y", "z"):
            store.checkpoint(label)
        catalogue = storage_of(store).catalogue
        assert storage_of(store).stats()["folds"] >= 1
        assert {int(table_id) for table_id in catalogue.written} <= catalogue.table_ids()
