"""A marker in a framework's file of weights, which stands for the rows that the file lacks.

A marker is JSON: the store's id, and t, the number of updates, of each table. When the file is
loaded, the marker is compared with the store's present state. A marker contains no digest:
computing a digest reads all rows that have changed, and frameworks request the states of modules
often (weight averaging does so at every step). A comparison by t does not detect rows that were set
without an update, by `assign` or an import.

The marker's length does not depend on t, because programs that average states add up the bytes of
markers.
"""

import json
import warnings
from collections.abc import Iterable
from typing import Any

from embstore.errors import EmbstoreError
from embstore.handles.store import Store

_DIGITS = 20
"""The number of digits of the largest possible t."""


def marker_of(store: Store | None, tables: Iterable[str]) -> bytes:
    """Return the marker of the tables' present state. If the store cannot be reached, the marker
    has no t."""
    here = _here(store, tables)
    text = json.dumps(here)
    padding = sum(_DIGITS - len(str(t)) for t in here["t"].values())
    return text.ljust(len(text) + padding).encode()


def warn_of_others(marker: bytes, store: Store | None, tables: Iterable[str]) -> None:
    """Warn if a marker shows that the tables' rows have changed since the marker was made."""
    try:
        saved = dict(json.loads(marker))
    except ValueError:  # it is an average of several markers, or was changed
        saved = {}
    here = _here(store, tables)
    if not here["t"] or not saved.get("t", True):
        return  # the store could not be reached
    others = [
        f"{name!r} (t {saved.get('t', {}).get(name, 'unknown')}, here {t})"
        for name, t in here["t"].items()
        if (saved.get("store"), saved.get("t", {}).get(name)) != (here["store"], t)
    ]
    if others:
        is_elsewhere = saved.get("store", here["store"]) != here["store"]
        of_store = ", of another store" if is_elsewhere else ""
        warnings.warn(
            f"the rows of {', '.join(others)} are not those that this state was saved "
            f"with{of_store}, because a state has no rows: save both by the module's save(label, "
            "...), and restore both by load(label, ...)",
            stacklevel=2,
        )


def _here(store: Store | None, tables: Iterable[str]) -> dict[str, Any]:
    try:
        facts = {} if store is None else store.table_facts()
    except EmbstoreError:
        facts = {}
    found = {name: facts[name].t for name in tables if name in facts}
    return {"store": store.store_id if store is not None else "", "t": found}
