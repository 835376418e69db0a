"""The commands of a store's cache: its size, its policy, profiles and hot sets.

These commands decide which rows are resident, and change no bit of a table. Profiles and hot sets
are derived from counts of lookups, and are stored in the store's directory.
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
    """Methods of a `Store` for its cache."""

    executor: Executor

    def resize_cache(self, cache_bytes: int) -> None:
        """Change the cache's budget at run time. Rows may move; their bits do not change.

        The cache is then as if it had been opened with that budget, including the sizes of its
        slabs. A larger cache fills as rows are used. From a smaller cache, rows are removed until
        the remaining rows fit: the rows of the last slabs, not the coldest rows. Dirty rows are
        written to the log first, and the memory is returned to the system. The call takes no
        command number, and also works on a read-only store.

        Parameters
        ----------
        cache_bytes : memory for resident rows, their index and staging

        Raises
        ------
        InvalidArgumentError : the value is no integer >= 1.
        CapacityError : the budget is too small for the existing layouts (the message names the
            smallest sufficient budget), the system has not enough address space, or the disk has no
            space for the dirty rows that must leave. The budget does not change; if the disk has no
            space, some rows have left the cache.
        """
        self.executor.execute(c.ResizeCache(cache_bytes))

    def set_policy(self, policy: str) -> None:
        """Choose the policy that decides which rows leave the cache. The choice holds until the
        store is opened again.

        Rows keep their slots, and their counts start again, because the counts of the old policy
        have no meaning under the new policy. Imported profiles have the same effect as if the store
        had been opened with the new policy. Other calls, also of sessions, are executed meanwhile.
        This also works on a read-only store.

        Parameters
        ----------
        policy : name of a policy, as in `embstore.open`

        Raises
        ------
        InvalidArgumentError : no policy has this name. Nothing has changed.
        """
        self.executor.execute(c.SetPolicy(policy))

    def export_profile(self, *, source: c.ProfileSource = "counted") -> Profile:
        """Return a profile: how often the rows of each table are accessed.

        Parameters
        ----------
        source : "counted": the counts of this store, and a recording of the order of calls; or
            "imported": the imported profile. The counts cover the share `count_rate` of the store's
            lookups. They are exact up to a million rows of a table, see `TableProfile.error`
        """
        return self.executor.execute(c.ExportProfile(source))

    def import_profile(self, profile: Profile, *, rename: Mapping[str, str] | None = None) -> None:
        """Use a profile, from now on and also when the store is opened again.

        Under the rank policy the profile decides which rows leave the cache. Warming uses it under
        every policy. Under LFU, rows that are in the cache start with counts in proportion to the
        profile. No row, t or digest changes.

        Parameters
        ----------
        rename : {name in the profile: name of the table in this store}, where the names differ

        Raises
        ------
        TableNotFoundError : the profile has a table that this store does not have.
        InvalidArgumentError : the profile has a row that its table does not have. Nothing has
            changed.
        PermissionDeniedError : the store was opened read-only.
        """
        renamed: Any = {} if rename is None else rename
        self.executor.execute(c.ImportProfile(profile, renamed))

    def clear_counts(self) -> None:
        """Reset the counts of accesses to zero; a restart does not bring the earlier counts
        back."""
        self.executor.execute(c.ClearCounts())

    def warm_cache(
        self,
        share: float = c.WARM_SHARE,
        *,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Read the rows of highest profiled frequency into the cache; return their number.

        Other calls are executed meanwhile. If this call ends by `timeout_s`, or by an error that
        `progress` raises, a server continues the warm-up, and a second call joins it.

        Parameters
        ----------
        share : share of the slots to fill, above 0 and at most 1
        progress : function that is called with the number of rows read so far, and the total number
        """
        command = c.WarmCache(share)
        return self.executor.execute(command, progress=progress, timeout_s=timeout_s).rows

    def pin_hot_set(
        self,
        hot_set: HotSet | Mapping[str, ArrayLike] | None,
        *,
        timeout_s: float | None = None,
    ) -> HotSetFacts:
        """Read a hot set into the cache and keep it there, in place of the previous one; None:
        unpin.

        A row of both the previous and the new set stays in the cache throughout. Other calls are
        executed meanwhile. The set is pinned again when the store is opened. A server continues
        pinning after `timeout_s` has passed. A mapping {table: keys} is a hot set of version 1, see
        `HotSet.of`.

        Raises
        ------
        InvalidArgumentError : the version is not above the pinned set's version, or a key is not in
            its table.
        TableNotFoundError : a table of the set does not exist. Nothing has changed.
        CapacityError : the set has more rows than three quarters of the slots. Nothing has changed.
        """
        if hot_set is None:
            return self.executor.execute(c.UnpinHotSet(), timeout_s=timeout_s)
        return self.executor.execute(c.PinHotSet(HotSet.of(hot_set)), timeout_s=timeout_s)

    def hot_set(self) -> HotSet | None:
        """Return the hot set that is pinned, or is about to be pinned."""
        return self.executor.execute(c.GetHotSet())
