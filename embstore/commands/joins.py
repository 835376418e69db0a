"""How a cluster's answer is made of those of its shards, where that takes their answers alone.

Every shard is sent the command as it is. A join is given what they answered, in the order of the
shards. A command that is split by keys, or joined in another way, has none: a handler of its own
does both (`embstore_client.shards`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, cast

from embstore.errors import EmbstoreError


class Join(Protocol):
    """Makes one answer of several."""

    def __call__(self, answers: Sequence[Any], /) -> Any:
        """Return the cluster's answer."""


def nothing(_: Sequence[Any]) -> None:
    """Answer nothing, as each shard does."""


def first(answers: Sequence[Any]) -> Any:
    """Answer what the first shard does: they all have heard the same."""
    return answers[0]


def first_found(answers: Sequence[Any]) -> Any:
    """Answer what the first shard does that says anything."""
    return next(filter(None, answers), answers[0])


def total(answers: Sequence[Any]) -> Any:
    """Add numbers; of what holds several, each by its name; a flag is set if all are."""
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
    """Answer what the first shard does, with the sum of this attribute."""

    def join(answers: Sequence[Any]) -> Any:
        return replace(answers[0], **{attribute: sum(map(attrgetter(attribute), answers))})

    return join


def least(attribute: str) -> Join:
    """Answer what the shard does whose answer has the least of this attribute."""
    return lambda answers: min(answers, key=attrgetter(attribute))


def same(attribute: str) -> Join:
    """Answer what the first shard does, if all have the same of this attribute.

    Raises EmbstoreError: they have not.
    """
    of = attrgetter(attribute)

    def join(answers: Sequence[Any]) -> Any:
        found = [of(answer) for answer in answers]
        if any(one != found[0] for one in found):
            raise EmbstoreError(
                f"expected the same {attribute} from every shard, found {found}: they have not "
                "heard the same commands; restore the cluster to its last checkpoint"
            )
        return answers[0]

    return join
