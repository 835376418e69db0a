"""Which checkpoints are kept."""

import pytest

from embstore.results import State
from embstore.storage.labels import FOLDERS_MAX, SPARE, still_kept, without_old
from embstore.storage.states import KeptState


def made(*labels: str, keep: int = 2) -> list[str]:
    """Return the labels that are kept after checkpoints of these, one after the other."""
    checkpoints: tuple[KeptState, ...] = ()
    for label in labels:
        checkpoints = still_kept((*checkpoints, KeptState(label, {}, State())), keep)
    return [one.label for one in checkpoints]


def test_the_last_ones_of_each_folder_are_kept_in_their_order():
    assert made("1", "2", "3") == ["2", "3"]
    assert made("a/1", "1", "a/2", "2", "3", "a/3") == ["a/2", "2", "3", "a/3"]


def test_nobody_pushes_out_anothers_nor_what_has_a_folder_of_its_own():
    mine = ("ads/best/1", "ads/nightly/1")
    others = [f"b/{n}" for n in range(9)] + [f"ads/nightly/{n}" for n in range(2, 9)]
    assert made(*mine, *others) == ["ads/best/1", "b/7", "b/8", "ads/nightly/7", "ads/nightly/8"]


def test_a_namespace_has_so_many_folders_and_the_oldest_goes():
    folders = [f"a/{n}/x" for n in range(FOLDERS_MAX)]
    assert made("b/x", *folders) == ["b/x", *folders]
    assert made("b/x", *folders, "a/0/y", "a/new/x") == [
        *("b/x", "a/0/x", *folders[2:], "a/0/y", "a/new/x")
    ]


def test_protected_ones_stay_and_take_no_place():
    """Nor does a folder of nothing else count as one of its namespace's."""
    folders = [f"a/{n}/x" for n in range(FOLDERS_MAX + 1)]
    protected = {"1", "a/0/x", "a/kept/x"}
    checkpoints: tuple[KeptState, ...] = ()
    for label in ("1", "a/kept/x", *folders, "2", "3", "4"):
        one = KeptState(label, {}, State(), protected=label in protected)
        checkpoints = still_kept((*checkpoints, one), 2)
    assert [one.label for one in checkpoints] == ["1", "a/kept/x", *folders, "3", "4"]


def test_a_stand_in_pushes_out_nothing_while_its_label_is_kept():
    folders = [f"a/{n}/x" for n in range(FOLDERS_MAX)]
    assert made(*folders, "a/7/x/replacing") == [*folders, "a/7/x/replacing"]
    assert made("a/1", "a/2", "a/2/replacing") == ["a/1", "a/2", "a/2/replacing"]
    assert made("a/1", "a/2/replacing") == ["a/1", "a/2/replacing"]  # in the folder of its label
    assert made("a/1", "a/2/replacing", "a/3") == ["a/2/replacing", "a/3"]


def states(*labels: str) -> list[KeptState]:
    return [KeptState(label, {}, State()) for label in labels]


def test_a_shard_keeps_some_more_until_it_knows_which_are_complete():
    labels = [f"a/{n}/{label}" for n in range(FOLDERS_MAX + SPARE + 1) for label in "stuvwxyz"]
    kept = [one.label for one in still_kept(states(*labels), 2, spare=SPARE)]
    assert kept == [one for one in labels if one[:4] != "a/0/" and one[-1] not in "st"]


@pytest.mark.parametrize(
    ("labels", "complete", "kept"),
    [
        ("abc", "abc", "bc"),
        ("abxc", "abc", "bxc"),
        ("abxyc", "abc", "byc"),
        ("xabc", "abc", "bc"),
        ("abxyz", "ab", "abyz"),
        ("abc", "", "bc"),
        ("abc", "c", "bc"),
    ],
)
def test_complete_ones_are_pushed_out_by_complete_ones(labels, complete, kept):
    assert [one.label for one in without_old(states(*labels), complete, 2)] == [*kept]
