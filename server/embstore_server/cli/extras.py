"""Packages that a command needs beyond the base: the message that names their extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from embstore.errors import EmbstoreError
from embstore.version import pip_install


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Say which extra to install where a package that it brings is missing; also a decorator."""
    try:
        yield
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if missing.startswith("embstore"):
            raise
        raise EmbstoreError(
            f"this command needs {missing}, which is not installed: {pip_install(extra)}"
        ) from None
