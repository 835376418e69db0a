"""How many hashed ids share rows, against ids that are hashed."""

from collections import Counter

import numpy as np
import pytest

from embstore import hash_ids
from embstore_tools.profiling.sharing import ids_of_rows, rows_of_ids, share_with_others


@pytest.mark.parametrize(("ids", "rows"), [(1000, 1_000_000), (20_000, 30_000), (50_000, 20_000)])
def test_hashed_ids_share_rows_as_expected(ids, rows):
    keys = hash_ids(np.arange(ids), feature="ad", rows=rows).tolist()
    counts = Counter(keys)
    spread = np.sqrt(ids)
    assert rows_of_ids(ids, rows) == pytest.approx(len(counts), abs=spread)
    sharing = sum(counts[key] > 1 for key in keys)
    assert ids * share_with_others(ids, rows) == pytest.approx(sharing, abs=4 * spread)
    assert ids_of_rows(round(rows_of_ids(ids, rows)), rows) == pytest.approx(ids, rel=0.01)


def test_few_rows_and_no_ids():
    assert rows_of_ids(0, 9) == share_with_others(0, 9) == share_with_others(1, 9) == 0
    assert rows_of_ids(5, 1) == share_with_others(5, 1) == 1
    assert ids_of_rows(0, 9) == 0
    assert ids_of_rows(9, 9) is ids_of_rows(1, 1) is None
