"""What a loop of a module did over its steps, in a file for `embstore report`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from embstore.errors import EmbstoreError
from embstore.handles.store import Store
from embstore_training.history import RunHistory


@contextmanager
def reporting(
    store: Store, run: Any, path: str | os.PathLike[str] | None
) -> Iterator[Callable[[], object]]:
    """Yield what is to be called after each step of a run; write the file at the end, also of a
    loop that was left early, or failed. None: no file is written, and the store is not asked."""
    if path is None:
        yield lambda: None
        return
    history = RunHistory(store, run)
    try:
        yield history.note
    except BaseException:
        with suppress(EmbstoreError, OSError):  # as the store may be what has failed
            history.save(path)
        raise
    history.save(path)
