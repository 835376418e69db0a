"""One flipped bit anywhere in the files of a store: an error, or exactly the right rows.

Flips are tried in a child process, because a bad map could end it (SIGBUS).
"""

import pytest

from tests.faults.damage import results, try_flips

PROPER = {"right", "CorruptTableError", "TableMismatchError"}


@pytest.mark.parametrize("kind", ["store.json", "CATALOGUE", ".log", ".rows", ".ids"])
def test_flipped_bit_is_an_error_or_harmless(forks, made, kind):
    path, expected = made
    came = results(forks, try_flips, str(path), kind, expected)
    wrong = {flip: what for flip, what in came.items() if what not in PROPER}
    assert not wrong
    assert set(came.values()) - {"right"}, "no flip was noticed"
