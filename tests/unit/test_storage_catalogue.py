"""The catalogue: encoded and decoded the same, refused when touched, and what its parts tell."""

import hashlib
import json
from dataclasses import replace

import pytest

from embstore.errors import CorruptTableError, TableMismatchError
from embstore.storage.catalogue import (
    Catalogue,
    Checkpoint,
    PartEntry,
    SegmentEntry,
    State,
    decode,
    encode,
    unnamed,
)
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
        checkpoints=(Checkpoint("a", metadata, states[0]), Checkpoint("b", {}, states[1])),
        segments=tuple(SegmentEntry(*s, 4096, 7) for s in ((3, 4), (9, 5), (8, 6), (16, 8))),
        runs=((PartEntry(2, 0, 4, 5, 2 << 40, 4096, 9), PartEntry(2, 1, 3, 2 << 40, 4 << 40, 9, 1)),
              (PartEntry(7, 0, 6, 3 << 40, 3 << 40 | 5, 8192, 2),)),
    )  # fmt: skip


@pytest.mark.parametrize("catalogue", [full(), Catalogue(STORE_ID.hex())], ids=["full", "new"])
def test_a_catalogue_is_decoded_as_it_was_encoded(catalogue):
    assert decode(encode(catalogue)) == catalogue
    assert encode(decode(encode(catalogue))) == encode(catalogue)


def test_a_table_entry_gives_its_configuration_back():
    entry = decode(encode(full())).head.tables[0]
    assert entry.config().dim == 7
    assert entry.config().identity() == entry.identity


def test_another_format_is_a_mismatch():
    content = encode(full()).replace(b"EMBSTORE CATALOGUE 3 ", b"EMBSTORE CATALOGUE 4 ", 1)
    with pytest.raises(TableMismatchError, match="expected format 3, found 4"):
        decode(content)


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.pop("segments"),
        lambda fields: fields.update(unknown=1),
        lambda fields: fields["head"].pop("commit"),
        lambda fields: fields["head"]["tables"][0].pop("t"),
        lambda fields: fields.update(checkpoints=[3]),
    ],
)
def test_a_valid_checksum_over_other_fields_is_refused(change):
    head, _, body = encode(full()).partition(b"\n")
    fields = json.loads(body)
    change(fields)
    body = json.dumps(fields).encode()
    digest = hashlib.blake2b(body, digest_size=32).hexdigest().encode()
    with pytest.raises(CorruptTableError, match="unreadable"):
        decode(head.rsplit(b" ", 1)[0] + b" " + digest + b"\n" + body)


def test_intervals_lie_between_checkpoints():
    assert [full().interval(commit) for commit in range(3, 9)] == [0, 0, 1, 1, 2, 2]


def test_tables_of_every_kept_state_are_named():
    assert full().table_ids() == {0, 3}
    assert replace(full(), checkpoints=()).table_ids() == {3}


def test_restored_is_the_checkpoint_under_a_new_epoch():
    restored = full().restored(full().checkpoint("a"), command=33)
    assert (restored.epoch, restored.head.commit, restored.head.command) == (3, 4, 33)
    assert restored.head.tables == full().checkpoint("a").state.tables
    assert [c.label for c in restored.checkpoints] == ["a"]
    assert [s.number for s in restored.segments] == [3]
    assert [run[0].number for run in restored.runs] == [2]
    assert (restored.next_table_id, restored.next_segment) == (5, 17), "never given again"


def test_a_label_that_is_not_kept_is_none():
    assert full().checkpoint("c") is None
    assert full().checkpoint("b").state.command == 12


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
