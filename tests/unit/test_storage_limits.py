"""limits.log_rows_max: named when it is reached, refusing commands whole, and leaving a way on."""

import numpy as np
import pytest

from embstore import CapacityError, RowWiseAdagrad, Uniform
from embstore.arrays import KEY_MASK
from embstore.config import Limits
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    pool_of,
    rows_of,
    settle,
    small_limits,
    storage_of,
)

SEED = 79
CACHE_BYTES = 60_000


def fill_until_refused(table, step=100):
    """Assign rows in order until the log takes no more; return how many were acknowledged."""
    for start in range(0, table.rows, step):
        keys = np.arange(start, start + step)
        try:
            table.assign(keys, rows_of(keys, table.dim))
        except CapacityError as exc:
            assert "limits.log_rows_max" in str(exc)
            return start
    raise AssertionError("no limit was reached")


def test_the_limit_is_named_and_the_command_has_changed_nothing(tmp_path):
    store = opened(tmp_path, cache_bytes=CACHE_BYTES, limits=small_limits(log_rows_max=1_000))
    table = make_table(store)
    count = fill_until_refused(table)
    before, command = table.digest(), store.command
    for verb in (table.assign, table.update):
        with pytest.raises(CapacityError, match=r"limits\.log_rows_max"):
            verb(np.arange(50_000, 52_000), rows_of(np.arange(2_000)))
    assert (table.digest(), store.command) == (before, command)
    assert np.array_equal(table.read_rows(np.arange(count))[0], rows_of(np.arange(count)))
    assert storage_of(store).log.index.size <= 1_000
    store.check_integrity()
    storage_of(store).close()


def test_the_refusals_advice_can_be_followed(tmp_path):
    """'Make a checkpoint, so that rows can be folded into the base': it works, and goes on."""
    limits = small_limits(log_rows_max=1_000)
    with opened(tmp_path, cache_bytes=CACHE_BYTES, limits=limits, checkpoints_keep=1) as store:
        table = make_table(store)
        count = fill_until_refused(table)
        before = table.digest()
        store.checkpoint("a")
        settle(store)
        assert table.digest() == before
        keys = np.arange(count, count + 100)
        table.assign(keys, rows_of(keys))
        store.check_integrity()


def test_a_full_log_can_be_closed_with_nothing_lost(tmp_path):
    with opened(
        tmp_path, cache_bytes=CACHE_BYTES, limits=small_limits(log_rows_max=1_000)
    ) as store:
        table = make_table(store)
        fill_until_refused(table)
        before = table.digest()
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        assert store.table("t").digest() == before


# A command over two layouts needs room for the victims of both, and for the slabs that one takes
# from the other. Wherever the limit lies, it is refused whole or done whole.


def prepared(path, **options):
    """Return a store whose narrow table has nearly all slots, dirty, and a wide one almost none.

    The command names the narrow rows in the slabs that the wide table will take.
    """
    store = opened(path, cache_bytes=5 * CACHE_BYTES, **options)
    rng = generator(SEED)
    narrow = make_table(store, "narrow")
    make_table(store, "wide", dim=24, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1))
    for start in range(0, 6_000, 100):
        keys = np.arange(start, start + 100)
        narrow.assign(keys, rows_of(keys))
    last = pool_of(narrow).slots.keys[-500:] & KEY_MASK
    command = {
        "narrow": (last, rng.standard_normal((500, 4)).astype(np.float32)),
        "wide": (np.arange(300), rng.standard_normal((300, 24)).astype(np.float32)),
    }
    return store, command


def digests(store):
    return [store.table(name).digest() for name in ("narrow", "wide")]


def outcome(path, rows_max, before, after):
    """Give the command to a store with this limit; say what became of it."""
    store, command = prepared(path, limits=Limits(log_rows_max=rows_max))
    try:
        store.update(command)
        assert digests(store) == after
        return "done"
    except CapacityError:
        if storage_of(store).failure is not None:
            return "half done: the store has failed"
        assert digests(store) == before
        store.check_integrity()
        return "refused"
    finally:
        storage_of(store).close()


def test_a_command_over_two_layouts_is_refused_whole_or_done_whole(tmp_path):
    store, command = prepared(tmp_path / "unlimited")
    with store:
        before, rows = digests(store), storage_of(store).log.index.size
        slots = pool_of(store.table("narrow")).slots.count
        store.update(command)
        after = digests(store)
        assert pool_of(store.table("narrow")).slots.count < slots, "slabs must change hands"
    outcomes = {}
    for room in range(0, 3_000, 150):
        outcomes[room] = outcome(tmp_path / str(room), rows + room, before, after)
    assert set(outcomes.values()) == {"refused", "done"}, outcomes
