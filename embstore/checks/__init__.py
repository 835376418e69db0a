"""Checks of the form of commands. All layers through which a command arrives use these checks.

`checked` returns a command in normal form: keys and rows are contiguous arrays of the dtype that is
sent over the wire, numbers are Python objects rather than NumPy's, and parts are in tuples. The
checks here need no table: they refuse wrong dtypes and dimensions, lengths that do not match,
numbers out of range, and a table that is named twice. The executor refuses keys out of range, rows
of the wrong width, and names of tables that do not exist.

Every executor begins with `checked`. If a command is already in normal form, `checked` returns it
unchanged. Therefore a command that passes through several executors is converted once. Arrays in a
device's memory (`__cuda_array_interface__`) are left as they are: only the engine can check them.

arguments    single values
parts        keys, rows, gradients and bags of a table
rows, admin, sessions    the commands of each subject
call_bytes   how large a call can be
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
"""The checks of commands for which `_by_field` does not suffice, by class."""
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
"""Classes of values in commands. An object of such a class is checked when it is made."""


def _by_field(command: Any) -> Any:
    """Check each field of a command by the field's name, or, if there is no check for the name, by
    the field's type. A default value needs no check."""
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
    """Return the check of values of a type; None: no check is needed."""
    if get_origin(hint) is Literal:
        return partial(one_of, names=get_args(hint))
    kinds = [kind for kind in _KINDS if hint in (kind, kind | None)]
    return partial(instance, kind=hint, called=kinds[0].__name__) if kinds else _BY_TYPE.get(hint)


def checked(command: C) -> C:
    """Return a command in normal form.

    Raises
    ------
    InvalidArgumentError : an argument is not as expected; the message contains the expected and the
        found value.
    TableNotFoundError, CheckpointNotFoundError, SessionExpiredError : an argument cannot be the
        name of any table, label or member.
    """
    return cast(C, _CHECKS.get(type(command), _by_field)(command))
