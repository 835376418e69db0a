"""A store whose calls return futures at once; threads can wait for them, and tasks can await them.

    with connect(address) as store, background(store) as behind:
        ads = behind.of(store.table("ads"))
        rows = ads.lookup(keys)           # a Call: concurrent.futures.Future
        dense_part()
        rows.result()

    async with connect_async(address) as store:
        ads = await store.table("ads")
        rows = await ads.lookup(keys)

A verb (a method of `Store` or `Table`) does the same here, but in a thread of a pool, because a
call of the transport blocks its thread. The transports accept calls of many threads. The event loop
is only notified when a call ends. The declarations below state which verbs are executed in order; a
verb that is not declared is executed in order.

**Order.** A call is queued when it is made, whether it is awaited or not. Calls that change
something are executed one after the other, in the order in which they were made, so an update is
acknowledged before the next update is sent. Lookups and other verbs that only read run concurrently
with these calls, in any order: await an update before the lookup that has to see it. The arrays of
a call must not change until the call is done.

**Cancelling** a call, or the task that awaits it, drops the call if it has not begun; in that case
the call was not sent. A call that has begun is completed, and its result is dropped. A callback of
a call runs in the store's thread, so it must not wait for another call.

**Bounds.** At most `threads` calls read concurrently, and one call writes. At most CALLS_MAX calls
are unfinished at a time. A further call is refused (OverloadedError): await some calls first.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from inspect import isfunction
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from embstore.errors import InvalidArgumentError, OverloadedError, StoreClosedError
from embstore.handles.store import Store
from embstore.handles.table import Table
from embstore_client import tracing
from embstore_client.connecting import connect

CALLS_MAX = 1024
"""The maximum number of calls of one store, running or waiting; each keeps its arrays in memory."""
THREADS = 8
"""The default number of concurrent reads. It is larger than the number that a server executes at
once, so that the server always has a next read."""

_CLOSED = "the store is closed; connect again"

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H")


class Call(Future[R]):
    """An unfinished or finished call: a `concurrent.futures.Future` that can be awaited, too."""

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.wrap_future(self).__await__()


class Calls:
    """The calls of one store, and the threads that execute them. Any thread may use it."""

    def __init__(self, threads: int) -> None:
        if not isinstance(threads, int) or threads < 1:
            raise InvalidArgumentError(f"expected threads to be 1 or more, found {threads!r}")
        self._unordered = ThreadPoolExecutor(threads, "embstore reads")
        self._in_order = ThreadPoolExecutor(1, "embstore writes")
        self._room = threading.BoundedSemaphore(CALLS_MAX)
        self._lock = threading.Lock()
        self._waiting: set[Call[Any]] = set()
        self._is_closed = False

    def begin(self, verb: Callable[[], R], *, in_order: bool) -> Call[R]:
        """Have a thread execute a call; if `in_order`, after all earlier calls that are executed in
        order."""
        if not self._room.acquire(blocking=False):
            raise OverloadedError(
                f"{CALLS_MAX} calls of this store are in flight: await some first"
            )
        call: Call[R] = Call()
        pool = self._in_order if in_order else self._unordered
        with self._lock:
            if self._is_closed:
                self._room.release()
                raise StoreClosedError(_CLOSED)
            self._waiting.add(call)
            try:
                turn = pool.submit(self._in_turn, call, verb)
            except BaseException:  # for example, no thread can be started
                self._waiting.remove(call)
                self._room.release()
                raise
        turn.add_done_callback(lambda _: self._room.release())  # the call has released its arrays
        return call

    def _in_turn(self, call: "Call[R]", verb: Callable[[], R]) -> None:
        with self._lock:
            is_own = call in self._waiting  # else `end` has answered the call
            self._waiting.discard(call)
        if is_own and call.set_running_or_notify_cancel():
            _finish(call, verb)

    def end(self, *, cancel: bool) -> None:
        """Begin no further call. If `cancel`, calls that have not begun fail with
        StoreClosedError."""
        with self._lock:
            self._is_closed = True
            given_up, self._waiting = (self._waiting, set()) if cancel else (set(), self._waiting)
        for pool in (self._in_order, self._unordered):
            pool.shutdown(wait=False, cancel_futures=cancel)
        for call in given_up:  # without a lock: a waiting thread may call again
            if call.set_running_or_notify_cancel():
                call.set_exception(StoreClosedError(_CLOSED))

    def join(self) -> None:
        """Wait for the calls that have begun. To be called after `end`."""
        for pool in (self._in_order, self._unordered):
            pool.shutdown()


class TracedCalls(Calls):
    """Background calls that belong to the caller's trace span, and not to a span of the pool's
    thread that executes them."""

    def begin(self, verb: Callable[[], R], *, in_order: bool) -> Call[R]:
        """Begin a call as `Calls.begin` does, within the current span of the caller."""
        return super().begin(tracing.in_context(verb), in_order=in_order)


def _calls(threads: int) -> Calls:
    return TracedCalls(threads) if tracing.is_installed() else Calls(threads)


def _finish(call: Call[R], verb: Callable[[], R]) -> None:
    try:
        call.set_result(verb())
    except BaseException as exc:
        call.set_exception(exc)


class _Behind(Generic[H]):
    """Base of the objects that wrap a handle and have its verbs."""

    _for_threads: frozenset[str] = frozenset()
    """Methods of the handle that are not available as background calls."""

    def __init__(self, handle: H, calls: Calls) -> None:
        self._handle = handle
        self._calls = calls

    if not TYPE_CHECKING:  # type checkers use the declarations below

        def __getattr__(self, name: str) -> Any:
            verb = None if name in self._for_threads else getattr(type(self._handle), name, None)
            if name.startswith("_") or not isfunction(verb):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return MethodType(in_order(verb), self)


def _verb(
    verb: Callable[Concatenate[H, P], R], *, in_order: bool
) -> Callable[Concatenate[_Behind[H], P], Call[R]]:
    @wraps(verb)
    def begin(self: _Behind[H], /, *args: P.args, **named: P.kwargs) -> Call[R]:
        return self._calls.begin(partial(verb, self._handle, *args, **named), in_order=in_order)

    return begin


def unordered(
    verb: Callable[Concatenate[H, P], R],
) -> Callable[Concatenate[_Behind[H], P], Call[R]]:
    """Declare a verb that can be executed at any time."""
    return _verb(verb, in_order=False)


def in_order(
    verb: Callable[Concatenate[H, P], R],
) -> Callable[Concatenate[_Behind[H], P], Call[R]]:
    """Declare a verb that is executed after all earlier calls of verbs that `in_order` declares."""
    return _verb(verb, in_order=True)


def _table(
    verb: Callable[Concatenate[Store, P], Table], *, in_order: bool
) -> Callable[Concatenate["BackgroundStore", P], Call["BackgroundTable"]]:
    @wraps(verb)
    def begin(
        self: "BackgroundStore", /, *args: P.args, **named: P.kwargs
    ) -> Call["BackgroundTable"]:
        return self._calls.begin(
            lambda: self.of(verb(self._handle, *args, **named)), in_order=in_order
        )

    return begin


class BackgroundTable(_Behind[Table]):
    """The verbs of a `Table`, each of which returns a `Call` at once. Any thread may use it.

    The properties of a table need calls, too: `describe` returns all of them.
    """

    _for_threads = frozenset({"scan", "leaves"})

    @property
    def name(self) -> str:
        """The table's name."""
        return self._handle.name

    @property
    def table_id(self) -> int:
        """The id of this table in the store."""
        return self._handle.table_id

    def __repr__(self) -> str:
        return f"<embstore_client.BackgroundTable {self.name!r}>"

    describe = unordered(Table.describe)
    lookup = unordered(Table.lookup)
    lookup_pooled = unordered(Table.lookup_pooled)
    read_rows = unordered(Table.read_rows)
    digest = unordered(Table.digest)
    stats = unordered(Table.stats)

    update = in_order(Table.update)
    update_pooled = in_order(Table.update_pooled)
    update_ranks = in_order(Table.update_ranks)
    assign = in_order(Table.assign)
    put_rows = in_order(Table.put_rows)
    delete = in_order(Table.delete)
    clear = in_order(Table.clear)
    grow = in_order(Table.grow)
    flush = in_order(Table.flush)

    def set_learning_rate(self, value: float) -> Call[None]:
        """Set the learning rate of updates that do not pass one. The call is executed in order."""
        setting = partial(setattr, self._handle, "learning_rate", value)
        return self._calls.begin(setting, in_order=True)


class BackgroundStore(_Behind[Store]):
    """The verbs of a `Store`, each of which returns a `Call` at once. Any thread may use it.

    Leaving its with block waits for the unfinished calls. Sessions are not available here: use
    `Store.session` in a thread. The run that it returns sends and receives in the background by
    itself.
    """

    _for_threads = frozenset({"run", "session"})

    def of(self, table: Table) -> BackgroundTable:
        """Return the background verbs of a table of this store."""
        return BackgroundTable(table, self._calls)

    table = _table(Store.table, in_order=False)
    create_table = _table(Store.create_table, in_order=True)
    tables = unordered(Store.tables)
    table_facts = unordered(Store.table_facts)
    drop_table = in_order(Store.drop_table)

    lookup = unordered(Store.lookup)
    lookup_pooled = unordered(Store.lookup_pooled)
    update = in_order(Store.update)
    update_pooled = in_order(Store.update_pooled)
    update_ranks = in_order(Store.update_ranks)

    checkpoint = in_order(Store.checkpoint)
    checkpoints = unordered(Store.checkpoints)
    set_retention = in_order(Store.set_retention)
    restore = in_order(Store.restore)
    backup = unordered(Store.backup)
    flush = in_order(Store.flush)
    promote = in_order(Store.promote)
    set_shard_map = in_order(Store.set_shard_map)
    pause_writes = in_order(Store.pause_writes)
    resume_writes = in_order(Store.resume_writes)

    export_profile = unordered(Store.export_profile)
    import_profile = in_order(Store.import_profile)
    clear_counts = in_order(Store.clear_counts)
    warm_cache = unordered(Store.warm_cache)
    pin_hot_set = in_order(Store.pin_hot_set)
    hot_set = unordered(Store.hot_set)

    server_info = unordered(Store.server_info)
    resize_cache = in_order(Store.resize_cache)
    set_policy = in_order(Store.set_policy)
    stats = unordered(Store.stats)
    check_integrity = unordered(Store.check_integrity)
    warm_up = unordered(Store.warm_up)

    def close(self) -> Call[None]:
        """Close the store. Calls that have not begun are cancelled. If the store is on a server,
        calls that have begun are interrupted, as by `Store.close`."""
        self._calls.end(cancel=True)
        call: Call[None] = Call()
        call.set_running_or_notify_cancel()  # so that no caller can cancel the close
        threading.Thread(target=_finish, args=(call, self._close), name="embstore close").start()
        return call

    def _close(self) -> None:
        self._handle.close()
        self._calls.join()

    def __enter__(self) -> "BackgroundStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.end(cancel=False)
        self._calls.join()


def background(store: Store, *, threads: int = THREADS) -> BackgroundStore:
    """Return an object with the verbs of a store, which return futures. The with block of the
    returned object waits for the unfinished calls, and leaves the store open. An embedded store
    executes one call at a time, but the caller need not wait for the call.

    threads : the number of calls that can read concurrently
    """
    return BackgroundStore(store, _calls(threads))


class connect_async:  # noqa: N801 - it is called like the function `connect`
    """Connect to a server without blocking the event loop.

    Use `async with connect_async(address) as store`, which closes the store at the end; or `store =
    await connect_async(address)`, with `await store.close()` at the end.

    Parameters
    ----------
    address, options : as in `embstore.connect`
    threads : the number of calls that can read concurrently

    Raises
    ------
    The errors of `connect`, when the object is awaited.
    """

    def __init__(self, address: str, *, threads: int = THREADS, **options: Any) -> None:
        self._calls = _calls(threads)
        self._connect = partial(connect, address, **options)
        self._store: BackgroundStore | None = None

    def __await__(self) -> Generator[Any, None, BackgroundStore]:
        return self._connected().__await__()

    async def _connected(self) -> BackgroundStore:
        opening = self._calls.begin(self._connect, in_order=True)
        try:
            return BackgroundStore(await opening, self._calls)
        except BaseException:
            self._calls.end(cancel=False)
            opening.add_done_callback(_close_late)  # no caller waits for the store any more
            raise

    async def __aenter__(self) -> BackgroundStore:
        self._store = await self
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._store is not None
        await self._store.close()


def _close_late(opening: Future[Store]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
