"""Optional packages: the error that names the extra to install if a package is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from embstore.errors import EmbstoreError
from embstore.version import pip_install


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Turn an error about a missing package into an error that names the extra. This is also a
    decorator."""
    try:
        yield
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if missing.startswith("embstore"):
            raise
        raise EmbstoreError(
            f"this command needs {missing}, which is not installed: {pip_install(extra)}"
        ) from None
