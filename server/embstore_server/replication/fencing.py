"""The fencing of a replaced leader: this server was promoted, and sends messages to the old leader
that it has replaced.

One message notifies the old leader that it was replaced, and asks whether the old leader has
replaced this server in turn. The question is needed because a leader that was replaced while it was
down has no file that shows this. If two servers replace each other in turn, only the old leader can
have replaced this server. Therefore this server asks the old leader before it accepts writes.

The message contains the promotions in this server's lineage. If they continue the old leader's
promotions, the old leader was replaced. The old leader answers with its own promotions. If these
continue the promotions of this server, this server was replaced.

If the old leader refuses connections, it is not running. If it does not answer, it may be running,
so its answer is awaited for ANSWER_S. In both cases, this server then accepts writes, and continues
to ask.

A server that was a leader and has not followed since asks in the same way before it is promoted.
Without an answer it is not promoted: both servers could lead afterwards, with one epoch.

Event loop only.
"""

import asyncio
import errno
import logging
import os
from typing import Any

import grpc

from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.storage.lineage import Promotion
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
"""Seconds that this server waits for an answer of the old leader before it accepts writes."""


async def fence(served: Served, may_lead: asyncio.Event) -> None:
    """Ask the old leader until it answers; set `may_lead` as soon as this server can accept
    writes."""
    address, role = served.lineage.replaced, served.replication

    async def ask(call: Any) -> None:
        theirs = await _promotions_at(served, address, call)
        if served.lineage.is_continued_by(theirs):
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
                if isinstance(exc, InvalidArgumentError) or _is_refused(exc):
                    lead()
            if reason != logged:
                event(logging.WARNING, "old leader not fenced", address=address, reason=reason)
            logged = reason
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
    finally:
        timer.cancel()


async def check_not_replaced(served: Served, address: str) -> None:
    """Ask the server at `address` whether it was promoted in place of this server.

    Raises InvalidArgumentError if it was, or if it does not answer.
    """

    async def ask(call: Any) -> None:
        if served.lineage.is_continued_by(await _promotions_at(served, address, call)):
            raise InvalidArgumentError("it was promoted")

    try:
        async with asyncio.timeout(ANSWER_S):
            await connect(served, address, ask)
    except (EmbstoreError, grpc.aio.AioRpcError, OSError) as exc:  # a TimeoutError is an OSError
        raise InvalidArgumentError(
            f"expected {address} to answer that it was not promoted while this server, which was a "
            f"leader, was down, found: {reason_of(exc, address)}. Promote this server once it "
            "follows that one; if that one is lost, start this one without --follow"
        ) from exc


async def _promotions_at(served: Served, address: str, call: Any) -> tuple[Promotion, ...]:
    """Send this server's promotions to the server at `address`, and return that server's."""
    promotions = [pb.Promotion(**vars(one)) for one in served.lineage.promotions]
    follower = pb.Follower(store_id=served.store_id, promotions=promotions, fences=True)
    await send(call, follower=follower)
    leader = (await read(call, "leader")).leader
    theirs = promotions_of(leader.promotions)
    if leader.store_id != served.store_id:
        raise InvalidArgumentError(
            f"expected the replaced server at {address}, found one of another store"
        )
    return theirs


def _is_refused(error: Exception) -> bool:
    """Return whether the error means that no server listens at the address."""
    text = os.strerror(errno.ECONNREFUSED)
    return isinstance(error, grpc.aio.AioRpcError) and text in (error.details() or "")
