"""A GPU that Torch and a store share: ids, rows and gradients stay in its memory.

The store is in this process, or in a server on this host that shares its GPU's memory.

Torch allocates the tensors that the store fills with rows, and sums gradients into tensors. The
store gets the addresses of all these tensors, and Torch's stream. So events order the work of Torch
and the work of the store on the GPU, in both directions, and the host waits for neither. Torch's
own `__cuda_array_interface__` names no stream. A call that fills a tensor through that interface
would therefore have to wait.

Torch's allocator reuses a tensor's memory in the order of the stream that made it. A use in another
stream must therefore be reported to the allocator: `here` does so.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.handles.sessions import MakeRows
from embstore.handles.store import Store
from embstore_client.frameworks.gradients import concatenated
from embstore_client.frameworks.occurrences import HasKeys, by_table
from embstore_client.frameworks.rows import Positions

_LEGACY_STREAM = 1
"""The number of the default stream in `__cuda_array_interface__`; Torch's number for it is 0."""
_REACHED: WeakKeyDictionary[Store, dict[str, bool]] = WeakKeyDictionary()
"""For each store, whether its rows are on a GPU. This caches the answer of `Sessions.reaches`,
which asks the store."""


class Shown:
    """A tensor of a GPU in the form in which a store accepts it, to read it or to fill it."""

    def __init__(self, tensor: Any) -> None:
        """Wrap a C-contiguous tensor that the current stream uses."""
        self._tensor = tensor
        self._stream = _stream(tensor.device)
        stream = self._stream.cuda_stream or _LEGACY_STREAM
        own = tensor.__cuda_array_interface__
        self.__cuda_array_interface__ = {**own, "version": 3, "stream": stream}

    def cpu(self) -> NDArray[Any]:
        """Return a copy in host memory."""
        copy: NDArray[Any] = self.here().cpu().numpy()
        return copy

    def here(self) -> Any:
        """Return the tensor, for use in the current stream."""
        stream = _stream(self._tensor.device)
        if stream != self._stream:
            stream.wait_stream(self._stream)
            self._tensor.record_stream(stream)
        return self._tensor


class Sent:
    """Integers that the current stream copies from the host to a GPU; the host does not wait for
    the copy."""

    def __init__(self, arrays: Sequence[NDArray[Any]], device: Any) -> None:
        """Copy arrays (n,) as int64, by one transfer."""
        self._whole = _copied(arrays, device)
        self._parts = self._whole.split(list(map(len, arrays)))
        self._event = _stream(device).record_event()

    def here(self) -> Any:
        """Return the arrays as a tuple of tensors, for use in the current stream."""
        stream = _stream(self._whole.device)
        stream.wait_event(self._event)
        self._whole.record_stream(stream)
        return self._parts


def there(array: NDArray[Any], device: Any) -> Any:
    """Return a host array as a tensor on a device. The host waits for the copy, so any stream can
    use the tensor."""
    return torch.from_numpy(array).to(device)


class DeviceOccurrences(NamedTuple):
    """The ids of one feature in one forward. This is like `frameworks.occurrences.Occurrences`, but
    gradients and weights are tensors of a GPU."""

    table: str
    keys: Any
    """(n,): `Positions` within a step, otherwise a tensor of keys."""
    ids: int
    """n, the number of ids."""
    offsets: Any
    """(bags + 1,) int64 tensor; None: a row for each id."""
    mode: str
    weights: Any
    """(n,) float32 tensor that no other code uses, or None."""
    inverse: Any
    """(n,) int64 tensor, the values of `Positions` on the GPU. None if keys are a tensor."""

    @classmethod
    def of(cls, own: Any, place: Any, weights: Any) -> Self:
        """Return the occurrences of a feature, from its `FeatureIds` and its `Place` among the
        rows."""
        if weights is not None:
            weights = weights.to(torch.float32, copy=True)
        of = own.of
        return cls(
            of.table, place.named, len(of.keys), place.offsets, of.mode, weights, place.inverse
        )

    def by_key(self, gradients: Any) -> Any:
        """Return the gradient of each id, (n, dim), from gradients of bags or ids (contract.md,
        rule 8). Gradients of bags are not sent as such, because the store would need the bags'
        offsets on the host.
        """
        if self.offsets is None:
            return gradients
        counts = self.offsets.diff()
        if self.mode == "mean":
            gradients = gradients / counts[:, None]
        # As the size is given, the host does not wait to learn it.
        rows = gradients.repeat_interleave(counts, dim=0, output_size=self.ids)
        return rows if self.weights is None else self.weights[:, None] * rows


def device_of(store: Store, *forwards: Mapping[str, Any]) -> Any:
    """Return the GPU that holds the ids of all features, if it also holds the store's rows and this
    process can reach those rows. None: ids and rows are copied through the host."""
    devices = {own.device for given in forwards for own in given.values()}
    if len(devices) != 1:
        return None
    (device,) = devices
    if device.type != "cuda":
        return None
    reached, name = _REACHED.setdefault(store, {}), str(device)
    if name not in reached:
        reached[name] = store.sessions.reaches(name)
    return device if reached[name] else None


def rows_on(device: Any) -> MakeRows:
    """Return a function that allocates tensors of a GPU, to be filled with rows."""

    def make(_: Sequence[str], shapes: Sequence[tuple[int, int]]) -> list[Shown]:
        return [Shown(torch.empty(shape, dtype=torch.float32, device=device)) for shape in shapes]

    return make


def keys_on_gpu(given: Mapping[str, HasKeys]) -> dict[str, Any]:
    """Return, for each table, a copy of the keys of all lookups as an int64 tensor. All keys must
    be on one GPU."""
    return {
        table: torch.cat([own.keys for own in of_table]).to(torch.int64)
        for table, of_table in by_table(given).items()
    }


def keys_on_host(*forwards: Mapping[str, HasKeys]) -> dict[str, Keys]:
    """Return, for each table, the keys of all lookups of some forwards, as `keys_by_table` does.
    Keys on a GPU are copied to the host by one transfer per GPU."""
    parts = {t: [own.keys for own in of_table] for t, of_table in by_table(*forwards).items()}
    by_device: dict[Any, list[Any]] = {}
    for of_table in parts.values():
        for part in of_table:
            if isinstance(part, torch.Tensor):
                by_device.setdefault(part.device, []).append(part)
    copies: dict[int, Keys] = {}
    for tensors in by_device.values():
        whole = torch.cat(tensors).to(torch.int64).cpu().numpy()
        ends = np.cumsum([len(tensor) for tensor in tensors])
        copies |= zip(map(id, tensors), np.split(whole, ends[:-1]), strict=True)
    return {
        name: concatenated([copies.get(id(part), part) for part in of_table])
        for name, of_table in parts.items()
    }


def join(parts: Sequence[Any]) -> Any:
    """Concatenate the ids, or the gradients, of several features. If some are on a GPU, all are
    moved there, in the form that a store accepts; otherwise the result is an array in host
    memory."""
    if isinstance(parts[0], Positions):
        return Positions(concatenated([part.places for part in parts]))
    devices = [part.device for part in parts if isinstance(part, torch.Tensor)]
    if not devices:
        return concatenated(parts)
    on_any = (p if isinstance(p, torch.Tensor) else torch.from_numpy(p) for p in parts)
    tensors = [tensor.to(devices[0]) for tensor in on_any]
    return Shown(tensors[0].contiguous() if len(tensors) == 1 else torch.cat(tensors))


def squares_on_device(parts: Sequence[tuple[Any, Any]]) -> Any:
    """Return the sum of the squares of a table's gradients, a float64 tensor () on the gradients'
    GPU. The gradient of a key is the sum over the key's occurrences. None: some gradients are not
    on the GPU.

    Parameters
    ----------
    parts : ids of features, and gradients of their outputs
    """
    ids = [of for of, _ in parts]
    if not all(isinstance(of, DeviceOccurrences) for of in ids):
        return None
    rows = torch.cat([of.by_key(gradients) for of, gradients in parts]).to(torch.float64)
    if all(isinstance(of.keys, Positions) for of in ids):
        inverse = torch.cat([of.inverse for of in ids])
        count = max(int(of.keys.places.max(initial=-1)) for of in ids) + 1
    elif all(isinstance(of.keys, torch.Tensor) for of in ids):
        once, inverse = torch.unique(torch.cat([of.keys for of in ids]), return_inverse=True)
        count = len(once)
    else:
        return None
    sums = rows.new_zeros((count, rows.shape[1])).index_add_(0, inverse, rows)
    return sums.square().sum()


def _stream(device: Any) -> Any:
    return torch.cuda.current_stream(device)


def _copied(arrays: Sequence[NDArray[Any]], device: Any) -> Any:
    """Return concatenated arrays as an int64 tensor of a GPU, to which the current stream copies
    them. The source of the copy is pinned memory; for a copy from other memory, the host would
    wait."""
    with torch.cuda.device(device):
        pinned = torch.empty(sum(map(len, arrays)), dtype=torch.int64, pin_memory=True)
        np.concatenate(arrays, out=pinned.numpy(), casting="same_kind")
        return pinned.to(device, non_blocking=True)
