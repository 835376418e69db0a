"""What travels with a command: of one that writes who sent it, so that it is applied once; of one
to a shard by which map it was split."""

from dataclasses import dataclass

CLIENT_ID_CHARACTERS_MAX = 64
MAP_METADATA = "embstore-map"
"""The metadata with the version of the map by which a call was split."""
_DIGITS_MAX, _NO_MAP = 19, 1 << 63


def map_version(text: str | bytes) -> int:
    """Return the version that metadata has: 0 for none; of no number one that no map has."""
    if not text:
        return 0
    is_number = isinstance(text, str) and text.isascii() and text.isdecimal()
    if not is_number or len(text) > _DIGITS_MAX:
        return _NO_MAP
    return int(text)


@dataclass(frozen=True)
class Origin:
    """Who sends a mutating command, and what the sender knew of the store."""

    client_id: str
    """1 to 64 characters, random, one per client object."""
    sequence: int
    """From 1; each mutating command of the client has its own."""
    finished_below: int = 0
    """The client has the answers of all sequences below."""
    attempt: int = 0
    """0: sent for the first time."""
    instance: str = ""
    """The server process that the client knew when it sent the command for the first time."""
    epoch: int = 0
    """That the sender's rows and t are of; 0: of any."""
    rank: int | None = None
    """Of the trainer, for the log of slow calls."""
    step: int | None = None
    store_id: str = ""
    """The store that is meant; empty: any."""
