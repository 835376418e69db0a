"""Leaders and standbys of the tests, and what says that they have the same."""

from pathlib import Path
from typing import Any

from embstore.handles.store import Store
from embstore.results import EPOCH_STEP
from embstore_client import connect
from tests.faults.forks import Forks
from tests.service.faults.ledger import gradients
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S, until


def server(forks: Forks, path: Path, **options: Any) -> ForkedServer:
    """Return a server with a command log."""
    return ForkedServer(forks, path, **({"durability": "commands"} | options))


class Pair:
    """A leader and its standby, which can be killed."""

    def __init__(self, forks: Forks, path: Path, **options: Any) -> None:
        self.leader = server(forks, path / "leader", **options)
        self.standby = server(forks, path / "standby", follow=self.leader.address)

    def start(self) -> None:
        """Start both."""
        self.leader.start()
        self.standby.start()

    def kill(self) -> None:
        """End both."""
        self.standby.kill()
        self.leader.kill()


def update(store: Store, *numbers: int) -> None:
    """Send some updates."""
    for n in numbers:
        store.update(gradients(n))


def connected(server: ForkedServer) -> Store:
    """Return a client of a server."""
    return connect(server.address, timeout_s=PATIENCE_S)


def is_promoted(epoch: int, times: int = 1) -> bool:
    """Return whether an epoch, of a store that began in epoch 1, has begun by so many promotions
    alone."""
    return epoch % EPOCH_STEP == 1 and epoch > times * EPOCH_STEP


def replication(store: Store) -> dict[str, Any]:
    """Return what a server says that it is."""
    found: dict[str, Any] = store.stats()["replication"]
    return found


def contents(store: Store) -> dict[str, Any]:
    """Return what of a store has to be the same on its standbys."""
    tables = {name: store.table(name) for name in store.tables()}
    return {
        "command": store.command,
        "epoch": store.epoch,
        "checkpoints": kept(store),
        "tables": {name: (t.digest(), t.t, t.rows, t.learning_rate) for name, t in tables.items()},
    }


def kept(store: Store) -> list[Any]:
    """Return the labels that a store keeps, which do not change its command number."""
    return [(c.label, c.metadata, c.command, c.protected) for c in store.checkpoints()]


def await_same(leader: ForkedServer, standby: ForkedServer) -> dict[str, Any]:
    """Wait until a standby has all commands of its leader, which gets no more; check that they have
    the same, and return it."""
    with connected(leader) as store, connected(standby) as copy:  # who have read nothing before
        wanted = contents(store)
        until(lambda: _state(copy) == (wanted["command"], wanted["epoch"]))
    with connected(standby) as copy:  # another epoch may have begun
        until(lambda: kept(copy) == wanted["checkpoints"])
        found = contents(copy)
        assert found == wanted, f"{found} is not {wanted}"
        copy.check_integrity()
        return wanted


def _state(store: Store) -> tuple[int, int]:
    state = store.server_info().context
    return state.command, state.epoch


def await_role(store: Store, **wanted: Any) -> dict[str, Any]:
    """Wait until a server says that it is so."""

    def found() -> dict[str, Any]:
        now = replication(store)
        return now if all(now[name] == value for name, value in wanted.items()) else {}

    made: dict[str, Any] = until(found)
    return made
