"""Merges that go on only when they are told to, so that a test decides what happens meanwhile.

A merge runs on a thread of its own and says where it is (`Files.reached`). Here it waits at every
such point until it may pass. A command and a merge never run at the same time, then: what a random
test does depends on its seed alone, and each interleaving that the points allow can be had.

A merge that the store tells to stop is let through, and finds that it was told.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.backends import Embedded, UnsyncedFiles
from tests.conformance.served import Served

_LOOK_S = 0.0005
"""How long to wait for a thread before looking whether it stands at a point."""
_ALL = 1 << 62


class GatedFiles(UnsyncedFiles):
    """Holds the thread of a merge at each point."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._turn = threading.Condition()
        self._passes = 0
        self.waits_at = ""
        self.at_commit: Callable[[str], None] | None = None

    def reached(self, point: str) -> None:
        if point.startswith("commit:") and self.at_commit:
            self.at_commit(point)
        if not point.startswith(("fold:", "base_merge:", "compaction:")):
            return  # the engine's own thread
        with self._turn:
            self.waits_at = point
            self._turn.wait_for(lambda: self._passes)
            self._passes -= 1
            self.waits_at = ""

    def let_pass(self, points: int) -> None:
        """Let the merge pass so many points from here on."""
        with self._turn:
            self._passes = points
            self._turn.notify_all()

    @property
    def holding(self) -> bool:
        """Say whether a merge stands still."""
        with self._turn:
            return bool(self.waits_at) and not self._passes


class Gated(Embedded):
    """Stores whose merges are held: embedded ones, or served ones, of the class below."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._gates: dict[Any, GatedFiles] = {}

    def _files(self, path: Path) -> GatedFiles:
        self._newest = GatedFiles(path)
        self._newest.let_pass(_ALL)  # while it opens: what is logged may stop a merge
        return self._newest

    def open_store(self, name: str = "store", **options: Any) -> Any:
        store = super().open_store(name, **options)
        gate = self._gates[store] = self._newest
        gate.let_pass(0)
        stop = self.engine(store).storage.merges._stop
        tell = stop.set

        def tell_and_open() -> None:
            tell()
            gate.let_pass(_ALL)

        stop.set = tell_and_open
        return store

    def copy_during(self, store: Any, name: str, point: str, commit: Callable[[], Any]) -> str:
        """Do what commits; return a copy of the files as they were at a point of it."""
        copies: list[str] = []
        gate = self._gates[store]
        gate.at_commit = lambda at: copies.append(self.copy(name)) if at == point else None
        commit()
        gate.at_commit = None
        return copies[0]

    def settle(self, store: Any) -> None:
        self._gates[store].let_pass(_ALL)
        super().settle(store)
        self._gates[store].let_pass(0)

    def advance(self, store: Any, points: int = 0) -> str:
        """Let a merge pass so many points; return where it stands then, "" if there is none."""
        merge, gate = self.engine(store).storage.merges._thread, self._gates[store]
        gate.let_pass(points)
        while merge is not None and merge.is_alive() and not gate.holding:
            merge.join(_LOOK_S)
        gate.let_pass(0)
        return gate.waits_at


class GatedServed(Gated, Served):
    """Served stores whose merges are held; calls come over the wire."""
