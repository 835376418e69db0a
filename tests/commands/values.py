"""Hypothesis strategies of commands, made from the annotations of their fields.

`command(kind)` draws any command in normal form: what a field of its type may hold, whether or not
a store would take it. A new command needs nothing here, unless a field of it has a new type.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embstore.config import INITIALIZERS, OPTIMIZERS, KeySpace, TableConfig
from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from embstore.results import Barrier, NamedPlace, TableDescription
from embstore.sharding import PARTITIONS, ShardMap
from embstore.values import Value

NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), max_size=8)
TABLES = st.from_regex(r"[A-Za-z0-9]{1,4}(/[A-Za-z0-9_.-]{1,4})?", fullmatch=True)
INTEGERS = st.sampled_from([0, 1, 2**31 - 1]) | st.integers(0, 2**31 - 1)
FLOATS = st.floats(0.0, 1e30)
JSON = st.recursive(st.none() | st.booleans() | INTEGERS | NAMES, st.lists, max_leaves=4)


@st.composite
def configs(draw: Callable[[Any], Any]) -> TableConfig:
    """Draw a configuration; values that do not go together are drawn again."""
    optimizer, initializer = (
        draw(st.sampled_from(sorted(kinds.items()))) for kinds in (OPTIMIZERS, INITIALIZERS)
    )
    numbers = st.floats(0.015625, 0.5, width=32)
    kinds = get_type_hints(optimizer[1])
    parameters = {
        f.name: draw(st.booleans() if kinds[f.name] is bool else numbers)
        for f in fields(optimizer[1])
    }
    bounds = sorted(draw(numbers) for _ in fields(initializer[1]))
    key_space = draw(st.sampled_from(get_args(KeySpace)))
    try:
        return TableConfig.checked(
            draw(TABLES),
            dim=draw(st.integers(1, 4096)),
            rows=None if key_space == "sparse" else draw(st.integers(1, 2**40)),
            optimizer=optimizer[1](**parameters),
            initializer=initializer[1](*bounds),
            seed=draw(st.none() | st.integers(0, 2**64 - 1)),
            key_space=key_space,
        )
    except InvalidArgumentError:
        return draw(st.nothing())


KEY_SETS = st.frozensets(st.integers(0, 2**40 - 1), max_size=5).map(
    lambda keys: np.array(sorted(keys), np.int64)
)


@st.composite
def table_profiles(draw: Callable[[Any], Any], name: str) -> TableProfile:
    """Draw the profile of one table."""
    keys = draw(KEY_SETS)
    counts = draw(arrays.arrays(np.int64, len(keys), elements=st.integers(1, 1000)))
    error, more = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    return TableProfile(name, 0, keys, counts, int(counts.sum()) + more, error)


@st.composite
def profiles(draw: Callable[[Any], Any]) -> Profile:
    """Draw a profile without samples and trace."""
    names = draw(st.frozensets(TABLES, max_size=3))
    tables = {name: draw(table_profiles(name)) for name in sorted(names)}
    return Profile(tables, draw(st.floats(0.125, 1.0)), draw(st.integers(0, 99)))


HOT_SETS = st.builds(
    HotSet, st.dictionaries(TABLES, KEY_SETS, max_size=3), st.integers(1, 99), st.integers(0, 99)
)


def array(dtype: str, dimensions: int) -> st.SearchStrategy[Any]:
    """Return a strategy of arrays, of any bits."""
    shape = arrays.array_shapes(min_dims=dimensions, max_dims=dimensions, min_side=0, max_side=4)
    words = arrays.arrays(np.dtype(dtype).str.replace("f", "u"), shape)
    return words.map(lambda found: found.view(dtype))


NUMBERS = st.integers(0, 2**40)

_OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: INTEGERS,
    float: FLOATS,
    bool: st.booleans(),
    str: NAMES,
    TableConfig: configs(),
    Profile: profiles(),
    HotSet: HOT_SETS,
    ShardMap: st.builds(
        lambda cluster, version, count: ShardMap(
            cluster,
            version,
            tuple(f"127.0.0.1:{n + 1}" for n in range(count)),
            tuple(n % count for n in range(PARTITIONS)),
        ),
        NAMES.map(lambda name: f"c{name}"),
        st.integers(1, 2**63),
        st.integers(1, 5),
    ),
    Barrier: st.builds(
        Barrier,
        NUMBERS,
        st.lists(st.builds(TableDescription, configs(), NUMBERS, NUMBERS), max_size=3).map(tuple),
        NUMBERS,
        st.lists(
            st.builds(NamedPlace, NAMES, NUMBERS, st.dictionaries(NAMES, NUMBERS, max_size=2)),
            max_size=3,
        ).map(tuple),
    ),
    dict[str, Any]: st.dictionaries(NAMES, JSON, max_size=2),
    dict[str, str]: st.dictionaries(NAMES, NAMES, max_size=2),
    dict[str, float]: st.dictionaries(NAMES, FLOATS, max_size=2),
}


_OF_NAME = {"planner": st.sampled_from(["per_step", "window", "group:3"])}
"""Words that a field in normal form is made of."""


@cache
def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of values of an annotation."""
    if hint in _OF_TYPE:
        return _OF_TYPE[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return array(*hint.__metadata__[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if origin is Union or NoneType in arguments:
        inner = [argument for argument in arguments if argument is not NoneType]
        return st.none() | of_type(inner[0])
    assert issubclass(hint, Value), f"a field of a new type: {hint}"
    return command(hint)


def command(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of commands, or parts of them, of one class."""
    hints = get_type_hints(kind, include_extras=True)
    made = {
        f.name: _OF_NAME[f.name] if f.name in _OF_NAME else of_type(hints[f.name])
        for f in fields(kind)
    }
    return st.fixed_dictionaries(made).map(partial(_made, kind))


def _made(kind: Any, values: dict[str, Any]) -> Any:
    return kind(**values)
