"""The leader's side of following: it sends a commit to each standby that needs one, and then the
command log.

Only the durable part of the log is sent, so a standby never has a command that its leader could
lose in a crash. All the same, a leader may have lost commands, or its directory may have been
replaced by an older copy. The leader finds this by comparing the *lives* of the two stores
(`embstore.storage.lives`): a store's lives record which process numbered which commands. The
comparison works even if both stores have used the same command numbers since. In this case the
leader refuses the standby, which keeps its store, reports the reason, and can be promoted. A commit
that a standby takes over replaces only commands that a promotion has voided.

A commit's files are open while they are sent, so a merge may remove them meanwhile. A new commit
does not remove segments of the command log that a standby has not received yet, up to
LAG_BYTES_MAX. A standby that lags further is dropped, and begins again with a newer commit.

Event loop only, except functions documented to run in a thread or with the engine.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Any

import grpc

from embstore.commands import Right
from embstore.engine.engine import Engine
from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    OverloadedError,
    PermissionDeniedError,
    StoreClosedError,
)
from embstore.rights import EVERYTHING
from embstore.storage import catalogue as catalogues
from embstore.storage.catalogue import Catalogue
from embstore.storage.command_records import Place, segment_bytes
from embstore.storage.command_stream import START, SegmentReader
from embstore.storage.files import File
from embstore.storage.lineage import Lineage, Promotion
from embstore.storage.lives import Life, Lives, last_common
from embstore.storage.shard import ShardPlace
from embstore_proto.received import parse
from embstore_proto.status import answer_of
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.path.answers import answered_error, drop_trace
from embstore_server.path.served import Served
from embstore_server.telemetry.logs import event
from embstore_server.transports.grpc.endings import refuse, sent

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Standbys"].full_name
METHOD = f"/{SERVICE_NAME}/Follow"

LAG_BYTES_MAX = 4 << 30
"""The most bytes of the command log that are kept for a standby after a commit."""
PIECE_BYTES = 1 << 20
STATE_EVERY_S = 0.5
_PROMOTION_ID = re.compile("[0-9a-f]{32}")


class Feed:
    """One connected standby, and its position in the log."""

    def __init__(self, name: str, engine: Engine, follower: Any) -> None:
        self.name = name
        self.engine = engine
        self.follower = follower
        self.catalogue: Catalogue | None = None
        """The commit that is sent to the standby; None: the standby continues at its position."""
        self.reader: SegmentReader | None = None
        self.is_dropped = False
        self.is_closed = False
        self.drop: Callable[[], None] = lambda: None
        """Ends the stream. Any thread."""
        self._files = ExitStack()
        self._opened: dict[str, File] = {}

    @property
    def segment(self) -> int:
        """The first segment that the standby needs. Any thread."""
        assert self.reader is not None
        return self.reader.place.segment

    def begin(self, feeds: list["Feed"], lineage: Lineage) -> None:
        """Find the standby's position, and keep the files that the standby needs. Runs in a thread.

        Raises InvalidArgumentError if the standby has commands that this leader lacks.
        """
        engine, files = self.engine, self.engine.storage.files
        log = engine.log
        assert log is not None
        if self.follower.anew:
            self._commit_for_it(lineage)
        log.files.sync()
        with engine.tables.frame.looking():
            catalogue = engine.storage.catalogue
            store_id = bytes.fromhex(catalogue.store_id)
            self.reader = SegmentReader(
                files, store_id, Place(log.files.segments.numbers[0], START)
            )
            can_go_on = self._can_go_on(catalogue.store_id, lineage)
            if not can_go_on or self.follower.command < self.reader.first_command():
                self.catalogue = catalogue
                for path in catalogues.paths(catalogue):
                    self._opened[path] = self._files.enter_context(closing(files.open(path)))
            feeds.append(self)
        at = self.follower.command if self.catalogue is None else catalogue.head.command
        self.reader.skip(log.files.synced, at)
        if self.is_closed:  # it was closed while this method ran
            self.close()

    def _commit_for_it(self, lineage: Lineage) -> None:
        """Commit if the last commit is older than the standby, which replaces its store by it:
        otherwise the standby would lose, for a while, commands that were acknowledged because it
        has them. Raises the errors of `begin`."""
        with self.engine.tables.frame.looking():
            catalogue = self.engine.storage.catalogue
            self._can_go_on(catalogue.store_id, lineage)
        if catalogue.head.command < self.follower.command:
            self.engine.commits.commit()

    def _can_go_on(self, store_id: str, lineage: Lineage) -> bool:
        """Return whether the standby can continue at its position, provided that the leader still
        has the next commands."""
        follower, frame = self.follower, self.engine.tables.frame
        if follower.store_id != store_id:
            return False
        theirs, command = promotions_of(follower.promotions), follower.command
        lives = tuple(Life(one.id, one.first) for one in follower.lives)
        common = last_common(lives, command, frame.lives, frame.command_number)
        if common < command and not lineage.gives_up(theirs, common):
            raise InvalidArgumentError(_not_here(command, common, frame.lives))
        is_newer = lineage.common(theirs) == len(theirs)
        return common == command and is_newer and not follower.anew

    def piece(self, path: str, offset: int) -> bytes:
        """Return at most PIECE_BYTES of a file of the commit, from `offset` on. Runs in a
        thread."""
        return self._opened[path].read(offset, PIECE_BYTES)

    def end_of_commit(self) -> None:
        """Close the files of the commit."""
        self._files.close()
        self._opened.clear()

    def log_piece(self) -> tuple[Place, bytes] | None:
        """Return the next durable piece of the log and its position; None: there is none yet. Runs
        in a thread."""
        assert self.engine.log is not None and self.reader is not None
        return self.reader.read(self.engine.log.files.synced, PIECE_BYTES)

    def close(self) -> None:
        """Release all files."""
        self.is_closed = True
        self.end_of_commit()
        if self.reader is not None:
            self.reader.close()


class Standbys:
    """The standbys of a server."""

    def __init__(self, served: Served) -> None:
        self._service = served
        self._feeds: list[Feed] = []
        self._progress = asyncio.Event()
        self._is_ending = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handler of the method Follow, for `add_generic_rpc_handlers`."""
        method = grpc.stream_stream_rpc_method_handler(self._follow)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"Follow": method})

    def use(self, engine: Engine) -> None:
        """Keep segments of a store's command log for the standbys that follow it."""
        if engine.log is not None:
            engine.log.files.segments.needed = self._needed

    def end(self) -> None:
        """End all streams: no call waits for a standby any longer."""
        self._is_ending = True
        self.wake()

    def wake(self) -> None:
        """Make the streams check the log for new commands."""
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    def _needed(self, numbers: list[int]) -> int | None:
        """Return the first segment of the command log that any standby still needs; None: no
        standby needs one. Drop standbys that lag too far.

        numbers : the segments of the log, ascending

        Called on the engine's turn. Any thread.
        """
        files = self._service.engine.storage.files
        kept: list[int] = []
        for feed in self._feeds.copy():
            behind = sum(segment_bytes(files, n) for n in numbers[:-1] if n >= feed.segment)
            if behind > LAG_BYTES_MAX:
                feed.is_dropped = True
                feed.drop()
            if not feed.is_dropped and not feed.is_closed:
                kept.append(feed.segment)
        return min(kept, default=None)

    # A stream

    async def _follow(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await sent(context.send_initial_metadata(()))
        name, code, is_let_in = "", "OK", False
        try:
            name = self._service.callers.principal_of(context).name
            self._let_in(context)
            is_let_in = True
            await self._answer(requests, context)
        except Exception as exc:
            error = answered_error(exc, "Follow")
            code = answer_of(error).code.name
            drop_trace(exc)
            self._service.memory_trim.after(error)
            await refuse(context, error)
        finally:
            if name or code != "UNAUTHENTICATED":  # calls of unknown callers are not logged
                who = {"token": name, "peer": context.peer()}
                limited_by = () if is_let_in else ("Follow", code, name)
                event(
                    logging.INFO,
                    "audit",
                    verb="Follow",
                    on="*",
                    code=code,
                    **who,
                    limited_by=limited_by,
                )

    def _let_in(self, context: Any) -> None:
        """Raise an error unless the caller has the right to follow, and has not lost it since."""
        self._service.callers.principal_of(context).check(Right.ADMIN, [EVERYTHING])

    async def _check(self, follower: Any) -> None:
        """Raise an error unless a standby can follow this server. If the standby's promotions show
        that this server was replaced, record that first.

        Raises InvalidArgumentError if this server cannot be followed; PermissionDeniedError if this
        server was replaced, perhaps by the standby itself.
        """
        service = self._service
        lineage, role = service.lineage, service.replication
        theirs = promotions_of(follower.promotions)
        is_same = follower.store_id == service.store_id
        if is_same and not role.leader and lineage.is_continued_by(theirs):
            await service.replace_by(theirs[-1])
        if follower.fences:
            return
        if role.replaced_by:
            raise PermissionDeniedError(role.refusal)
        if role.asks:
            raise service.closed()
        if role.leader:
            raise InvalidArgumentError(
                f"expected a leader to follow, found a standby of {role.leader}"
            )
        _check_same_shard(follower, service.engine.shard)
        if service.engine.log is None:
            raise InvalidArgumentError(
                "expected a leader with a command log to follow: start it with --durability "
                "commands, or interval"
            )

    async def _answer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        service = self._service
        seconds = service.settings.handshake_timeout_s
        try:
            async with asyncio.timeout(seconds):
                follower = (await _next(requests, "follower")).follower
        except TimeoutError:
            raise DeadlineError(f"Follow: no position came for {seconds:g} s") from None
        await self._check(follower)
        own = service.lineage.promotions
        leader = pb.Leader(store_id=service.store_id, promotions=map(_promotion, own))
        if follower.fences:
            await sent(context.write(pb.FollowReply(leader=leader).SerializeToString()))
            return
        feed = Feed(context.peer(), service.engine, follower)
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        feed.drop = partial(_cancel, loop, task)
        acknowledging: asyncio.Task[None] | None = None
        try:
            await asyncio.to_thread(feed.begin, self._feeds, service.lineage)
            service.replication.standbys = len(self._feeds)
            event(logging.INFO, "standby connected", peer=feed.name, command=follower.command)
            if feed.catalogue is not None:
                leader.catalogue = catalogues.encode(feed.catalogue)
            await sent(context.write(pb.FollowReply(leader=leader).SerializeToString()))
            if feed.catalogue is not None:
                await self._send_commit(feed, requests, context)
            acknowledging = asyncio.create_task(self._acknowledged(feed, requests))
            acknowledging.add_done_callback(lambda _: self.wake())
            await self._send_log(feed, context, acknowledging)
        except asyncio.CancelledError:
            if not feed.is_dropped:
                raise
            service.replication.standbys_dropped += 1
            raise OverloadedError(
                f"the standby was too slow: the leader keeps {LAG_BYTES_MAX} bytes of commands "
                "for it; it starts again from a newer commit"
            ) from None
        finally:
            if acknowledging is not None:
                acknowledging.cancel()
            self._left(feed)

    def _left(self, feed: Feed) -> None:
        feed.close()
        self._feeds[:] = [one for one in self._feeds if not one.is_closed]
        self._service.quorum.left(feed)
        self._service.replication.standbys = len(self._feeds)
        event(logging.INFO, "standby left", peer=feed.name, dropped=feed.is_dropped)

    async def _send_commit(self, feed: Feed, requests: AsyncIterator[bytes], context: Any) -> None:
        assert feed.catalogue is not None
        sizes = catalogues.paths(feed.catalogue)
        for path in (await _next(requests, "wanted")).wanted.paths:
            if path not in sizes:
                raise InvalidArgumentError(f"Follow: the commit has no file {path[:80]!r}")
            offset = 0
            while offset < sizes[path]:
                self._let_in(context)
                piece = await asyncio.to_thread(feed.piece, path, offset)
                found = pb.FilePiece(offset=offset, piece=piece)
                await sent(context.write(pb.FollowReply(file=found).SerializeToString()))
                offset += len(piece)
        feed.end_of_commit()

    async def _send_log(
        self, feed: Feed, context: Any, acknowledging: "asyncio.Task[None]"
    ) -> None:
        """Send the log as it grows, until an acknowledgement is invalid or this server stops.

        The first message contains the position of the beginning and no bytes, so that the standby
        also acknowledges its earlier commands.
        """
        assert feed.reader is not None
        await sent(context.write(_log_piece(feed.reader.place, b"")))
        state_at = 0.0
        while not self._is_ending:
            # read first, so that progress during the reading is not missed
            progress = self._progress
            self._let_in(context)  # the standby's token may have been removed
            if self._service.replication.role != "leader":
                raise PermissionDeniedError(self._service.replication.refusal)
            if acknowledging.done():
                acknowledging.result()
            found = await asyncio.to_thread(feed.log_piece)
            if found is not None:
                await sent(context.write(_log_piece(*found)))
            if monotonic() >= state_at:
                state = pb.LeaderState(command=feed.engine.tables.frame.command_number)
                await sent(context.write(pb.FollowReply(state=state).SerializeToString()))
                state_at = monotonic() + STATE_EVERY_S
            if found is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(state_at - monotonic(), 0.0)):
                        await progress.wait()
        raise StoreClosedError("the leader stops")

    async def _acknowledged(self, feed: Feed, requests: AsyncIterator[bytes]) -> None:
        while True:
            place = (await _next(requests, "durable")).durable
            self._service.quorum.acknowledged(feed, Place(place.segment, place.offset))


def _check_same_shard(follower: Any, own: ShardPlace | None) -> None:
    """Refuse a standby that is started as another shard than this server, or as none: as a leader
    it would have initial rows for the partitions of its own number."""
    place = ("", 0) if own is None else (own.shard_map.cluster, own.shard)
    if (follower.cluster, follower.shard) == place:
        return
    found = f"shard {follower.shard} of cluster {follower.cluster!r}"
    if own is None:
        raise InvalidArgumentError(
            f"expected a standby of a store outside of any cluster, found {found}: start it "
            "without --shard-map and --shard, with a new directory"
        )
    raise InvalidArgumentError(
        f"expected a standby of {own.name}, found {found if follower.cluster else 'no shard'}: "
        f"start it with --shard-map, the file of the cluster's map, and --shard {own.shard}, with "
        "a new directory"
    )


async def _next(requests: AsyncIterator[bytes], what: str) -> Any:
    """Return the next request, which must be of the kind `what`."""
    try:
        request = parse(pb.FollowRequest, await anext(requests))
    except StopAsyncIteration:
        raise InvalidArgumentError("Follow: the standby has ended its side") from None
    if request.WhichOneof("what") != what:
        raise InvalidArgumentError(f"Follow: expected {what}, found {request.WhichOneof('what')}")
    return request


def _not_here(command: int, common: int, lives: Lives) -> str:
    begins = lives[0].first if lives else 1
    return (
        f"this standby has commands up to {command}, and the history of its leader, from command "
        f"{begins} on, has them up to {common} alone: promote this standby if the leader has lost "
        "acknowledged commands, or remove its directory to follow"
    )


def _cancel(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any]") -> None:
    loop.call_soon_threadsafe(task.cancel)


def _log_piece(begin: Place, piece: bytes) -> bytes:
    place = pb.LogPlace(segment=begin.segment, offset=begin.offset)
    found = pb.FollowReply(log=pb.LogPiece(begin=place, piece=piece))
    serialised: bytes = found.SerializeToString()
    return serialised


def _promotion(one: Promotion) -> Any:
    return pb.Promotion(**vars(one))


def promotions_of(messages: Any) -> tuple[Promotion, ...]:
    """Return the promotions in a message.

    Raises InvalidArgumentError if no server can have recorded them: a replaced server accepts no
    more writes, so a malformed message must not replace one.
    """
    found = tuple(Promotion(p.id, p.epoch, p.command, p.first_number) for p in messages)
    epochs = [0, *(one.epoch for one in found)]
    is_in_order = all(earlier < later for earlier, later in pairwise(epochs))
    if not (is_in_order and all(_PROMOTION_ID.fullmatch(one.id) for one in found)):
        raise InvalidArgumentError(
            "expected promotions with ids of 32 hexadecimal digits and with increasing epochs, "
            f"found {str(found)[:300]}"
        )
    return found
