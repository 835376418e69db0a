"""Profiles and hot sets over shards. A profile or a hot set that is sent is split, so that each
shard gets its own rows; counts that shards return are merged.

Each shard records the order of its own calls (`Profile.trace`). The recordings cannot be merged,
and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore import commands as c
from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile, exact_sum
from embstore.results import HotSetFacts

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router
    from embstore_client.shards.split import Split


def export_profile(router: Router, command: c.ExportProfile, call: Call) -> Profile:
    """Return how often the rows of all shards are accessed."""
    found = router.all(command, call)
    names = sorted({name for profile in found for name in profile.tables})
    tables = {name: _merged([p.tables[name] for p in found if name in p.tables]) for name in names}
    return replace(found[0], tables=tables, samples=None, trace=None)


def _merged(tables: list[TableProfile]) -> TableProfile:
    keys, places = np.unique(
        np.concatenate([table.keys for table in tables]), return_inverse=True
    )  # two shards may have counted one row, before and after its move
    every = np.concatenate([table.counts for table in tables])
    counts = np.zeros(len(keys), every.dtype)
    np.add.at(counts, places, every)
    return TableProfile(
        tables[0].name,
        max(table.rows for table in tables),
        keys,
        counts,
        sum(table.accesses for table in tables),
        max(table.error for table in tables),
    )


def import_profile(router: Router, command: c.ImportProfile, call: Call) -> None:
    """Have each shard rank its rows by a profile's counts of accesses."""
    given = command.profile.tables
    keys = {name: table.keys for name, table in given.items()}
    splits = _splits(router, command, call, keys, command.rename)
    commands = {}
    for shard in range(len(router.shards)):
        tables = {name: _of(table, splits[name].of(shard)) for name, table in given.items()}
        own = replace(command.profile, tables=tables, samples=None, trace=None)
        commands[shard] = c.ImportProfile(own, command.rename)
    router.each(commands, call)


def _of(table: TableProfile, own: Any) -> TableProfile:
    counts = table.counts[own]
    return replace(table, keys=table.keys[own], counts=counts, accesses=exact_sum(counts))


def _splits(
    router: Router,
    command: Any,
    call: Call,
    keys: Mapping[str, Keys],
    rename: Mapping[str, str] | None = None,
) -> dict[str, Split]:
    """Return, for each table name in the profile, which of the table's keys each shard owns."""
    names = rename or {}
    try:
        return {
            name: router.split_keys(names.get(name, name), None, of) for name, of in keys.items()
        }
    except (InvalidArgumentError, TableNotFoundError):
        router.first(command, call)  # the shard raises the error
        raise


def get_hot_set(router: Router, command: c.GetHotSet, call: Call) -> HotSet | None:
    """Return the hot set; None: there is no hot set. Its rows are pinned on the shards that own
    them."""
    found = [one for one in router.all(command, call) if one is not None]
    if not found:
        return None
    tables: Mapping[str, Keys] = {
        name: np.sort(np.concatenate([one.tables[name] for one in found if name in one.tables]))
        for name in found[0].tables  # a shard that has joined since may lack tables
    }
    return replace(found[0], tables=dict(tables))


def pin_hot_set(router: Router, command: c.PinHotSet, call: Call) -> HotSetFacts:
    """Have every shard pin its rows of a hot set."""
    given = command.hot_set
    splits = _splits(router, command, call, given.tables)
    commands = {
        shard: c.PinHotSet(
            replace(given, tables={n: k[splits[n].of(shard)] for n, k in given.tables.items()})
        )
        for shard in range(len(router.shards))
    }
    return _facts(list(router.each(commands, call).values()), given.bytes)


def unpin_hot_set(router: Router, command: c.UnpinHotSet, call: Call) -> HotSetFacts:
    """Unpin the hot set on every shard."""
    return _facts(router.all(command, call), 0)


def _facts(found: list[HotSetFacts], size: int) -> HotSetFacts:
    rows, pinned = sum(one.rows for one in found), sum(one.pinned_rows for one in found)
    return HotSetFacts(found[0].version, rows, size, pinned)


HANDLERS = {
    c.ExportProfile: export_profile,
    c.ImportProfile: import_profile,
    c.GetHotSet: get_hot_set,
    c.PinHotSet: pin_hot_set,
    c.UnpinHotSet: unpin_hot_set,
}
