"""The epoch says whether acknowledged commands were undone; it changes then, and only then."""

import numpy as np
import pytest

from tests.conformance.cases import config, ones

pytestmark = pytest.mark.needs("one_store")


def epoch(twin):
    return twin.store.epoch


@pytest.fixture
def trained(open_twin):
    twin = open_twin(a=config(), durability="checkpoint")
    twin.on("a", "update", np.arange(9), ones(9))
    return twin


@pytest.mark.parametrize("level", ["interval", "commands"])
def test_a_crash_that_may_have_lost_commands_begins_another(open_twin, level):
    twin = open_twin(a=config(), durability=level)
    twin.on("a", "update", np.arange(9), ones(9))
    before = epoch(twin)
    for crashes in range(1, 3):
        twin.crash()
        twin.check()
        assert epoch(twin) == before + crashes * (level == "interval")
        twin.on("a", "update", [1], ones(1))


def test_closing_and_opening_keeps_the_epoch(trained):
    before = epoch(trained), trained.store.stats()["store_id"]
    trained.reopen()
    trained.reopen()
    assert (epoch(trained), trained.store.stats()["store_id"]) == before


@pytest.mark.needs("plain_keys")
def test_reading_commits_and_refused_calls_keep_it(trained):
    before = epoch(trained)
    trained.store.table("a").lookup([1])
    trained.checkpoint("c")
    with pytest.raises(ValueError, match="expected keys"):
        trained.store.table("a").update([-1], ones(1))
    assert epoch(trained) == before


def test_a_restore_begins_another(trained):
    trained.checkpoint("c")
    before = epoch(trained)
    trained.restore("c")
    assert epoch(trained) == trained.store.stats()["epoch"] == before + 1
    trained.reopen()
    assert epoch(trained) == before + 1


def test_a_crash_begins_another_only_if_it_lost_commands(trained):
    """Also a crash after a crash."""
    trained.checkpoint("c")
    before = epoch(trained)
    trained.store.table("a").lookup([1])
    trained.crash()
    assert epoch(trained) == before
    trained.on("a", "update", [1], ones(1))
    trained.crash()
    second = epoch(trained)
    assert second == before + 1
    trained.crash()
    assert epoch(trained) == second
    trained.on("a", "update", [2], ones(1))
    trained.crash()
    assert epoch(trained) == second + 1
    trained.on("a", "update", [3], ones(1))
    trained.reopen()
    assert epoch(trained) == second + 1


def test_readers_of_a_crashed_store_see_the_epoch_that_its_next_writer_has(trained):
    trained.on("a", "update", [1], ones(1))
    before = epoch(trained)
    trained.crash(read_only=True)
    assert epoch(trained) == before + 1
    trained.reopen(read_only=False)
    assert epoch(trained) == before + 1
