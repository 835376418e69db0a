"""Table ids: none is used again, not even if a crash has lost the table that had it."""

import pytest

import embstore
from embstore import commands as c
from embstore.config import Constant, Sgd, TableConfig
from embstore.errors import TableNotFoundError
from tests.copies import copy_of_open


def opened(path, durability):
    return embstore.open(path, device="cpu", cache_bytes=8 << 20, durability=durability)


def create(store, name):
    made = {"dim": 2, "rows": 9, "optimizer": Sgd(1.0), "initializer": Constant(1.0)}
    return store.create_table(name, **made).table_id


@pytest.mark.parametrize("durability", ["checkpoint", "interval", "commands"])
@pytest.mark.parametrize("count", [1, 300])
def test_the_id_of_a_lost_table_is_not_used_again(tmp_path, durability, count):
    with opened(tmp_path / "store", durability) as store:
        create(store, "kept")
        store.checkpoint("one")
        ids = {create(store, f"lost-{number}") for number in range(count)}
        copy_of_open(tmp_path / "store", tmp_path / "killed")
    with opened(tmp_path / "killed", durability) as store:
        if durability == "checkpoint":
            assert store.tables() == ["kept"]
            assert create(store, "lost-0") not in ids
            with pytest.raises(TableNotFoundError):  # as a handle of before the crash would
                store.executor.execute(c.GetTable("lost-0", min(ids)))
        last = create(store, "new")
        assert last not in ids
    with opened(tmp_path / "killed", durability) as store:
        assert create(store, "last") == last + 1


def test_a_new_table_can_skip_ids_but_not_many(tmp_path):
    def create(name, first_id):
        config = TableConfig.checked(
            name, dim=4, rows=10, optimizer=Sgd(0.1), initializer=Constant(0)
        )
        return store.executor.execute(c.CreateTable(config, first_id)).table_id

    with embstore.open(tmp_path, cache_bytes=1 << 20, durability="commands") as store:
        assert [create("a", 0), create("b", 7), create("c", 7), create("b", 99)] == [0, 7, 8, 7]
        assert create("d", 1 << 40) == 9 + 256
        store.executor.abandon()
    with embstore.open(tmp_path, cache_bytes=1 << 20) as store:
        assert [store.table(name).table_id for name in "abcd"] == [0, 7, 8, 265]
        assert create("e", 0) > 265
