"""The standby's side of following: it has its leader's commit, and executes its commands.

A standby connects to its leader again and again. It resumes after its last command if the leader
still has the next ones, which is the usual case; else it replaces its store by the leader's last
commit (`embstore.storage.taking`), and opens the store again.

Commands are executed as by recovery (`embstore.engine.receiving`), on a thread, and acknowledged to
the leader when they are durable here; meanwhile the next ones are executed.

A leader that has fewer commands than its standby has lost acknowledged ones, which the standby has.
Therefore the standby keeps its store: it follows no more, reports why, and can be promoted. That is
written into its lineage, because a leader that goes on would soon have as many commands, and other
ones.

**Promotion.** The standby stops following, writes into its lineage that it has replaced its leader,
and begins an epoch. From then on it takes writes, and tries to notify the old leader until that is
reached. Started with the same `follow` again, it remains the leader.

Event loop only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import grpc

from embstore.commands import Progress
from embstore.engine.engine import Engine
from embstore.engine.receiving import begin_epoch, receive
from embstore.errors import CorruptTableError, EmbstoreError, InvalidArgumentError, StoreClosedError
from embstore.results import EPOCH_STEP
from embstore.storage import catalogue as catalogues
from embstore.storage import lineage as lineages
from embstore.storage.catalogue import Catalogue
from embstore.storage.command_records import COMMAND, Place, Record
from embstore.storage.command_stream import RecordStream
from embstore.storage.lineage import Lineage
from embstore.storage.taking import Incoming
from embstore_proto.received import parse
from embstore_proto.status import error_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.path.answers import answered_error
from embstore_server.path.served import Served
from embstore_server.replication.standbys import METHOD, promotions_of
from embstore_server.setup.parsing import OFF
from embstore_server.telemetry.logs import event

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 2.0
_SILENCE_S = 30.0
"""A leader that says nothing for so long is taken for gone."""
_BODY_BYTES_MAX = 1 << 32
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


class Following:
    """The standby's work; idle on a leader."""

    def __init__(self, served: Served, reopen: Callable[[], Awaitable[None]]) -> None:
        """Prepare; `reopen` serves the directory's new store in place of the previous one."""
        self._service = served
        self._settings = settings = served.settings
        self._reopen = reopen
        self._address = "" if settings.follow == OFF else settings.follow
        self._anew = False  # the store here differs from the leader's
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Future[Any] | None = None  # goes on to its end
        self._promoting = asyncio.Lock()

    # Life

    def opened(self, engine: Engine, lineage: Lineage) -> None:
        """Begin the epoch of a promotion that was cut off. On the store's thread."""
        if self._leads(lineage) and lineage.promotions and not lineage.replaced_by:
            epoch = lineage.promotions[-1].epoch
            if engine.storage.catalogue.epoch < epoch:
                begin_epoch(engine, epoch)

    def decide(self, engine: Engine) -> None:
        """Set the replication role of a store that is served from now on."""
        role, lineage = self._service.replication, self._service.lineage
        if self._leads(lineage):
            role.replaced_by = lineage.replaced_by
            return
        head = engine.storage.catalogue.head
        role.leader = self._address
        role.is_empty = (
            lineage == Lineage() and not head.commit and not engine.tables.frame.command_number
        )

    def _leads(self, lineage: Lineage) -> bool:
        """Return whether there is no leader to follow, or this server has replaced it."""
        return not self._address or (lineage.replaced == self._address and not lineage.replaced_by)

    def start(self) -> None:
        """Begin to follow, or to notify the old leader that it was replaced."""
        if self._service.replication.leader:
            self._task = asyncio.create_task(self._follow_for_ever())
        elif self._service.lineage.replaced and not self._service.replication.replaced_by:
            self._task = asyncio.create_task(self._fence(self._service.lineage.replaced))

    async def stop(self) -> None:
        """Stop; commands that are being executed are executed to their end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._work is not None:
            await asyncio.wait([self._work])
            self._work = None

    async def promote(self) -> bool:
        """Make the standby the leader; return False where it follows no leader.

        Raises StoreClosedError: it has not its leader's first commit yet.
        """
        async with self._promoting:
            service = self._service
            if not service.replication.leader:
                return False
            if service.replication.is_empty:
                raise StoreClosedError(service.not_ready)
            await self.stop()
            try:
                await asyncio.shield(self._promoted())
            finally:
                self.start()
            event(logging.WARNING, "promoted", replaced=service.lineage.replaced)
            return True

    async def _promoted(self) -> None:
        service = self._service
        engine = service.engine
        storage = engine.storage
        begun = [promotion.epoch for promotion in service.lineage.promotions[-1:]]
        # Above one whose record is not here yet.
        epoch = max(storage.catalogue.epoch, *begun, 0) + EPOCH_STEP
        lineage = service.lineage.promoted(
            epoch, engine.tables.frame.command_number, self._address, storage.log.next_number
        )

        def work(engine: Engine, _: Progress) -> int:
            lineages.write(storage.files, lineage)
            storage.files.reached("promote:lineage")
            mark = begin_epoch(engine, epoch)
            storage.files.reached("promote:epoch")
            return mark

        mark = await service.run_in_thread("Promote", work)
        assert service.durable is not None
        await service.durable.wait(mark)
        service.lineage = lineage
        service.recall()
        service.replication.leader = service.replication.reason = ""
        service.replication.is_connected, service.replication.commands_behind = False, 0

    # Following

    async def _follow_for_ever(self) -> None:
        pause = _PAUSE_FIRST_S
        role = self._service.replication
        while True:
            begun, reason = monotonic(), ""
            try:
                await self._connect(self._address, self._follow)
            except Exception as exc:
                reason = _reason(exc, self._address)
            if reason != role.reason:
                event(logging.WARNING, "not following", leader=self._address, reason=reason)
            role.is_connected, role.reason = False, reason
            pause = _PAUSE_FIRST_S if monotonic() - begun > _PAUSE_MAX_S else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)

    async def _connect(self, address: str, talk: Any) -> None:
        """Open a stream to a server, and let `talk` have it."""
        ca = self._settings.follow_ca
        if ca is None:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            own = self._service.certificates
            pair = (None, None) if own is None else (own.served.key, own.served.chain)
            trusted = grpc.ssl_channel_credentials(await asyncio.to_thread(ca.read_bytes), *pair)
            channel = grpc.aio.secure_channel(address, trusted, options=_OPTIONS)
        metadata = await asyncio.to_thread(self._metadata)
        async with channel:
            call = channel.stream_stream(METHOD)(metadata=metadata)
            try:
                await talk(call)
            finally:
                call.cancel()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata with the token, read anew: the leader's tokens may have changed."""
        path = self._settings.follow_token
        if path is None:
            return ()
        return (("authorization", f"Bearer {path.read_text().strip()}"),)

    async def _follow(self, call: Any) -> None:
        service = self._service
        if service.lineage.ahead:
            raise InvalidArgumentError(service.lineage.ahead)
        await _send(call, follower=self._follower())
        leader = (await _read(call, "leader")).leader
        promotions = promotions_of(leader.promotions)
        if leader.catalogue:
            await self._take(call, leader)
        elif leader.store_id != service.store_id:
            raise InvalidArgumentError(f"{self._address} serves another store now")
        elif promotions != service.lineage.promotions or service.lineage.below is None:
            next_number = service.engine.storage.log.next_number
            service.lineage = service.lineage.goes_on(promotions, next_number)
            files = service.engine.storage.files
            await asyncio.to_thread(lineages.write, files, service.lineage)
        event(logging.INFO, "following", leader=self._address)
        service.replication.is_connected, service.replication.reason = True, ""
        marks: asyncio.Queue[tuple[int, Place]] = asyncio.Queue()
        acknowledging = asyncio.create_task(self._acknowledge(call, marks))
        try:
            await self._execute(call, marks)
        finally:
            acknowledging.cancel()

    def _follower(self) -> Any:
        service = self._service
        return pb.Follower(
            store_id=service.store_id,
            promotions=[pb.Promotion(**vars(p)) for p in service.lineage.promotions],
            command=service.engine.tables.frame.command_number,
            anew=self._anew or service.replication.is_empty,
        )

    async def _execute(self, call: Any, marks: "asyncio.Queue[tuple[int, Place]]") -> None:
        """Execute the commands of a stream, for ever."""
        stream = RecordStream(_BODY_BYTES_MAX)
        service = self._service
        while True:
            reply = await _read(call, "log", "state")
            if reply.WhichOneof("what") == "state":
                self._note_state(reply.state)
                continue
            begin = Place(reply.log.begin.segment, reply.log.begin.offset)
            records = list(stream.add(begin, reply.log.piece))
            mark = await self._to_its_end(self._receive(records))
            marks.put_nowait((mark, stream.place))
            behind = service.replication.commands_behind - sum(r.kind == COMMAND for r in records)
            service.replication.commands_behind = max(behind, 0)

    async def _receive(self, records: list[Record]) -> int:
        try:
            return await self._service.run_in_thread(
                "Follow", lambda engine, _: receive(engine, records)
            )
        except CorruptTableError:
            self._anew = True
            raise

    async def _to_its_end(self, work: Awaitable[Any]) -> Any:
        """Return the result of `work`, which is not cut off when following ends."""
        self._work = asyncio.ensure_future(work)
        result = await asyncio.shield(self._work)
        self._work = None
        return result

    def _note_state(self, state: Any) -> None:
        engine, role = self._service.engine, self._service.replication
        behind = state.command - engine.tables.frame.command_number
        role.commands_behind = max(behind, 0)
        if behind <= 0:
            role.even_at = monotonic()

    async def _acknowledge(self, call: Any, marks: "asyncio.Queue[tuple[int, Place]]") -> None:
        durable = self._service.durable
        assert durable is not None
        with suppress(EmbstoreError, grpc.aio.AioRpcError):
            while True:
                mark, place = await marks.get()
                while not marks.empty():
                    mark, place = marks.get_nowait()
                await durable.wait(mark)
                at = pb.LogPlace(segment=place.segment, offset=place.offset)
                await _send(call, durable=at)

    # A commit

    async def _take(self, call: Any, leader: Any) -> None:
        """Replace the store here by the leader's commit."""
        service = self._service
        files, role = service.engine.storage.files, service.replication
        catalogue = catalogues.decode(leader.catalogue)
        is_same = catalogue.store_id == service.store_id
        if catalogue.store_id != leader.store_id or not (is_same or role.is_empty):
            raise InvalidArgumentError(
                f"expected an empty directory, or a copy of store {leader.store_id}, to follow "
                f"{self._address}; found store {service.store_id}"
            )
        if is_same and not self._anew:
            await _check_not_ahead(service, self._address, catalogue, leader)
        incoming = await asyncio.to_thread(
            Incoming, files, catalogue, promotions_of(leader.promotions)
        )
        present = service.lineage if is_same else None
        missing = await asyncio.to_thread(incoming.missing, present)
        event(logging.INFO, "taking a commit", files=len(missing), bytes=sum(missing.values()))
        await _send(call, wanted=pb.Wanted(paths=list(missing)))
        for path, size in missing.items():
            offset = 0
            while offset < size:
                file = (await _read(call, "file")).file
                if file.offset != offset or not file.piece:
                    raise CorruptTableError(f"{path}: expected a piece at {offset}")
                await asyncio.to_thread(incoming.receive, path, offset, file.piece, size)
                offset += len(file.piece)
        await self._to_its_end(self._taken(incoming))
        event(logging.INFO, "commit taken", command=catalogue.head.command)

    async def _taken(self, incoming: Incoming) -> None:
        service = self._service
        await asyncio.to_thread(incoming.end)
        await self._reopen()
        self._anew = False
        service.replication.commits_taken += 1

    # Fencing

    async def _fence(self, address: str) -> None:
        """Notify the old leader that it was replaced, however long it takes to reach it."""

        async def tell(call: Any) -> None:
            follower = self._follower()
            follower.fences = True
            await _send(call, follower=follower)
            await _read(call, "leader")

        pause = _PAUSE_FIRST_S
        while True:
            try:
                await self._connect(address, tell)
                event(logging.INFO, "old leader fenced", address=address)
                return
            except EmbstoreError as exc:
                event(logging.WARNING, "old leader not fenced", address=address, reason=str(exc))
                return
            except (grpc.aio.AioRpcError, TimeoutError):
                await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)


async def _check_not_ahead(
    service: Served, address: str, catalogue: Catalogue, leader: Any
) -> None:
    """Raise InvalidArgumentError, now and always, if this store has commands that its leader has
    lost: the leader, of the same promotions, is not even at its last one."""
    command = service.engine.tables.frame.command_number
    is_behind = catalogue.head.command < command
    if not is_behind or promotions_of(leader.promotions) != service.lineage.promotions:
        return
    ahead = (
        f"this standby has all commands up to {command}, and {address} has fewer: it has lost "
        "acknowledged commands; promote this standby, or remove its directory to follow"
    )
    service.lineage = replace(service.lineage, ahead=ahead)
    await asyncio.to_thread(lineages.write, service.engine.storage.files, service.lineage)
    event(logging.ERROR, "commands lost", reason=ahead)
    raise InvalidArgumentError(ahead)


async def _send(call: Any, **what: Any) -> None:
    try:
        await call.write(pb.FollowRequest(**what).SerializeToString())
    except asyncio.InvalidStateError:  # the next read gives its status
        raise StoreClosedError("the stream ended") from None


async def _read(call: Any, *kinds: str) -> Any:
    """Return the next reply, of one of these kinds."""
    async with asyncio.timeout(_SILENCE_S):
        message = await call.read()
    if message is grpc.aio.EOF:
        code = await call.code()
        error = error_of(code, await call.details(), await call.trailing_metadata())
        raise error or StoreClosedError(f"the stream ended: {code.name} {await call.details()}")
    reply = parse(pb.FollowReply, message)
    if reply.WhichOneof("what") not in kinds:
        raise InvalidArgumentError(f"expected {kinds}, found {reply.WhichOneof('what')}")
    return reply


def _reason(error: Exception, address: str) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        found = error_of(error.code(), error.details(), error.trailing_metadata())
        return str(found) if found else f"no connection to {address}: {error.details()}"
    if isinstance(error, TimeoutError):
        return f"{address} says nothing"
    return message_of(answered_error(error, "Follow"))
