"""The hot replica in the memory of the store's device, in the store's own process.

Rows, gradients and their sums stay on the device. The store's own kernels gather and pool the rows
of a hot step there, sum its gradients by key, and apply the sums (`embstore.handles.lent`). Keys,
slots, t and the marks of dirty rows stay on the host, because batches have their keys on the host.
Rows pass through the host on their way to and from the store. With several ranks, sums of gradients
also pass through the host, because the caller's all-gather hook exchanges them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from numpy.typing import ArrayLike

from embstore.arithmetic import unique
from embstore.arrays import Keys, as_keys
from embstore.commands import UpdateOptions
from embstore.config import TableConfig
from embstore.handles.lent import LentDevice, LentRows, SlotGradients
from embstore.handles.sessions import StepBags
from embstore.profiles.hotset import HotSet
from embstore_training.bags import Of
from embstore_training.hotcold.replica import Replica
from embstore_training.read_ahead import OnceKeys
from embstore_training.replicas.on_device import Occurring, agreed_on_device, occurring
from embstore_training.replicas.ranks import AllGather
from embstore_training.replicas.rows import TrainersRows
from embstore_training.replicas.update import Sums


def on_the_stores_device(
    store: Any, hot_set: HotSet | Mapping[str, ArrayLike], *, tables: Iterable[str] | None = None
) -> Replica:
    """Return the replica on the device of a store in this process. On the CPU, the device's memory
    is the host's memory, and the result is a `Replica`.

    Raises
    ------
    InvalidArgumentError : the store is in another process. Also the errors of `Replica`.
    """
    lent = store.sessions.lend_device()
    if not lent.is_queued:
        return Replica(store, hot_set, tables=tables)
    return DeviceReplica(store, hot_set, lent, tables=tables)


class DeviceReplica(Replica):
    """The hot rows of some tables on a device. Looked-up rows and gradients are arrays on the
    device, too."""

    def __init__(
        self,
        store: Any,
        hot_set: HotSet | Mapping[str, ArrayLike],
        lent: LentDevice,
        *,
        tables: Iterable[str] | None = None,
    ) -> None:
        """Prepare the rows of `hot_set` on a device that queues work; see `Replica`.

        Raises
        ------
        CapacityError : outside of the cache, the device does not have enough memory for the rows.
        """
        self._lent = lent
        super().__init__(store, hot_set, tables=tables)

    def _make_rows(self, config: TableConfig, count: int) -> TrainersRows:
        return self._lent.rows(config, count)

    def pooled(self, name: str, keys: Keys, bags: StepBags) -> Any:
        """See `Replica`."""
        self._receipt.synchronize()
        table = self._table(name)
        assert bags.bags is not None, "they have bounds"
        rows = cast(LentRows, table.rows)
        return rows.pooled(table.pulled_slots(keys), bags.inverse, bags.bags)

    def to_store(self, rows: Any) -> Any:
        """Return gradients unchanged: the store accepts them."""
        return rows

    def given(
        self,
        name: str,
        keys: Mapping[str, Keys],
        once: Mapping[str, OnceKeys],
        of: Of,
        rows: Any,
    ) -> tuple[Keys, Any]:
        """Return the distinct keys that have gradients, and their gradients."""
        own, found = once[name], occurring(name, once[name], of, rows)
        return own.keys if found.positions is None else own.keys[found.positions], found

    def _agreed(
        self,
        given: Mapping[str, tuple[Any, Any]],
        options: UpdateOptions,
        all_gather: AllGather | None,
    ) -> dict[str, Sums] | None:
        of_slots = {name: self._of_slots(name, *pair) for name, pair in given.items()}
        keys = {name: self._table(name).index.keys[own.slots] for name, own in of_slots.items()}
        scale = options.gradient_scale if all_gather is None else 1.0
        summed = self._lent.summed(of_slots, scale)
        return agreed_on_device(self._lent, keys, summed, options, self._trained, all_gather)

    def _of_slots(self, name: str, keys: ArrayLike, gradients: Any) -> SlotGradients:
        """Return gradients of one table in the form in which the device sums them."""
        table, once = self._table(name), as_keys(keys, name)
        if isinstance(gradients, Occurring):
            given = gradients
        else:
            once, inverse = unique(once)
            is_once = len(once) == len(inverse)
            given = Occurring(None, gradients, None if is_once else inverse)
        return given.at(table.pulled_slots(once), table.config.dim)
