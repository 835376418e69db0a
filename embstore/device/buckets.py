"""The size of an index, which is the same on every device.

An index has buckets, each with places for 8 keys (one cache line). At most two thirds of all places
are taken. Keys whose two buckets are full are in a stash. Each place of a bucket or of the stash
contains a key and a slot.
"""

from embstore.kernels.probe import BUCKET_WIDTH

STASH_KEYS = 256
KEY_BYTES, SLOT_BYTES = 8, 4
_STASH_COUNT_BYTES = 8


def bucket_count(slot_count: int) -> int:
    """Return the number of buckets of an index of `slot_count` slots."""
    return max(1, -(-3 * slot_count // (2 * BUCKET_WIDTH)))


def index_bytes(slot_count: int) -> int:
    """Return the bytes of an index of `slot_count` slots: buckets, stash, and the stash's count."""
    places = bucket_count(slot_count) * BUCKET_WIDTH + STASH_KEYS
    return places * (KEY_BYTES + SLOT_BYTES) + _STASH_COUNT_BYTES
