"""The ways to split a cache between row layouts (`embstore.tables.splitting`).

Imports nothing: the command line reads them to show its help.
"""

from typing import Literal, get_args

CacheSplit = Literal["measured", "demand"]
SPLITS: tuple[CacheSplit, ...] = get_args(CacheSplit)
