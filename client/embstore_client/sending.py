"""Two parts of the chain of layers: `Sized` limits the size of a call, and `Sent` sends the call as
a message.

A call that is too large is refused before its keys are made unique: whether it is accepted must not
depend on whether the store is embedded or served.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from embstore.checks.call_bytes import ConfigOf, check_call_bytes, reply_bytes
from embstore.commands import COMMANDS, Progress, Reads, Trait
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore.results import Warmed
from embstore_client.call import Below, Call
from embstore_client.transport import Transport
from embstore_proto.frame import NARROW
from embstore_proto.narrow import NARROW_BYTES
from embstore_proto.verbs import VERBS, Answer

_BEGIN_EPOCH = {one for one in COMMANDS.values() if Trait.BEGINS_EPOCH in one.traits}


class Sized:
    """The layer that refuses a call if its arrays, including its results, are too large."""

    def __init__(self, transport: Transport, config_of: ConfigOf) -> None:
        self._transport, self._config_of = transport, config_of

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call."""
        limits = self._transport.limits
        call.reply_bytes = check_call_bytes(call.command, self._config_of, limits)
        return below(call)


class Sent:
    """The end of the chain: it sends a call, and returns its answer."""

    def __init__(self, transport: Transport, config_of: ConfigOf, wire_dtype: str) -> None:
        self._transport, self._config_of, self._wire_dtype = transport, config_of, wire_dtype
        self._value_bytes = NARROW_BYTES if wire_dtype in NARROW else VALUE_BYTES

    def __call__(self, call: Call) -> Any:
        """Have the server execute a call."""
        command, transport = call.command, self._transport
        verb = VERBS[type(command).__name__]
        request = verb.outgoing(command, call.message, rows_dtype=self._wire_dtype)
        if verb.document and request.payload_bytes > transport.limits.call_bytes_max:
            raise InvalidArgumentError(
                f"expected {verb.document} of at most {transport.limits.call_bytes_max} "
                f"bytes (limits.call_bytes_max), found {request.payload_bytes}"
            )
        seconds, part_of = call.timeout_s, call.part_of
        if verb.is_streamed and call.message is None and not verb.is_bulk:
            take = call.take or partial(_last, call.progress)
            return transport.receive(verb, request, take, timeout_s=seconds, part_of=part_of)
        size = call.reply_bytes
        if size is None:
            size = reply_bytes(command, self._config_of)
        if command.reads is Reads.ROWS:
            size = size * self._value_bytes // VALUE_BYTES
        size = max(size, int(verb.is_streamed))  # a stream returns rows, so more than 0
        send = transport.begin_epoch if type(command) in _BEGIN_EPOCH else transport.send
        answer = send(verb, request, reply_bytes=size, timeout_s=seconds, part_of=part_of)
        return answer.value


def _last(progress: Progress | None, answers: Iterator[Answer]) -> Any:
    """Return the last of several answers, and report the progress of each."""
    value = None
    for value, _ in answers:
        if progress is not None and isinstance(value, Warmed):
            progress(value.rows, value.of)
    return value
