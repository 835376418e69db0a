"""The levels of durability: which commands survive a crash (`embstore.tables.command_log`).

Imports nothing: the command line reads them to show its help.
"""

from typing import Literal, get_args

Durability = Literal["checkpoint", "interval", "commands"]
LEVELS: tuple[Durability, ...] = get_args(Durability)
"""The weakest first."""

Retention = Literal["protected", "routine", "dropped"]
"""The retention of a kept checkpoint: newer ones never push it out; they do; it is deleted."""
