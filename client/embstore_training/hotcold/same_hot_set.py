"""Checks, as a loop begins, that all ranks have the same hot set.

A rank with a different hot set would pack different batches. That rank would fail at the first
missing key, after other ranks have applied updates.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import HotSet
from embstore_training.replicas.ranks import AllGather, Verb, meet, others_than


def check_hot_set(all_gather: AllGather | None, hot_set: HotSet, tables: Iterable[str]) -> None:
    """Check that all ranks have the same hot set, in the tables that they train."""
    if all_gather is None:
        return
    found = hashlib.sha256()
    for name in sorted(tables):
        keys = hot_set.tables[name]
        found.update(f"{len(keys)} {name}\0".encode())
        found.update(np.ascontiguousarray(keys, "<i8").data)
    own = [hot_set.version, *np.frombuffer(found.digest(), "<i8").tolist()]
    messages = [t.numbers for t in meet(all_gather, Verb.BEGIN, own)]
    if others := others_than(messages[0], messages):
        versions = [version for version, *_ in messages]
        raise InvalidArgumentError(
            f"expected all ranks to have the same hot set, found versions {versions}, and other "
            f"keys or versions than rank 0's at ranks {others}"
        )
