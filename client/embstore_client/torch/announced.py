"""Ids on a GPU that were announced: read in the loader's thread, so that no forward waits for them.

The ids of a forward have to be examined on the host: where bags begin, and which announced key each
id is. The thread that reads batches does that, ahead of the loop, and sends back to the GPU the
arrays that the forward needs. A forward recognizes tensors by their memory, and by how often Torch
has changed them (`_version`): views too, as the features of a KeyedJaggedTensor. It reads other
tensors when it comes.
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
    """(u,), on the device of the ids."""
    are_ids: NDArray[np.bool_] | None = None
    """(n,), which of all ids are kept; None: none is padding."""


@dataclass(eq=False)
class Place:
    """The place of the rows of a feature's ids; for announced ids it is prepared."""

    named: Any = None
    """The ids, as `frameworks.rows.Named`, or a tensor of keys; None: it is not prepared."""
    inverse: Any = None
    """(n,) int64 tensor, the row of each id; None: each has the next one."""
    offsets: Any = None
    """(bags + 1,) int64 tensor; None: one id a bag, or no bags."""
    unpadded: Any = None
    """`Unpadded`; None: padding has not been looked for."""


class Read:
    """The results for the tensors of one batch; within a with block `once` takes them from here.
    One thread at a time."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[Any, Sequence[Any]]] = {}
        self._sent: Sent | None = None  # None before it is prepared.

    def __enter__(self) -> Self:
        self._token = _READ.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _READ.reset(self._token)

    def made(self, make: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return make(*arguments), made once for tensors of a GPU that are not changed."""
        tensors = [given for given in arguments if isinstance(given, torch.Tensor)]
        if all(tensor.device.type != "cuda" for tensor in tensors):
            return make(*arguments)  # NumPy may change them, which Torch does not count
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
        """Send to the GPU the arrays that forwards need for their ids, and note their places.

        Parameters
        ----------
        forwards : `Given` of all features of each, with the ids of the step, in its order
        once : for the step, {table: (keys, inverse (n,) int32)}
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
        """Have the current stream use the sent arrays."""
        if self._sent is not None:
            self._sent.here()


_READ: ContextVar[Read | None] = ContextVar("embstore_torch_read", default=None)


def once(make: Callable[..., T], *arguments: Any) -> T:
    """Return make(*arguments), or the earlier result for the same tensors, if they are
    unchanged."""
    read = _READ.get()
    if read is None:
        return make(*arguments)
    made: T = read.made(make, arguments)
    return made


def _identity(given: Any) -> Any:
    if isinstance(given, Ids):
        return id(given)  # a module's, which lasts
    if not isinstance(given, torch.Tensor):
        return given
    if given.is_inference():  # its changes are not counted
        return object()
    shape = tuple(given.shape), given.stride(), given.dtype
    return given.data_ptr(), *shape, given._version
