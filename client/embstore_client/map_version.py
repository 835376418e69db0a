"""By which map of a cluster the calls of this thread were split: what a wire says of each of them.

It goes with a call as its trace does, beside the message: in the metadata of gRPC, in a frame of
shared memory. So it is said of every verb alike, and of every attempt.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_VERSION: ContextVar[int] = ContextVar("embstore_map_version", default=0)


@contextmanager
def split_by(version: int) -> Iterator[None]:
    """Send the calls of this thread as split by the map of this version; 0: by none."""
    before = _VERSION.set(version)
    try:
        yield
    finally:
        _VERSION.reset(before)


def current() -> int:
    """Return the version that a call is to name; 0: none."""
    return _VERSION.get()
