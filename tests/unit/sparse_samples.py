"""What tests of sparse tables in storage share: tables, ids, and what has to be stored."""

import numpy as np

from tests.unit.storage_samples import append, open_storage, table_entry, versions

EXTREMES = np.array([0, 1 << 63, (1 << 64) - 2, 1, (1 << 63) - 1, 1 << 40], np.uint64).view(
    np.int64
)
DENSE, ONE, OTHER = 0, 1, 4
TABLES = [
    table_entry(DENSE),
    table_entry(ONE, key_space="sparse"),
    table_entry(OTHER, dim=8, key_space="sparse"),
]
DIMS = {DENSE: 4, ONE: 4, OTHER: 8}


def opened(path, tables=TABLES, **options):
    """Return a storage that has these tables."""
    storage = open_storage(path, **options)
    for table in tables:
        if table.table_id >= storage.next_table_id:
            storage.create_table(table)
    return storage


def random_ids(rng, count):
    """Return unique ids of all 64 bits, but the reserved one."""
    ids = np.unique(rng.integers(-(1 << 63), 1 << 63, count))
    return rng.permutation(ids[ids != -1])


class Model:
    """What each table must have stored: a version by key; and as it was under each label."""

    def __init__(self):
        self.now = {table_id: {} for table_id in DIMS}
        self.kept = {}

    def write(self, storage, table_id, keys, version):
        append(storage, keys, version, table_id, DIMS[table_id])
        self.now[table_id] |= dict.fromkeys(np.asarray(keys).tolist(), version)

    def commit(self, storage, label=None):
        storage.commit(TABLES, 1, label=label)
        if label is not None:
            self.kept[label] = copied(self.now)

    def restore(self, storage, label):
        storage.restore(label, 1)
        self.now = copied(self.kept[label])

    def check(self, storage):
        for table_id, rows in self.now.items():
            dim = DIMS[table_id]
            assert versions(storage, [*rows], table_id, dim) == [*rows.values()]
            absent = [key for key in EXTREMES.tolist() if key not in rows] or [12345]
            if table_id != DENSE:
                assert set(versions(storage, absent, table_id, dim)) == {-1}
        storage.check_integrity()


def copied(rows):
    """Return what tables have stored, to keep."""
    return {table_id: dict(own) for table_id, own in rows.items()}
