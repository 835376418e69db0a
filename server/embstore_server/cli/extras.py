"""Optional packages: the error that names the extra to install if a package is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from embstore.errors import EmbstoreError
from embstore.version import pip_install


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Turn the error about a missing package into one that names the extra; also a decorator."""
    try:
        yield
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if missing.startswith("embstore"):
            raise
        raise EmbstoreError(
            f"this command needs {missing}, which is not installed: {pip_install(extra)}"
        ) from None
