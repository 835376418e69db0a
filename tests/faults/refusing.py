"""Files of a disk that refuses: when it is full, or broken, and a script that has to endure it."""

import errno
import os
import re
import shutil
import threading
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from embstore.errors import CapacityError, StorageError, StoreClosedError
from embstore.storage.files import File, Files
from tests.copies import copy_of_open
from tests.faults.promises import Promise, check_content, content_of
from tests.faults.training import (
    COMMANDS_PER_LABEL,
    DenseStore,
    is_restore,
    open_store,
    run_command,
    stir,
)


def kind_of(name: str) -> str:
    """Return a file's kind: its name without numbers."""
    return re.sub(r"\d+", "N", name)


class RefusingFiles(Files):
    """Refuses the nth call of some verbs: that one alone, or all from there on until `relent`."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.refusals = 0
        self.seen: set[tuple[str, str]] = set()
        """The calls that were made: verb, and kind of file."""
        self._lock = threading.Lock()
        self.relent()

    def refuse(
        self, verbs: Collection[str], nth: int, code: int, *, lasting: bool = False, kind: str = ""
    ) -> "RefusingFiles":
        """Refuse the nth call of `verbs` from now, with errno `code`; return self.

        kind : of the files that count, by their names without numbers; "": all
        """
        self._verbs, self._left, self._code, self._lasting = verbs, nth, code, lasting
        self._kind = kind
        return self

    def relent(self) -> None:
        """Refuse nothing any more."""
        self.refuse((), 0, 0)

    def _ask(self, verb: str, path: str) -> None:
        with self._lock:
            self.seen.add((verb, kind_of(path)))
            if verb not in self._verbs or self._kind not in ("", kind_of(path)):
                return
            self._left -= 1
            refused = self._left <= 0 if self._lasting else self._left == 0
            self.refusals += refused
        if refused:
            raise OSError(self._code, os.strerror(self._code))


def _asking(verb: str) -> Any:
    """Return a call of `Files` that is made unless it is refused."""
    call = getattr(Files, f"_{verb}")

    def asking(files: RefusingFiles, place: File | str | Files, *given: Any) -> Any:
        named = given[0] if isinstance(place, Files) else place  # link: where it is, and its name
        files._ask(verb, named.path if isinstance(named, File) else named)
        return call(files, place, *given)

    return asking


CHANGES = ("create", "make_directory", "rename", "link", "remove", "remove_directory")
"""Of the names in a directory."""
READS = ("open", "read", "map")
for _verb in (*CHANGES, *READS, "write", "allocate", "truncate", "sync", "sync_directory"):
    setattr(RefusingFiles, f"_{_verb}", _asking(_verb))


class FullDisk(RefusingFiles):
    """Has no room from some call on. Room that was set aside before can be written."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._ends: dict[str, int] = {}  # path -> up to where it has room, without holes

    def fill(self, nth: int, code: int = errno.ENOSPC) -> "FullDisk":
        """Have no room from the nth call on that takes some; return self."""
        self.refuse(_TAKE_ROOM, nth, code, lasting=True)
        return self

    def _allocate(self, file: File, offset: int, length: int) -> None:
        super()._allocate(file, offset, length)
        self._extend(file.path, offset, length)

    def _write(self, file: File, offset: int, data: memoryview) -> None:
        if offset + len(data) > self._ends.get(file.path, 0):
            super()._write(file, offset, data)
            self._extend(file.path, offset, len(data))
        else:
            Files._write(self, file, offset, data)

    def _truncate(self, file: File, length: int) -> None:
        super()._truncate(file, length)
        self._ends[file.path] = min(self._ends.get(file.path, 0), length)

    def _create(self, path: str) -> int:
        descriptor = super()._create(path)
        self._ends[path] = 0
        return descriptor

    def _rename(self, source: str, target: str) -> None:
        super()._rename(source, target)
        self._ends[target] = self._ends.pop(source, 0)

    def _extend(self, path: str, offset: int, length: int) -> None:
        if offset <= self._ends.get(path, 0):
            self._ends[path] = max(self._ends.get(path, 0), offset + length)


_TAKE_ROOM = ("create", "write", "allocate", "make_directory", "rename")


@dataclass(frozen=True)
class Step:
    """One call of the script, and what the store is before and after it."""

    kind: str  # command, label, commit, stir
    before: Promise
    after: Promise
    commits: bool = False

    def take(self, store: Any, seed: int) -> None:
        """Give the store this call."""
        if self.kind == "command":
            run_command(store, seed)
        elif self.kind == "label":
            store.checkpoint(f"command-{store.command}")
        elif self.kind == "commit":
            store.executor.commits.commit()
        else:
            stir(store, seed)


@cache
def script(seed: int, commands: int) -> list[Step]:
    """Return the calls of some commands, as the dense reference takes them."""
    dense = DenseStore()
    steps = []
    now = content_of(dense)
    for n in range(1, commands + 1):
        commits = is_restore(dense, seed)
        run_command(dense, seed)
        steps.append(Step("command", now, now := content_of(dense), commits))
        if n % COMMANDS_PER_LABEL == 0 and not commits:
            dense.checkpoint(f"command-{n}")
            steps.append(Step("label", now, now := content_of(dense), True))
        elif n % COMMANDS_PER_LABEL == COMMANDS_PER_LABEL // 2 and not commits:
            steps.append(Step("commit", now, now, True))
        steps.append(Step("stir", now, now))
    return steps


def endure(
    path: Path, files: RefusingFiles, seed: int, steps: list[Step], patience: int, **options: Any
) -> str:
    """Take all steps on a disk that refuses, and check what each refusal has to mean.

    CapacityError, StorageError of a store that did not fail : nothing has changed; tried again
    StorageError of a store that failed : all is refused, and opening finds the last commit, or the
        one that was in flight; where commands are logged, the last command, or that in flight

    patience : refusals after which the disk relents
    Returns "went on" or "failed".
    """
    try:
        store = open_store(path, files=files, **options)
    except (CapacityError, StorageError):
        assert files.refusals
        files.relent()
        store = open_store(path, files=files, **options)
    committed = steps[0].before
    for step in steps:
        is_kept = step.commits or bool(options)
        if not _taken(store, files, seed, step, patience, committed):
            _check_failed(store, step)
            with open_store(path) as reopened:
                check_content(reopened, committed, *([step.after] if is_kept else []))
            return "failed"
        committed = step.after if is_kept else committed
    store.executor.storage.merges.finish()  # a merge that is refused is made later
    files.relent()
    store.executor.storage.merges.finish()
    check_content(store, steps[-1].after)
    store.close()
    with open_store(path) as reopened:
        check_content(reopened, steps[-1].after)
    return "went on"


def _taken(
    store: Any, files: RefusingFiles, seed: int, step: Step, patience: int, committed: Promise
) -> bool:
    """Take a step, again and again where it is refused; return False if the store has failed."""
    while True:
        try:
            step.take(store, seed)
            return True
        except (CapacityError, StorageError, StoreClosedError) as exc:
            assert files.refusals, f"refused for nothing: {exc!r}"
            if store.executor.storage.failure is not None:
                assert not isinstance(exc, CapacityError), "a failure is no lack of room"
                return False
            check_content(store, step.before)
            _check_on_disk(files.root, committed)
            if files.refusals >= patience:
                files.relent()


def _check_on_disk(path: Path, committed: Promise) -> None:
    """Check that a kill at this moment would leave what is committed, or logged."""
    copy = path.with_name(f"{path.name}-copy")
    copy_of_open(path, copy)
    with open_store(copy) as store:
        check_content(store, committed)
    shutil.rmtree(copy)


def _check_failed(store: Any, step: Step) -> None:
    """Check that every call but close is refused, and that close gives the directory free."""
    table = store.table(next(iter(step.before.tables))) if step.before.tables else None
    calls = [
        store.check_integrity,
        store.stats,
        store.flush,
        store.checkpoints,
        lambda: store.checkpoint("after the failure"),
        lambda: store.restore("command-8"),
        lambda: store.lookup({}),
        lambda: store.update({}),
    ]
    if table is not None:
        calls += [table.digest, lambda: table.lookup([0]), lambda: table.grow(1 << 20)]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()
    store.close()


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
