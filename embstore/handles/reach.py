"""How far this process reaches into a store: its device, for rows that need not pass the host."""

from typing import Any

from embstore.commands import Executor
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.handles.lent import LentDevice


class Reach:
    """Answers where rows of steps may be, which `Sessions` inherit. Any thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def is_embedded(self) -> bool:
        """Whether the store is in this process: arrays are passed, and not sent."""
        return self._executor.is_embedded

    @property
    def reaches_device(self) -> bool:
        """Whether rows of steps may be `on_device`; a server is asked."""
        return self.reaches()

    def reaches(self, name: str | None = None) -> bool:
        """Return whether rows of steps may be `on_device`, and whether this process knows that
        device by this name ("cuda:1"); None: by any name. A server is asked."""
        try:
            self.check_device(name)
        except (InvalidArgumentError, CapacityError):
            return False
        return True

    def check_device(self, name: str | None = None) -> None:
        """Raise InvalidArgumentError, which says why, where `reaches` is False; CapacityError: the
        driver or the container of the server exports no memory, or there is none left."""
        self._executor.check_device(name)

    def lend_device(self) -> LentDevice:
        """Return the device of a store in this process, for rows that its trainer has there.

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
        """Whether rows of steps come rounded."""
        return self._executor.rounds_rows
