"""lookup, of one table and of several; admit=False; out."""

import numpy as np
import pytest

from tests.conformance.cases import OPTIMIZERS, assert_same, batch, config, each, generator

KEYS = [5, 3, 5, 999, 0, 3]
FORMS = {
    "list": lambda keys: keys,
    "tuple": tuple,
    "int8": lambda keys: np.array(keys[:3], np.int8),
    "uint32": lambda keys: np.array(keys, np.uint32),
    "big-endian": lambda keys: np.array(keys, ">i8"),
    "every other": lambda keys: np.repeat(np.array(keys, np.int64), 2)[::2],
    "backwards": lambda keys: np.array(keys, np.int64)[::-1],
    "unaligned": lambda keys: unaligned(np.array(keys, np.int64)),
    "read-only": lambda keys: np.frombuffer(np.array(keys, np.int64).tobytes(), np.int64),
}


def unaligned(array):
    """Return a copy that begins at an odd address, as arrays cut from a message do."""
    room = np.zeros(array.nbytes + 1, np.uint8)
    moved = room[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.fixture
def twin(open_twin):
    """Two tables of one layout and one of another, all of them trained."""
    twin, rng = open_twin(a=config(), b=config()), generator(11)
    twin.create_table("c", **config(dim=7, optimizer=OPTIMIZERS["adam"]))
    twin.update({"a": batch(rng, 300), "b": batch(rng, 300), "c": batch(rng, 300, dim=7)})
    return twin


def wanted(twin, name, keys):
    return twin.reference.table(name).lookup(np.asarray(keys, np.int64))


def test_keys_in_every_form_of_integers(twin):
    for form in each(FORMS.values()):
        keys = form(KEYS)
        assert_same(twin.store.table("a").lookup(keys), wanted(twin, "a", keys))


def test_several_tables_in_one_call(twin):
    keys = {"c": [1, 1, 2], "a": KEYS, "b": []}
    found = twin.store.lookup(keys)
    assert list(found) == ["c", "a", "b"]
    for name, named in keys.items():
        assert_same(found[name], wanted(twin, name, named))


def test_result_is_the_callers_own(twin):
    table = twin.store.table("a")
    table.lookup(KEYS)[:] = 7.0
    table.lookup(KEYS, admit=False)[:] = 7.0
    twin.store.lookup({"a": KEYS})["a"][:] = 7.0
    table.lookup([5, 3])[:] = 7.0
    table.lookup_pooled(KEYS, [0, 6])[:] = 7.0
    assert_same(table.lookup(KEYS), wanted(twin, "a", KEYS))


def test_changing_the_keys_afterwards_changes_nothing(twin):
    """The store remembers the keys of the last call; it must not remember the caller's array."""
    table, keys = twin.store.table("a"), np.array(KEYS)
    table.lookup(keys)
    keys[:] = 17
    assert_same(table.lookup(keys), wanted(twin, "a", [17] * 6))


@pytest.mark.parametrize("form", [np.array, unaligned])
def test_out_is_filled_and_returned(twin, form):
    out = form(np.full((6, 4), 7.0, np.float32))
    assert twin.store.table("a").lookup(KEYS, out=out) is out
    assert_same(out, wanted(twin, "a", KEYS))
    assert twin.store.table("a").lookup(KEYS[::-1], admit=False, out=out) is out
    assert_same(out, wanted(twin, "a", KEYS[::-1]))


def test_out_may_be_part_of_a_larger_array(twin):
    large = np.full((10, 4), 7.0, np.float32)
    twin.store.table("a").lookup(KEYS, out=large[2:8])
    assert_same(large[2:8], wanted(twin, "a", KEYS))
    assert (large[:2] == 7.0).all()
    assert (large[8:] == 7.0).all()


def test_out_of_some_tables(twin):
    out = np.empty((2, 7), np.float32)
    found = twin.store.lookup({"a": KEYS, "c": [1, 2]}, out={"c": out})
    assert found["c"] is out
    assert_same(out, wanted(twin, "c", [1, 2]))
    assert_same(found["a"], wanted(twin, "a", KEYS))


@pytest.mark.needs("plain_keys")
def test_refused_lookup_leaves_out_as_it_was(twin):
    out = np.full((2, 4), 7.0, np.float32)
    with pytest.raises(ValueError, match="1000"):
        twin.store.table("a").lookup([1, 1000], out=out)
    assert (out == 7.0).all()


def test_arrays_may_begin_at_any_address(twin):
    keys, offsets = unaligned(np.array(KEYS, np.int64)), unaligned(np.array([0, 2, 6], np.int64))
    weights, rows = (unaligned(np.full(shape, 0.5, np.float32)) for shape in (6, (6, 7)))
    table, bags = twin.store.table("c"), (keys, offsets, "sum", weights)
    twin.on("c", "update", keys, rows)
    twin.on("c", "update_pooled", keys, offsets, rows[:2], "sum", weights)
    twin.on("c", "assign", keys[:2], rows[:2])
    out = unaligned(np.zeros((2, 7), np.float32))
    assert table.lookup_pooled(*bags, out=out) is out
    assert_same(out, twin.reference.table("c").lookup_pooled(*bags))
    counts = unaligned(np.full(6, 3, np.int64))
    assert_same(table.lookup(keys, counts=counts), wanted(twin, "c", KEYS))
