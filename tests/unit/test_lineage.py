"""Who has replaced whom, and which files are the same in two stores."""

import pytest

from embstore.storage import lineage as lineages
from embstore.storage.files import Files
from embstore.storage.lineage import NO_NUMBER, Lineage, Promotion

A, B, C = (Promotion(name, n + 2, 10 * n, 100 * n) for n, name in enumerate("abc", 1))


def test_a_promoted_standby_has_replaced_its_leader():
    leader, standby = Lineage((A,)), Lineage((A,), below=50)
    promoted = standby.promoted(9, 7, "old:1", next_number=80)
    assert promoted.promotions[-1].first_number == 50  # what it wrote as a standby is its own
    assert promoted.promotions[-1].command == 7
    assert promoted.below is None
    assert leader.is_continued_by(promoted.promotions)
    assert not promoted.is_continued_by(leader.promotions)
    assert not promoted.is_continued_by(promoted.promotions)


def test_two_that_were_promoted_have_not_replaced_each_other():
    one, other = Lineage((A, B)), Lineage((A, C))
    assert not one.is_continued_by(other.promotions)
    assert not other.is_continued_by(one.promotions)
    assert one.common(other.promotions) == 1


@pytest.mark.parametrize(
    ("store", "leader", "below"),
    [
        (Lineage(), (), NO_NUMBER),  # a copy of the same directory
        (Lineage(below=7), (), 7),
        (Lineage(), (A,), 100),  # the old leader
        (Lineage(below=70), (A,), 70),
        (Lineage(below=170), (A,), 100),
        (Lineage((A,), below=250), (A, B), 200),
        (Lineage((A, C)), (A, B), 200),
        (Lineage((C,)), (B,), 200),
    ],
)
def test_files_below_a_number_are_the_same(store, leader, below):
    assert store.shared_below(leader) == below


def test_a_lineage_is_read_as_it_was_written(tmp_path):
    files = Files(tmp_path)
    assert lineages.read(files) == Lineage()
    for lineage in (Lineage((A, B), 3, "host:1", "c"), Lineage((A,))):
        lineages.write(files, lineage)
        assert lineages.read(files) == lineage
