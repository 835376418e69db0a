"""The options of a store: the name, default, unit, meaning and check of each option, in one place.

`embstore.open` takes the options by name and shows this text in its help. The tables and the engine
take them as one value. A server's setting of the same name has the same default and text.

No large package is imported, because the command line reads this module to show its help.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, TypeVar

from embstore.cache.policies import policy_of
from embstore.choices import LEVELS, SPLITS, CacheSplit, Durability

if TYPE_CHECKING:
    from embstore.config import Limits
    from embstore.device.base import Device

Function = TypeVar("Function", bound=Callable[..., Any])

_DESCRIPTION = re.compile(r"^(\w+) : (.+(?:\n {4}.+)*)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The options with which a store is opened, checked: a bad value raises InvalidArgumentError.

    Parameters
    ----------
    device : where rows are cached and computed: "cpu"; "cuda:N", GPU number N ("cuda": the first);
        "auto": the first GPU if there is one and CuPy is installed, else the CPU. The device does
        not change the bits of rows
    cache_bytes : memory of the device for cached rows, their index and staging. A share, such as
        "80%", refers to the host's memory on a CPU, and on a GPU to the GPU memory that is free and
        not reserved for calls
    host_cache_bytes : pinned memory of the host for level two of a GPU's cache: rows that left the
        GPU's memory. The GPU's kernels move rows between the two memories. The pinned memory is
        allocated as rows need it. None: a quarter of the host's free memory; 0: there is no level
        two, and a row that left the GPU's memory is read from storage when it is used again
    cache_split : how tables of several row layouts share a full cache: "measured", so that as few
        lookups as possible miss; or "demand", first come, first served
    policy : which rows leave the cache first: "lru", the rows used longest ago; "lfu", the rows
        used by the fewest calls, with counts that are halved from time to time; or "rank", the rows
        with the lowest frequency in the imported profile
    warm_up : share of the cache, 0 to 1, that is filled with the most accessed rows; this begins
        in the background once the store is open
    count_rate : share of lookups, 0 to 1, whose keys are counted, for profiles
    checkpoints_keep : number of newest checkpoints to keep in each folder of labels; the
        label "ads/7" is in the folder "ads". Older checkpoints are merged into the base
    durability : which commands survive a crash: "checkpoint", those before the last commit;
        "interval", all but the commands since the last sync of the command log (a write-ahead log
        of commands); "commands", every command that has returned
    sync_every_s : seconds between two syncs of the command log, with durability "interval"
    recovery_s : longest recovery after a crash, in seconds: with a command log, the store commits
        by itself when executing the log again would take longer
    commit_every_s : longest time between two commits, in seconds: the store commits by itself,
        without a label, when the last commit is older. Without a command log a crash loses at most
        the commands of about this many seconds. 0: the store commits only for checkpoints and at a
        clean end
    scrub_bytes_per_s : bytes per second of the store's files that are checked in the background.
        The check finds damage before a call does; 0: no check
    dirty_bytes : ceiling for the bytes of dirty rows. A dirty row is newer in the cache than in the
        log, so the ceiling bounds the time of a commit. Above 3/4 of the ceiling, dirty rows are
        logged in the background; above the ceiling, calls that write become slower. None: for rows
        in level two of a GPU's cache, the bytes that storage writes in 30 seconds, as measured; for
        other rows, no ceiling
    read_only : share the directory with other readers; nothing can be written
    threads : threads of the CPU device; with a GPU, threads that copy between host and device. The
        value is also the number of additional threads that read rows from files. None: one of each
        kind per core, but at most 4 for the CPU device, 8 for copies to and from a GPU, and 16 for
        reading files
    limits : named bounds, see `embstore.config.Limits`; None: its defaults
    """

    device: "str | Device" = "auto"
    # Room for two million rows of 128 fp32 with row-wise state; a trainer's host can spare this
    # memory.
    cache_bytes: int | str = 1 << 30
    # Rows return from level two at the speed of the bus. Other processes need the remaining memory.
    host_cache_bytes: int | None = None
    # This split reads fewer rows, and changes nothing where all tables have one layout.
    cache_split: CacheSplit = "measured"
    # LRU follows changes of a trainer's accesses at once.
    policy: str = "lru"
    # A new store has no profile.
    warm_up: float = 0.0
    count_rate: float = 0.0
    # The last checkpoint, the one before it, and one that is being made.
    checkpoints_keep: int = 3
    durability: Durability = "checkpoint"
    # Databases have similar defaults.
    sync_every_s: float = 1.0
    # A longer restart would be noticed.
    recovery_s: float = 30.0
    # The loss of ten minutes of work is small, and a commit of all changes takes seconds.
    commit_every_s: float = 600.0
    scrub_bytes_per_s: int = 0
    # No bound: all rows of a table that fits into the cache can be dirty, and with a bound they
    # would be logged again and again.
    dirty_bytes: int | None = None
    read_only: bool = False
    # More threads do not help: memory is the bound.
    threads: int | None = None
    limits: "Limits | None" = None

    def __post_init__(self) -> None:
        from embstore.checks.arguments import expect, integer, number, one_of
        from embstore.config import Limits
        from embstore.device.choice import memory_share
        from embstore.host.facts import THREADS_MAX

        policy_of(self.policy)
        if memory_share(self.cache_bytes) is None:
            integer(self.cache_bytes, 'cache_bytes, if no share as "80%",', 1)
        one_of(self.cache_split, "cache_split", SPLITS)
        one_of(self.durability, "durability", LEVELS)
        for name in ("warm_up", "count_rate"):
            number(getattr(self, name), name, 0, 1)
        for name in ("commit_every_s", "recovery_s", "sync_every_s"):
            number(getattr(self, name), name, 0, threading.TIMEOUT_MAX)
        integer(self.checkpoints_keep, "checkpoints_keep", 1)
        integer(self.scrub_bytes_per_s, "scrub_bytes_per_s", 0)
        if self.host_cache_bytes is not None:
            integer(self.host_cache_bytes, "host_cache_bytes", 0)
        if self.dirty_bytes is not None:
            integer(self.dirty_bytes, "dirty_bytes", 1)
        if self.threads is not None:
            integer(self.threads, "threads", 1, THREADS_MAX)
        if self.limits is not None:
            expect(isinstance(self.limits, Limits), "limits to be Limits", self.limits)


def descriptions(of: type[StoreOptions] = StoreOptions) -> dict[str, str]:
    """Return the description of each option, from the docstring; {} where docstrings are
    stripped."""
    texts = (cleandoc(cls.__doc__ or "") for cls in reversed(of.__mro__))  # as Python 3.13 does
    found = _DESCRIPTION.findall("\n".join(texts))
    return {name: " ".join(text.split()) for name, text in found}


def describing(options: type[Any]) -> Callable[[Function], Function]:
    """Return a decorator that appends the descriptions of options to the docstring of a
    function."""

    def described(function: Function) -> Function:
        texts = function.__doc__ or "", options.__doc__ or ""
        function.__doc__ = "\n\n".join(map(cleandoc, texts))
        return function

    return described
