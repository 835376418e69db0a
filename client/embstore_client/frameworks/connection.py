"""The store of a module, even after the module was copied or sent to another process, or the
process was forked.

A copy within the process uses the same store. A pickled module carries the address of its server
and the options of its connection, but no token: the process that unpickles the module reads
EMBSTORE_TOKEN. The module connects when it is first used. An embedded store belongs to its process.
Therefore a module that used an embedded store arrives without a store; `attach` gives it one.

**A forked process**, such as a worker of a DataLoader, inherits the module and the parent's
connection, whose threads do not exist in the child, and whose sockets are shared. The child does
not use that connection; it connects anew when the module is first used. If the parent shares memory
with the server, the child does too. That path needs no gRPC, which is sensitive to forks: a new
channel works in a child only if gRPC's fork handlers run, as they do by default.
"""

import os
import threading
from typing import Any
from weakref import WeakSet

from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.connecting import connect
from embstore_client.executor import RemoteExecutor
from embstore_client.shards.router import Router

_NO = {"0", "f", "false", "n", "no"}
_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"


class Connection:
    """A store, or the arguments to connect to one. Any thread may use it."""

    def __init__(self, store: Store | None, options: dict[str, Any] | None = None) -> None:
        """Keep a store, or the arguments of `connect`. If both are None, reading `store` raises an
        error."""
        self._lock = threading.Lock()
        self._store = store
        self._options = options
        if store is not None and isinstance(store.executor, RemoteExecutor | Router):
            self._options = store.executor.connected_by
        self._parents: Store | None = None  # Set in a forked process, and never closed.
        _connections.add(self)

    @property
    def store(self) -> Store:
        """The store. Reading it connects if there is no connection yet.

        Raises
        ------
        InvalidArgumentError : the module was made with a store that was embedded in another
            process; or this process was forked, and gRPC's fork handlers are turned off.
        The errors of `connect`.
        """
        with self._lock:
            if self._store is None:
                if self._options is None:
                    raise InvalidArgumentError(
                        "expected a store, found none: the module was copied from a process with "
                        "an embedded store; give it one by attach(store)"
                    )
                self._store = connect(**self._way(self._options))
            return self._store

    def _way(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of `connect` that work in this process."""
        executor = None if self._parents is None else self._parents.executor
        if executor is None:
            return options
        if isinstance(executor, RemoteExecutor) and executor.transport.wire.shares_memory:
            if executor.info is not None and executor.info.socket:
                return {**options, "address": f"unix:{executor.info.socket}"}
        elif os.environ.get(_FORK_SUPPORT, "").lower() in _NO:
            raise InvalidArgumentError(
                f"{_FORK_SUPPORT}={os.environ[_FORK_SUPPORT]} is set, and gRPC then does not work "
                "in a forked process: unset it, or start the process by "
                'multiprocessing_context="spawn"'
            )
        return options

    def forked(self) -> None:
        """Reset the connection, in a process that was forked."""
        self._lock = threading.Lock()  # another thread may have held the lock
        if self._store is not None and self._options is not None:
            self._parents, self._store = self._store, None

    @property
    def connected(self) -> Store | None:
        """The store, or None if there is no connection yet."""
        return self._store

    @property
    def options(self) -> dict[str, Any] | None:
        """The arguments of `connect`, without a token. None: the store is embedded."""
        return self._options

    def __deepcopy__(self, memo: dict[int, Any]) -> "Connection":
        return self

    def __reduce__(self) -> tuple[type["Connection"], tuple[None, dict[str, Any] | None]]:
        return Connection, (None, self._options)


_connections: "WeakSet[Connection]" = WeakSet()


def _forked() -> None:
    for connection in list(_connections):
        connection.forked()


os.register_at_fork(after_in_child=_forked)
