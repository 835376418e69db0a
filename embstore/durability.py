"""The levels of durability: what an acknowledged command survives (`embstore.tables.command_log`).

Imports nothing: the command line reads them to show its help.
"""

from typing import Literal, get_args

Durability = Literal["checkpoint", "interval", "commands"]
LEVELS: tuple[Durability, ...] = get_args(Durability)
"""The weakest first."""

Retention = Literal["protected", "routine", "dropped"]
"""Of a kept checkpoint: newer ones never push it out; they do; it is kept no more."""
