"""The server that this one has replaced is notified; and asked whether it has replaced this one.

A leader that was replaced while it was down has no file that says so. Where two servers follow each
other, its successor is the one that it has replaced itself, at an earlier time: so it asks that one
before it takes writes. A single message does both. It has this server's promotions; the other is
replaced if they continue its own, and it answers with its own. If those continue this server's, it
is this one that was replaced.

A server that refuses connections is not there. One that does not answer may be, so it is awaited,
for ANSWER_S. After either, this server takes writes, and continues to ask.

Event loop only.
"""

import asyncio
import errno
import logging
import os
from typing import Any

import grpc

from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.path.served import Served
from embstore_server.replication.leader_stream import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    connect,
    read,
    reason_of,
    send,
)
from embstore_server.replication.standbys import promotions_of
from embstore_server.telemetry.logs import event

ANSWER_S = 5.0
"""Time for an answer of the server that this one has replaced, before this one takes writes."""


async def fence(served: Served, may_lead: asyncio.Event) -> None:
    """Ask the replaced server until it answers; `may_lead` is set when this one need not wait."""
    address, role = served.lineage.replaced, served.replication

    async def ask(call: Any) -> None:
        promotions = [pb.Promotion(**vars(one)) for one in served.lineage.promotions]
        follower = pb.Follower(store_id=served.store_id, promotions=promotions, fences=True)
        await send(call, follower=follower)
        leader = (await read(call, "leader")).leader
        theirs = promotions_of(leader.promotions)
        if leader.store_id == served.store_id and served.lineage.is_continued_by(theirs):
            await served.replace_by(theirs[-1])
        else:
            event(logging.INFO, "old leader fenced", address=address)

    def lead() -> None:
        role.asks = ""
        may_lead.set()

    pause, logged = PAUSE_FIRST_S, ""
    timer = asyncio.get_running_loop().call_later(ANSWER_S, lead)
    try:
        while True:
            try:
                await connect(served, address, ask)
                if not role.replaced_by:
                    lead()
                return
            except Exception as exc:
                reason = reason_of(exc, address)
                if _is_refused(exc):
                    lead()
            if reason != logged:
                event(logging.WARNING, "old leader not fenced", address=address, reason=reason)
            logged = reason
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
    finally:
        timer.cancel()


def _is_refused(error: Exception) -> bool:
    """Whether no server listens at an address."""
    text = os.strerror(errno.ECONNREFUSED)
    return isinstance(error, grpc.aio.AioRpcError) and text in (error.details() or "")
