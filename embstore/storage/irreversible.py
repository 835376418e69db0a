"""The part of a command that can no longer be refused: an error in it fails the store."""

import errno
from contextlib import AbstractContextManager
from typing import Protocol

from embstore.errors import CapacityError, EmbstoreError, StorageError


class Failing(Protocol):
    """An open directory, which an error can make unusable."""

    failure: EmbstoreError | None

    def fail(self, cause: EmbstoreError) -> None:
        """Refuse every further operation."""


class Irreversible(AbstractContextManager[None]):
    """A context manager around the part of a command in which an error fails the store.

    It can be entered any number of times, also nested. It is a class and not a generator, because a
    generator would slow down calls of few keys measurably.
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
                # Too late to refuse the command: freeing space would not mend the store.
                text = f"no room in the middle of a command: {exc}"
                self._contents.fail(StorageError(errno.ENOSPC, text))
                assert self._contents.failure is not None
                raise self._contents.failure from exc
            case EmbstoreError():
                self._contents.fail(exc)
            case _:
                self._contents.fail(StorageError(errno.EIO, str(exc) or repr(exc)))
