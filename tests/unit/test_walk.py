"""How far a call walks: how often it comes back to a file that it has left, and by how many calls.

A reader who follows a call turns as many pages. Counted as `sys.setprofile` sees functions of the
product begin, of a call of 1,000 keys: of an embedded store; of a client, on its caller's thread.
"""

import sys
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import embstore
import embstore_client
import embstore_proto
from embstore import RowWiseAdagrad, Uniform
from tests.serving import Server, patient

ROOT = str(Path(embstore.__file__).parent)
ROOTS = ROOT, *(str(Path(module.__file__).parent) for module in (embstore_client, embstore_proto))
KEYS = np.random.default_rng(0).integers(0, 999_000, 1000)
GRADIENTS = np.ones((1000, 16), np.float32)


def called(call, roots):
    """Return the file of each function of the product that a call begins on this thread."""
    files = []

    def note(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(roots):
            files.append(file)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert files, "the product was called"
    return files


def returns(call):
    """Return how often a call begins a function of a file that it was in before the last one."""
    files = [file for file, _ in groupby(called(call, ROOT))]
    return len(files) - len(set(files))


def warm(store, name):
    """Return a table, whose rows of KEYS are in the cache."""
    table = store.create_table(
        name, dim=16, rows=1_000_000, optimizer=RowWiseAdagrad(0.01),
        initializer=Uniform(-0.01, 0.01),
    )  # fmt: skip
    for _ in range(3):
        table.lookup(KEYS)
        table.update(KEYS, GRADIENTS)
    return table


@pytest.fixture
def table(tmp_path):
    with embstore.open(tmp_path / "store") as store:
        yield warm(store, "a")


def test_a_lookup_and_an_update_come_back_to_few_files(table):
    """The least of some calls: one may have found something due, such as another split."""
    assert min(returns(lambda: table.lookup(KEYS)) for _ in range(3)) <= 6
    missing = min(returns(partial(table.lookup, KEYS + more)) for more in (1, 2, 3))
    assert missing <= 32, "rows were missing"
    assert min(returns(lambda: table.update(KEYS, GRADIENTS)) for _ in range(3)) <= 30


def test_a_client_makes_few_calls_for_one(tmp_path):
    with Server(lambda: embstore.open(tmp_path / "store"), tmp_path / "store") as server:
        for address, most in {server.address: (95, 100), f"unix:{server.socket}": (82, 92)}.items():
            with patient(address) as store:
                table = warm(store, "a")
                lookup, update = partial(table.lookup, KEYS), partial(table.update, KEYS, GRADIENTS)
                assert len(called(lookup, ROOTS)) <= most[0], address
                assert len(called(update, ROOTS)) <= most[1], address
