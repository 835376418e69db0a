"""The cache of a store, and how often its rows are used: which rows are resident, not their bits.

Profiles and hot sets come from counts of lookups, are kept in the directory, and say which rows
stay, and which are brought in. No bit of a table depends on them.
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from embstore import commands as c
from embstore.commands import Executor, Progress
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.results import HotSetFacts


class StoreCache:
    """Verbs of the cache, which a `Store` has."""

    executor: Executor

    def resize_cache(self, cache_bytes: int) -> None:
        """Change the cache's budget at run time. Rows may move; their bits do not change.

        The cache is then as if it had been opened with that budget, the sizes of its slabs too. A
        larger one fills as rows are used. For a smaller one, rows leave until the rest fits, the
        rows of the last slabs and not the coldest; dirty ones go to the log first, and the memory
        goes back to the system. No command is counted, and a store opened read-only takes it too.

        Parameters
        ----------
        cache_bytes : memory for resident rows, their index and staging

        Raises
        ------
        InvalidArgumentError : no integer >= 1.
        CapacityError : too little for the layouts there are (the message names the least that is
            enough), more address space than the system gives, or no disk space for the dirty rows
            that must leave. The budget stays; in the last case some rows have left the cache.
        """
        self.executor.execute(c.ResizeCache(cache_bytes))

    def set_policy(self, policy: str) -> None:
        """Choose the policy by which rows leave the cache, until the store is opened again.

        Rows stay where they are, and begin anew: the counts of the old policy have no meaning under
        the new one. Imported profiles count as if the store had been opened with it. Other calls go
        on in between, sessions too; a store opened read-only takes it as well.

        Parameters
        ----------
        policy : as in `embstore.open`

        Raises
        ------
        InvalidArgumentError : there is no such policy. Nothing has changed.
        """
        self.executor.execute(c.SetPolicy(policy))

    def export_profile(self, *, source: c.ProfileSource = "counted") -> Profile:
        """Return how often the rows of each table are accessed.

        Parameters
        ----------
        source : "counted" by this store, of the share `count_rate` of its lookups (exact up to a
            million rows of a table, see `TableProfile.error`), with a recording of the order of
            calls; or "imported"
        """
        return self.executor.execute(c.ExportProfile(source))

    def import_profile(self, profile: Profile, *, rename: Mapping[str, str] | None = None) -> None:
        """Use a profile, from now on and when the store is opened again.

        Under the rank policy it decides which rows leave the cache; warming uses it under every
        policy; under LFU, rows that are in the cache start with counts in its proportion. No row, t
        or digest changes.

        Parameters
        ----------
        rename : the names of tables here by their names in the profile, where they differ

        Raises
        ------
        TableNotFoundError : the profile has a table that is not here.
        InvalidArgumentError : it has rows beyond a table's. Nothing has changed.
        PermissionDeniedError : the store was opened read-only.
        """
        renamed: Any = {} if rename is None else rename
        self.executor.execute(c.ImportProfile(profile, renamed))

    def clear_counts(self) -> None:
        """Start the counts of accesses at zero; the counts before do not return with a restart."""
        self.executor.execute(c.ClearCounts())

    def warm_cache(
        self,
        share: float = c.WARM_SHARE,
        *,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Bring the rows of highest profiled frequency into the cache; return how many.

        Other calls go on in between. A server goes on when this call has ended, by `timeout_s` or
        by an error that `progress` raises; the same call again joins it.

        Parameters
        ----------
        share : the share of the slots to fill, above 0 and at most 1
        progress : called with the number of rows that are done, and the number of all
        """
        command = c.WarmCache(share)
        return self.executor.execute(command, progress=progress, timeout_s=timeout_s).rows

    def pin_hot_set(
        self,
        hot_set: HotSet | Mapping[str, ArrayLike] | None,
        *,
        timeout_s: float | None = None,
    ) -> HotSetFacts:
        """Bring a hot set into the cache and keep it there, in place of the one before; None: none.

        A row that both sets have stays in the cache throughout; other calls go on in between. The
        set is pinned again when the store is opened. A server goes on when `timeout_s` has passed.
        Keys by table are a set of version 1, see `HotSet.of`.

        Raises
        ------
        InvalidArgumentError : its version is not above the pinned one's, or a key is beyond its
            table.
        TableNotFoundError, CapacityError : a table is not there; more rows than three quarters of
            the slots. Nothing has changed.
        """
        if hot_set is None:
            return self.executor.execute(c.UnpinHotSet(), timeout_s=timeout_s)
        return self.executor.execute(c.PinHotSet(HotSet.of(hot_set)), timeout_s=timeout_s)

    def hot_set(self) -> HotSet | None:
        """Return the hot set that is pinned, or is to be."""
        return self.executor.execute(c.GetHotSet())
