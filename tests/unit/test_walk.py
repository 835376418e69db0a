"""How far a call walks: how often it comes back to a file that it has left.

A reader who follows a call turns as many pages. Counted as `sys.setprofile` sees functions of the
product begin, of a call of 1,000 keys of an embedded store.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform

ROOT = str(Path(embstore.__file__).parent)
KEYS = np.random.default_rng(0).integers(0, 999_000, 1000)
GRADIENTS = np.ones((1000, 16), np.float32)


def returns(call):
    """Return how often a call begins a function of a file that it was in before the last one."""
    files = []

    def note(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(ROOT) and file not in files[-1:]:
            files.append(file)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert files, "the product was called"
    return len(files) - len(set(files))


@pytest.fixture
def table(tmp_path):
    with embstore.open(tmp_path / "store") as store:
        table = store.create_table(
            "a", dim=16, rows=1_000_000, optimizer=RowWiseAdagrad(0.01),
            initializer=Uniform(-0.01, 0.01),
        )  # fmt: skip
        for _ in range(3):
            table.lookup(KEYS)
            table.update(KEYS, GRADIENTS)
        yield table


def test_a_lookup_and_an_update_come_back_to_few_files(table):
    assert returns(lambda: table.lookup(KEYS)) <= 6
    assert returns(lambda: table.lookup(KEYS + 1)) <= 32, "rows were missing"
    assert returns(lambda: table.update(KEYS, GRADIENTS)) <= 30
