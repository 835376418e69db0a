"""Which tests are slow: names that are there, and of each case of conformance the same share."""

from collections import Counter

from tests.conftest import OTHER_BACKENDS, marks, slow_tests
from tests.style.sources import ROOT


def test_every_slow_test_is_there() -> None:
    for name in slow_tests((ROOT / "tests" / "slow.txt").read_text("utf-8")):
        path, _, function = name.partition("::")
        assert f"def {function}" in (ROOT / path).read_text("utf-8"), name


def test_a_case_of_conformance_is_quick_on_two_backends_and_slow_on_two_more() -> None:
    for case in range(20):
        name = f"tests/conformance/test_any.py::test_one[{{}}-{case}]"
        found = Counter(marks(name.format(one), {}) for one in ("embedded", *OTHER_BACKENDS))
        assert found == {(): 2, ("slow",): 2, ("slow", "complete"): 3}


def test_of_a_slow_test_every_nth_case_stays() -> None:
    names = [f"tests/unit/test_any.py::test_one[{case}]" for case in range(300)]
    assert 50 < sum(not marks(name, {"tests/unit/test_any.py": 3}) for name in names) < 150
    assert all(marks(name, {"tests/unit/test_any.py::test_one": 0}) for name in names)
