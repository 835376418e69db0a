"""Access of this process to the device of a store, for rows that need not pass through the host."""

from typing import Any

from embstore.commands import Executor
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.handles.lent import LentDevice


class Reach:
    """Methods of `Sessions` that tell in which memory the rows of steps can be. Any thread can call
    them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def is_embedded(self) -> bool:
        """Whether the store is in this process, so that arrays are passed and not sent."""
        return self._executor.is_embedded

    @property
    def reaches_device(self) -> bool:
        """Whether rows of steps can be `on_device`. If the store has a server, this calls the
        server."""
        return self.reaches()

    def reaches(self, name: str | None = None) -> bool:
        """Return whether rows of steps can be `on_device`, on the device that this process calls
        `name` ("cuda:1"); None: by any name. If the store has a server, this calls the server."""
        try:
            self.check_device(name)
        except (InvalidArgumentError, CapacityError):
            return False
        return True

    def check_device(self, name: str | None = None) -> None:
        """Raise an error with the reason if `reaches` is False.

        Raises
        ------
        InvalidArgumentError : this process cannot use the store's device, or calls it by another
            name.
        CapacityError : the server's driver or container exports no memory, or no memory is left.
        """
        self._executor.check_device(name)

    def lend_device(self) -> LentDevice:
        """Return the device of a store in this process, on which a trainer can keep its own rows.

        Raises
        ------
        InvalidArgumentError : the store is in another process.
        """
        if not self.is_embedded:
            raise InvalidArgumentError(
                "expected a store in this process, whose device a trainer may use, found one in "
                "another"
            )
        engine: Any = self._executor
        lent: LentDevice = engine.lend_device()
        return lent

    @property
    def rounds_rows(self) -> bool:
        """Whether rows of steps arrive rounded to a 16-bit type."""
        return self._executor.rounds_rows
