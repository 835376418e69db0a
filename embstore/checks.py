"""The form of commands, checked in one place for every way in.

`checked` returns a command in normal form: keys and rows as contiguous arrays of the dtype of the
wire, numbers as Python's own, parts as tuples. What is refused here needs no table to be refused:
dtypes, dimensions, lengths that do not go together, numbers out of range, a table named twice. Keys
out of range, widths of rows and names of tables that are not there are the executor's to refuse.

Every executor begins with it. A command in normal form is returned as it is, so that a command that
crosses several executors is converted once. Arrays in a device's memory
(`__cuda_array_interface__`) are left as they are: only the engine can tell whether they fit.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from math import prod
from operator import is_
from typing import Any, TypeVar, cast

import numpy as np

from embstore import commands as c
from embstore.arrays import (
    Keys,
    Rows,
    as_array,
    as_counts,
    as_keys,
    as_offsets,
    as_rows,
    fp32_scalar,
    is_on_device,
    refusal,
    shape_of,
)
from embstore.config import Limits, TableConfig, check_rows
from embstore.errors import (
    CapacityError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    SessionExpiredError,
    StepNotFoundError,
    TableNotFoundError,
)
from embstore.layout import VALUE_BYTES
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile

UINT64_MAX = 2**64 - 1
RANKS_MAX = 4096
"""More trainers than step together; a call of empty ranks would keep a server busy."""
LOOKAHEAD_STEPS_MAX = 1024
"""Of a session; a slot counts 2,047 pins."""
WORLD_SIZE_MAX = 1024
GROUP_MAX = 1024
MS_MAX = 86_400_000
MEMBER_CHARACTERS = range(16, 65)
_PATH_CHARACTERS_MAX = 4096
_TEXT_CHARACTERS_MAX = 255
_METADATA_DEPTH_MAX = 32
"""The catalogue is read with whatever recursion limit a process has."""

C = TypeVar("C", bound=c.Command[Any])
P = TypeVar("P")


def checked(command: C) -> C:
    """Return a command in normal form.

    Raises
    ------
    InvalidArgumentError : what was expected, and what was found.
    TableNotFoundError, CheckpointNotFoundError, SessionExpiredError : for what no table, label or
        member can be called.
    """
    return cast(C, _CHECKS.get(type(command), _by_field)(command))


def expect(is_so: bool, expected: str, found: object) -> None:
    """Raise InvalidArgumentError unless it is so."""
    if not is_so:
        raise InvalidArgumentError(f"expected {expected}, found {found!r}")


def integer(value: Any, what: str, low: int, high: int = UINT64_MAX) -> int:
    """Return an integer of a range as Python's own."""
    expect(_is_integer(value), f"{what} to be an integer", value)
    bound = f">= {low}" if high == UINT64_MAX else f"from {low} to {high}"
    expect(low <= value <= high, f"{what} to be an integer {bound}", value)
    return int(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def number(value: Any, what: str, low: float, high: float) -> float:
    """Return a number of a range, both ends included, as a float."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    expect(is_number and low <= value <= high, f"{what} to be from {low:g} to {high:g}", value)
    return float(value)


def flag(value: Any, what: str) -> bool:
    """Return True or False."""
    expect(isinstance(value, bool), f"{what} to be True or False", value)
    return bool(value)


def text(value: Any, what: str) -> str:
    """Return 1 to 255 printable characters."""
    is_text = isinstance(value, str) and 0 < len(value) <= _TEXT_CHARACTERS_MAX
    expected = f"{what} of 1 to {_TEXT_CHARACTERS_MAX} printable characters"
    expect(is_text and value.isprintable(), expected, value)
    return cast(str, value)


def one_of(value: Any, what: str, names: tuple[str, ...]) -> Any:
    """Return one of some words."""
    quoted = " or ".join(f'"{name}"' for name in names)
    expect(isinstance(value, str) and value in names, f"{what} to be {quoted}", value)
    return value


def mapping(value: Any, what: str) -> Mapping[Any, Any]:
    """Return a mapping."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"expected {what} to be a mapping, found {type(value).__name__}")
    return value


# Tables


def table_name(name: Any) -> str:
    """Return what can name a table; whether there is one is the executor's to say."""
    if not isinstance(name, str) or not name.isprintable():
        raise TableNotFoundError(f"no table {name!r}; the name of a table is text")
    return name


def _each_once(tables: Iterable[Any]) -> None:
    names = [part.table for part in tables]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"table {twice!r} is named twice in one call")


def _parts(parts: tuple[P, ...], check: Callable[[P], P]) -> tuple[P, ...]:
    """Return parts in normal form; the same tuple if they were."""
    found = tuple([check(part) for part in parts])
    is_same = len(found) == len(parts) and all(map(is_, found, parts))
    return parts if is_same else found


def _tables(parts: tuple[P, ...], check: Callable[[P], P]) -> tuple[P, ...]:
    """Return parts that name tables, each once."""
    found = _parts(parts, check)
    if len(found) > 1:
        _each_once(found)
    return found


def _keys(keys: Any, table: str) -> Keys:
    return keys if is_on_device(keys) else as_keys(keys, table)


def _rows(rows: Any, count: int, table: str, what: str) -> Rows:
    """Return (count, any) rows; whether they are as wide as the table's is not known here.

    Of rows on a device more is checked where they are taken.
    """
    if is_on_device(rows):
        return cast(Rows, rows)
    array = as_array(rows, table, what)
    shape = array.shape
    if len(shape) != 2 or shape[0] != count:
        raise refusal(table, f"{what} of shape ({count}, dim)", f"{array.dtype} {shape}")
    return as_rows(array, (count, shape[1]), table, what)


def _table_keys(part: c.TableKeys) -> c.TableKeys:
    name = table_name(part.table)
    keys = _keys(part.keys, name)
    counts = None if part.counts is None else as_counts(part.counts, _length(keys), name)
    if keys is part.keys and counts is part.counts:
        return part
    return c.TableKeys(name, part.table_id, keys, counts)


def _gradients(part: c.TableGradients) -> c.TableGradients:
    name = table_name(part.table)
    keys = _keys(part.keys, name)
    gradients = _rows(part.gradients, _length(keys), name, "gradients")
    if keys is part.keys and gradients is part.gradients:
        return part
    return c.TableGradients(name, part.table_id, keys, gradients)


def _length(array: Any) -> int:
    if isinstance(array, np.ndarray):
        return array.shape[0] if array.ndim else 0
    return (*shape_of(array), 0)[0]


def checked_bags(bags: c.Bags, key_count: int, table: str) -> c.Bags:
    """Return the bags of so many keys in normal form."""
    offsets = as_offsets(bags.offsets, key_count, table)
    if bags.mode not in ("sum", "mean"):
        raise refusal(table, 'mode "sum" or "mean"', repr(bags.mode))
    weights = bags.weights
    if weights is not None:
        if bags.mode != "sum":
            raise InvalidArgumentError(f'table {table!r}: weights go with mode "sum" only')
        weights = as_rows(weights, (key_count,), table, "weights")
        if not np.isfinite(weights).all():
            raise InvalidArgumentError(f"table {table!r}: expected finite weights")
    return c.Bags(offsets, bags.mode, weights)


def _options(options: c.UpdateOptions) -> c.UpdateOptions:
    rate = options.learning_rate
    if rate is not None:
        rate = fp32_scalar(rate, "learning_rate")
    scale = fp32_scalar(options.gradient_scale, "gradient_scale")
    one_of(options.on_nonfinite, "on_nonfinite", ("refuse", "skip"))
    if rate is options.learning_rate and scale is options.gradient_scale:
        return options
    return c.UpdateOptions(rate, scale, options.on_nonfinite)


# Commands


def _lookup(command: c.Lookup) -> c.Lookup:
    tables = _tables(command.tables, _table_keys)
    admit = command.admit if isinstance(command.admit, bool) else bool(command.admit)
    if tables is command.tables and admit is command.admit:
        return command
    return c.Lookup(tables, admit)


def _lookup_pooled(command: c.LookupPooled) -> c.LookupPooled:
    keys = _one_table(command.keys)
    bags = checked_bags(command.bags, _length(keys.keys), keys.table)
    return c.LookupPooled(keys, bags, bool(command.admit))


def _one_table(part: c.TableKeys) -> c.TableKeys:
    name = table_name(part.table)
    return c.TableKeys(name, part.table_id, _keys(part.keys, name))


def _read_rows(command: c.ReadRows) -> c.ReadRows:
    return c.ReadRows(_one_table(command.keys))


def _update(command: c.Update) -> c.Update:
    tables = _tables(command.tables, _gradients)
    options = _options(command.options)
    if tables is command.tables and options is command.options:
        return command
    return c.Update(tables, options)


def _update_pooled(command: c.UpdatePooled) -> c.UpdatePooled:
    part = command.gradients
    name = table_name(part.table)
    keys = _keys(part.keys, name)
    bags = checked_bags(command.bags, _length(keys), name)
    rows = _rows(part.gradients, len(bags.offsets) - 1, name, "gradients")
    gradients = c.TableGradients(name, part.table_id, keys, rows)
    return c.UpdatePooled(gradients, bags, _options(command.options))


def _update_ranks(command: c.UpdateRanks) -> c.UpdateRanks:
    expect(len(command.ranks) <= RANKS_MAX, f"at most {RANKS_MAX} ranks", len(command.ranks))
    ranks = tuple(c.Rank(_tables(rank.tables, _gradients)) for rank in command.ranks)
    return c.UpdateRanks(ranks, _options(command.options))


def _assign(command: c.Assign) -> c.Assign:
    keys = _one_table(command.keys)
    return c.Assign(keys, _rows(command.rows, _length(keys.keys), keys.table, "rows"))


def _put_rows(command: c.PutRows) -> c.PutRows:
    keys = _one_table(command.keys)
    count, name = _length(keys.keys), keys.table
    return c.PutRows(
        keys,
        _rows(command.weights, count, name, "weights"),
        _rows(command.state, count, name, "state"),
        _added_t(command.add_t, name),
    )


def _added_t(value: Any, table: str) -> int:
    try:
        return integer(value, "add_t", 0)
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"table {table!r}: {exc}") from None


# The process, tables, durability


def _resize_cache(command: c.ResizeCache) -> c.ResizeCache:
    if isinstance(command.cache_bytes, int) and command.cache_bytes > UINT64_MAX:
        raise CapacityError(f"cache_bytes {command.cache_bytes} is more than systems can address")
    return c.ResizeCache(integer(command.cache_bytes, "cache_bytes", 1))


def _create_table(command: c.CreateTable) -> c.CreateTable:
    config = command.config
    expect(isinstance(config, TableConfig), "a TableConfig", config)
    return command


def _grow_table(command: c.GrowTable) -> c.GrowTable:
    name = table_name(command.table)
    return c.GrowTable(name, command.table_id, check_rows(command.rows, name))


def _set_learning_rate(command: c.SetLearningRate) -> c.SetLearningRate:
    name = table_name(command.table)
    rate = fp32_scalar(command.learning_rate, f"table {name!r}: learning_rate")
    return c.SetLearningRate(name, command.table_id, rate)


def _checkpoint(command: c.Checkpoint) -> c.Checkpoint:
    return c.Checkpoint(text(command.label, "a label"), _metadata(command.metadata))


def _backup(command: c.Backup) -> c.Backup:
    destination = command.destination
    is_text = isinstance(destination, str) and 0 < len(destination) <= _PATH_CHARACTERS_MAX
    expected = "a destination, a path or URL of printable characters"
    expect(is_text and destination.isprintable(), expected, destination)
    label = command.label
    return c.Backup(destination, None if label is None else text(label, "a label"))


def _metadata(value: Any) -> dict[str, Any]:
    """Return a copy of a JSON object."""
    is_object = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    expect(is_object, "metadata to be a dict with string keys", value)
    if not _is_shallow(value, _METADATA_DEPTH_MAX):
        raise InvalidArgumentError(f"expected metadata nested at most {_METADATA_DEPTH_MAX} deep")
    try:
        document = json.dumps(value, allow_nan=False)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidArgumentError(f"expected metadata that JSON can hold: {exc}") from exc
    copy: dict[str, Any] = json.loads(document)
    return copy


def _is_shallow(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallow(part, depth - 1) for part in parts)


def _restore(command: c.Restore) -> c.Restore:
    if not isinstance(command.label, str) or not command.label.isprintable():
        raise CheckpointNotFoundError(f"no checkpoint {command.label!r} is kept")
    return command


# Sessions


def member_name(member: Any) -> str:
    """Return what can name a member of a session."""
    if not isinstance(member, str) or not member.isascii() or not member.isprintable():
        raise SessionExpiredError(f"no session has a member {member!r}; open it and join again")
    return member


def check_planner(planner: Any) -> tuple[str, int]:
    """Return the kind of a planner and how many steps it plans as one."""
    match str(planner).partition(":"):
        case ("per_step" | "window" as kind, "", ""):
            return kind, 1
        case ("group", ":", count) if count in _GROUPS:
            return "group", int(count)
    raise InvalidArgumentError(
        f'expected planner "per_step", "window" or "group:N" with N from 1 to {GROUP_MAX}, '
        f"found {str(planner)[:80]!r}"
    )


_GROUPS = frozenset(map(str, range(1, GROUP_MAX + 1)))


def _open_session(command: c.OpenSession) -> c.OpenSession:
    name = text(command.name, "a session name")
    tables = _session_tables(command.tables)
    check_planner(command.planner)
    steps_max = LOOKAHEAD_STEPS_MAX
    return c.OpenSession(
        name,
        tables,
        integer(command.lookahead_steps_max, "lookahead_steps_max", 1, steps_max),
        integer(command.world_size, "world_size", 1, WORLD_SIZE_MAX),
        str(command.planner),
        flag(command.shared, "shared"),
        integer(command.lease_ms, "lease_ms", 1, MS_MAX),
        integer(command.rank_timeout_ms, "rank_timeout_ms", 1, MS_MAX),
    )


def _session_tables(tables: Any) -> tuple[str, ...]:
    is_list = isinstance(tables, list | tuple)
    expect(is_list and len(tables) > 0, "tables as a list of names", tables)
    expect(all(isinstance(name, str) for name in tables), "tables as a list of names", tables)
    expect(len(set(tables)) == len(tables), "each table once", list(tables))
    return tuple(map(table_name, tables))


def _join_session(command: c.JoinSession) -> c.JoinSession:
    if not isinstance(command.name, str) or not command.name.isprintable():
        raise SessionExpiredError(f"no session {command.name!r} is open; open it, then join")
    rank = integer(command.rank, "rank", 0, 2**32 - 1)
    member = command.member
    is_secret = isinstance(member, str) and len(member) in (0, *MEMBER_CHARACTERS)
    if not is_secret or not member.isascii() or not member.isprintable():
        raise InvalidArgumentError("expected a member of 16 to 64 characters, chosen at random")
    return c.JoinSession(command.name, rank, member)


def step_number(step: Any) -> int:
    """Return the number of a step; whether it was announced is the session's to say."""
    if _is_integer(step) and not 0 <= step <= UINT64_MAX:
        raise StepNotFoundError(f"no step {step} can be announced")
    return integer(step, "the number of a step", 0)


def _of_step(command: Any) -> Any:
    member_name(command.member)
    step_number(command.step)
    return command


def _step_part(name: Any) -> str:
    """Return the name of a table; whether it is one of the session's is the session's to say."""
    if not isinstance(name, str) or not name.isprintable():
        raise InvalidArgumentError(f"expected tables of the session, found {name!r}")
    return name


def _announce(command: c.Announce) -> c.Announce:
    member_name(command.member)
    count = len(command.steps)
    expect(count <= LOOKAHEAD_STEPS_MAX, f"at most {LOOKAHEAD_STEPS_MAX} steps in a call", count)
    steps = tuple(
        c.StepKeys(integer(step.step, "the number of a step", 0), _tables(step.tables, _step_table))
        for step in command.steps
    )
    numbers = [step.step for step in steps]
    for number in numbers if len(set(numbers)) < count else ():
        expect(numbers.count(number) == 1, "each step once in a call", number)
    return c.Announce(command.member, steps)


def _step_table(part: c.StepTable) -> c.StepTable:
    return c.StepTable(_step_part(part.table), as_keys(part.keys, part.table))


def _lookup_step_pooled(command: c.LookupStepPooled) -> c.LookupStepPooled:
    _of_step(command)
    tables = _tables(command.tables, _step_bags)
    return c.LookupStepPooled(command.member, int(command.step), tables)


def _step_bags(part: c.StepBags) -> c.StepBags:
    name = _step_part(part.table)
    inverse: Any = part.inverse
    if not (isinstance(inverse, np.ndarray) and inverse.dtype == np.uint32 and inverse.ndim == 1):
        inverse = as_keys(inverse, name)
    if len(inverse) and not (0 <= inverse.min() and inverse.max() < 2**31):
        expected = "an inverse of indices into the announced keys"
        raise refusal(name, expected, f"{inverse.min()} to {inverse.max()}")
    bags = checked_bags(part.bags, len(inverse), name)
    return c.StepBags(name, inverse.astype(np.uint32, copy=False), bags)


def _update_step(command: c.UpdateStep) -> c.UpdateStep:
    _of_step(command)
    tables = _tables(command.tables, _step_gradients)
    options = _options(command.options)
    return c.UpdateStep(command.member, int(command.step), tables, options)


def _step_gradients(part: c.StepGradients) -> c.StepGradients:
    name = _step_part(part.table)
    given = part.gradients
    if not is_on_device(given):
        given = as_array(given, name, "gradients")
    rows = _rows(given, _length(given), name, "gradients")
    return part if rows is part.gradients else c.StepGradients(name, rows)


def _put_step_rows(command: c.PutStepRows) -> c.PutStepRows:
    member_name(command.member)
    return c.PutStepRows(command.member, _tables(command.tables, _step_put))


def _step_put(part: c.StepPut) -> c.StepPut:
    name = _step_part(part.table)
    keys = as_keys(part.keys, name)
    weights = _rows(part.weights, len(keys), name, "weights")
    state = _rows(part.state, len(keys), name, "state")
    return c.StepPut(name, keys, weights, state, _added_t(part.add_t, name))


# Access frequencies


def _export_profile(command: c.ExportProfile) -> c.ExportProfile:
    one_of(command.source, "source", ("counted", "imported"))
    return command


def _import_profile(command: c.ImportProfile) -> c.ImportProfile:
    if not isinstance(command.profile, Profile):
        raise InvalidArgumentError(f"expected a Profile, found {type(command.profile).__name__}")
    rename = command.rename
    is_so = isinstance(rename, Mapping) and all(
        isinstance(name, str) and name.isprintable() for pair in rename.items() for name in pair
    )
    expect(is_so, "rename to be a mapping of names to names", rename)
    return command


def _pin_hot_set(command: c.PinHotSet) -> c.PinHotSet:
    if not isinstance(command.hot_set, HotSet):
        raise InvalidArgumentError(f"expected a HotSet, found {type(command.hot_set).__name__}")
    return command


def _warm_cache(command: c.WarmCache) -> c.WarmCache:
    share = number(command.share, "share", 0, 1)
    expect(share > 0, "share to be above 0 and at most 1", command.share)
    return c.WarmCache(share)


_BY_NAME: dict[str, Callable[[Any], object]] = {
    "table": table_name,
    "member": member_name,
    "step": step_number,
}
_BY_TYPE: dict[Any, Callable[[Any, str], object]] = {
    int: lambda value, name: integer(value, name, 0),
    bool: flag,
    str: text,
}


def _by_field(command: Any) -> Any:
    """Check fields by what they are called, else by their types; a default is right as it is."""
    for field in fields(command):
        value = getattr(command, field.name)
        if isinstance(value, str) and value == field.default:
            continue
        if field.name in _BY_NAME:
            _BY_NAME[field.name](value)
        elif field.type in _BY_TYPE:
            _BY_TYPE[field.type](value, field.name)
    return command


_CHECKS: dict[type[Any], Callable[[Any], Any]] = {
    c.ResizeCache: _resize_cache,
    c.CreateTable: _create_table,
    c.GrowTable: _grow_table,
    c.SetLearningRate: _set_learning_rate,
    c.Checkpoint: _checkpoint,
    c.Backup: _backup,
    c.Restore: _restore,
    c.Lookup: _lookup,
    c.LookupPooled: _lookup_pooled,
    c.ReadRows: _read_rows,
    c.Update: _update,
    c.UpdatePooled: _update_pooled,
    c.UpdateRanks: _update_ranks,
    c.Assign: _assign,
    c.PutRows: _put_rows,
    c.OpenSession: _open_session,
    c.JoinSession: _join_session,
    c.Announce: _announce,
    c.LookupStepPooled: _lookup_step_pooled,
    c.UpdateStep: _update_step,
    c.PutStepRows: _put_step_rows,
    c.ExportProfile: _export_profile,
    c.ImportProfile: _import_profile,
    c.PinHotSet: _pin_hot_set,
    c.WarmCache: _warm_cache,
}
"""Of commands whose fields need more than `_by_field` does."""


# Bytes of a call


ConfigOf = Callable[[str, int | None], TableConfig]
"""What returns the configuration of a table, by name and id."""


def _bytes(rows: Any) -> int:
    return VALUE_BYTES * prod(shape_of(rows))


def check_call_bytes(command: c.Command[Any], config_of: ConfigOf, limits: Limits) -> None:
    """Refuse a command whose arrays, results included, are too large to be held."""
    size = _call_bytes(command, config_of)
    if size > limits.call_bytes_max:
        raise InvalidArgumentError(
            f"expected a call of at most {limits.call_bytes_max} bytes of keys and rows "
            f"(limits.call_bytes_max), found {size}; split the call"
        )


def _call_bytes(command: c.Command[Any], config_of: ConfigOf) -> int:
    def keyed(part: Any, *, with_state: bool = False) -> int:
        """Bytes of a part's keys, and of a row for each."""
        config = config_of(part.table, part.table_id)
        elements = config.dim + config.state_dim if with_state else config.dim
        return _length(part.keys) * (8 + VALUE_BYTES * elements)

    match command:
        case c.Lookup(tables) | c.Update(tables):
            return sum(map(keyed, tables))
        case c.LookupPooled(keys, bags):
            bag_bytes = VALUE_BYTES * config_of(keys.table, keys.table_id).dim + 8
            return keyed(keys) + bag_bytes * len(bags.offsets)
        case c.ReadRows(keys):
            return keyed(keys, with_state=True)
        case c.UpdatePooled(gradients, bags):
            return keyed(gradients) + bags.offsets.nbytes + _bytes(gradients.gradients)
        case c.UpdateRanks(ranks):
            return sum(keyed(part) for rank in ranks for part in rank.tables)
        case c.Assign(keys):
            return keyed(keys)
        case c.PutRows(keys, _, state):
            return keyed(keys) + _bytes(state)
        case c.PutStepRows(_, puts):
            return sum(p.keys.nbytes + _bytes(p.weights) + _bytes(p.state) for p in puts)
        case c.UpdateStep(_, _, gradients_of):
            return sum(_bytes(part.gradients) for part in gradients_of)
        case c.Announce(_, steps):
            return sum(part.keys.nbytes for step in steps for part in step.tables)
    return 0
