"""The store of a module, also of one that was copied or sent to another process.

A copy within the process has the same store. A module that is pickled carries the address of its
server and how it was connected to, but no token (EMBSTORE_TOKEN is asked where it arrives); it
connects when it is first used. An embedded store belongs to its process, so a module of one arrives
without any: `attach` gives it another.
"""

import threading
from typing import Any

from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.connecting import connect
from embstore_client.executor import RemoteExecutor
from embstore_client.shards.router import Router


class Connection:
    """A store, or the way to one. Any thread."""

    def __init__(self, store: Store | None, options: dict[str, Any] | None = None) -> None:
        """Have a store, or the arguments of `connect`; with neither, `store` raises."""
        self._lock = threading.Lock()
        self._store = store
        self._options = options
        if store is not None and isinstance(store.executor, RemoteExecutor | Router):
            self._options = store.executor.connected_by

    @property
    def store(self) -> Store:
        """The store, connected to now if it was not before.

        Raises
        ------
        InvalidArgumentError : the store that the module was made with was embedded in another
            process.
        What `connect` raises.
        """
        with self._lock:
            if self._store is None:
                if self._options is None:
                    raise InvalidArgumentError(
                        "expected a store: the module comes from a process that had its store "
                        "embedded; give it one by attach(store)"
                    )
                self._store = connect(**self._options)
            return self._store

    @property
    def connected(self) -> Store | None:
        """The store, if there is one by now."""
        return self._store

    @property
    def options(self) -> dict[str, Any] | None:
        """The arguments of `connect`, without a token; None: the store is embedded."""
        return self._options

    def __deepcopy__(self, memo: dict[int, Any]) -> "Connection":
        return self

    def __reduce__(self) -> tuple[type["Connection"], tuple[None, dict[str, Any] | None]]:
        return Connection, (None, self._options)
