"""The catalogue: encoded and decoded the same, refused when touched, and what its parts tell."""

import json
from dataclasses import replace
from random import Random

import pytest

from embstore.errors import CorruptTableError
from embstore.results import Place
from embstore.storage.catalogue import (
    Catalogue,
    Encoder,
    PartEntry,
    SegmentEntry,
    State,
    decode,
    encode,
    unnamed,
)
from embstore.storage.format import FORMAT, seal
from embstore.storage.lives import Life
from embstore.storage.states import KeptState
from tests.unit.storage_samples import STORE_ID, table_entry


def full():
    """Return a catalogue with something in every part."""
    old, new = table_entry(0, t=(1 << 64) - 1), table_entry(3, dim=7)
    states = [State(4, 9, (old,)), State(6, 12, (old, new)), State(8, 20, (new,))]
    metadata = {"step": 7, "loss": 0.1, "nested": {"ä": [1, None, True, "\n"]}}
    return Catalogue(
        STORE_ID.hex(),
        epoch=2,
        next_table_id=5,
        next_segment=17,
        head=states[2],
        lives=(Life((1 << 64) - 1, 1), Life(5, 13)),
        checkpoints=(KeptState("a", metadata, states[0]), KeptState("b", {}, states[1])),
        segments=tuple(SegmentEntry(*s, 4096, 7) for s in ((3, 4), (9, 5), (8, 6), (16, 8))),
        runs=((PartEntry(2, 0, 4, 5, 2 << 40, 4096, 9), PartEntry(2, 1, 3, 2 << 40, 4 << 40, 9, 1)),
              (PartEntry(7, 0, 6, 3 << 40, 3 << 40 | 5, 8192, 2),)),
    )  # fmt: skip


@pytest.mark.parametrize("catalogue", [full(), Catalogue(STORE_ID.hex())], ids=["full", "new"])
def test_a_catalogue_is_decoded_as_it_was_encoded(catalogue):
    assert decode(encode(catalogue)) == catalogue
    assert encode(decode(encode(catalogue))) == encode(catalogue)


def test_states_and_the_order_of_places_come_back_whatever_changed():
    rng = Random(7)
    places, tables, states = {}, {}, []
    for commit in range(300):
        for _ in range(rng.randrange(4)):
            name = f"session-{rng.randrange(6)}"
            old = places.pop(name, None)
            if rng.random() < 0.7:
                ids = old.table_ids if old and rng.random() < 0.7 else {"a": rng.randrange(3)}
                places[name] = Place(rng.randrange(3), ids)
            if tables and rng.random() < 0.3:
                del tables[rng.choice(list(tables))]
            if rng.random() < 0.5:
                tables[commit] = table_entry(commit)
            for table_id in rng.sample(list(tables), len(tables) // 2):
                more = {"t": commit} if rng.random() < 0.5 else {"rows": 2000 + commit}
                tables[table_id] = replace(tables[table_id], **more)
        states.append(State(commit, 2 * commit, tuple(tables.values()), dict(places)))
    kept = tuple(KeptState(f"{state.commit}", {}, state) for state in states[:-1])
    catalogue = Catalogue(STORE_ID.hex(), head=states[-1], checkpoints=kept)
    found = decode(encode(catalogue))
    assert found == catalogue
    before = [list(one.state.places) for one in kept]
    assert [list(one.state.places) for one in found.checkpoints] == before
    fewer = replace(catalogue, checkpoints=tuple(one for one in kept if rng.random() < 0.2))
    encoder = Encoder()
    assert encoder.encode(catalogue) == encode(catalogue)
    assert encoder.encode(fewer) == encode(fewer)  # whatever is remembered of the one before
    assert decode(encode(fewer)) == fewer


@pytest.mark.parametrize(
    "wrong",
    [{"tables": [[9, 1]]}, {"dropped": [9]}, {"forgotten": ["x"]}, {"tables": [[0, 1, 2]]}],
)
def test_a_state_that_refers_to_nothing_is_refused(wrong):
    fields = json.loads(encode(full()).partition(b"\n")[2])
    fields["head"] |= wrong
    with pytest.raises(CorruptTableError, match="unreadable"):
        decode(seal("CATALOGUE", FORMAT, json.dumps(fields).encode()))


def test_unnamed_files_are_leftovers():
    named = ["log/000000000003.log", "base/000000000002-000001.rows"]
    leftovers = ["log/000000000004.log", "base/000000000002-000002.rows", "base/1.rows", "log/x"]
    assert unnamed(full(), named + leftovers) == leftovers


def test_parts_with_rows_of_dropped_tables_only_are_left_out():
    catalogue = replace(full(), checkpoints=(), head=State(8, 20, (table_entry(3, dim=7),)))
    kept = catalogue.without_dropped()
    assert [[(p.number, p.part) for p in run] for run in kept.runs] == [[(2, 1)], [(7, 0)]]
    assert replace(catalogue, head=State()).without_dropped().runs == ()
    assert full().without_dropped() == full()
