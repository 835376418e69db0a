"""Recovery: after a crash the uncommitted commands are executed again.

The same code that executed the commands executes them again. By the contract their results are
equal to the bit, and so are table ids, the tables' update counts t, and command numbers. Limits
that were lowered in the meantime are ignored: every acknowledged command is executed. During the
first execution, commits and folds were made between the commands. Recovery makes commits and folds
only if the row log becomes full.

The command log also contains the answers to calls, and recovery restores these: if a client sends a
call again, the call gets the answer that it would have got before the crash. If a command was
committed, and its answer was lost in the crash, only the fact that it was executed is known.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from embstore import commands as c
from embstore.arrays import TABLE_IDS_MAX
from embstore.engine import rows
from embstore.engine.admin import context
from embstore.errors import CapacityError, CorruptTableError, EmbstoreError
from embstore.results import TableDescription
from embstore.storage.command_records import RecordReader
from embstore.tables.answers import Answer
from embstore.tables.logged import BEGINS_ANEW, Codec, Logged, Memory, read_log

if TYPE_CHECKING:
    from embstore.engine.engine import Engine

_NO_LIMIT = 1 << 62


class Recovered(NamedTuple):
    """The result of a recovery: the answers in the log, the reader of the log, and the number and
    duration of the executed commands."""

    memory: Memory
    read: RecordReader
    commands: int
    seconds: float


def recover(engine: "Engine", codec: Callable[[], Codec]) -> Recovered:
    """Execute the commands in the log that follow the last commit.

    Raises CorruptTableError if commands are missing, or if their results differ from those of their
    first execution.
    """
    storage = engine.storage
    memory, begun, executed = Memory(engine.cluster_commands), perf_counter(), 0
    catalogue = storage.catalogue
    reader = RecordReader(storage.files, bytes.fromhex(catalogue.store_id), catalogue.commands)
    if catalogue.commands is None:
        return Recovered(memory, reader, 0, 0.0)
    with executing_again(engine):
        for logged in read_log(reader, codec(), memory, catalogue):
            if execute_again(engine, logged, memory):
                executed += 1
                storage.files.reached("replay:command")
    return Recovered(memory, reader, executed, perf_counter() - begun)


@contextmanager
def executing_again(engine: "Engine") -> Iterator[None]:
    """Allow the execution of commands that were acknowledged before.

    Limits are ignored. Each command keeps the life that its record contains, which is the id of the
    process that first executed the command.
    """
    tables = engine.tables
    limits, tables.limits = tables.limits, _unlimited(tables.limits)
    frame = tables.frame
    is_covered, frame.is_covered, life = frame.is_covered, True, frame.life
    try:
        yield
    finally:
        tables.limits, frame.is_covered, frame.life = limits, is_covered, life


def execute_again(engine: "Engine", logged: Logged, memory: Memory) -> bool:
    """Execute an entry of a log, unless this store has executed it already. Entries must be passed
    in order. Return whether the entry was a command that this store had not executed yet."""
    tables = engine.tables
    now = tables.frame.command_number
    if logged.number > now + logged.is_counted:
        raise CorruptTableError(
            f"{logged.path}: expected command {now + 1}, found {logged.number}: commands that were "
            "acknowledged are missing"
        )
    if logged.number > now:
        _execute(engine, logged, memory)
        return True
    if logged.is_counted:
        _note(engine, logged, None, memory)
    elif logged.place is not None and logged.number == now:
        tables.drop_place(logged.place.session)
    elif logged.sessions is not None and logged.number == now:
        for session in tables.places.keys() - set(logged.sessions):
            tables.drop_place(session)
    return False


def _execute(engine: "Engine", logged: Logged, memory: Memory) -> None:
    engine.tables.frame.life = logged.life
    engine.tables.frame.part_id = logged.part_id if logged.place is None else 0
    try:
        try:
            result = _result(engine, logged)
        except CapacityError:
            engine.tables.commit()
            engine.storage.merges.finish()
            result = _result(engine, logged)
    except EmbstoreError as exc:
        exc.add_note(f"This is command {logged.number} of {logged.path}, executed again.")
        raise
    finally:
        engine.tables.frame.part_id = 0
    engine.cluster_commands.answered(logged.part_id)
    if logged.place is not None and logged.place.place.step != BEGINS_ANEW:
        place = replace(logged.place.place, command=logged.number)
        engine.tables.note_place(logged.place.session, place)
    if engine.tables.frame.command_number != logged.number:
        raise CorruptTableError(
            f"{logged.path}: command {logged.number}, executed again, gave another result than "
            "before"
        )
    _note(engine, logged, result, memory)


def _result(engine: "Engine", logged: Logged) -> Any:
    command = logged.command
    if command is None:
        with engine.tables.writing(None):
            return None
    again = _AGAIN.get(type(command))
    return engine.execute_here(command) if again is None else again(engine, command, logged)


def _create_table(engine: "Engine", command: c.CreateTable, logged: Logged) -> TableDescription:
    """Create a table with the id that it had at its first creation."""
    storage = engine.storage
    # larger than the logged id if tables that were created later still exist
    before = storage.next_table_id
    storage.next_table_id = logged.next_table_id
    try:
        made: TableDescription = engine.execute_here(command)
        return made
    finally:
        storage.next_table_id = max(before, storage.next_table_id)


_AGAIN: dict[Any, Callable[[Any, Any, Logged], Any]] = {
    c.CreateTable: _create_table,
    c.PutStepRows: lambda engine, command, _: rows.put_step_rows_again(engine, command),
}
"""For commands whose first execution depended on more than the command: the function that executes
the command again."""


def _note(engine: "Engine", logged: Logged, result: Any, memory: Memory) -> None:
    """Remember the answer to a call. If `result` is None, only the fact that the call was executed
    is remembered, because the answer is lost."""
    if logged.origin is not None:
        state = replace(context(engine, memory.instance), command=logged.number)
        memory.answers.add(logged.origin, Answer(type(logged.command).__name__, result, state))


def _unlimited(limits: Any) -> Any:
    return replace(limits, call_bytes_max=_NO_LIMIT, tables_max=TABLE_IDS_MAX)
