"""The hot replica in torch tensors, on the trainer's own device.

Weights and state are tensors. Keys, slots, t and the marks of dirty rows stay on the host, because
batches have their keys on the host. Gradients are summed by key on the host, by
`embstore.arithmetic`: the result of a sum depends on its order, and a device's scatter does not
keep an order. The sums are scaled and checked on the host, too, and then uploaded.

An update computes the formulas of `embstore.optimizers` by torch operations that round each element
once, in the order of the formulas. These operations are not used:

    addcmul, addcdiv, alpha=, fused or compiled ops   may contract a product and a sum into an FMA
    tensor / number                                   on CUDA a product with the reciprocal
    number / tensor                                   everywhere a reciprocal, then a product
    torch.sum                                         chooses its own order

Therefore scalars are tensors of one element on the device, and a sum over dim is computed as 32
partial sums, which are then folded (rule 3). Roots are computed in float64 and rounded to fp32.
The result is the correctly rounded root (53 >= 2 * 24 + 2 bits), whichever library computes torch's
fp32 roots.

On the CPU the bits are the same as NumPy's, which a test compares. On CUDA the bits depend on IEEE
division and IEEE float64 roots, with which torch is compiled for CUDA. Devices of other kinds are
refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.arithmetic import apply_formulas, check_denormals
from embstore.arrays import Rows
from embstore.config import TableConfig
from embstore.errors import DeviceError, InvalidArgumentError
from embstore.optimizers import copysign, sqrt, where
from embstore.profiles.hotset import HotSet
from embstore_training.hotcold.replica import Replica
from embstore_training.replicas.rows import HostRows, Slots

_DEVICES = ("cpu", "cuda")
_PARTIALS = 32
_PROBE_ELEMENTS = 1 << 17
"""Enough elements for torch to use all of its threads, each of which may flush denormals."""


def sum_over_dim(values: Any) -> Any:
    """Return the sums of rows of (n, dim), as (n, 1), in the order of contract.md, rule 3."""
    count, dim = values.shape
    partials = torch.zeros((count, _PARTIALS), dtype=torch.float32, device=values.device)
    partials[:, : min(dim, _PARTIALS)] = values[:, :_PARTIALS]
    for first in range(_PARTIALS, dim, _PARTIALS):
        part = values[:, first : first + _PARTIALS]
        partials[:, : part.shape[1]] += part
    for half in (16, 8, 4, 2, 1):
        partials[:, :half] += partials[:, half : 2 * half]
    return partials[:, :1]


@sqrt.register(torch.Tensor)
def _sqrt(x: Any) -> Any:
    return torch.sqrt(x.double()).float()


@copysign.register(torch.Tensor)
def _copysign(magnitude: Any, sign: Any) -> Any:
    return torch.copysign(magnitude, sign)


@where.register(torch.Tensor)
def _where(condition: Any, x: Any, y: Any) -> Any:
    return torch.where(condition, x, y)


def apply_update(
    kind: str, weights: Any, state: Any, gradients: Any, scalars: Rows
) -> tuple[Any, Any]:
    """Return the weights and state of rows after one update.

    This computes the same as `embstore.arithmetic.apply_update`, but not in place. NaNs become
    canonical.
    """

    def numbers(values: Rows) -> Sequence[Any]:
        on_device: Sequence[Any] = torch.tensor(values, device=weights.device).split(1)
        return on_device

    with torch.no_grad():
        rows = weights, state
        new, parts = apply_formulas(kind, rows, gradients, scalars, sum_over_dim, numbers)
        return _canonical(new), _canonical(torch.cat(parts, dim=1) if parts else state)


def _canonical(rows: Any) -> Any:
    return rows.masked_fill(torch.isnan(rows), float("nan"))


class TorchRows(HostRows):
    """Weights and state of one table's rows at a trainer, by slot, in tensors on a device."""

    def __init__(self, config: TableConfig, count: int, device: Any) -> None:
        self._device = device
        super().__init__(config, count)

    def _zeros(self, *shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.float32, device=self._device)

    def _places(self, slots: Slots) -> Any:
        return torch.from_numpy(np.ascontiguousarray(slots, np.int64)).to(self._device)

    def take(self, slots: Slots) -> Any:
        """Return the weights of slots, (n, dim), as a new tensor without gradients."""
        return self._weights.index_select(0, self._places(slots))

    def _both(self, slots: Slots) -> tuple[Any, Any]:
        places = self._places(slots)
        return self._weights.index_select(0, places), self._state.index_select(0, places)

    def read(self, slots: Slots) -> tuple[Rows, Rows]:
        """Return the weights and state of slots, on the host."""
        weights, state = self._both(slots)
        return weights.cpu().numpy(), state.cpu().numpy()

    def updated(self, slots: Slots, gradients: Rows, scalars: Rows) -> tuple[Any, Any]:
        """Return the weights and state of distinct slots after an update, as tensors."""
        check_denormals()
        g = torch.from_numpy(gradients).to(self._device)
        return apply_update(self._kind, *self._both(slots), g, scalars)

    def write(self, slots: Slots, weights: Any, state: Any) -> None:
        """Set weights and state of distinct slots, to tensors from `updated` or host arrays."""
        places = self._places(slots)
        self._weights.index_copy_(0, places, _tensor(weights, self._device))
        self._state.index_copy_(0, places, _tensor(state, self._device))


class TorchReplica(Replica):
    """The hot rows of some tables in torch tensors. `lookup` returns tensors, `update` takes them.

    Looked-up rows do not require gradients: `requires_grad_()` makes the rows leaves of autograd.
    Pass their `.grad` to `update`.
    """

    def __init__(
        self,
        store: Any,
        hot_set: HotSet | Mapping[str, Any],
        *,
        tables: Iterable[str] | None = None,
        device: Any = "cpu",
    ) -> None:
        """Prepare the rows of `hot_set` on a device; see `Replica`.

        Parameters
        ----------
        device : a torch device of kind "cpu" or "cuda"

        Raises
        ------
        InvalidArgumentError : there is no such device, or the device is of another kind. Also the
            errors of `Replica`.
        DeviceError : torch flushes denormals on that device.
        """
        self._device = _device(device)
        super().__init__(store, hot_set, tables=tables)

    def _make_rows(self, config: TableConfig, count: int) -> HostRows:
        return TorchRows(config, count, self._device)

    def to_trainer(self, rows: Rows) -> Any:
        """Return rows on the host as a tensor on the device."""
        return _tensor(rows, self._device)

    def to_host(self, rows: Any) -> Any:
        """Return a tensor as an array on the host, and any other object unchanged."""
        if not isinstance(rows, torch.Tensor):
            return rows
        try:
            return rows.detach().cpu().numpy()
        except TypeError as exc:
            raise InvalidArgumentError(
                f"expected a tensor of dtype torch.float32, found {rows.dtype}"
            ) from exc


def _tensor(rows: Any, device: Any) -> Any:
    """Return rows as a tensor on a device; rows on the host are copied."""
    if isinstance(rows, torch.Tensor):
        return rows
    return torch.from_numpy(np.array(rows, np.float32)).to(device)


def _device(device: Any) -> Any:
    """Return a torch device whose arithmetic follows the contract."""
    try:
        found = torch.device(device)
        if found.type not in _DEVICES:
            raise InvalidArgumentError(
                f"expected a torch device of kind {' or '.join(_DEVICES)}, found {found}"
            )
        smallest = torch.ones(_PROBE_ELEMENTS, dtype=torch.int32, device=found)
    except (RuntimeError, TypeError, AssertionError) as exc:
        raise InvalidArgumentError(f"expected a torch device, found {device!r}: {exc}") from exc
    sums = smallest.view(torch.float32) + smallest.view(torch.float32)
    if bool((sums.view(torch.int32) != 2).any()):
        raise DeviceError(
            f"expected torch to keep denormals on {found}, found them flushed to zero; is "
            "torch.set_flush_denormal on?"
        )
    return found
