"""The end of a gRPC call by an error: the error's status is sent, and no object of the call is
kept.

The traceback of an error refers to the frames of the call, and the frames refer to the message and
the reply. The error may be remembered, and its status may wait for a client that does not read.
Reference cycles are freed only by the garbage collector, which runs rarely.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

import grpc

from embstore.errors import EmbstoreError
from embstore_proto.status import ERROR_METADATA, answer_of, message_of


async def refuse(context: Any, error: Exception, metadata: Sequence[tuple[str, str]] = ()) -> None:
    """End a call with the status of an error, by raising gRPC's own exception."""
    named = [(ERROR_METADATA, type(error).__name__)] if isinstance(error, EmbstoreError) else []
    try:
        code, text = answer_of(error).code, message_of(error)
        await sent(context.abort(code, text, (*named, *metadata)))
    except grpc.aio.AbortError as ended:
        context.add_done_callback(partial(_untrace, ended))
        raise


async def sent(sending: Awaitable[None]) -> None:
    """Wait until gRPC has sent a message; if gRPC cannot send it, the client has disconnected."""
    try:
        await sending
    except grpc.aio.AbortError:
        raise
    except Exception as exc:  # its class has no public name
        raise asyncio.CancelledError from exc


def _untrace(ended: grpc.aio.AbortError, context: Any) -> None:
    """Drop the traceback of an error, through which gRPC keeps the request in a reference cycle."""
    ended.__traceback__ = ended.__context__ = None
