"""Traces: commands that are given to a reference once and to many stores, in the same words.

A command takes a store, or the reference, and returns what it read, or None.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tests.conformance.traces import Config, cut_into_bags, values, zipf_keys
from tests.conformance.twin import bits, digests
from tests.reference import ReferenceStore

Command = Callable[[Any], Any]


def on(name: str, verb: str, *args: Any, **options: Any) -> Command:
    """Return a command of one table."""
    return lambda store: getattr(store.table(name), verb)(*args, **options)


def across(verb: str, *args: Any, **options: Any) -> Command:
    """Return a command of several tables."""
    return lambda store: getattr(store, verb)(*args, **options)


def creations(tables: Mapping[str, Config]) -> list[Command]:
    """Return the commands that make the tables."""
    return [across("create_table", name, **config) for name, config in tables.items()]


def random_commands(
    rng: np.random.Generator, tables: Mapping[str, Config], rounds: int
) -> list[Command]:
    """Return `rounds` times every verb that reads or writes, in random order."""
    commands: list[Command] = []
    for _ in range(rounds):
        one_round = random_reads(rng, tables) + random_writes(rng, tables)
        commands += [one_round[i] for i in rng.permutation(len(one_round))]
    return commands


def random_reads(rng: np.random.Generator, tables: Mapping[str, Config]) -> list[Command]:
    """Return a lookup of each kind. One names every row: more than a small cache holds."""
    reads = [
        across("lookup", {n: _keys(rng, c) for n, c in tables.items()}),
        across("lookup", {n: np.arange(c["rows"]) for n, c in tables.items()}),
    ]
    for name, config in tables.items():
        keys = _keys(rng, config)
        bags = cut_into_bags(rng, len(keys))
        reads += [
            on(name, "read_rows", keys),
            on(name, "lookup_pooled", keys, bags, "mean"),
            on(name, "lookup_pooled", keys, bags, "sum", values(rng, len(keys))),
        ]
    return reads


def random_writes(rng: np.random.Generator, tables: Mapping[str, Config]) -> list[Command]:
    """Return a write of each kind, Zipf keys with repeats: each takes one command number."""
    writes = [
        across("update", _shares(rng, tables)),
        across("update", _shares(rng, tables), learning_rate=0.01, gradient_scale=1 / 3),
        across("update_ranks", [_shares(rng, tables) for _ in range(3)]),
    ]
    for name, config in tables.items():
        keys, dim = _keys(rng, config), config["dim"]
        bags = cut_into_bags(rng, len(keys))
        bag_grads = values(rng, len(bags) - 1, dim)
        few = np.unique(_keys(rng, config))[:40]
        state = abs(values(rng, len(few), config["optimizer"].state_dim(dim)))
        writes += [
            on(name, "update_pooled", keys, bags, bag_grads, "mean"),
            on(name, "update_pooled", keys, bags, bag_grads, "sum", values(rng, len(keys))),
            on(name, "assign", keys, values(rng, len(keys), dim)),
            on(name, "put_rows", few, values(rng, len(few), dim), state, 2),
            on(name, "delete", _keys(rng, config)[:60]),
        ]
    return [*writes, on(str(rng.choice(list(tables))), "clear")]


def _keys(rng: np.random.Generator, config: Config) -> Any:
    return zipf_keys(rng, config["rows"], int(rng.integers(1, config["rows"])))


def _shares(rng: np.random.Generator, tables: Mapping[str, Config]) -> dict[str, tuple[Any, Any]]:
    named = [name for name in tables if rng.random() < 0.8]
    keys = {name: _keys(rng, tables[name]) for name in named}
    return {n: (k, values(rng, len(k), tables[n]["dim"])) for n, k in keys.items()}


def read_bits(result: Any) -> Any:
    """Return what a command read, to be compared."""
    if isinstance(result, np.ndarray):
        return bits(result)
    if isinstance(result, tuple):  # of read_rows
        return [bits(rows) for rows in result]
    if isinstance(result, dict) and all(isinstance(r, np.ndarray) for r in result.values()):
        return {name: bits(rows) for name, rows in result.items()}
    return None


def expect(
    commands: Iterable[Command], reference: ReferenceStore
) -> tuple[list[Any], dict[str, str]]:
    """Return what a reference answers to each command, and its digests then."""
    return [read_bits(command(reference)) for command in commands], digests(reference)
