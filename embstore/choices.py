"""The options whose values are a few words: durability, retention and the split of a cache.

Imports nothing: the command line reads them to show its help.
"""

from typing import Literal, get_args

Durability = Literal["checkpoint", "interval", "commands"]
LEVELS: tuple[Durability, ...] = get_args(Durability)
"""Which commands survive a crash (`embstore.tables.command_log`), the weakest level first."""

Retention = Literal["protected", "routine", "dropped"]
"""The retention of a kept checkpoint: newer ones never push it out; they do; it is deleted."""

CacheSplit = Literal["measured", "demand"]
SPLITS: tuple[CacheSplit, ...] = get_args(CacheSplit)
"""The ways to split a cache between row layouts (`embstore.tables.splitting`)."""
