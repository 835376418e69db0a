"""The layer of unique keys: it prepares keys and gradients to be sent.

Each unique key is sent once, and gradients are sent as one sum per key; for a Zipf batch this takes
a third of the bytes. The sums follow the contract (rule 2); `embstore.arithmetic` computes them, as
in the engine. The server does not trust the client and sums again, which changes nothing: the sum
of one gradient is itself. Keys stay in the order of their first occurrence, so that an error names
the same key as in an embedded store. With shared memory, unique keys and sums would cost more than
they save, so everything is sent unchanged.

Each key is sent with the number of its occurrences, for the statistics by access. When the answer
returns through this layer, rows are copied to the positions of the call's keys in the caller's
outputs.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import sum_by_key, unique
from embstore.arrays import COUNT_MAX, AccessCounts, Keys, as_out
from embstore.commands import Command, Reads, TableGradients, TableKeys
from embstore.parts import with_tables
from embstore.results import RowsRead, TableRows
from embstore_client.call import Below, Call
from embstore_client.wire import Wire
from embstore_proto.frame import Computed

_SAMPLE_KEYS = 4096
"""How many of a call's first keys are examined. If some rows are popular, some of the examined keys
are repeated: 1,900 of them in a Zipf batch (1.05, two million rows). If none of them is repeated,
all keys of the call are sent, and a key that is repeated later is sent as often as it occurs.
Making 262,144 keys unique takes a tenth of the time of their lookup."""

Inverse = NDArray[np.int32] | None
"""For each key of a call, its index among the sent keys; None: all keys are sent."""


class Unique:
    """The layer that sends each key once, with the sum of its gradients."""

    def __init__(self, wire: Wire | None) -> None:
        """While `wire` shares memory, keys are not made unique; if `wire` is None, keys are always
        made unique."""
        self._wire = wire

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call whose arrays are on the host."""
        inverses: list[Inverse] = []
        if self._wire is None or not self._wire.shares_memory:
            given = call.command
            call.command, inverses = self.less(given)
            if call.command is not given:
                call.reply_bytes = None  # compute it again: fewer rows are read
        answer = below(call)
        return _spread(answer, inverses, call.out) if inverses or call.out else answer

    def less(self, command: Command[Any]) -> tuple[Command[Any], list[Inverse]]:
        """Return a command with unique keys and summed gradients. Also return, for each table from
        which the command reads rows by key, the index of each original key among the keys that are
        sent."""
        inverses: list[Inverse] = []
        if command.reads is Reads.NOTHING:
            return with_tables(command, self.gradients), inverses
        return with_tables(command, partial(self._keys, inverses)), inverses

    def _keys(self, inverses: list[Inverse], part: Any) -> Any:
        if hasattr(part, "bags"):
            return part
        part, inverse = self.keys(part)
        inverses.append(inverse)
        return part

    def keys(self, part: TableKeys) -> tuple[TableKeys, Inverse]:
        """Return the keys to send, and the index of each original key among them."""
        keys, inverse = once_each(part.keys)
        if inverse is None:
            return part, None
        counts = accesses(part.counts, inverse, len(keys))
        if counts is None:
            return part, None
        return TableKeys(part.table, part.table_id, keys, counts), inverse

    def gradients(self, part: Any) -> Any:
        """Return gradients as one sum per key, computed when the message is written."""
        if not hasattr(part, "gradients") or hasattr(part, "bags"):
            return part
        keys, inverse = once_each(part.keys)
        if inverse is None:
            return part
        count, gradients = len(keys), part.gradients
        sums: Any = Computed(
            (count, gradients.shape[1]), lambda out: sum_by_key(inverse, count, gradients, out)
        )
        return TableGradients(part.table, part.table_id, keys, sums)


def once_each(keys: Keys) -> tuple[Keys, Inverse]:
    """Return the unique keys of a call, and the index of each original key among the unique
    keys."""
    if len(keys) < 2 or (len(keys) >= 2 * _SAMPLE_KEYS and _seem_unique(keys)):
        return keys, None
    unique_keys, inverse = unique(keys)
    return (keys, None) if len(unique_keys) == len(keys) else (unique_keys, inverse)


def _seem_unique(keys: Keys) -> bool:
    """Guess from the first of many keys whether no key is repeated."""
    sample = keys[:_SAMPLE_KEYS]
    return len(unique(sample)[0]) == len(sample)


def accesses(
    given: AccessCounts | None, inverse: NDArray[np.int32], count: int
) -> AccessCounts | None:
    """Return the number of accesses of each of `count` unique keys, from the accesses of the call's
    keys; None: the accesses of one key are too many to be sent as one count."""
    if given is None:
        return np.bincount(inverse, minlength=count).astype(np.uint32)
    sums = np.zeros(count, np.int64)
    np.add.at(sums, inverse, given)
    return None if sums.max(initial=0) > COUNT_MAX else sums.astype(np.uint32)


def _spread(read: RowsRead, inverses: Sequence[Inverse], out: Any) -> RowsRead:
    """Return the rows of the keys of a call, from the rows of the keys that were sent. The rows are
    written to `out`, which is checked first, because the name may belong to another table by
    now."""
    came = [(t.table, rows) for t in read.tables for rows in (t.rows, t.state) if rows is not None]
    ways = list(inverses) or [None] * len(read.tables)
    ways *= len(came) // max(len(ways), 1)  # weights and state of a table share their indices
    outs = (out.values() if isinstance(out, dict) else out) or [None] * len(came)
    filled: list[Any] = []
    for (table, rows), inverse, own in zip(came, ways, outs, strict=True):
        if own is not None or inverse is not None:  # check all outputs before any is written to
            count = len(rows) if inverse is None else len(inverse)
            own = as_out(own, (count, rows.shape[1]), table)
        filled.append(rows if own is None else own)
    for (_, rows), inverse, own in zip(came, ways, filled, strict=True):
        if inverse is not None:  # "clip", because "raise" would go through a copy of `own`
            np.take(rows, inverse, axis=0, out=own, mode="clip")
        elif own is not rows:
            own[:] = rows
    each = iter(filled)
    return RowsRead(
        tuple([
            TableRows(t.table, next(each), None if t.state is None else next(each), t.t)
            for t in read.tables
        ])
    )  # fmt: skip
