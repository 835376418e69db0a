"""The rows of announced steps, from all shards, in announced order.

A step is looked up on the shards that own keys of the step. Bags are pooled here, because their
rows are added in the order of the bag (rule 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore import commands as c
from embstore.arithmetic import pool_rows
from embstore.arrays import Rows, as_out, refusal
from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    SessionExpiredError,
    StepNotFoundError,
)
from embstore.results import RowsRead, ShardedStepRecords, StepRecords, TableRows
from embstore_client.shards.places import Place, Splits
from embstore_client.shards.sessions import leaving

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router
    from embstore_client.shards.split import Split

_ASK_S = 1.0
_LEAST_S = 1e-3


def lookup_step(router: Router, command: c.LookupStep, call: Call) -> RowsRead:
    """Return the rows of an announced step, in announced order."""
    step, places = announced(router, command)
    commands = dict.fromkeys(_with_keys(router, places), command)
    found = router.each(commands, replace(call, out=None))
    by_table: dict[str, list[tuple[int, TableRows]]] = {}
    for shard, read in found.items():
        for table in read.tables:
            by_table.setdefault(table.table, []).append((shard, table))
    outs = {
        name: as_out((call.out or {}).get(name), (len(split), _dim(router, name)), name)
        for name, split in places.items()
    }  # check all outputs before any is written to
    tables = []
    for part in step.tables:
        rows = {shard: table.rows for shard, table in by_table[part.table]}
        joined = _joined(places[part.table], rows, outs[part.table], part.table)
        tables.append(TableRows(part.table, joined, None, by_table[part.table][0][1].t))
    return RowsRead(tuple(tables))


def _dim(router: Router, table: str) -> int:
    return router.tables.config_of(table, None).dim


def _joined(split: Split, rows: Mapping[int, Rows], out: Any, table: str) -> Rows:
    dim = next(iter(rows.values())).shape[1]
    joined = as_out(out, (len(split), dim), table)
    for shard, own in rows.items():
        joined[split.of(shard)] = own
    return joined


def _with_keys(router: Router, places: Splits) -> list[int]:
    shards = range(len(router.shards))
    return [s for s in shards if any(split.count(s) for split in places.values())] or [0]


def announced(router: Router, command: Any) -> tuple[c.StepKeys, Splits]:
    """Return the announcement of a step.

    Raises
    ------
    StepNotFoundError : this client has not announced the step.
    SessionExpiredError : the member does not exist, or some shards have finished the step.
    """
    place = router.places.of(command.member)
    known = place.steps.get(command.step)
    if known is not None:
        _check_whole(router, place, command.step)
        return known
    if place.has_left:
        raise SessionExpiredError(
            f"session {place.name!r}: rank {place.rank} joins again, because a shard was restarted"
        )
    with suppress(DeadlineError):
        router.first(c.LookupStep(command.member, command.step), timeout_s=_ASK_S)  # may raise
    raise StepNotFoundError(
        f"expected an announced step that is not finished, found {command.step}: another "
        "connection has announced it; announce it again"
    )


def _check_whole(router: Router, place: Place, step: int) -> None:
    if len(place.behind(len(router.shards), step)) < len(router.shards):
        raise torn(step)


def torn(step: int) -> SessionExpiredError:
    return SessionExpiredError(
        f"step {step} is finished on some shards, and not on all: a trainer ended while it sent "
        "the step, and its gradients are lost; restore a checkpoint of the cluster, and go on "
        "from there"
    )


class _Prefetched:
    """The rows of a step that were requested from every shard."""

    def __init__(
        self, router: Router, member: str, of_shard: dict[int, c.Prefetched], places: Splits
    ) -> None:
        self._router, self._member = router, member
        self._of_shard, self._places = of_shard, places

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for all rows, and return them as `lookup_step` does."""
        until = None if timeout_s is None else monotonic() + timeout_s
        rows: dict[str, dict[int, Rows]] = {}
        with leaving(self._router, self._member):
            for shard, handle in self._of_shard.items():
                left = None if until is None else max(until - monotonic(), _LEAST_S)
                for table, own in handle.result(left).items():
                    rows.setdefault(table, {})[shard] = own
        return {
            name: _joined(split, rows[name], None, name) for name, split in self._places.items()
        }

    @property
    def early_bytes(self) -> int:
        """Bytes of the rows that arrived before all earlier steps were finished."""
        return sum(getattr(handle, "early_bytes", 0) for handle in self._of_shard.values())

    @property
    def late_bytes(self) -> int:
        """Bytes of the rows that arrived after all earlier steps were finished."""
        return sum(getattr(handle, "late_bytes", 0) for handle in self._of_shard.values())

    def done(self) -> bool:
        """Return whether `result` would return without waiting."""
        return all(getattr(handle, "done", bool)() for handle in self._of_shard.values())


def prefetch(router: Router, command: c.LookupStep) -> c.Prefetched | None:
    """Ask every shard for its rows of a step. None: a lookup of the step would raise an error, or a
    shard cannot prefetch."""
    place = router.places.of(command.member)
    known = place.steps.get(command.step)
    if known is None or len(place.behind(len(router.shards), command.step)) < len(router.shards):
        return None
    _, places = known
    found = {s: router.shards[s].prefetch(command) for s in _with_keys(router, places)}
    handles = {shard: handle for shard, handle in found.items() if handle is not None}
    is_whole = len(handles) == len(found)
    return _Prefetched(router, command.member, handles, places) if is_whole else None


def lookup_step_pooled(router: Router, command: c.LookupStepPooled, call: Call) -> RowsRead:
    """Return pooled rows of bags of announced keys; the rows are pooled here."""
    step = c.LookupStep(command.member, command.step)
    rows = {t.table: t for t in lookup_step(router, step, replace(call, out=None)).tables}
    tables = []
    for part in command.tables:
        if part.table not in rows:
            raise InvalidArgumentError(
                f"step {command.step}: expected bags of announced tables, {sorted(rows)}, found "
                f"{part.table!r}"
            )
        of, bags = rows[part.table], part.bags
        if len(part.inverse) and int(part.inverse.max()) >= len(of.rows):
            expected = f"an inverse below {len(of.rows)}, the number of announced keys"
            raise refusal(part.table, expected, int(part.inverse.max()))
        own = of.rows[part.inverse]
        if bags is not None:
            own = pool_rows(own, bags.offsets, bags.mode, bags.weights)
        tables.append(replace(of, rows=own))
    return RowsRead(tuple(tables))


def read_step(router: Router, command: c.ReadStep, call: Call) -> StepRecords:
    """Return the weights and the state of some announced keys."""
    if not command.tables:
        return router.first(command, call)
    _, places = announced(router, command)
    for part in command.tables:
        split = places.get(part.table)
        if split is None or (len(part.positions) and part.positions[-1] >= len(split)):
            return router.first(command, call)  # the shard raises the error
    within: dict[tuple[int, str], Any] = {}
    commands = {}
    for shard in range(len(router.shards)):
        named = []
        for part in command.tables:
            mine, own = places[part.table].within(part.positions, shard)
            within[shard, part.table] = mine
            if len(mine) or shard == 0:
                named.append(c.StepPositions(part.table, own))
        if named:
            commands[shard] = c.ReadStep(command.member, command.step, tuple(named))
    found = router.each(commands, call)
    tables, last_steps = [], {}
    for part in command.tables:
        config = router.tables.config_of(part.table, None)
        rows = np.empty((len(part.positions), config.dim), np.float32)
        state = np.empty((len(part.positions), config.state_dim), np.float32)
        seen = np.empty(len(part.positions), np.int64)
        t = 0
        for shard, read in found.items():
            for table in (one for one in read.tables if one.table == part.table):
                mine = within[shard, part.table]
                rows[mine], state[mine], t = table.rows, table.state, table.t
                seen[mine] = read.last_step
        tables.append(TableRows(part.table, rows, state, t))
        last_steps[part.table] = seen
    earliest = min(read.last_step for read in found.values())
    if all(read.last_step == earliest for read in found.values()):
        return StepRecords(tuple(tables), earliest)
    return ShardedStepRecords(tuple(tables), earliest, last_steps)


HANDLERS = {
    c.LookupStep: lookup_step,
    c.LookupStepPooled: lookup_step_pooled,
    c.ReadStep: read_step,
}
