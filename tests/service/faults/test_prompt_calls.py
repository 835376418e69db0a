"""What needs no engine is answered where it arrives, whatever else waits (`Effect.PROMPT`)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from embstore.handles.store import Store
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from tests.service.faults.served import PATIENCE_S, Served, until

CLIENTS = 10
KEYS = np.arange(8)
PROFILE = Profile({"rows": TableProfile("rows", 0, KEYS, KEYS + 1, int((KEYS + 1).sum()))})
LONG_CALLS: list[Callable[[Store], Any]] = [
    lambda store: store.pin_hot_set(HotSet({"rows": KEYS}, 1)),
    lambda store: store.import_profile(PROFILE),
    lambda store: store.warm_cache(0.5),
]


def test_leases_are_renewed_while_ten_clients_pin_import_and_warm(served: Served) -> None:
    busy, free = threading.Event(), threading.Event()

    def take_the_engine(_: Store) -> None:
        with served.store.executor.tables.frame.reading():
            busy.set()
            free.wait(PATIENCE_S)

    with ExitStack() as opened:
        stores = [opened.enter_context(served.connect()) for _ in range(CLIENTS)]
        stores[0].sessions.open("s", ["rows"], world_size=CLIENTS)
        members = [store.sessions.join("s", rank).member for rank, store in enumerate(stores)]
        pool = opened.enter_context(ThreadPoolExecutor(len(LONG_CALLS) * CLIENTS + 1))
        opened.callback(free.set)
        taking = pool.submit(served.on_engine, take_the_engine)
        assert busy.wait(PATIENCE_S)
        waiting = [pool.submit(call, store) for store in stores for call in LONG_CALLS]
        # Of the warm-ups, which are of one share, there is one.
        until(
            lambda: (
                len(served.service.long_works.running) == 2 * CLIENTS + 1
                or any(call.done() for call in waiting)
            )
        )
        for store, member in zip(stores, members, strict=True):
            assert store.sessions.renew(member).name == "s"
        assert not any(call.done() for call in [taking, *waiting])
        free.set()
        for call in waiting:
            call.result(PATIENCE_S)
        assert stores[0].stats()["frequency"]["hot_set"]["pinned_rows"] == len(KEYS)
    served.assert_free()
