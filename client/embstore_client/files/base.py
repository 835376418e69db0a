"""What a file of changes (`export_table` with `since`) has to be put on top of.

Such a file has not the rows that nobody wrote since. So it says how many rows the table had at the
checkpoint, and of some that are as they were there, from all over the table, a hash of the weights.
A table that has fewer rows, or others in these places, is not what the file continues.
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore.handles.scan import Scan
from embstore.handles.table import Table
from embstore_client.files.about import About

_SAMPLES = 64


def sample(base: Scan, changes: Scan, deleted: Keys) -> dict[str, str]:
    """Return hashes of rows of a scan, by key, that another one, of what came later, has not, and
    that were not deleted."""
    found, gone = {}, set(deleted.tolist())
    for low in np.linspace(0, base.config.rows, _SAMPLES, endpoint=False, dtype=np.int64):
        keys, weights = base.page(int(low), 1)[:2]
        if len(keys) and keys[0] not in gone and keys[0] not in changes.page(int(keys[0]), 1)[0]:
            found[str(keys[0])] = _hash(weights[0])
    return found


def check_base(table: Table, about: About) -> None:
    """Refuse a table that a file of changes does not continue. Raises InvalidArgumentError."""
    with table.scan() as scan:
        written = scan.rows
    keys = list(map(int, about.since_sample))
    rows = table.lookup(keys, admit=False)
    least = about.since_rows - len(about.deleted_keys)  # an import that was cut off is done again
    if written < least or list(map(_hash, rows)) != [*about.since_sample.values()]:
        raise InvalidArgumentError(
            f"expected table {table.name!r} as it was at checkpoint {about.since!r}, with "
            f"{about.since_rows} rows, found {written} rows, or others: the file has what was "
            "written since; import what comes before it first"
        )


def _hash(row: NDArray[np.float32]) -> str:
    return blake2b(row.tobytes(), digest_size=8).hexdigest()
