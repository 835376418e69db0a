"""Leaders and standbys of the tests, and what says that they have the same."""

from pathlib import Path
from typing import Any

from embstore.handles.store import Store
from embstore_client import connect
from tests.faults.forks import Forks
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S, until


def server(forks: Forks, path: Path, **options: Any) -> ForkedServer:
    """Return a server with a command log."""
    return ForkedServer(forks, path, **({"durability": "commands"} | options))


def connected(server: ForkedServer) -> Store:
    """Return a client of a server."""
    return connect(server.address, timeout_s=PATIENCE_S)


def standing(store: Store) -> dict[str, Any]:
    """Return what a server says that it is."""
    found: dict[str, Any] = store.stats()["standing"]
    return found


def contents(store: Store) -> dict[str, Any]:
    """Return what of a store has to be the same on its standbys."""
    tables = {name: store.table(name) for name in store.tables()}
    return {
        "command": store.command,
        "epoch": store.epoch,
        "checkpoints": [(c.label, c.metadata, c.state.command) for c in store.checkpoints()],
        "tables": {name: (t.digest(), t.t, t.rows, t.learning_rate) for name, t in tables.items()},
    }


def await_same(leader: Store, standby: Store) -> dict[str, Any]:
    """Wait until a standby has all commands of its leader, which gets no more; check that they have
    the same, and return it."""
    wanted = contents(leader)
    until(lambda: _state(standby) == (wanted["command"], wanted["epoch"]))
    until(lambda: len(standby.checkpoints()) == len(wanted["checkpoints"]))
    assert contents(standby) == wanted
    standby.check_integrity()
    return wanted


def _state(store: Store) -> tuple[int, int]:
    state = store.server_info().context
    return state.command, state.epoch
