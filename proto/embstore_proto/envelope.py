"""Values that are sent with a command. The origin of a mutating command ensures that the command is
applied once. The version of the shard map tells a shard by which map a command was split."""

from dataclasses import dataclass

CLIENT_ID_CHARACTERS_MAX = 64
MAP_METADATA = "embstore-map"
"""The metadata key of the version of the shard map by which a call was split. With a minus before
the version, the shard checks whether it would execute the call, and changes nothing."""
_DIGITS_MAX, _NO_MAP = 19, 1 << 63


def map_version(text: str | bytes) -> int:
    """Return the version of the shard map in a call's metadata, below 0 with a minus before it; 0:
    there is none. For text that is not a version, return a version that no map has."""
    if not text:
        return 0
    digits = text.removeprefix("-") if isinstance(text, str) else ""
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _DIGITS_MAX:
        return _NO_MAP
    return int(text)


@dataclass(frozen=True)
class Origin:
    """The sender of a mutating command, and the state of the store that the sender knows."""

    client_id: str
    """1 to 64 characters, random, one id per client object."""
    sequence: int
    """The number of the command among the client's mutating commands, from 1."""
    finished_below: int = 0
    """The client has received the answers to all its commands with lower numbers."""
    attempt: int = 0
    """The number of attempts since the first lost one; 0: no attempt was lost."""
    instance: str = ""
    """The server process that the client knew when it sent the command for the first time."""
    epoch: int = 0
    """The epoch of the rows and t on which the command is based; 0: any epoch."""
    rank: int | None = None
    """The trainer's rank, for the log of slow calls."""
    step: int | None = None
    store_id: str = ""
    """The id of the store for which the command is intended; empty: any store."""
