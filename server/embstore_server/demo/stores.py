"""What the demo asks of a store: the part of the object model that it uses.

An embedded `embstore.Store` and the client's store both have it, and the demo cannot tell which it
trains through; neither could a trainer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from embstore.arrays import Keys, Rows
from embstore.config import Initializer, Optimizer
from embstore.frequency.profile import Profile


class Digested(Protocol):
    """A table's handle, as far as it is needed here."""

    def digest(self) -> str:
        """Return the digest of its content."""


class TrainingStep(Protocol):
    """A step of training, in a session or not."""

    @property
    def batch(self) -> Any:
        """Return what it trains on."""

    def lookup(self) -> dict[str, Rows]:
        """Return a row for each key of the batch, in its order: (n, dim) by table."""

    def update(self, gradients: Mapping[str, Rows]) -> Any:
        """Apply a gradient for each key of the batch, (n, dim) by table."""


class TrainingRun(Protocol):
    """A session that is entered."""

    def steps(
        self, batches: Iterable[Any], keys: Callable[[Any], Mapping[str, Keys]]
    ) -> Iterator[TrainingStep]:
        """Yield a step for each batch, announced ahead."""


class LiveSessions(Protocol):
    """The sessions that are open."""

    def facts(self) -> list[dict[str, Any]]:
        """Return what each is, and did."""


class TrainingStore(Protocol):
    """A store to train through; see `embstore.Store` for what its methods do."""

    def create_table(
        self, name: str, *, dim: int, rows: int, optimizer: Optimizer, initializer: Initializer
    ) -> Any:
        """Make a table."""

    def table(self, name: str) -> Digested:
        """Return a table by name."""

    def lookup(self, keys: Mapping[str, Any], *, admit: bool = True) -> dict[str, Rows]:
        """Return the rows of several tables."""

    def update(self, gradients: Mapping[str, tuple[Keys, Rows]]) -> Any:
        """Apply one update to several tables."""

    def session(
        self, tables: Sequence[str], *, lookahead: int
    ) -> AbstractContextManager[TrainingRun]:
        """Return a session to enter; while it is open it is the tables' only writer."""

    @property
    def sessions(self) -> LiveSessions:
        """Return the sessions that are open."""

    def import_profile(self, profile: Profile) -> None:
        """Rank the rows of the tables by a profile."""

    def warm_cache(
        self, share: float, *, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Bring the most frequent rows into a share of the cache, and return how many."""

    def stats(self) -> dict[str, Any]:
        """Return what the store is and did."""

    def checkpoint(self, label: str, metadata: Mapping[str, Any] | None = None) -> Any:
        """Make everything durable."""
