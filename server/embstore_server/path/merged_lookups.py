"""Lookups that need not wait are answered directly where they arrive.

This saves a task per lookup, its timeout and its rounds of the event loop. Together they cost more
than looking up a thousand rows. Lookups that arrive together are executed as one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from embstore.commands import Lookup
from embstore_proto.frame import NARROW, Framed
from embstore_proto.received import Received
from embstore_proto.verbs import VERBS
from embstore_server.path.caller import Caller, observe
from embstore_server.path.incoming import Incoming, ReplyRows
from embstore_server.path.service import Service

AT_ONCE_BYTES = 16 << 20
"""Most bytes of rows that are looked up directly, in all lookups together.

If the rows are in the cache, this takes a few milliseconds, in which the engine would be busy
anyway.
"""

_LOOKUP = VERBS["Lookup"]


class _Asked(NamedTuple):
    """A lookup that may be answered directly."""

    call: Incoming
    caller: Caller
    command: Lookup
    rows: ReplyRows
    bytes: int
    """The size of the rows, approximately."""


class MergedLookups:
    """Answers lookups that arrived together. Event loop only."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def answers(self, calls: Sequence[tuple[Incoming, Received]]) -> list[Framed | None]:
        """Return the reply to each lookup that need not wait for the engine, the disk or memory.

        The reply is None for a lookup that must wait or will be refused; nothing was done for it.
        """
        asked, left = [], AT_ONCE_BYTES
        for call, request in calls:
            one = self._asked(call, request, left)
            left -= one.bytes if one else 0
            asked.append(one)
        replies: list[Framed | None] = [None] * len(calls)
        for admit in (True, False):
            places = [i for i, one in enumerate(asked) if one and one.command.admit is admit]
            found = self._looked_up([cast(_Asked, asked[i]) for i in places]) if places else []
            if not found and len(places) > 1:  # perhaps only one of them has to wait
                found = [(self._looked_up([cast(_Asked, asked[i])]) or [None])[0] for i in places]
            for i, reply in zip(places, found, strict=False):
                replies[i] = reply
        return replies

    def _looked_up(self, asked: Sequence["_Asked"]) -> "list[Framed | None]":
        """Return the replies to lookups with the same `admit`; an empty list if one of them cannot
        be answered."""
        calls, callers, commands, rows, _ = zip(*asked, strict=True)
        try:
            answered = self._service.look_up_at_once(callers, commands, rows)
            if answered is None:
                return []
            replies: list[Framed | None] = [
                _LOOKUP.framed(value, answered.context, places=own.blank)
                for own, value in zip(rows, answered.value, strict=True)
            ]
        except Exception:  # of any lookup; the usual path reports the error
            return []
        for call, caller, command, reply in zip(calls, callers, commands, replies, strict=True):
            caller.sent_bytes = reply.total_bytes if reply else 0
            self._service.traffic[call.transport].count(caller)
            slow_call_ms = self._service.settings.slow_call_ms
            observe(caller, "OK", self._service.metrics, slow_call_ms, command)
        return replies

    def _asked(self, call: Incoming, request: Received, bytes_max: int) -> "_Asked | None":
        """Return a lookup that may be answered directly, of at most `bytes_max` bytes of rows."""
        caller = call.caller(_LOOKUP.name)
        try:
            caller.principal = self._service.callers.principal(
                call.authorization, call.certificate_names
            )
            arrived = self._service.arrived(_LOOKUP, caller, request)
            command: Any = arrived.command
            size = self._service.expected_bytes(command)
        except Exception:  # the usual path reports the error
            return None
        is_plain = not arrived.stages and arrived.rows_dtype not in NARROW
        if not is_plain or size > bytes_max or not call.has_room(size):
            return None
        caller.received_bytes = len(request.header) + len(request.payload)
        return _Asked(call, caller, command, ReplyRows(call), size)
