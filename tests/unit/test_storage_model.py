"""Storage against dictionaries: random rows, commits, merges, crashes, drops and restores."""

import numpy as np
import pytest

from embstore.arrays import KEY_MASK
from tests.unit.small_stores import generator
from tests.unit.storage_samples import (
    append,
    bury,
    layout_of,
    open_storage,
    settle,
    table_entry,
    versions,
)

KEYS = 400
KEEP = 3
LIMITS = {
    "tiny": {"segment_bytes": 4096, "fold_bytes": 8192, "fold_segments": 3},
    "never folds": {"segment_bytes": 8192, "fold_bytes": 1 << 40, "fold_segments": 1 << 20},
    "folds at once": {"segment_bytes": 16384, "fold_bytes": 1, "fold_segments": 1},
    "small base": {"fold_bytes": 4096, "base_segment_bytes": 16384},
}


class Model:
    """What must be stored: per table a dictionary key -> version, now and at every commit."""

    def __init__(self, path, limits):
        self.path, self.limits = path, limits
        self.storage = open_storage(path, keep=KEEP, **limits)
        self.tables = {}
        self.committed = {}
        self.labels = {}
        self.version = 0

    def entries(self):
        return [table_entry(table_id) for table_id in self.tables]

    def create(self, rng):
        table_id = self.storage.next_table_id
        self.storage.create_table(table_entry(table_id))
        self.tables[table_id] = {}

    def drop(self, rng):
        if len(self.tables) > 1:
            table_id = int(rng.choice([*self.tables]))
            self.storage.drop_table(table_id)
            del self.tables[table_id]

    def write(self, rng):
        for table_id in self.tables:
            keys = rng.choice(KEYS, int(rng.integers(1, 150)), replace=False)
            self.version += 1
            append(self.storage, keys, self.version, table_id)
            self.tables[table_id] |= dict.fromkeys(keys.tolist(), self.version)

    def delete(self, rng):
        for table_id, rows in self.tables.items():
            some = rng.choice(KEYS, int(rng.integers(1, 100)), replace=False)
            keys = [key for key in some.tolist() if key in rows]
            bury(self.storage, keys, table_id)
            for key in keys:
                del rows[key]

    def commit(self, rng, label=None):
        self.storage.commit(self.entries(), self.version, label=label)
        self.committed = {table_id: dict(rows) for table_id, rows in self.tables.items()}

    def checkpoint(self, rng):
        label = f"v{self.version}-{len(self.labels)}-{rng.integers(1 << 30)}"
        self.commit(rng, label)
        self.labels[label] = self.committed
        for old in [*self.labels][:-KEEP]:
            del self.labels[old]

    def merge(self, rng):
        settle(self.storage)

    def crash(self, rng):
        """Open again without a commit: the uncommitted tail is gone."""
        self.storage.close()
        self.storage = open_storage(self.path, keep=KEEP, **self.limits)
        self.tables = {table_id: dict(rows) for table_id, rows in self.committed.items()}

    def restore(self, rng, label=None):
        if not self.labels:
            return
        label = label or rng.choice([*self.labels])
        self.storage.restore(label, self.version)
        self.committed = self.labels[label]
        self.tables = {table_id: dict(rows) for table_id, rows in self.committed.items()}
        labels = [*self.labels]
        for newer in labels[labels.index(label) + 1 :]:
            del self.labels[newer]

    def check(self):
        self.storage.check_integrity()
        assert [c.label for c in self.storage.catalogue.checkpoints] == [*self.labels]
        for table_id, rows in self.tables.items():
            found = versions(self.storage, range(KEYS), table_id)
            assert found == [rows.get(key, -1) for key in range(KEYS)], f"table {table_id}"

    def check_scans(self):
        """What a snapshot has of every commit, and between any two."""
        catalogue = self.storage.catalogue
        states = {
            label: (catalogue.checkpoint(label).state, self.labels[label]) for label in self.labels
        }
        states[""] = catalogue.head, self.committed
        for new, (state, tables) in states.items():
            for table_id, rows in tables.items():
                assert scanned(self.storage, table_id, state.commit, 0) == (rows, set())
                for old, (before, tables_before) in states.items():
                    if before.commit < state.commit and table_id in tables_before:
                        then = tables_before[table_id]
                        found, gone = scanned(self.storage, table_id, state.commit, before.commit)
                        assert then.keys() - rows.keys() == gone, (old, new)
                        left = {key: v for key, v in then.items() if key not in gone}
                        assert left | found == rows, (old, new)


def scanned(storage, table_id, commit, since):
    """Return the rows of a snapshot, key -> version, and the keys that it says are gone."""
    snapshot = storage.snapshot(table_id, commit, since)
    count, deleted = snapshot.prepare(lambda: None)
    located = snapshot.rows_from(0, 1 << 20)
    rows = np.zeros((len(located.keys), layout_of(4).stride), np.float32)
    storage.rows.collect(located, rows)
    keys = located.keys & KEY_MASK
    gone = set((snapshot.deleted_from(0, 1 << 20) & KEY_MASK).tolist())
    assert (count, deleted) == (len(keys), len(gone))
    found_versions = rows.view(np.uint64)[:, 1].astype(np.int64)
    return dict(zip(keys.tolist(), found_versions.tolist(), strict=True)), gone


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_storage_holds_what_the_model_holds(tmp_path, limits, seed):
    rng, model = generator(seed), Model(tmp_path, limits)
    steps = {
        model.write: 30, model.delete: 10, model.merge: 15, model.commit: 10, model.checkpoint: 9,
        model.crash: 4, model.restore: 3, model.create: 3, model.drop: 3,
    }  # fmt: skip
    weights = [weight / sum(steps.values()) for weight in steps.values()]
    model.create(rng)
    model.commit(rng)
    for _ in range(60):
        step = [*steps][rng.choice(len(steps), p=weights)]
        step(rng)
        model.check()
    model.crash(rng)
    model.check()
    model.check_scans()
    for label in [*model.labels][::-1]:
        model.restore(rng, label)
        settle(model.storage)
        model.check()
    model.storage.close()
