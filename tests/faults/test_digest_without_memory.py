"""Memory that ends where a digest begins, or where a command sets rows aside for one: what is
refused has changed nothing, and the digests after it are right."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.config import Sgd, Uniform
from embstore.errors import CapacityError
from embstore.tables import digest

ROWS, DIM = 60_000, 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(path: Path) -> Any:
    return embstore.open(path, cache_bytes=8 << 20, threads=1)


def create(store: Any) -> Any:
    return store.create_table(
        "a", dim=DIM, rows=ROWS, optimizer=Sgd(0.1), initializer=Uniform(-1.0, 1.0)
    )


def true_digest(path: Path) -> str:
    """Return the digest that is made of all rows."""
    with opened(path) as store:
        found: str = store.table("a").digest()
        return found


def test_a_digest_that_cannot_begin_forgets_nothing(path, monkeypatch):
    def no_memory(_: Any) -> Any:
        raise MemoryError

    with opened(path) as store:
        table = create(store)
        table.assign(np.arange(1000), np.ones((1000, DIM), np.float32))
        before = table.digest()
        table.assign([5], np.zeros((1, DIM), np.float32))
        with monkeypatch.context() as lacking:
            lacking.setattr(digest, "RowSnapshot", no_memory)
            with pytest.raises(CapacityError):
                table.digest()
        found = table.digest()
    assert found == true_digest(path) != before


class Lacking(list[Any]):
    """A list for whose next element there is no memory."""

    lacks = True

    def append(self, value: Any) -> None:
        if self.lacks:
            self.lacks = False
            raise MemoryError
        super().append(value)


@pytest.mark.parametrize("what", ["_starts", "_copies"])
def test_a_command_that_cannot_set_rows_aside_is_refused_and_leaves_the_digest_right(path, what):
    ones, zeros = np.ones((ROWS, DIM), np.float32), np.zeros((10, DIM), np.float32)
    with opened(path) as store:
        create(store).assign(np.arange(ROWS), ones)
    before = true_digest(path)
    with opened(path) as store:
        table, refused = store.table("a"), []

        def between(*_: Any) -> None:
            """Change rows at the end of the table, which the digest reads last."""
            reading = store.executor.tables.find("a").digest.reading
            if reading is None or reading._aside._copies:
                return
            setattr(reading._aside, what, Lacking())
            with pytest.raises(CapacityError):
                table.assign(np.arange(ROWS - 20, ROWS - 10), zeros)
            refused.append(table.lookup([ROWS - 20]).tolist())
            table.assign(np.arange(ROWS - 10, ROWS), zeros)

        assert store.executor.execute(c.GetDigest("a"), progress=between).digest == before
        assert refused[0] == [[1.0] * DIM]
        after = table.digest()
    assert after == true_digest(path) != before
