"""The vectors of hashed ids in docs/contract.md: which ids they are of."""

from typing import NamedTuple

WHOSE_HASH_IS_RESERVED = 9578603597565453518


class HashedId(NamedTuple):
    """An id, and how it is hashed."""

    value: str | int
    feature: str | None = None
    rows: int | None = None


_TEXTS = "", "5", "ü", "68fd1e64", "user_00000001"
_LENGTHS = 17, 128, 129, 240, 241, 1025
_INTEGERS = 0, 5, -1, 2**63

HASHED: dict[str, list[HashedId]] = {
    "hash of text": [HashedId(text) for text in _TEXTS],
    "hash of text, user": [HashedId(text, "user") for text in _TEXTS],
    "hash of long text, user": [HashedId("x" * length, "user") for length in _LENGTHS],
    "hash of integers": [HashedId(number) for number in _INTEGERS],
    "hash of integers, user": [HashedId(number, "user") for number in _INTEGERS],
    "hash not given": [HashedId(WHOSE_HASH_IS_RESERVED)],
    "key of a hash": [HashedId("5", "user", rows) for rows in (1000, 2**40)],
}


def printed(hashes: list[int], name: str) -> str:
    """Return hashes, of 64 bits without a sign, or keys as the page prints them."""
    return " ".join(f"{one}" if name.startswith("key") else f"{one:016x}" for one in hashes)
