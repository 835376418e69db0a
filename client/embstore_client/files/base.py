"""The state that a table must have so that a file of changes (`export_table` with `since`) fits.

A file of changes lacks the rows that were not written since the checkpoint. Therefore it records
the number of rows that the table had at the checkpoint. It also contains hashes of the weights of
some unchanged rows, sampled from the whole table. If a table has fewer rows, or other rows at the
sampled keys, the file does not fit the table.
"""

from collections.abc import Set
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore.handles.scan import BATCH_BYTES, Scan
from embstore.handles.table import Table
from embstore.layout import VALUE_BYTES
from embstore_client.files.file_origin import FileOrigin

_SAMPLES = 64


def sample(base: Scan, changes: Scan, deleted: Keys) -> dict[str, str]:
    """Return hashes of some rows of the scan `base`, by key. Rows in the scan of later changes, and
    deleted rows, are left out."""
    found, gone = {}, set(deleted.tolist())
    end = base.rows if base.config.is_sparse else base.config.rows
    for low in np.linspace(0, end, _SAMPLES, endpoint=False, dtype=np.int64):
        keys, weights = base.page(int(low), 1)[:2]
        if len(keys):
            found[int(keys[0])] = _hash(weights[0])
    gone.update(_written(changes, found.keys()))
    return {str(key): of for key, of in found.items() if key not in gone}


def _written(changes: Scan, keys: Set[int]) -> set[int]:
    """Return those of the given keys that have rows in a scan. As sparse keys have no order, all
    keys of the scan are read."""
    if not changes.config.is_sparse:
        return {key for key in keys if key in changes.page(key, 1)[0]}
    found, low, rows = set[int](), 0, max(BATCH_BYTES // (VALUE_BYTES * changes.config.dim), 1)
    while len((page := changes.read(low, rows)).keys):
        found.update(keys & set(page.keys.tolist()))
        low = page.after
    return found


def check_base(table: Table, about: FileOrigin) -> None:
    """Raise InvalidArgumentError if a file of changes does not fit this table."""
    with table.scan() as scan:
        written = scan.rows
    keys = list(map(int, about.since_sample))
    rows = table.lookup(keys, admit=False)
    least = about.since_rows - len(about.deleted_keys)  # a repeated import may have deleted them
    if written < least or list(map(_hash, rows)) != [*about.since_sample.values()]:
        raise InvalidArgumentError(
            f"the file has only the rows written since checkpoint {about.since!r}: expected table "
            f"{table.name!r} as it was then, with {about.since_rows} rows, found {written} rows, "
            "or different ones; import the file before it first"
        )


def _hash(row: NDArray[np.float32]) -> str:
    return blake2b(row.tobytes(), digest_size=8).hexdigest()
