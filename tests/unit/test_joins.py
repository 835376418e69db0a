"""Answers of shards as one: what a command declares, and no verb declares twice."""

from embstore.commands import COMMANDS, joins
from embstore.results import HotSetFacts, Warmed
from embstore_client.shards.router import HANDLERS


def test_a_verb_says_how_shards_answer_or_has_a_handler_of_its_own():
    joined = {command for command in COMMANDS.values() if command.join is not None}
    assert joined | set(HANDLERS) == set(COMMANDS.values())
    assert not joined & set(HANDLERS)


def test_numbers_add_by_name_and_a_flag_is_set_if_all_are():
    assert joins.total([3, 4]) == 7
    assert joins.total([{"a": 1, "b": 2}, {"b": 3, "c": 4}]) == {"a": 1, "b": 5, "c": 4}
    assert joins.total([Warmed(1, 2, True), Warmed(3, 4, False)]) == Warmed(4, 6, False)


def test_of_answers_that_are_alike_the_first_is_that_of_the_cluster():
    assert joins.first(["a", "b"]) == "a"
    assert joins.first_found(["", "b", "c"]) == "b"
    assert joins.first_found(["", ""]) == ""
    assert joins.nothing([None, None]) is None


def test_the_least_is_answered():
    one, other = HotSetFacts(7, 3, 0, 0), HotSetFacts(7, 2, 0, 0)
    assert joins.least("rows")([one, other]) is other
