"""Values that are sent with a command. The origin of a mutating command ensures that the command is
applied once. The version of the shard map tells a shard by which map a command was split."""

import re
from dataclasses import dataclass

from embstore.commands import PartOf

CLIENT_ID_CHARACTERS_MAX = 64
MAP_METADATA = "embstore-map"
"""The metadata key of a call that is a part of a cluster's command: the version of the shard map by
which the command was split; then, if the command writes, a colon and the command's id. With a minus
before the version, the shard checks whether it would execute its part, and changes nothing."""
_FORM = re.compile(r"(-?)([0-9]{1,19})(?::([0-9]{1,19}))?", re.ASCII)
_NO_MAP = 1 << 63


def metadata_of(part_of: PartOf) -> str:
    """Return the metadata of a part of a cluster's command."""
    sign = "-" if part_of.is_check else ""
    ending = f":{part_of.command_id}" if part_of.command_id else ""
    return f"{sign}{part_of.map_version}{ending}"


def part_of(text: str | bytes) -> PartOf | None:
    """Return what a call's metadata says, None if it is empty. For text of another form, return a
    map version that no map has."""
    if not text:
        return None
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return PartOf(_NO_MAP)
    sign, version, command_id = found.groups("0")
    return PartOf(int(version), int(command_id), sign == "-")


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
