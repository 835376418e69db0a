"""The options whose values are a few words: durability, retention and the split of a cache.

This module imports nothing heavy, because the command line imports it for its help texts.
"""

from typing import Literal, get_args

Durability = Literal["checkpoint", "interval", "commands"]
LEVELS: tuple[Durability, ...] = get_args(Durability)
"""The levels of durability (`embstore.tables.command_log`), weakest first: each level determines
which commands survive a crash."""

Retention = Literal["protected", "routine", "dropped"]
"""The retention of a kept checkpoint. Protected: newer checkpoints never displace it; routine:
newer checkpoints displace it; dropped: it is deleted."""
STAND_IN = "/replacing"
"""The suffix of a stand-in's label: the stand-in LABEL/replacing is a checkpoint that a client
keeps while it replaces the checkpoint LABEL (`embstore.storage.labels`)."""

CacheSplit = Literal["measured", "demand"]
SPLITS: tuple[CacheSplit, ...] = get_args(CacheSplit)
"""The ways to split a cache between row layouts (`embstore.tables.splitting`)."""
