"""Joins: functions that make a cluster's answer from the answers of its shards.

A command that has a join is sent unchanged to every shard. The join receives the answers in the
order of the shards. Commands that are split by keys, or whose answers are joined in another way,
have no join: a handler in `embstore_client.shards` splits such a command and joins the answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, cast


class Join(Protocol):
    """A function that makes one answer from several answers."""

    def __call__(self, answers: Sequence[Any], /) -> Any:
        """Return the cluster's answer."""


def nothing(_: Sequence[Any]) -> None:
    """Return None, as each shard does."""


def first(answers: Sequence[Any]) -> Any:
    """Return the first shard's answer: all shards have executed the same commands."""
    return answers[0]


def first_found(answers: Sequence[Any]) -> Any:
    """Return the first answer that is not empty; if all answers are empty, the first shard's
    answer."""
    return next(filter(None, answers), answers[0])


def total(answers: Sequence[Any]) -> Any:
    """Add the answers. Numbers are added; mappings and dataclasses are added entry by entry, by
    name. A flag in the result is set if it is set in all answers."""
    one = answers[0]
    if isinstance(one, bool):
        return all(answers)
    if isinstance(one, Mapping):
        names = dict.fromkeys(name for answer in answers for name in answer)
        return {name: total([own[name] for own in answers if name in own]) for name in names}
    if is_dataclass(one):
        of = {f.name: [getattr(answer, f.name) for answer in answers] for f in fields(one)}
        return replace(cast(Any, one), **{name: total(found) for name, found in of.items()})
    return sum(answers)


def first_with_sum(attribute: str) -> Join:
    """Return the join whose result is the first shard's answer, with this attribute summed over all
    shards."""

    def join(answers: Sequence[Any]) -> Any:
        return replace(answers[0], **{attribute: sum(map(attrgetter(attribute), answers))})

    return join


def least(attribute: str) -> Join:
    """Return the join whose result is the answer with the least value of this attribute."""
    return lambda answers: min(answers, key=attrgetter(attribute))


def table(answers: Sequence[Any]) -> Any:
    """Return a table's description with the least number of rows and the least t."""
    least_rows = min(answers, key=attrgetter("config.rows"))
    return replace(least_rows, t=min(answer.t for answer in answers), update_ids=0)


def acknowledged(answers: Sequence[Any]) -> Any:
    """Return the first shard's outcome of an update, with the least t of each table. The values of
    t differ after an update that only some shards applied."""
    return replace(
        answers[0], t={name: min(one.t[name] for one in answers) for name in answers[0].t}
    )
