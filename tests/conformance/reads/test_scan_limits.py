"""Limits of open scans: their number, and the bytes that they hold."""

import numpy as np
import pytest

from embstore.config import Limits
from embstore.engine import scan_places
from embstore.errors import CapacityError
from tests.conformance.cases import engine_of, ones


def test_many_scans(open_table, monkeypatch):
    twin, table = open_table()
    twin.on("a", "update", np.arange(9), ones(9))
    monkeypatch.setattr(scan_places, "SCANS_MAX", 3)
    some = [table.scan() for _ in range(3)]
    with pytest.raises(Exception, match="3 scans are open: close one"):
        table.scan()
    some[0].close()
    assert sum(len(keys) for keys, _ in table.scan()) == 9


@pytest.mark.needs("one_store")
def test_the_bytes_of_scans_have_a_bound(open_table):
    """24 for each row in the log, and again for each row of the piece that is read; the only scan
    is let through, however much that is."""
    twin, table = open_table(limits=Limits(scan_bytes_max=3 * 48 * 20))
    twin.on("a", "update", np.arange(20), ones(20))
    places = engine_of(twin.store).scans.places
    some = [table.scan() for _ in range(3)]
    assert places.used() == (3, 3 * 48 * 20)
    with pytest.raises(CapacityError, match=r"limits.scan_bytes_max \(2880\): close one"):
        table.scan()
    assert places.used() == (3, 3 * 48 * 20)
    some.pop().close()
    assert [len(keys) for keys, _ in table.scan()] == [20]
    assert places.used() == (2, 2 * 48 * 20)
    for scan in some:
        scan.close()
    twin.on("a", "update", np.arange(100), ones(100))
    assert [len(keys) for keys, _ in table.scan()] == [100]
    assert places.used() == (0, 0)
