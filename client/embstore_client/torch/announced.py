"""Announced ids on a GPU: the loader's thread reads them, so that no forward waits for them.

The host has to examine the ids of a forward, to find where bags begin, and which announced key each
id is. The thread that reads batches examines the ids ahead of the loop, and sends the arrays that
the forward needs to the GPU. A forward recognizes tensors by their memory, and by Torch's count of
their changes (`_version`). It also recognizes views, such as the features of a KeyedJaggedTensor.
Other tensors are read during the forward.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore_client.frameworks.occurrences import by_table
from embstore_client.frameworks.rows import Positions
from embstore_client.frameworks.tables import Ids
from embstore_client.torch.gpu import Sent

T = TypeVar("T")


class Unpadded(NamedTuple):
    """The ids of a feature without padding."""

    keys: Any
    """The keys that are not padding, (u,), on the device of the ids."""
    are_ids: NDArray[np.bool_] | None = None
    """(n,), true for ids that are not padding. None: no id is padding."""


@dataclass(eq=False)
class Place:
    """The positions of the rows of a feature's ids. They are prepared ahead for announced ids."""

    named: Any = None
    """The ids, as `frameworks.rows.Named`, or a tensor of keys. None: not prepared yet."""
    inverse: Any = None
    """(n,) int64 tensor, the row of each id. None: rows are in the order of the ids."""
    offsets: Any = None
    """(bags + 1,) int64 tensor. None: one id per bag, or no bags."""
    unpadded: Any = None
    """An `Unpadded`. None: ids have not been compared with padding yet."""


class Read:
    """Results computed from the tensors of one batch; within the with block of this object, `once`
    returns them. Only one thread may use it at a time."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[Any, Sequence[Any]]] = {}
        self._sent: Sent | None = None  # None before `prepare`.

    def __enter__(self) -> Self:
        self._token = _READ.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _READ.reset(self._token)

    def made(self, make: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return make(*arguments); call `make` once for the same GPU tensors, as long as they do
        not change."""
        tensors = [given for given in arguments if isinstance(given, torch.Tensor)]
        if all(tensor.device.type != "cuda" for tensor in tensors):
            return make(*arguments)  # Torch does not count the changes that NumPy makes
        key = make, *map(_identity, arguments)
        if key not in self._made:
            self._made[key] = make(*arguments), tensors  # no other tensor gets their memory
        return self._made[key][0]

    def prepare(
        self,
        forwards: Sequence[Mapping[str, Any]],
        device: Any,
        once: Mapping[str, Any],
    ) -> None:
        """Set the places of the forwards' ids, after sending the arrays that the forwards need to
        the GPU.

        Parameters
        ----------
        forwards : for each forward, the ids of all features; together the ids of the step, in order
        once : the distinct keys of the step, {table: (keys, inverse (n,) int32)}
        """
        lookups = by_table(*forwards)
        every = chain.from_iterable(lookups.values())
        pooled = [own for own in every if own.of.offsets is not None]
        inverses = [of_table.inverse for of_table in once.values()]
        self._sent = Sent([*inverses, *(own.of.offsets for own in pooled)], device)
        parts = self._sent.here()
        there = dict(zip(once, parts, strict=False))
        for own, offsets in zip(pooled, parts[len(inverses) :], strict=True):
            own.place.offsets = offsets
        for table, of_table in lookups.items():
            begin = 0
            for own in of_table:
                at = slice(begin, begin + len(own.keys))
                own.place.named = Positions(once[table].inverse[at])
                own.place.inverse = there[table][at]
                begin = at.stop

    def use(self) -> None:
        """Prepare the current stream to use the sent arrays."""
        if self._sent is not None:
            self._sent.here()


_READ: ContextVar[Read | None] = ContextVar("embstore_torch_read", default=None)


def once(make: Callable[..., T], *arguments: Any) -> T:
    """Return make(*arguments), or, if the same tensors were given before and are unchanged, the
    earlier result."""
    read = _READ.get()
    if read is None:
        return make(*arguments)
    made: T = read.made(make, arguments)
    return made


def _identity(given: Any) -> Any:
    if isinstance(given, Ids):
        return id(given)  # the id of an entry, which lives as long as the module
    if not isinstance(given, torch.Tensor):
        return given
    if given.is_inference():  # Torch does not count the changes of inference tensors
        return object()
    shape = tuple(given.shape), given.stride(), given.dtype
    return given.data_ptr(), *shape, given._version
