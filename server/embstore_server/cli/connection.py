"""The way to a server, and what commands ask of it: a part of the object model of `embstore.Store`.

Commands call `connected` through this module, so that a test can put an embedded store in its
place; it has the same methods.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from embstore.arrays import Keys, Rows
    from embstore.config import Initializer, Optimizer, TableConfig
    from embstore.frequency.hotset import HotSet
    from embstore.frequency.profile import Profile
    from embstore.results import Checkpoint, HotSetFacts

CONNECT_TIMEOUT_S = 5.0
"""A server that is there answers at once; a person who mistyped the address waits for this."""


class ServedTable(Protocol):
    """A table's handle; see `embstore.Table`."""

    @property
    def config(self) -> "TableConfig":
        """The whole configuration, with today's rows and learning rate."""

    def lookup(self, keys: "Keys") -> "Rows":
        """Return the rows of keys."""

    def update(self, keys: "Keys", gradients: "Rows") -> Any:
        """Apply gradients."""

    def digest(self) -> str:
        """Return the digest of the content."""

    def stats(self) -> dict[str, Any]:
        """Return the figures."""


class ServedStore(Protocol):
    """A server's store; see `embstore.Store`."""

    @property
    def device_facts(self) -> dict[str, Any]:
        """What the device is, its memory and versions."""

    def create_table(
        self,
        name: str,
        *,
        dim: int,
        rows: int,
        optimizer: "Optimizer",
        initializer: "Initializer",
        seed: int | None = None,
    ) -> ServedTable:
        """Make a table."""

    def table(self, name: str) -> ServedTable:
        """Return a table by name."""

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""

    def drop_table(self, name: str) -> int:
        """Forget a table; return the command number."""

    def checkpoint(self, label: str, metadata: Mapping[str, Any] | None = None) -> "Checkpoint":
        """Make everything durable."""

    def checkpoints(self) -> list["Checkpoint"]:
        """Return the kept checkpoints, oldest first."""

    def export_profile(self, *, source: str = "counted") -> "Profile":
        """Return what was counted, or imported."""

    def import_profile(
        self, profile: "Profile", *, rename: Mapping[str, str] | None = None
    ) -> None:
        """Rank rows by a profile."""

    def warm_cache(
        self, share: float = 0.7, *, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Bring the most frequent rows in; return how many."""

    def pin_hot_set(self, hot_set: "HotSet | None") -> "HotSetFacts":
        """Keep the rows of a hot set in the cache; None: of none."""

    def stats(self) -> dict[str, Any]:
        """Return what the store is and did."""


def connected(
    address: str, timeout_s: float, tls_ca: Path | None
) -> AbstractContextManager[ServedStore]:
    """Connect to a server; leaving the with block closes the connection.

    Raises
    ------
    DeadlineError : no server answered.
    InvalidArgumentError : this is no address.
    """
    from embstore_client import connect

    return connect(
        address,
        timeout_s=timeout_s,
        connect_timeout_s=min(timeout_s, CONNECT_TIMEOUT_S),
        label="embstore command line",
        tls_ca=tls_ca,
    )
