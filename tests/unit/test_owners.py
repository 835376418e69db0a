"""Whose a name is, and which one is forgotten where there are too many."""

import random

import pytest

from embstore.tables.owners import Ages, owned, owner_of
from embstore_proto.envelope import CLIENT_ID_CHARACTERS_MAX, Origin
from embstore_server.access.principals import ANYBODY, Principal


@pytest.mark.parametrize(
    ("name", "owner"), [("a:b", "a"), ("a:b:c", "a"), ("a", ""), ("", ""), (":a", ""), ("a:", "a")]
)
def test_the_owner_stands_before_the_first_colon(name, owner):
    assert owner_of(name) == owner
    assert owner_of(owned("x", name)) == "x"
    assert owned("", name) == name


def forgotten(ages: Ages, count: int) -> list[str]:
    names = []
    for _ in range(count):
        names.append(next(ages.to_forget()))
        ages.drop(names[-1])
    return names


def test_who_has_most_loses_the_oldest():
    ages = Ages(["q:1", "g:1", "g:2", "q:2", "g:3", "g:4"])
    ages.renew("g:1")
    assert forgotten(ages, 2) == ["g:2", "g:3"]
    assert forgotten(ages, 4) == ["q:1", "g:4", "q:2", "g:1"]  # of equally many the oldest
    assert next(ages.to_forget(), None) is None
    ages.drop("nobody's")


def test_without_owners_the_oldest_is_forgotten():
    ages = Ages(["a", "b", "c", "d"])
    ages.renew("b")
    assert forgotten(ages, 4) == ["a", "c", "d", "b"]


def test_who_has_most_may_be_counted_otherwise():
    ages = Ages(["q:1", "g:1", "q:2"])
    assert list(ages.to_forget({"q": 3, "g": 5})) == ["g:1", "q:1", "q:2"]


def test_it_follows_from_the_order_alone():
    """Ages that were made anew, of the names in their order, forget the same."""
    rng = random.Random(3)
    order: dict[str, None] = {}
    ages = Ages()
    for _ in range(3000):
        name = f"{rng.choice('aab')}:{rng.randrange(60)}" if rng.random() < 0.9 else "nobody's"
        order.pop(name, None)
        order[name] = None
        ages.renew(name)
        if len(order) > 40:
            oldest = next(ages.to_forget())
            assert oldest == next(Ages(order).to_forget())
            ages.drop(oldest)
            del order[oldest]


def test_a_client_id_has_its_owner():
    names = ["a", "b", "a" * 64]
    ids = {
        (name, own): Principal(name, {}).origin(Origin(own, 1)).client_id
        for name in names
        for own in ("c", "d", "x:y", "c" * CLIENT_ID_CHARACTERS_MAX)
    }
    assert len(set(ids.values())) == len(ids)
    assert {len(one) for one in ids.values()} == {CLIENT_ID_CHARACTERS_MAX}
    owners = {name: {owner_of(ids[n, own]) for n, own in ids if n == name} for name in names}
    assert all(len(of) == 1 for of in owners.values())
    assert len(set.union(*owners.values())) == len(names) and "" not in set.union(*owners.values())


def test_nobody_makes_oneself_an_owner():
    """Nor takes the calls of another client by an id like a hash."""
    forged = Principal("a", {}).origin(Origin("c", 1)).client_id
    assert Principal("b", {}).origin(Origin(forged, 1)).client_id != forged
    assert owner_of(ANYBODY.origin(Origin("x:y", 1)).client_id) == ""
    assert ANYBODY.origin(Origin("c", 1)) == Origin("c", 1)
    assert ANYBODY.origin(Origin("x:y", 1)) != ANYBODY.origin(Origin("x:z", 1))
