"""What every device lays out alike: the buckets of an index, and the form of a segment's gradients.

An index has buckets of 8 keys, one cache line, at a load of at most two thirds, and a stash for the
keys whose two buckets are full; each place takes a key (8 bytes) and a slot (4).
"""

from embstore.arithmetic.compiled import DIVIDED, PLAIN, WEIGHTED
from embstore.device.base import Gradients
from embstore.kernels.probe import BUCKET_WIDTH

STASH_KEYS = 256
_PLACE_BYTES = 8 + 4


def bucket_count(slot_count: int) -> int:
    """Return the buckets of an index of so many slots."""
    return max(1, -(-3 * slot_count // (2 * BUCKET_WIDTH)))


def index_bytes(slot_count: int) -> int:
    """Return the bytes of an index of so many slots: buckets, stash, and the stash's count."""
    return (bucket_count(slot_count) * BUCKET_WIDTH + STASH_KEYS) * _PLACE_BYTES + 8


def form_of(gradients: Gradients) -> int:
    """Return what an occurrence adds: PLAIN, WEIGHTED or DIVIDED."""
    if gradients.coefficients is None:
        return PLAIN
    return DIVIDED if gradients.divide else WEIGHTED
