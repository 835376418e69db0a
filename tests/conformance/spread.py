"""Tables of sparse keys in cases that know of dense ones only.

A case has tables of some rows and keys below that. On a backend of sparse tables every table that
it makes is sparse, and each of its keys another one, anywhere in 64 bits: half of them are negative
as int64. Keys are exchanged where commands are executed, and back in results; the reference does
the same. So the case reads its own keys, and the store never sees these.

Samples in profiles are as they were.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.arrays import SPARSE_ROWS, is_on_device
from embstore.errors import EmbstoreError
from embstore.parts import with_tables
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.results import ScannedRows
from tests.reference import ReferenceStore, ReferenceTable
from tests.rules import Row

FACTOR = 0xD1342543DE82EF95
"""Odd, so that a product with it is one to one; 1 becomes a negative key."""
INVERSE = pow(FACTOR, -1, 1 << 64)


_NAMED_KEY = re.compile(r"\bkey (\d+)")
"""In errors."""


def _times(keys: Any, factor: int) -> Any:
    """Return integers times a factor, modulo 2**64, as int64; what is none goes as it is."""
    if is_on_device(keys):
        return keys
    given = np.asarray(keys)
    if given.dtype.kind not in "iu":
        return keys
    return (given.astype(np.int64).view(np.uint64) * np.uint64(factor)).view(np.int64)


def spread(keys: Any) -> Any:
    """Return what the store's keys are of those of a case."""
    return _times(keys, FACTOR)


def gathered(keys: Any) -> Any:
    """Return what a case's keys are of those of the store."""
    return _times(keys, INVERSE)


def spread_keys(executor: Any) -> None:
    """Have an executor take a case's commands for sparse tables."""
    execute = executor.execute

    def execute_spread(command: Any, **options: Any) -> Any:
        try:
            return _gathered_result(execute(_spread_command(command), **options))
        except EmbstoreError as error:
            error.args = (_NAMED_KEY.sub(_gathered_name, str(error)), *error.args[1:])
            raise

    executor.execute = execute_spread


def _gathered_name(found: re.Match[str]) -> str:
    return f"key {gathered(np.uint64(found[1]))}"


def _spread_command(command: Any) -> Any:
    match command:
        case c.CreateTable(config):
            return c.CreateTable(replace(config, rows=SPARSE_ROWS, key_space="sparse"))
        case c.PinHotSet(hot_set):
            tables = {name: np.sort(spread(keys)) for name, keys in hot_set.tables.items()}
            return c.PinHotSet(replace(hot_set, tables=tables))
        case c.ImportProfile(profile):
            return replace(command, profile=_with_keys(profile, spread))
    return with_tables(command, _spread_part)


def _spread_part(part: Any) -> Any:
    return replace(part, keys=spread(part.keys)) if hasattr(part, "keys") else part


def _gathered_result(result: Any) -> Any:
    match result:
        case ScannedRows():
            return replace(result, keys=gathered(result.keys))
        case HotSet():
            tables = {name: np.sort(gathered(keys)) for name, keys in result.tables.items()}
            return replace(result, tables=tables)
        case Profile():
            return _with_keys(result, gathered)
    return result


def _with_keys(profile: Profile, change: Callable[[Any], Any]) -> Profile:
    tables = {}
    for name, table in profile.tables.items():
        keys = change(table.keys)
        order = np.argsort(keys)
        changed = {"keys": keys[order], "counts": table.counts[order]}
        tables[name] = replace(table, rows=0, **changed)  # those of sparse keys are not known
    trace = profile.trace and replace(profile.trace, keys=change(profile.trace.keys))
    return replace(profile, tables=tables, trace=trace)


class SpreadTable(ReferenceTable):
    """A table of the reference that takes a case's keys, and says them."""

    @property
    def written(self) -> set[int]:
        return set(gathered(np.array(list(self._written), np.uint64)).tolist())

    def _checked_keys(self, keys: Any) -> Any:
        return super()._checked_keys(spread(keys))


class SpreadStore(ReferenceStore):
    """The reference, with a case's tables sparse."""

    kind_of_table = SpreadTable

    def create_table(self, name: str, **config: Any) -> ReferenceTable:
        return super().create_table(name, **(config | {"rows": None, "key_space": "sparse"}))


def rows_by_key(store: ReferenceStore, written: Mapping[int, Row]) -> dict[int, Row]:
    """Return rows of a table of a reference, by the keys of the case."""
    if not isinstance(store, SpreadStore):
        return dict(written)
    keys = gathered(np.array(list(written), np.uint64)).tolist()
    return dict(zip(keys, written.values(), strict=True))
