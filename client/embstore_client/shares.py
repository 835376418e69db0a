"""The layer of unique keys: keys and gradients as a client prepares them to be sent.

Keys travel once each, and gradients as sums: of a Zipf batch that is a third of the bytes. The sums
follow the contract (rule 2), by the same `embstore.arithmetic` as the engine's; a sum of one is
itself, so the server may sum again, and does not trust it. Keys stay in the order of their first
occurrence, so that an error names the key it would name in the embedded store. Where memory is
shared that costs more than it saves, and all is sent as it is.

How many times a key occurs in the call is sent with it, for the statistics by access. On the way up
rows are given to the keys of the call, in the caller's outputs.
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
"""How many of a call's first keys are examined. Where rows are popular some of these are repeated:
in a Zipf batch (1.05, two million rows) 1,900 are. Where none is, a repeated key later costs its
bytes once more; to make 262,144 keys unique takes a tenth of the time of their lookup."""

Inverse = NDArray[np.int32] | None
"""Which of the keys that are sent each key of the call is; None: each is itself."""


class Unique:
    """The layer: each key once, and one sum for each."""

    def __init__(self, wire: Wire | None) -> None:
        """`wire` may share memory, and keys are not made unique then; None: they always are."""
        self._wire = wire

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call, whose arrays are the host's."""
        inverses: list[Inverse] = []
        if self._wire is None or not self._wire.shares_memory:
            given = call.command
            call.command, inverses = self.less(given)
            if call.command is not given:
                call.reply_bytes = None  # it reads fewer rows
        answer = below(call)
        return _spread(answer, inverses, call.out) if inverses or call.out else answer

    def less(self, command: Command[Any]) -> tuple[Command[Any], list[Inverse]]:
        """Return a command with less to send, and for each table whose rows it reads by their keys
        the way back to these."""
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
        """Return the keys of a table as they are sent, and the way back."""
        keys, inverse = once_each(part.keys)
        if inverse is None:
            return part, None
        counts = accesses(part.counts, inverse, len(keys))
        if counts is None:
            return part, None
        return TableKeys(part.table, part.table_id, keys, counts), inverse

    def gradients(self, part: Any) -> Any:
        """Return gradients by key as one sum for each, computed where they are sent from."""
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
    """Return the keys of a call, each once, and the way back."""
    if len(keys) < 2 or (len(keys) >= 2 * _SAMPLE_KEYS and _seem_unique(keys)):
        return keys, None
    unique_keys, inverse = unique(keys)
    return (keys, None) if len(unique_keys) == len(keys) else (unique_keys, inverse)


def _seem_unique(keys: Keys) -> bool:
    """Guess from the first of many keys that it is not worth while to look for repeated ones."""
    sample = keys[:_SAMPLE_KEYS]
    return len(unique(sample)[0]) == len(sample)


def accesses(
    given: AccessCounts | None, inverse: NDArray[np.int32], count: int
) -> AccessCounts | None:
    """Return how many accesses each of `count` unique keys stands for, from the accesses of the
    call's keys; None: too many to be sent as one."""
    if given is None:
        return np.bincount(inverse, minlength=count).astype(np.uint32)
    sums = np.zeros(count, np.int64)
    np.add.at(sums, inverse, given)
    return None if sums.max(initial=0) > COUNT_MAX else sums.astype(np.uint32)


def _spread(read: RowsRead, inverses: Sequence[Inverse], out: Any) -> RowsRead:
    """Return rows of the keys of a call, from the rows of the keys that were sent, in `out`, which
    may not fit, as a table may be another one by now."""
    came = [(t.table, rows) for t in read.tables for rows in (t.rows, t.state) if rows is not None]
    ways = list(inverses) or [None] * len(read.tables)
    ways *= len(came) // max(len(ways), 1)  # the state of a table goes as its weights do
    outs = (out.values() if isinstance(out, dict) else out) or [None] * len(came)
    filled: list[Any] = []
    for (table, rows), inverse, own in zip(came, ways, outs, strict=True):
        if own is not None or inverse is not None:  # all fit before the first is written to
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
