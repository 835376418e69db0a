"""The deduplication window: a mutating call is applied once, even if it is sent again.

A client numbers its mutating calls. The server keeps, per client, the call of each number. While
the call is queued or running, a further attempt joins it; after its end, a further attempt gets the
same answer. Only the answer (a command number, t) is kept, never rows.

A client reports the numbers whose answers it has received; the server forgets these calls. The
server also forgets calls that are more than CALLS_MAX numbers older than the client's newest call.
If the client's answers exceed CLIENT_BYTES_MAX, the server forgets the calls with the lowest
numbers. If there are more than CLIENTS_MAX clients, the server forgets a client of the owner with
the most clients (`tables.owners`). If all answers together exceed ANSWERS_BYTES_MAX, it forgets a
client of the owner with the most bytes of answers. In both cases it forgets the owner's oldest
client without a running call. From then on, a client of this owner that is unknown here may be a
forgotten client, and is *doubtful*. The first attempts of a doubtful client are run as usual; a
further attempt that is not remembered ends with OutcomeUnknownError. An answer is stored without
the parts that the call itself contains (`Command.short_answer`).

A call that certainly changed nothing, and may succeed another time, is forgotten too, so that a
further attempt runs. Such a call was cancelled before it started, found the queue full, or reached
its deadline in the queue.

There are two reasons why the call of a further attempt may *not* be remembered. If no earlier
attempt was received, the call is run. Otherwise another instance of the server, or the same server
in another epoch of the store, has received an earlier attempt. It may have applied the call before
the call's rows were rolled back. The client names the instance and epoch to which it first sent the
call. If the present instance or epoch differs, the outcome cannot be known, and the answer is
OutcomeUnknownError.

**Restarts.** If the store has a command log, the log contains the answers, too (`recall`). The
deduplication window then continues where it was when the server was killed, under the same
instance. A further attempt of a call that was running at that moment is run, or gets the answer of
the first attempt. If only the answer of a call was lost, the server knows that the call was
applied.

A remembered answer of another epoch is not sent again either, because a restore has undone the
answered command. Each answer contains its epoch for this purpose. The alternative would be to
forget all answers at a restore. But that would also forget calls that are queued after the restore,
and would not happen if the caller of the restore has disconnected.

Event loop only.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from embstore.engine.engine import Engine
from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    OutcomeUnknownError,
    OverloadedError,
    StoreClosedError,
)
from embstore.tables.answers import (
    ANSWERS_BYTES_MAX,
    CALLS_MAX,
    CLIENT_BYTES_MAX,
    CLIENTS_MAX,
    Answers,
    answer_bytes,
)
from embstore.tables.owners import Ages, owner_of
from embstore_proto.envelope import CLIENT_ID_CHARACTERS_MAX, Origin
from embstore_server.path.answers import Answered
from embstore_server.path.worker import Task, Worker

_NOT_APPLIED = (DeadlineError, OverloadedError, StoreClosedError)


class _Call:
    """A remembered call. `waiters` is the number of attempts that wait for its outcome."""

    def __init__(self, verb: str, task: Task) -> None:
        self.verb = verb
        self.task = task
        self.outcome: asyncio.Future[Answered] = task.outcome
        self.waiters = 0
        self.bytes = 0
        """Bytes of the call's answer; 0 before the call is done."""

    @property
    def is_lost(self) -> bool:
        """Whether the call was applied, but its answer was lost in a crash."""
        return self.outcome.done() and _result_of(self.outcome) is _LOST

    def is_undone(self, epoch: int) -> bool:
        """Whether the call's answer belongs to another epoch; False for an error, as the call then
        changed nothing."""
        result = _result_of(self.outcome)
        return isinstance(result, Answered) and result.context.epoch != epoch


_LOST = object()


def _result_of(outcome: "asyncio.Future[Any]") -> Any:
    """Return the result of a call; None if the call is not done, or raised."""
    if not outcome.done() or outcome.cancelled() or outcome.exception() is not None:
        return None
    return outcome.result()


class _Client:
    """A client's calls; `owned` counts the bytes of all answers by owner, including this
    client's."""

    def __init__(self, name: str, owned: Counter[str], *, doubtful: bool) -> None:
        self.calls: dict[int, _Call] = {}
        self.floor = 1  # every lower sequence number has been forgotten
        # whether this may be a forgotten client, whose calls were applied
        self.is_doubtful = doubtful
        self.bytes = 0
        self._owner, self._owned = owner_of(name), owned

    def begin(self, sequence: int, call: _Call) -> None:
        """Remember a call, and, once it exists, its answer."""
        self.calls[sequence] = call
        call.outcome.add_done_callback(partial(self._done, sequence, call))

    def _done(self, sequence: int, call: _Call, outcome: "asyncio.Future[Any]") -> None:
        if self.calls.get(sequence) is not call:
            return  # the call was forgotten
        result = _result_of(outcome)
        call.bytes = answer_bytes(result.value if isinstance(result, Answered) else None)
        self._count(call.bytes)
        while self.bytes > CLIENT_BYTES_MAX:
            done = (s for s, one in self.calls.items() if one.bytes and one is not call)
            if (lowest := min(done, default=None)) is None:
                return
            self.floor = max(self.floor, lowest + 1)
            self._drop(lowest)

    def _count(self, more: int) -> None:
        self.bytes += more
        self._owned[self._owner] += more

    def _drop(self, sequence: int) -> None:
        self._count(-self.calls.pop(sequence).bytes)

    def forget_below(self, sequence: int) -> None:
        if sequence > self.floor:
            self.floor = sequence
            for old in [s for s in self.calls if s < sequence]:
                self._drop(old)

    def forget(self, sequence: int, call: _Call) -> None:
        """Forget this call; a later call with the same sequence number stays."""
        if self.calls.get(sequence) is call:
            self._drop(sequence)

    def forget_all(self) -> None:
        """Forget all calls; none of them is running."""
        for sequence in list(self.calls):
            self._drop(sequence)


class ReplayWindow:
    """The remembered calls of all clients."""

    def __init__(self, worker: Worker, instance: str) -> None:
        self._worker = worker
        self._instance = instance
        self._clients: dict[str, _Client] = {}
        self._ages = Ages()
        self._forgotten: set[str] = set()  # owners of forgotten clients
        self._bytes: Counter[str] = Counter()  # bytes of answers, by owner

    @property
    def remembered_calls(self) -> int:
        """The number of remembered calls of all clients."""
        return sum(len(client.calls) for client in self._clients.values())

    def recall(self, answers: Answers, mark: int = 0) -> None:
        """Remember the answers in the command log of an earlier process, or of the previous leader.

        These answers are sent again once the log is durable up to a mark.
        """
        self._clients.clear()
        self._bytes = Counter()  # calls that still run count in the old counter
        self._ages = Ages(answers.clients)
        self._forgotten = set(answers.forgotten)
        for name, remembered in answers.clients.items():
            client = self._clients[name] = _Client(name, self._bytes, doubtful=False)
            client.floor = remembered.floor
            for sequence, (verb, result, context) in remembered.calls.items():
                task = Task(verb, _nothing, "", 0.0)
                task.finish(_LOST if result is None else Answered(result, context, {}, mark), None)
                client.begin(sequence, _Call(verb, task))

    async def call(
        self, verb: str, origin: Origin, epoch: int, submit: Callable[[], Task]
    ) -> tuple[Any, Task]:
        """Return the outcome and the task of the call with this origin; run the call if it is new.

        Raises OutcomeUnknownError if an earlier attempt was, or may have been, applied, and its
        answer is lost or undone. Raises InvalidArgumentError if there is no client id or no
        sequence number, or if another verb had this number. Raises the call's own error otherwise.
        """
        client = self._client(origin)
        client.forget_below(max(origin.finished_below, origin.sequence - CALLS_MAX + 1))
        while (call := client.calls.get(origin.sequence)) is not None:
            if call.verb != verb:
                raise InvalidArgumentError(
                    f"origin: sequence {origin.sequence} was a {call.verb}, and is a {verb} now"
                )
            if call.is_lost:
                raise OutcomeUnknownError(
                    "this call was applied, and its answer was lost when the server ended; read t "
                    "and the command number, then go on"
                )
            if call.is_undone(epoch):
                raise OutcomeUnknownError(
                    "the store was restored after this call, which had been applied, or lost "
                    "commands in a crash: what it changed may be gone; read t and the command "
                    "number, then decide"
                )
            # the call was not applied: it is run for this attempt, or for a third one
            with suppress(*_NOT_APPLIED):
                return await self._join(client, origin.sequence, call), call.task
        self._check_first(client, origin, epoch)
        call = _Call(verb, submit())
        client.begin(origin.sequence, call)
        return await self._join(client, origin.sequence, call), call.task

    def _client(self, origin: Origin) -> _Client:
        name = origin.client_id
        if not 0 < len(name) <= CLIENT_ID_CHARACTERS_MAX or origin.sequence < 1:
            raise InvalidArgumentError(
                f"origin: expected a client_id of 1 to {CLIENT_ID_CHARACTERS_MAX} characters and "
                f"a sequence from 1, found {name[:80]!r}, {origin.sequence}"
            )
        client = self._clients.get(name)
        if client is None:
            is_doubtful = owner_of(name) in self._forgotten
            client = self._clients[name] = _Client(name, self._bytes, doubtful=is_doubtful)
        self._ages.renew(name)
        if len(self._clients) > CLIENTS_MAX:
            self._forget_one(name, None)
        while self._bytes.total() > ANSWERS_BYTES_MAX and self._forget_one(name, self._bytes):
            pass
        return client

    def _forget_one(self, name: str, counts: Counter[str] | None) -> bool:
        """Forget an idle client other than `name`; return whether there was one.

        counts : a number for each owner; the owner with the highest number loses a client. None:
            the owner with the most clients loses one
        """
        names = (n for n in self._ages.to_forget(counts) if n != name and self._is_idle(n))
        if (oldest := next(names, None)) is None:
            return False
        self._clients.pop(oldest).forget_all()
        self._ages.drop(oldest)
        self._forgotten.add(owner_of(oldest))
        return True

    def _is_idle(self, name: str) -> bool:
        latest_first = reversed(self._clients[name].calls.values())
        return all(call.outcome.done() for call in latest_first)

    def _check_first(self, client: _Client, origin: Origin, epoch: int) -> None:
        if origin.sequence < client.floor:
            raise OutcomeUnknownError(
                f"origin: sequence {origin.sequence} has left the deduplication window: the client "
                f"had its answer, or is {CALLS_MAX} calls or {CLIENT_BYTES_MAX} bytes of answers "
                "further"
            )
        if origin.attempt and client.is_doubtful:
            raise OutcomeUnknownError(
                f"origin: the client may have been forgotten (at most {CLIENTS_MAX} are "
                "remembered) while this call was in flight: it may have been applied before; read "
                "t and the command number, then decide"
            )
        check_epoch(origin, epoch)
        if origin.attempt and (origin.instance, origin.epoch) != (self._instance, epoch):
            raise OutcomeUnknownError(
                "the server restarted, or was restored, while this call was in flight: it may "
                "have been applied before; read t and the command number, then decide"
            )

    async def _join(self, client: _Client, sequence: int, call: _Call) -> Any:
        call.waiters += 1
        try:
            return await asyncio.shield(call.outcome)
        except _NOT_APPLIED:
            client.forget(sequence, call)
            raise
        except asyncio.CancelledError:
            if call.waiters == 1 and self._worker.withdraw(call.task):
                client.forget(sequence, call)
            raise
        finally:
            call.waiters -= 1


def _nothing(_: Engine) -> None:
    """Do nothing: the work of a call that is already done."""


def check_epoch(origin: Origin, epoch: int) -> None:
    """Refuse a call if its sender expects a different epoch from the store's epoch. Any thread."""
    if origin.epoch and origin.epoch != epoch:
        raise OutcomeUnknownError(
            f"this call is of epoch {origin.epoch}, the store is in {epoch}: it was restored, or "
            "lost commands in a crash, and the caller's view of it is out of date; read t and the "
            "command number, then go on"
        )
