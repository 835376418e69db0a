"""Access frequencies of rows: profiles, hot sets, warm-up of the cache."""

from typing import Literal

from embstore import results
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Right
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile

ProfileSource = Literal["counted", "imported"]


WARM_SHARE = 0.7
"""The default share of the slots that a warm-up fills; the other slots are for rows that are in no
profile."""


class ExportProfile(Command[Profile], effect=Effect.LONG, right=Right.READ):
    """Return a profile of the accesses to each row: the store's own counts, or the imported
    profile."""

    source: ProfileSource = "counted"


class ImportProfile(Command[None], effect=Effect.LONG):
    """Use a profile to rank rows. `rename` maps names of tables in the profile to names in the
    store."""

    profile: Profile
    rename: dict[str, str]


class GetHotSet(Command[HotSet | None], effect=Effect.LONG, right=Right.READ):
    """Return the hot set that is pinned."""


class PinHotSet(Command[results.HotSetFacts], effect=Effect.LONG):
    """Keep the rows of a hot set in the cache, and no longer those of the previous hot set."""

    hot_set: HotSet


class UnpinHotSet(Command[results.HotSetFacts], effect=Effect.LONG):
    """Unpin the hot set: its rows can be evicted again."""


class ClearCounts(Command[None], effect=Effect.TUNES, join=joins.nothing):
    """Set the counts of accesses to zero."""


class WarmCache(Command[results.Warmed], effect=Effect.LONG, join=joins.total):
    """Load the most frequently accessed rows into the cache."""

    share: float = WARM_SHARE
