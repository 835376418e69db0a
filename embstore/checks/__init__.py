"""The form of commands, checked in one place for every way in.

`checked` returns a command in normal form: keys and rows as contiguous arrays of the dtype of the
wire, numbers as Python's own, parts as tuples. What is refused here needs no table to be refused:
dtypes, dimensions, lengths that do not go together, numbers out of range, a table named twice. Keys
out of range, widths of rows and names of tables that are not there are the executor's to refuse.

Every executor begins with it. A command in normal form is returned as it is, so that a command that
crosses several executors is converted once. Arrays in a device's memory
(`__cuda_array_interface__`) are left as they are: only the engine can tell whether they fit.

arguments    single values
parts        keys, rows, gradients and bags of a table
rows, admin, sessions    the commands of each
call_bytes   how large a call may be
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache, partial
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from embstore import commands as c
from embstore.checks.admin import ADMIN
from embstore.checks.arguments import (
    Checks,
    flag,
    instance,
    integer,
    kept_label,
    names_of_names,
    one_of,
    text,
)
from embstore.checks.parts import table_name
from embstore.checks.rows import ROWS
from embstore.checks.sessions import SESSIONS, member_name, step_number
from embstore.config import TableConfig
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.results import Barrier
from embstore.sharding import ShardMap

C = TypeVar("C", bound=c.Command[Any])

_CHECKS: Checks = ROWS | ADMIN | SESSIONS
"""Of commands whose fields need more than `_by_field` does."""
_BY_NAME: dict[str, Callable[[Any], object]] = {
    "label": kept_label,
    "table": table_name,
    "member": member_name,
    "step": step_number,
}
_BY_TYPE: dict[Any, Callable[[Any, str], object]] = {
    int: lambda value, name: integer(value, name, 0),
    bool: flag,
    str: text,
    dict[str, str]: names_of_names,
}
_KINDS = TableConfig, ShardMap, Barrier, Profile, HotSet
"""Of values that commands hold, and that are checked when they are made."""


def _by_field(command: Any) -> Any:
    """Check fields by what they are called, else by their types; a default is right as it is."""
    for field in fields(command):
        value = getattr(command, field.name)
        if isinstance(value, str | None) and value == field.default:
            continue
        if field.name in _BY_NAME:
            _BY_NAME[field.name](value)
        elif (check := _of_type(cast(Any, field.type))) is not None:
            check(value, field.name)
    return command


@cache
def _of_type(hint: Any) -> Callable[[Any, str], object] | None:
    """Return the check of values of a type; None: there is none."""
    if get_origin(hint) is Literal:
        return partial(one_of, names=get_args(hint))
    kinds = [kind for kind in _KINDS if hint in (kind, kind | None)]
    return partial(instance, kind=hint, called=kinds[0].__name__) if kinds else _BY_TYPE.get(hint)


def checked(command: C) -> C:
    """Return a command in normal form.

    Raises
    ------
    InvalidArgumentError : what was expected, and what was found.
    TableNotFoundError, CheckpointNotFoundError, SessionExpiredError : for what no table, label or
        member can be called.
    """
    return cast(C, _CHECKS.get(type(command), _by_field)(command))
