"""The choice between NumPy and the compiled twin: lazy, automatic, and open to tests."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embstore.arithmetic import choice, force, implementation, sum_by_key, sums, unique

ROOT = Path(__file__).parents[2]
KEYS = np.array([5, 3, 5])
VALUES = np.array([[1], [2], [4]], np.float32)


@pytest.fixture(autouse=True)
def undecided(monkeypatch):
    monkeypatch.setattr(choice, "_chosen", None)


def absent(name):
    raise ImportError(f"no {name}")


def run_in_new_process(program):
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_numpy_is_used_where_numba_is_absent():
    run_in_new_process(
        "import sys; sys.modules['numba'] = None\n"
        "import numpy, embstore.arithmetic as a\n"
        "assert a.unique(numpy.array([5, 3, 5]))[1].tolist() == [0, 1, 0]\n"
        "assert a.choice._chosen.unique is a.sums.unique"
    )


def test_compiled_is_used_where_numba_is_present():
    pytest.importorskip("numba")
    compiled = pytest.importorskip("embstore.arithmetic.compiled")
    unique_keys, inverse = unique(KEYS)
    assert choice._chosen.unique is compiled.unique
    assert unique_keys.tolist() == [5, 3]
    assert sum_by_key(inverse, 2, VALUES).tolist() == [[5], [2]]


def test_the_choice_is_made_once(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(choice._MODULES, "compiled", ("absent", "absent"))
        unique(KEYS)
    sum_by_key(unique(KEYS)[1], 2, VALUES)
    assert choice._chosen == implementation("numpy")


@pytest.mark.parametrize("name", ["numpy", "compiled"])
def test_force_holds_until_the_block_ends_also_by_an_error(name):
    pytest.importorskip("numba")
    with pytest.raises(ZeroDivisionError), force(name):
        unique_keys, inverse = unique(KEYS)
        assert choice._chosen == implementation(name)
        assert (choice._chosen.unique is sums.unique) == (name == "numpy")
        assert sum_by_key(inverse, 2, VALUES).tolist() == [[5], [2]]
        raise ZeroDivisionError
    assert choice._chosen is None
    assert unique_keys.tolist() == [5, 3]


def test_force_of_an_absent_implementation_changes_nothing(monkeypatch):
    monkeypatch.setitem(choice._MODULES, "compiled", ("absent", "absent"))
    with pytest.raises(ImportError), force("compiled"):
        pass
    assert choice._chosen is None
