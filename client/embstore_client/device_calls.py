"""The layer of calls whose arrays are in a GPU's memory: which they are, and how they travel.

The server shares its GPU's memory (`device_segment`). Keys are not made unique, and gradients not
summed: the server does both on the GPU, where they are, so such a call goes past the layers below.
If one of a call's arrays is on the device its rows come there, too: to `out`, or lent. Its arrays
of the host (counts, offsets of bags, keys) travel as ever.

The gradients of a step may be there, of keys, occurrences or bags; if there are several ranks the
server copies them to the host, where ranks are added. The rows of a step come there where they are
asked for `ON_DEVICE`, and are lent then, or in outputs there: all of them in one message, when the
step's turn has come. Early ones would have to be joined with the others there.
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
    """The layer: calls with arrays in a GPU's memory use `sent`; only others pass below."""

    def __init__(self, config_of: ConfigOf, wire_dtype: str, sent: Below) -> None:
        self._config_of, self._wire_dtype, self._sent = config_of, wire_dtype, sent

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call.

        Raises InvalidArgumentError: arrays there of a command that takes none; outputs that do not
        fit, or are partly on the host; a `wire_dtype` of two bytes, which is for the network.
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
        """Return the shapes of a step's rows; {} where this client has not announced it, and the
        server allocates their memory."""
        parts, counts = tables_of(call.command), call.counts
        if parts:
            named = [part for part in parts if part.table in counts]
            counts = {part.table: _rows_of(part, "inverse") for part in named}
        return {name: (count, self._config_of(name, None).dim) for name, count in counts.items()}


def are_on_device(out: Any) -> bool:
    """Return whether outputs of a step's rows are in a device's memory: new arrays, the arrays of a
    function, or some that are given by table."""
    if out is ON_DEVICE or callable(out):
        return True
    return isinstance(out, Mapping) and any(map(is_on_device, out.values()))


def check_exact(wire_dtype: str) -> None:
    """Refuse a dtype of two bytes."""
    if wire_dtype != "float32":
        raise InvalidArgumentError(
            f'expected host arrays with wire_dtype="{wire_dtype}", found some in a GPU\'s '
            "memory, which is shared without rounding: give host arrays, or connect with "
            'wire_dtype="float32"'
        )


def _has_some(call: Call) -> bool:
    """Return whether an array of a call is in a device's memory; refuse one that may not be."""
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
    """Have an error of a call's arrays name its first table; for a step's rows, the step."""
    try:
        yield
    except InvalidArgumentError as exc:
        if str(exc).startswith(("table ", "session ")):
            raise
        is_of_step = command.reads is Reads.OF_STEP
        what = f"step {command.step}" if is_of_step else f"table {command.tables[0].table!r}"
        raise InvalidArgumentError(f"{what}: {exc}") from exc


def _rows_of(part: Any, what: str) -> int:
    """Return how many rows are read for a part: one a bag; without bags, one an entry."""
    bags = getattr(part, "bags", None)
    return length(getattr(part, what)) if bags is None else len(bags.offsets) - 1


def _step_outs(call: Call, shapes: Shapes) -> list[Any]:
    """Return where the rows of each table go; None: they are lent."""
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
    """Return about the bytes of a table's rows, with alignment."""
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
