"""What the demo asks of a store: the part of the object model that it uses.

An embedded `embstore.Store` and the client's store both have it, and the demo cannot tell which it
trains through; neither could a trainer.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from embstore.arrays import Keys, Rows
from embstore.config import Initializer, Optimizer


class Digested(Protocol):
    """A table's handle, as far as it is needed here."""

    def digest(self) -> str:
        """Return the digest of its content."""


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

    def stats(self) -> dict[str, Any]:
        """Return what the store is and did."""

    def checkpoint(self, label: str, metadata: Mapping[str, Any] | None = None) -> Any:
        """Make everything durable."""
