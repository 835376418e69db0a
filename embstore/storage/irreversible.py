"""The part of a command in which an error cannot be refused any more: it fails the store."""

import errno
from contextlib import AbstractContextManager
from typing import Protocol

from embstore.errors import CapacityError, EmbstoreError, StorageError


class Failing(Protocol):
    """An open directory."""

    failure: EmbstoreError | None

    def fail(self, cause: EmbstoreError) -> None:
        """Refuse everything from now on."""


class Irreversible(AbstractContextManager[None]):
    """Entered around such a part, as often as wanted, also inside another.

    No generator: calls of few keys would notice it.
    """

    def __init__(self, contents: Failing) -> None:
        self._contents = contents

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        match exc:
            case None:
                return
            case CapacityError():
                # Too late to be refused: not a lack of room that making some would mend.
                text = f"no room in the middle of a command: {exc}"
                self._contents.fail(StorageError(errno.ENOSPC, text))
                assert self._contents.failure is not None
                raise self._contents.failure from exc
            case EmbstoreError():
                self._contents.fail(exc)
            case _:
                self._contents.fail(StorageError(errno.EIO, str(exc) or repr(exc)))
