"""The standby's side of following: a standby takes over its leader's commit, and executes its
commands.

A standby connects to its leader repeatedly. Usually the leader still has the commands after the
standby's last command, and the standby resumes there. Otherwise, or if the standby then lacks a
label, the standby replaces its store by the leader's last commit (`embstore.storage.taking`), and
opens the store again.

Commands are executed as in recovery (`embstore.engine.receiving`), on a thread. The standby
acknowledges commands when they are durable on its disk; meanwhile it executes the next commands.

A leader refuses a standby that has commands which the leader has lost after acknowledging them
(`standbys`). The standby then keeps its store, reports the reason, and can be promoted. It connects
again and again, and is refused as long as the two stores differ. Therefore the refusal need not be
stored, and a leader that has its commands back is followed again.

**Promotion.** The standby stops following, records in its lineage that it has replaced its leader,
and begins an epoch. From then on it accepts writes, and tries to notify the old leader until that
succeeds (`fencing`). If the promoted server is restarted with the same `follow`, it remains the
leader, unless the old leader has replaced it meanwhile. A leader whose settings name a server to
follow begins to follow once it is replaced: its store is opened again, as at a start.

Event loop only.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
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
from embstore.storage.command_records import COMMAND, Place, Record
from embstore.storage.command_stream import RecordStream
from embstore.storage.lineage import Lineage
from embstore.storage.taking import Incoming
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.path.served import Served
from embstore_server.replication.fencing import check_not_replaced, fence
from embstore_server.replication.leader_stream import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    connect,
    read,
    reason_of,
    send,
)
from embstore_server.replication.standbys import promotions_of
from embstore_server.setup.parsing import OFF
from embstore_server.telemetry.logs import event

_BODY_BYTES_MAX = 1 << 32
_EPOCH_STEPS_MAX = 1 << 16
"""Two standbys that are promoted from one epoch begin the same epoch with a probability of one in
this number."""


class Following:
    """The work of a standby; on a leader, this object is idle."""

    def __init__(self, served: Served, reopen: Callable[[], Awaitable[None]]) -> None:
        """Make the object; it does not follow yet.

        `reopen` makes the host serve the directory's new store in place of the previous store.
        """
        self._service = served
        self._reopen = reopen
        self._address = "" if served.settings.follow == OFF else served.settings.follow
        self.may_lead = asyncio.Event()
        """Set once it is known, or assumed, that this leader was not replaced while it was down."""
        self._anew = False  # whether the store must be replaced by a commit of the leader
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Future[Any] | None = None  # the running work, which is not cancelled
        self._promoting = asyncio.Lock()

    # Life

    def opened(self, engine: Engine, lineage: Lineage) -> None:
        """Begin the epoch of a promotion that was interrupted. Runs on the store's thread."""
        if self._leads(lineage) and lineage.promotions and not lineage.replaced_by:
            epoch = lineage.promotions[-1].epoch
            if engine.storage.catalogue.epoch < epoch:
                begin_epoch(engine, epoch)

    def decide(self, engine: Engine) -> None:
        """Set the replication role of a store that is served from now on."""
        role, lineage = self._service.replication, self._service.lineage
        if self._leads(lineage):
            role.replaced_by = lineage.replaced_by
            role.asks = "" if lineage.replaced_by else lineage.replaced
            return
        head = engine.storage.catalogue.head
        role.leader, role.replaced_by = self._address, ""
        self._service.replaced.clear()
        role.is_empty = (
            lineage == Lineage() and not head.commit and not engine.tables.frame.command_number
        )

    def _leads(self, lineage: Lineage) -> bool:
        """Return whether this server is a leader: the settings name no server to follow, or this
        server has replaced that server."""
        return not self._address or (lineage.replaced == self._address and not lineage.replaced_by)

    def start(self) -> None:
        """Begin to follow a leader. On a leader, begin to notify the old leader that it was
        replaced."""
        role = self._service.replication
        if role.leader:
            self._task = asyncio.create_task(self._follow_for_ever())
        elif self._service.lineage.replaced and not role.replaced_by:
            self._task = asyncio.create_task(self._lead())
            return
        self.may_lead.set()

    async def stop(self) -> None:
        """Stop following; commands that are being executed are executed to their end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._work is not None:
            await asyncio.wait([self._work])
            self._work = None

    async def promote(self) -> bool:
        """Make the standby the leader; return False if it follows no leader.

        Raises
        ------
        StoreClosedError : the standby has not received its leader's first commit yet.
        InvalidArgumentError : the error of `check_not_replaced`, on a server that was a leader and
            has not followed since.
        """
        async with self._promoting:
            service = self._service
            if not service.replication.leader:
                return False
            if service.replication.is_empty:
                raise StoreClosedError(service.not_ready)
            if service.lineage.below is None and not service.lineage.replaced_by:
                await check_not_replaced(service, self._address)
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
        # This is above an epoch whose record has not arrived yet.
        epoch = max(storage.catalogue.epoch, *begun, 0)
        epoch += EPOCH_STEP * (1 + secrets.randbelow(_EPOCH_STEPS_MAX))
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

    # Leading

    async def _lead(self) -> None:
        """Fence the old leader. Once this server is replaced in turn, follow the server that the
        settings name, if any."""
        fencing = asyncio.create_task(fence(self._service, self.may_lead))
        try:
            await self._service.replaced.wait()
        finally:
            fencing.cancel()
        if self._address:
            await self._follow_for_ever()
        self.may_lead.set()

    # Following

    async def _follow_for_ever(self) -> None:
        pause = PAUSE_FIRST_S
        role = self._service.replication
        while True:
            begun, reason = monotonic(), ""
            try:
                if role.replaced_by:  # the store is opened again, as at a start
                    try:
                        await self._to_its_end(self._reopen())
                    finally:
                        self.may_lead.set()
                await connect(self._service, self._address, self._follow)
            except Exception as exc:
                reason = reason_of(exc, self._address)
            if reason != role.reason:
                event(logging.WARNING, "not following", leader=self._address, reason=reason)
            role.is_connected, role.reason = False, reason
            pause = PAUSE_FIRST_S if monotonic() - begun > PAUSE_MAX_S else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    async def _follow(self, call: Any) -> None:
        service = self._service
        await send(call, follower=self._follower())
        leader = (await read(call, "leader")).leader
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
            await self._execute(call, marks, check_labels=not leader.catalogue)
        finally:
            acknowledging.cancel()

    def _follower(self) -> Any:
        service = self._service
        frame, place = service.engine.tables.frame, service.engine.shard
        return pb.Follower(
            store_id=service.store_id,
            promotions=[pb.Promotion(**vars(p)) for p in service.lineage.promotions],
            command=frame.command_number,
            anew=self._anew or service.replication.is_empty,
            lives=[pb.Life(**one._asdict()) for one in frame.lives],
            cluster="" if place is None else place.shard_map.cluster,
            shard=0 if place is None else place.shard,
        )

    async def _execute(
        self, call: Any, marks: "asyncio.Queue[tuple[int, Place]]", *, check_labels: bool
    ) -> None:
        """Execute the commands that a leader's stream contains, until the stream ends by an
        error."""
        stream = RecordStream(_BODY_BYTES_MAX)
        service = self._service
        while True:
            reply = await read(call, "log", "state")
            if reply.WhichOneof("what") == "state":
                self._note_state(reply.state)
                continue
            begin = Place(reply.log.begin.segment, reply.log.begin.offset)
            records = list(stream.add(begin, reply.log.piece))
            mark = await self._to_its_end(self._receive(records, check_labels=check_labels))
            marks.put_nowait((mark, stream.place))
            behind = service.replication.commands_behind - sum(r.kind == COMMAND for r in records)
            service.replication.commands_behind = max(behind, 0)

    async def _receive(self, records: list[Record], *, check_labels: bool) -> int:
        try:
            return await self._service.run_in_thread(
                "Follow", lambda engine, _: receive(engine, records, check_labels=check_labels)
            )
        except CorruptTableError:
            self._anew = True
            raise

    async def _to_its_end(self, work: Awaitable[Any]) -> Any:
        """Return the result of `work`, which runs to its end even if the standby stops following
        its leader."""
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
                await send(call, durable=at)

    # A commit

    async def _take(self, call: Any, leader: Any) -> None:
        """Replace this server's store by the leader's commit."""
        service = self._service
        files, role = service.engine.storage.files, service.replication
        catalogue = catalogues.decode(leader.catalogue)
        is_same = catalogue.store_id == service.store_id
        if catalogue.store_id != leader.store_id or not (is_same or role.is_empty):
            raise InvalidArgumentError(
                f"expected an empty directory, or a copy of store {leader.store_id}, to follow "
                f"{self._address}; found store {service.store_id}"
            )
        incoming = await asyncio.to_thread(
            Incoming, files, catalogue, promotions_of(leader.promotions)
        )
        present = service.lineage if is_same else None
        missing = await asyncio.to_thread(incoming.missing, present)
        event(logging.INFO, "taking a commit", files=len(missing), bytes=sum(missing.values()))
        await send(call, wanted=pb.Wanted(paths=list(missing)))
        for path, size in missing.items():
            offset = 0
            while offset < size:
                file = (await read(call, "file")).file
                if file.offset != offset or not file.piece:
                    raise CorruptTableError(f"{path}: expected a piece at {offset}")
                await asyncio.to_thread(incoming.receive, path, offset, file.piece, size)
                offset += len(file.piece)
        given_up = ""
        if is_same:
            number = service.engine.tables.frame.command_number
            given_up = service.lineage.given_up(promotions_of(leader.promotions), number)
        await self._to_its_end(self._taken(incoming))
        event(logging.INFO, "commit taken", command=catalogue.head.command)
        if given_up:
            event(logging.ERROR, "commands lost", reason=given_up)

    async def _taken(self, incoming: Incoming) -> None:
        service = self._service
        await asyncio.to_thread(incoming.end)
        await self._reopen()
        self._anew = False
        service.replication.commits_taken += 1
