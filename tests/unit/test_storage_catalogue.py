"""The catalogue: encoded and decoded the same, refused when touched, and what its parts tell."""

from dataclasses import replace

import pytest

from embstore.storage.catalogue import (
    Catalogue,
    PartEntry,
    SegmentEntry,
    State,
    decode,
    encode,
    unnamed,
)
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
        checkpoints=(KeptState("a", metadata, states[0]), KeptState("b", {}, states[1])),
        segments=tuple(SegmentEntry(*s, 4096, 7) for s in ((3, 4), (9, 5), (8, 6), (16, 8))),
        runs=((PartEntry(2, 0, 4, 5, 2 << 40, 4096, 9), PartEntry(2, 1, 3, 2 << 40, 4 << 40, 9, 1)),
              (PartEntry(7, 0, 6, 3 << 40, 3 << 40 | 5, 8192, 2),)),
    )  # fmt: skip


@pytest.mark.parametrize("catalogue", [full(), Catalogue(STORE_ID.hex())], ids=["full", "new"])
def test_a_catalogue_is_decoded_as_it_was_encoded(catalogue):
    assert decode(encode(catalogue)) == catalogue
    assert encode(decode(encode(catalogue))) == encode(catalogue)


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
