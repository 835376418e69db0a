"""A store and its reference model, given the same commands and compared.

Every mutating verb is done on both, and its acknowledgement checked: command numbers are dense and
increasing, t is the reference's. `check` compares all content. What the store committed, and what
each kept checkpoint holds, is remembered as snapshots of the reference.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from embstore.arrays import SPARSE_ROWS
from tests.reference import ReferenceStore


def bits(values: Any) -> bytes:
    """Return the bits of float32 as they are: -0.0 is not 0.0, and one NaN is not another."""
    assert values.dtype == np.float32
    return np.ascontiguousarray(values).tobytes()


class Commit(NamedTuple):
    """What a store is to be when it is opened or restored."""

    snapshot: dict[str, Any]
    command: int
    digests: dict[str, str]

    @classmethod
    def of(cls, reference: ReferenceStore) -> "Commit":
        """Return what a reference is now."""
        return cls(reference.snapshot(), reference.command_number, digests(reference))


def digests(store: Any) -> dict[str, str]:
    """Return the digest of every table of a store, or of the reference."""
    return {name: store.table(name).digest() for name in store.tables()}


class Twin:
    """One store beside its reference. `reference` may be asked, not told.

    Of the options, those that are a table's configuration make that table. Where the trainer makes
    one command of many updates, `counts_commands` is False: the store's number is taken over.
    """

    counts_commands = True

    def __init__(self, backend: Any, name: str = "store", **options: Any) -> None:
        self.reference = backend.reference()
        self._backend = backend
        self.name = name  # of the directory, another one after a crash
        tables = {table: given for table, given in options.items() if isinstance(given, dict)}
        self._options = {key: given for key, given in options.items() if key not in tables}
        self.store = backend.open_store(name, **self._options)
        self.rows: dict[str, int] = {}
        """Of each table, as the case made it: a sparse one has its keys, too (`spread.py`)."""
        self._kept: dict[str, Commit] = {}
        self._committed = Commit.of(self.reference)
        for table, given in tables.items():
            self.create_table(table, **given)

    # Commands

    def create_table(self, name: str, **config: Any) -> Any:
        """Create a table on both and return the store's handle."""
        table = self.store.create_table(name, **config)
        self.reference.create_table(name, **config)
        self.rows[name] = config.get("rows", SPARSE_ROWS)
        assert self.store.command == self.reference.command_number
        return table

    def drop_table(self, name: str) -> None:
        self.store.drop_table(name)
        self.reference.drop_table(name)
        assert self.store.command == self.reference.command_number

    def on(self, name: str, verb: str, *args: Any, **options: Any) -> Any:
        """Do a mutating verb of one table on both; return the acknowledgement."""
        self._take_number()
        done = getattr(self.store.table(name), verb)(*args, **options)
        getattr(self.reference.table(name), verb)(*args, **options)
        assert done.command == self.reference.command_number
        assert done.t == self.reference.table(name).t
        return done

    def update(self, shares: Mapping[str, tuple[Any, Any]], **options: Any) -> Any:
        """Update several tables in one call."""
        done = self.store.update(shares, **options)
        expected = self.reference.update(shares, **options)
        assert (done.command, done.t) == (self.reference.command_number, expected)
        return done

    def update_ranks(self, ranks: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """Apply one step of several ranks."""
        done = self.store.update_ranks(ranks, **options)
        expected = self.reference.update_ranks(ranks, **options)
        assert (done.command, done.t) == (self.reference.command_number, expected)
        return done

    def _take_number(self) -> None:
        if not self.counts_commands:
            self.reference.command_number = self.store.command

    # Commits

    def checkpoint(self, label: str, metadata: dict[str, Any] | None = None) -> Any:
        made = self.store.checkpoint(label, metadata)
        self._committed = Commit.of(self.reference)
        self._kept[label] = self._committed
        self._match_kept()
        assert made.command == self.reference.command_number
        return made

    def set_retention(self, label: str, retention: Any) -> Any:
        found = self.store.set_retention(label, retention)
        if retention == "dropped":
            del self._kept[label]
        self._match_kept()
        return found

    @property
    def commits(self) -> Any:
        """What is committed and kept, to be set back where a commit was cut short."""
        return self._committed, dict(self._kept)

    @commits.setter
    def commits(self, before: Any) -> None:
        self._committed, self._kept = before

    def restore(self, label: str, **options: Any) -> None:
        self.store.restore(label, **options)
        self.reference.restore(self._kept[label].snapshot)
        self._committed = Commit.of(self.reference)
        later = list(self._kept)[list(self._kept).index(label) + 1 :]
        for gone in later:
            del self._kept[gone]
        self._match_kept()

    def reopen(self, **options: Any) -> None:
        """Close, which commits, and open again."""
        self.store.close()
        self._committed = Commit.of(self.reference)
        self._open_again(**options)

    def crash(self, **options: Any) -> None:
        """Do all merges that are due, then kill."""
        self.settle()
        self.kill(**options)

    def kill(self, copy: str | None = None, **options: Any) -> None:
        """Go on with a copy of the files as they are, or one made before, at the last commit; where
        commands are logged, at the last command.

        No merge may be going on, but one may be held.
        """
        before, self.name = self.store, copy or self._backend.copy(self.name)
        before.close()
        if not self.is_logged or options.get("read_only"):
            self.reference.restore(self._committed.snapshot)
            self.reference.command_number = self._committed.command
        self._open_again(**options)

    @property
    def is_logged(self) -> bool:
        """Whether a killed process loses no command."""
        return self._options.get("durability", self._backend.durability) != "checkpoint"

    def settle(self) -> None:
        """Do all merges that are due."""
        self._backend.settle(self.store)

    def _open_again(self, **options: Any) -> None:
        self._options |= options
        self.store = self._backend.open_store(self.name, **self._options)
        self._match_kept()

    def _match_kept(self) -> None:
        checkpoints = self.store.checkpoints()
        kept = {c.label: c.command for c in checkpoints}
        self._kept = {label: s for label, s in self._kept.items() if label in kept}
        assert list(kept) == list(self._kept)
        keep = self._options.get("checkpoints_keep", 3)
        assert sum(not c.protected for c in checkpoints) <= keep

    # Comparing

    def check(self) -> None:
        """Compare everything that can be asked."""
        self._take_number()
        self.store.check_integrity()
        assert self.store.command == self.reference.command_number
        assert self.store.tables() == self.reference.tables()
        for name in self.reference.tables():
            self.check_table(name)

    def check_recovery(self) -> None:
        """Compare what a kill now would bring back, then each kept checkpoint, in a copy."""
        copy = self._backend.copy(self.name)
        store = self._backend.open_store(copy, **self._options)
        committed = self._committed[1:]
        if self.is_logged:
            committed = self.store.command, digests(self.reference)
        assert (store.command, digests(store)) == committed
        assert [c.label for c in store.checkpoints()] == list(self._kept)
        for label, kept in reversed(self._kept.items()):
            store.restore(label)
            assert digests(store) == kept.digests, f"{label} is not what it was"
        store.close()

    def check_table(self, name: str) -> None:
        """Compare one table: tunables, t, every written row, digest."""
        table, expected = self.store.table(name), self.reference.table(name)
        described = table.describe()
        assert (described.t, described.config.rows) == (expected.t, expected.rows)
        assert described.config.optimizer.learning_rate == expected.learning_rate
        keys = np.array(sorted(expected.written), np.uint64).view(np.int64)
        for found, wanted in zip(table.read_rows(keys), expected.read_rows(keys), strict=True):
            wrong = (found.view(np.uint32) != wanted.view(np.uint32)).any(axis=1)
            assert not wrong.any(), f"{name}: rows differ of keys {keys[wrong][:10].tolist()}"
        assert table.digest() == expected.digest(), f"{name}: digests differ"
