"""A recorded session: training with every file call, and what was promised at each of them."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embstore.errors import EmbstoreError
from tests.conformance.backends import UnsyncedFiles
from tests.faults.disk import Choose, Disk
from tests.faults.promises import NOTHING, Promise, check_content, content_of, resumed, saved
from tests.faults.recording import Call, RecordingFiles
from tests.faults.training import DenseStore, open_store, stir, train


@dataclass
class Session:
    """Calls in order; from call `since[i]` on, a power cut may leave any of `promised[i]`."""

    seed: int
    options: dict[str, Any]
    calls: list[Call] = field(default_factory=list)
    since: list[int] = field(default_factory=lambda: [0])
    promised: list[tuple[Promise, ...]] = field(default_factory=lambda: [(NOTHING,)])
    merges: Counter[str] = field(default_factory=Counter)
    references: dict[Any, bytes] = field(
        default_factory=lambda: {_state(NOTHING): saved(DenseStore())}
    )

    def promise(self, *promises: Promise) -> None:
        """Note what may be found from the next call on."""
        self.since.append(len(self.calls))
        self.promised.append(promises)

    def promised_after(self, calls: int) -> tuple[Promise, ...]:
        """Return what may be found after so many calls."""
        return self.promised[bisect_right(self.since, calls) - 1]

    def without(self, verb: str, suffix: str) -> Iterator[tuple[int, Call]]:
        """Yield (calls so far, call), leaving out what `verb` did to paths with `suffix`."""
        for number, call in enumerate(self.calls, 1):
            if not (call.verb == verb and call.path.endswith(suffix)):
                yield number, call


def record(
    path: Path, seed: int, *, stretches: list[int], settled: bool, **options: Any
) -> Session:
    """Return a session of so many commands for each of `stretches`, closed and opened between.

    settled : wait for merges after every command, so that all that are due are done
    """
    session = Session(seed, options)
    record_into(session, RecordingFiles(path), stretches=stretches, settled=settled)
    return session


def record_into(
    session: Session, files: RecordingFiles, *, stretches: list[int], settled: bool
) -> None:
    """Do what `record` says with files that may fail; then the session ends there."""
    dense = DenseStore()
    session.calls = files.calls
    for commands in stretches:
        with open_store(files.root, files=files, **session.options) as store:
            for _ in range(commands):
                _train_one(session, store, dense)
                if settled:
                    store.executor.storage.merges.finish()
            stats = store.stats()["storage"]
            session.merges.update({kind: stats[kind] for kind in ("folds", "compactions")})
            before = session.promised[-1][0]
            session.promise(before, _note(session, dense))
        session.promise(content_of(dense))


def _train_one(session: Session, store: Any, dense: DenseStore) -> None:
    coming: list[Promise] = []

    def note(word: str, _: int) -> None:
        if word == "done":
            coming.append(_note(session, dense))

    def announce(word: str, _: int) -> None:
        if word == "begins":
            session.promise(session.promised[-1][0], coming[0])
        else:
            session.promise(coming.pop(0))

    every = session.options.get("durability") == "commands"
    train(dense, session.seed, 1, note, every=every)
    train(store, session.seed, 1, announce, every=every)
    stir(store, session.seed)


def _note(session: Session, dense: DenseStore) -> Promise:
    found = content_of(dense)
    if _state(found) not in session.references:
        session.references[_state(found)] = saved(dense)
    return found


def _state(promise: Promise) -> tuple[int, tuple[str, ...]]:
    return promise.command, tuple(promise.labels)


def check_after_cut(
    session: Session, disk: Disk, calls: int, choose: Choose, path: Path
) -> Promise:
    """Open what a power cut after so many calls leaves, commit nothing, and open it again; check
    that it is what was promised."""
    disk.write_to(path, choose)
    try:
        open_store(path, files=UnsyncedFiles(path), **session.options).executor.abandon()
        with open_store(path, files=UnsyncedFiles(path), **session.options) as store:
            return check_content(store, *session.promised_after(calls))
    except (AssertionError, EmbstoreError) as exc:
        call = session.calls[calls - 1]
        exc.add_note(f"seed {session.seed}, after call {calls}: {call.verb} {call.path}, {choose}")
        raise


def check_goes_on(session: Session, path: Path, start: Promise, commands: int = 12) -> None:
    """Train on where a store was found, through folds and another opening."""
    dense = resumed(session.references[_state(start)])
    train(dense, session.seed + 1, commands)
    with open_store(path, files=UnsyncedFiles(path), **session.options) as store:
        train(store, session.seed + 1, commands)
        store.executor.storage.merges.finish()
        assert store.stats()["storage"]["merge_error"] is None
        check_content(store, content_of(dense))
    with open_store(path, files=UnsyncedFiles(path), **session.options) as store:
        check_content(store, content_of(dense))
