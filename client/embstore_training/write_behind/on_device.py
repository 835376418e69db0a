"""A run with waits="none" whose rows in flight are in the memory of the store's device.

The store is in the same process, and lends its device (`embstore.handles.lent`). The loop looks up
rows, sums gradients and updates rows on the device, and sends the sums from there. Three things
pass through the host: new rows on their way from the store; copies of a step's rows for their
checksum, which the thread that sends the step makes; and, with several ranks, the sums for the
caller's all-gather hook.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from embstore.arrays import Rows
from embstore.commands import RowsWhere, UpdateOptions
from embstore.handles.lent import LentDevice, LentRows, Slots, SlotSums
from embstore.handles.sessions import Sessions, SomeGradients, StepBags
from embstore.results import TableDescription
from embstore_training.bags import Forms, Of
from embstore_training.exchange import SessionExchange
from embstore_training.rank_session import RankSession
from embstore_training.read_ahead import Entry, OnceKeys
from embstore_training.replicas.on_device import Occurring, agreed_on_device, occurring
from embstore_training.replicas.ranks import AllGather
from embstore_training.replicas.update import Sums, Trained, checked
from embstore_training.times import Times
from embstore_training.write_behind.exchange import WriteBehind
from embstore_training.write_behind.options import Behind
from embstore_training.write_behind.rows import RowsInFlight, StepSums
from embstore_training.write_behind.slots import Placed


class DeviceRowsInFlight(RowsInFlight):
    """The rows in flight on a device; see `RowsInFlight`. The gradients in a `StepSums` are
    `SlotSums`: scaled in a run of a single rank, and not scaled in a run of several ranks."""

    def __init__(
        self,
        tables: Mapping[str, TableDescription],
        window: int,
        all_gather: AllGather | None,
        lent: LentDevice,
    ) -> None:
        self._lent = lent
        super().__init__(tables, window, all_gather, lent.rows)

    def made(
        self, placed: Mapping[str, Placed], once: Mapping[str, OnceKeys], forms: Forms
    ) -> dict[str, Any]:
        """Return weights in the units of `forms`, by table, as new arrays on the device."""
        return {t: self._made(t, placed[t].slots, once[t], of) for t, of in forms.items()}

    def _made(self, table: str, slots: Slots, once: OnceKeys, of: Of) -> Any:
        rows = cast(LentRows, self._tables[table].rows)
        if isinstance(of, StepBags):
            assert of.bags is not None, "they have bounds"
            return rows.pooled(slots, of.inverse, of.bags)
        return rows.take(slots if of == "unique" or once.is_identity else slots[once.inverse])

    def _copies(self, rows: Any, slots: Slots) -> Callable[[], tuple[Rows, Rows]]:
        return cast(LentRows, rows).copied(slots)

    def _agreed(
        self,
        given: Mapping[str, StepSums],
        options: UpdateOptions,
        trained: Mapping[str, Trained],
    ) -> dict[str, Sums] | None:
        keys = {name: sums.keys for name, sums in given.items()}
        summed = {name: cast(SlotSums, sums.gradients) for name, sums in given.items()}
        return agreed_on_device(self._lent, keys, summed, options, trained, self._all_gather)


class DeviceWriteBehind(WriteBehind):
    """The calls of steps whose rows are on a device; see `WriteBehind`."""

    _rows: DeviceRowsInFlight

    def __init__(self, *how: Any, lent: LentDevice, **behind: Any) -> None:
        super().__init__(*how, **behind)
        self._lent = lent

    def _made_rows(self, tables: Mapping[str, TableDescription], window: int) -> RowsInFlight:
        return DeviceRowsInFlight(tables, window, self._all_gather, self._lent)

    def lookup(self, entry: Entry, forms: Forms) -> dict[str, Any]:
        """See `WriteBehind`."""
        with self._times.part("lookup"):
            rows = self._rows.made(self._admitted(entry), entry.once, forms)
        self.send_for_next()
        return rows

    def _sent(self, table: str, entry: Entry, of: Of, values: Any) -> Any:
        """Return gradients unchanged after a check; the gradients of all tables are summed together
        later."""
        return occurring(table, entry.once[table], of, values)

    def _own(
        self, entry: Entry, sums: Mapping[str, Occurring], options: UpdateOptions
    ) -> tuple[dict[str, Any], dict[str, StepSums]]:
        """Return a step's sums in two forms: the form to send, and the form to apply."""
        of_slots, keys = {}, {}
        for name, given in sums.items():
            chosen = slice(None) if given.positions is None else given.positions
            keys[name] = entry.once[name].keys[chosen]
            of_slots[name] = given.at(entry.flight.placed[name].slots[chosen], self._rows.dim(name))
        summed = applied = self._lent.summed(of_slots, 1.0)
        scale = checked(options).gradient_scale
        if self._all_gather is None and scale != 1:
            applied = self._lent.summed(of_slots, scale)
        sent: dict[str, Any] = {}
        for name, given in sums.items():
            rows = self._lent.shown(summed[name].sums)
            places = given.positions
            sent[name] = rows if places is None else SomeGradients(np.array(places), rows)
        return sent, {
            name: StepSums(keys[name], cast(Rows, own), of_slots[name].slots)
            for name, own in applied.items()
        }


def exchange_of(
    sessions: Sessions,
    session: RankSession,
    times: Times,
    rows: RowsWhere,
    behind: Behind | None,
) -> SessionExchange:
    """Return the exchange of a run's steps. `behind` has the options of a run that does not wait
    for updates; None: the run waits."""
    how = sessions, session, times
    if behind is None:
        return SessionExchange(*how, rows)
    if rows == "device" and (lent := sessions.lend_device()).is_queued:
        return DeviceWriteBehind(*how, lent=lent, **vars(behind))
    return WriteBehind(*how, **vars(behind))
