"""The layer for calls with arrays in a GPU's memory: it finds these arrays, and sends the calls.

The server shares its GPU's memory (`device_segment`). This layer does not make keys unique and does
not sum gradients: the server makes keys unique and sums on the GPU, where the arrays are. A call
with arrays in a GPU's memory therefore bypasses the layers below. If one array of a call is on the
device, the call's rows are returned on the device, too: in `out`, or lent (as arrays in the shared
memory itself). The call's arrays on the host (counts, offsets of bags, keys) are sent as usual.

The gradients of a step can be on the device, as gradients of keys, occurrences or bags. If the
session has several ranks, the server copies the gradients to the host, where it adds the gradients
of all ranks. The rows of a step are returned on the device if `out` is `ON_DEVICE` (in this case
they are lent), or if `out` has arrays on the device. These rows are sent in one message, when all
earlier steps are finished. If some rows were sent before that, they would have to be joined with
the later rows on the device.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from embstore.arrays import check_on_host, device_address, is_on_device, length, refusal, shape_of
from embstore.checks.call_bytes import ConfigOf
from embstore.commands import COMMANDS, ON_DEVICE, Reads, Trait
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore.parts import arrays_of, tables_of
from embstore.results import StepRows
from embstore_client.call import Below, Call
from embstore_client.device_message import DTYPES, DeviceMessage, StepMessage
from embstore_client.step_rows import whole
from embstore_proto.device_places import DEVICE_ALIGNMENT

_ON_DEVICE = {one for one in COMMANDS.values() if Trait.ON_DEVICE in one.traits}

Shapes = Mapping[str, tuple[int, int]]
"""The shape of the rows of each table."""


class OnDevice:
    """The layer that sends calls with arrays in a GPU's memory, and passes on all other calls."""

    def __init__(self, config_of: ConfigOf, wire_dtype: str, sent: Below) -> None:
        self._config_of, self._wire_dtype, self._sent = config_of, wire_dtype, sent

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call.

        Raises InvalidArgumentError if a command that takes no arrays on a device has such arrays;
        if outputs do not fit, or are partly on the host; or if `wire_dtype` is one of the two-byte
        types, which only networks need.
        """
        command: Any = call.command
        is_of_step = command.reads is Reads.OF_STEP
        if not (are_on_device(call.out) if is_of_step else _has_some(call)):
            return below(call)
        check_exact(self._wire_dtype)
        shapes = self._step_shapes(call) if is_of_step else self._shapes(call)
        outs = _step_outs(call, shapes) if is_of_step else list(call.out or [None] * len(shapes))
        for (table, shape), own in zip(shapes.items(), outs, strict=True):
            _check_out(table, shape, own)
        call.message = (StepMessage if is_of_step else DeviceMessage)(outs)
        call.reply_bytes = sum(map(_room_for, shapes.values()))
        if hasattr(command, "early"):
            call.command = replace(command, early=False)
        with _named(command):
            value = self._sent(call)
        return whole(value) if isinstance(value, StepRows) else value

    def _shapes(self, call: Call) -> Shapes:
        if call.command.reads is Reads.NOTHING:
            return {}
        return {
            part.table: (_rows_of(part, "keys"), self._config_of(part.table, part.table_id).dim)
            for part in tables_of(call.command)
        }

    def _step_shapes(self, call: Call) -> Shapes:
        """Return the shapes of a step's rows; {} if this client has not announced the step, in
        which case the server allocates memory for the rows."""
        parts, counts = tables_of(call.command), call.counts
        if parts:
            named = [part for part in parts if part.table in counts]
            counts = {part.table: _rows_of(part, "inverse") for part in named}
        return {name: (count, self._config_of(name, None).dim) for name, count in counts.items()}


def are_on_device(out: Any) -> bool:
    """Return whether `out`, the output for a step's rows, is in a device's memory. `out` can be
    `ON_DEVICE` (new arrays), a function that makes arrays, or a mapping of arrays by table."""
    if out is ON_DEVICE or callable(out):
        return True
    return isinstance(out, Mapping) and any(map(is_on_device, out.values()))


def check_exact(wire_dtype: str) -> None:
    """Refuse a two-byte wire dtype, because device memory is shared without rounding."""
    if wire_dtype != "float32":
        raise InvalidArgumentError(
            f'expected host arrays with wire_dtype="{wire_dtype}", found some in a GPU\'s '
            "memory, which is shared without rounding: give host arrays, or connect with "
            'wire_dtype="float32"'
        )


def _has_some(call: Call) -> bool:
    """Return whether an array of a call is on a device; refuse such a call if its command takes no
    arrays on a device."""
    command = call.command
    is_taken = type(command) in _ON_DEVICE
    arrays = list(call.out or ()) if is_taken else []
    for array, _ in arrays_of(command):
        if type(array) is not np.ndarray:
            arrays.append(array)
    there = [array for array in arrays if is_on_device(array)] if arrays else []
    if there and not is_taken:
        check_on_host(there[0], f"table {tables_of(command)[0].table!r}: ")
    return bool(there)


@contextmanager
def _named(command: Any) -> Iterator[None]:
    """Make errors about arrays name the first table of the call or, for a step's rows, the step."""
    try:
        yield
    except InvalidArgumentError as exc:
        if str(exc).startswith(("table ", "session ")):
            raise
        is_of_step = command.reads is Reads.OF_STEP
        what = f"step {command.step}" if is_of_step else f"table {command.tables[0].table!r}"
        raise InvalidArgumentError(f"{what}: {exc}") from exc


def _rows_of(part: Any, what: str) -> int:
    """Return how many rows are read for one table of a call: one per bag; without bags, one per
    entry of the array `what`."""
    bags = getattr(part, "bags", None)
    return length(getattr(part, what)) if bags is None else len(bags.offsets) - 1


def _step_outs(call: Call, shapes: Shapes) -> list[Any]:
    """Return the output for the rows of each table; None: the rows are lent."""
    command, out = call.command, call.out
    if out is ON_DEVICE:
        return [None] * len(shapes)
    if not shapes:
        raise InvalidArgumentError(
            f"step {getattr(command, 'step', 0)}: expected out in the GPU's memory for rows of a "
            "step that this client has announced, found a step of another client; give "
            "on_device=True in place of out"
        )
    made = out(list(shapes), list(shapes.values())) if callable(out) else map(out.get, shapes)
    return list(made)


def _room_for(shape: tuple[int, int]) -> int:
    """Return the approximate size of a table's rows in bytes, with alignment."""
    return VALUE_BYTES * shape[0] * shape[1] + 3 * DEVICE_ALIGNMENT


def _check_out(table: str, shape: tuple[int, int], out: Any) -> None:
    if out is None:
        return
    if not is_on_device(out):
        raise refusal(
            table, "out in the GPU's memory, like the other arrays of the call", "one on the host"
        )
    found, interface = shape_of(out), out.__cuda_array_interface__
    if found != shape:
        raise refusal(table, f"out of shape {shape}", found)
    device_address(interface, DTYPES[2])
    if interface["data"][1]:
        raise refusal(table, "out that may be written", "a read-only array")
