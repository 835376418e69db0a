"""Which tests are slow: names that are there, and of each case of conformance the same share."""

from collections import Counter

from tests.conftest import COMPLETE_BACKEND, OTHER_BACKENDS, marks, slow_tests
from tests.style.sources import ROOT


def test_every_slow_test_is_there():
    for name in slow_tests((ROOT / "tests" / "slow.txt").read_text("utf-8")):
        path, _, function = name.partition("::")
        assert f"def {function}" in (ROOT / path).read_text("utf-8"), name


def test_a_case_of_conformance_is_not_complete_on_two_backends():
    for case in range(20):
        name = f"tests/conformance/test_any.py::test_one[{{}}-{case}]"
        found = Counter(marks(name.format(one), {}) for one in ("embedded", *OTHER_BACKENDS))
        assert found == {(): 2, ("slow", "complete"): 5}
        assert marks(name.format(COMPLETE_BACKEND), {}) == ("slow", "complete")


def test_half_of_the_variants_of_sparse_tables_are_quick_and_half_slow_on_another_backend():
    found = Counter()
    for case in range(600):
        name = f"tests/conformance/test_any.py::test_one[{{}}-sparse-{case}]"
        assert marks(name.format(COMPLETE_BACKEND), {}) == ("slow", "complete")
        found["embedded", marks(name.format("embedded"), {})] += 1
        others = Counter(marks(name.format(one), {}) for one in OTHER_BACKENDS)
        assert others[("slow", "complete")] >= 5 and others[()] == 0
        found["another", others[("slow",)]] += 1
    assert 250 < found["embedded", ()] < 350, found
    assert found["embedded", ()] + found["embedded", ("slow",)] == 600, found
    assert 250 < found["another", 1] < 350, found


def test_of_a_slow_test_every_nth_case_is_quick_and_every_mth_of_the_others_not_complete():
    names = [f"tests/unit/test_any.py::test_one[{case}]" for case in range(600)]
    found = Counter(marks(name, {"tests/unit/test_any.py::test_one": (3, 2)}) for name in names)
    assert all(150 < count < 250 for count in found.values()), found
    none = {"tests/unit/test_any.py::test_one": (0, 0)}
    assert {marks(name, none) for name in names} == {("slow", "complete")}
