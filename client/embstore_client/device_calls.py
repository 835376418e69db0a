"""Calls whose arrays are in a GPU's memory: which they are, and what travels of them.

Lookups and updates of a server that shares its GPU's memory (`device_area`). Keys are not made
unique, and gradients not summed: the server does both on the GPU, where they are. If one of a
call's arrays is on the device its rows come there, too: to `out`, or lent. Arrays of the host
beside them (counts, offsets of bags, keys) travel as ever.

Of a step its gradients may be there, of keys, occurrences or bags; those of several ranks the
server copies to the host, where ranks are added. Its rows come there where they are asked for
`ON_DEVICE`, and are lent then, or in outputs there: all of them in one message, when the step's
turn has come. Early ones would have to be put together with the others there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from embstore import commands as c
from embstore.arrays import (
    device_address,
    is_on_device,
    length,
    refusal,
    shape_of,
)
from embstore.checks.call_bytes import ConfigOf, reply_bytes
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore_client import device_area
from embstore_client.device_area import OpenArea
from embstore_proto import device_area as frames
from embstore_proto.device_places import DEVICE_ALIGNMENT, OnDevice, Place, Places, aligned
from embstore_proto.frame import Framed, Message
from embstore_proto.v1 import embstore_pb2 as pb

_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<i8"), 2: np.dtype("<f4")}
"""Of keys, and of rows and gradients, by their dimensions."""
_NOT_SHARED = (
    "which is shared only with a server of this host and user, by shared memory, and the "
    "connection is by gRPC"
)


def message_for(
    command: Any,
    out: Any,
    config_of: ConfigOf,
    wire_dtype: str,
    counts: Mapping[str, int],
) -> "DeviceMessage | None":
    """Return the message of a call that has arrays in a GPU's memory; None: it has none, or is of
    a verb that takes none there.

    counts : of a step's lookup, how many keys it has of each table, as far as that is known

    Raises InvalidArgumentError: outputs that do not fit, or are partly on the host; a `wire_dtype`
    of two bytes, which is for the network.
    """
    if isinstance(command, c.LookupStep | c.LookupStepPooled):
        if not are_on_device(out):
            return None
        check_exact(wire_dtype)
        of_step = _step_shapes(command, config_of, counts)
        size = sum(_bytes_of(shape) + 2 * DEVICE_ALIGNMENT for shape in of_step.values())
        return StepMessage(_step_outs(command, out, of_step), size)
    arrays = _arrays_of(command)
    if arrays is None or not any(map(is_on_device, (*arrays, *(out or ())))):
        return None
    shapes: list[tuple[str, tuple[int, int]]] = []
    match command:
        case c.Lookup(tables):
            shapes = [(p.table, (length(p.keys), _dim(config_of, p))) for p in tables]
        case c.LookupPooled(pooled):
            shapes = [(p.table, (len(p.bags.offsets) - 1, _dim(config_of, p))) for p in pooled]
    outs = list(out) if out else [None] * len(shapes)
    check_exact(wire_dtype)
    for (table, shape), own in zip(shapes, outs, strict=True):
        _check_out(table, shape, own)
    size = reply_bytes(command, config_of) + DEVICE_ALIGNMENT * (len(shapes) + 2)
    return DeviceMessage(outs, size if shapes else 0)


def are_on_device(out: Any) -> bool:
    """Tell whether outputs of a step's rows are in a device's memory: new ones, what a function
    makes, or some of those that are given by table."""
    if out is c.ON_DEVICE or callable(out):
        return True
    return isinstance(out, Mapping) and any(map(is_on_device, out.values()))


def check_exact(wire_dtype: str) -> None:
    """Refuse a dtype of two bytes."""
    if wire_dtype != "float32":
        raise InvalidArgumentError(
            f'expected arrays of the host with wire_dtype="{wire_dtype}", found some in a GPU\'s '
            "memory: where that is shared nothing is rounded"
        )


def rows_not_shared() -> InvalidArgumentError:
    """Return the error that rows of steps are asked for in memory that is not shared."""
    return InvalidArgumentError(
        f"expected rows of steps on the host, found them asked for in a GPU's memory, {_NOT_SHARED}"
    )


@contextmanager
def named(command: Any) -> Iterator[None]:
    """Have an error of a call's arrays name its first table; of a step's rows, the step."""
    try:
        yield
    except InvalidArgumentError as exc:
        if str(exc).startswith(("table ", "session ")):
            raise
        is_lookup = isinstance(command, c.LookupStep | c.LookupStepPooled)
        what = f"step {command.step}" if is_lookup else f"table {command.tables[0].table!r}"
        raise InvalidArgumentError(f"{what}: {exc}") from exc


def _arrays_of(command: Any) -> list[Any] | None:
    """Return what a command has that may be on a device; None: it is of a verb that takes none."""
    match command:
        case c.Lookup(tables) | c.LookupPooled(tables):
            return [part.keys for part in tables]
        case c.Update(tables) | c.UpdatePooled(tables):
            return [array for part in tables for array in (part.keys, part.gradients)]
        case c.UpdateStep(tables=shares):
            return [part.gradients for part in shares]
    return None


def _dim(config_of: ConfigOf, part: Any) -> int:
    return config_of(part.table, part.table_id).dim


def _step_shapes(
    command: Any, config_of: ConfigOf, counts: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Return the shape of a step's rows by table; of none where nobody here has announced it, and
    the server has room made for them."""
    if isinstance(command, c.LookupStepPooled):
        counts = {
            part.table: len(part.inverse) if part.bags is None else len(part.bags.offsets) - 1
            for part in command.tables
            if part.table in counts
        }
    return {name: (count, config_of(name, None).dim) for name, count in counts.items()}


def _step_outs(command: Any, out: Any, shapes: Mapping[str, tuple[int, int]]) -> list[Any]:
    """Return where the rows of each table go, as `_Rows` takes it."""
    if out is c.ON_DEVICE:
        return [None] * len(shapes)
    if not shapes:
        raise InvalidArgumentError(
            f"step {command.step}: expected out in the GPU's memory for rows of a step that this "
            "client has announced, found another one; give on_device=True, not out"
        )
    made = out(list(shapes), list(shapes.values())) if callable(out) else map(out.get, shapes)
    outs = list(made)
    for (table, shape), own in zip(shapes.items(), outs, strict=True):
        _check_out(table, shape, own)
    return outs


def _bytes_of(shape: tuple[int, int]) -> int:
    return VALUE_BYTES * shape[0] * shape[1]


def _check_out(table: str, shape: tuple[int, int], out: Any) -> None:
    if out is None:
        return
    if not is_on_device(out):
        raise refusal(
            table, "out in the GPU's memory, as other arrays of the call", "one on the host"
        )
    found, interface = shape_of(out), out.__cuda_array_interface__
    if found != shape:
        raise refusal(table, f"out of shape {shape}", found)
    device_address(interface, _DTYPES[2])
    if interface["data"][1]:
        raise refusal(table, "out that may be written", "a read-only array")


class DeviceMessage(Message):
    """A message whose arrays are in a GPU's memory; those of the host are its payload."""

    def __init__(self, outs: Sequence[Any], rows_bytes: int) -> None:
        super().__init__()
        self.outs = outs
        self.rows_bytes = rows_bytes
        """About the bytes of the rows that come back."""
        self._places = Places()
        self._arrays: list[tuple[Any, Place]] = []

    def add(self, array: Any) -> pb.Array:
        """Append an array, and return its place for the header."""
        if not is_on_device(array):
            return super().add(array)
        shape = shape_of(array)
        dtype = _DTYPES.get(len(shape))
        if dtype is None:
            raise InvalidArgumentError(f"expected one or two dimensions, found shape {shape}")
        device_address(array.__cuda_array_interface__, dtype)
        place = self._places.add(shape, dtype)
        self._arrays.append((array, place))
        return place.stored()

    def place(self, connection: Any, rows_bytes: int, deadline: float) -> bytes:
        """Copy the arrays to where the server reads them, in a connection's area, which grows if it
        must; return the frame that says so.

        Raises InvalidArgumentError: CuPy is not installed, an array cannot be copied, or the
        server's GPU not be shared.
        """
        device_area.opened_gpu()  # or it is missing, before the server is asked for memory
        byte_count = self._places.byte_count
        wanted = max(aligned(byte_count) + rows_bytes, 1)
        area = connection.device_area_of(wanted, deadline)
        self._follow(area)
        for array, place in self._arrays:
            if place.byte_count:
                area.write(array, place.offset, place.byte_count)
        area.record()
        return frames.on_device(byte_count)

    def _follow(self, area: OpenArea) -> None:
        """Have what is copied, and done with the area, wait for the caller's streams."""
        area.follow([array for array, _ in self._arrays] + [o for o in self.outs if o is not None])

    def rows(self, area: OpenArea, lend: Callable[[], object] | None) -> OnDevice:
        """Return what takes the rows of the answer from an area; `lend` returns what lent rows
        keep, None: they are copied."""
        return _Rows(area, self.outs, lend)

    def total_bytes(self, header: bytes) -> int:
        """Refuse to be sent without shared memory; so do all that a network needs."""
        self._refuse()

    def joined(self, header: bytes) -> bytes:
        """See `total_bytes`."""
        self._refuse()

    def framed(self, header: bytes) -> Framed:
        """See `total_bytes`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidArgumentError(
            f"expected arrays of the host, found some in a GPU's memory, {_NOT_SHARED}"
        )


class StepMessage(DeviceMessage):
    """A lookup of a step, whose rows come in a GPU's memory; its own arrays are the host's."""

    def _follow(self, area: OpenArea) -> None:
        super()._follow(area)
        if not self.outs or any(own is None for own in self.outs):  # rows that are lent
            area.follow_current()

    def _refuse(self) -> NoReturn:
        raise rows_not_shared()


class _Rows:
    """The rows of one answer, table after table."""

    def __init__(
        self, area: OpenArea, outs: Sequence[Any], lend: Callable[[], object] | None
    ) -> None:
        self._area, self._lend = area, lend
        self._outs = iter(outs)

    def array(self, place: Place, what: str) -> Any:
        """Return an array of the answer: the caller's, filled, or one of the area."""
        if place.end > self._area.byte_count:
            raise InvalidArgumentError(
                f"{what}: expected rows in the GPU's memory, found them outside"
            )
        out = next(self._outs, None)
        if out is not None:
            if shape_of(out) != place.shape:
                raise InvalidArgumentError(
                    f"{what}: expected rows of shape {shape_of(out)}, found {place.shape}: the "
                    "table has become another one"
                )
            self._area.read(place, out)
            return out
        return (
            self._area.copied(place) if self._lend is None else self._area.lent(place, self._lend())
        )
