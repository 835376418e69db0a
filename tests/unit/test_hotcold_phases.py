"""Phases: of one rank its packer's, of several ranks those that suit all of them."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore_training.hotcold.packer import Packed
from embstore_training.hotcold.phases import AGREED_BATCHES_MAX, Phases, PushCapacity
from embstore_training.hotcold.run import _CountedSessions
from tests.conformance.hotness.hotcold import Meeting

EMPTY = {"id": np.empty(0, np.int64)}
kinds_of_a_rank = st.lists(st.booleans(), max_size=40) | st.lists(
    st.tuples(st.booleans(), st.integers(1, 100)), max_size=4
).map(lambda runs: [*chain.from_iterable([kind] * count for kind, count in runs)])


def packed(kinds: list[bool]) -> Any:
    """Yield numbered batches of one sample, of these kinds."""
    before = False
    for number, is_hot in enumerate(kinds):
        yield Packed({"id": np.array([number])}, is_hot, switch=is_hot != before)
        before = is_hot


def phases_of(kinds: list[bool], all_gather: Any = None, bytes_max: int = 10) -> Phases:
    """Return the phases of such a stream; a hot batch adds its number's last digit to a push."""
    room = PushCapacity(bytes_max, lambda batch: int(batch["id"][0]) % 10)
    return Phases(packed(kinds), lambda: EMPTY, room, all_gather)


def taken(phases: Phases) -> list[tuple[bool, list[list[int]]]]:
    """Go through all phases; return their kinds, and the numbers in each of their batches."""
    found = []
    while (phase := phases.following()) is not None:
        found.append((phase.is_hot, [batch["id"].tolist() for batch, _ in phase.batches]))
    return found


@given(kinds=kinds_of_a_rank)
def test_phases_of_one_rank_are_its_stretches_of_one_kind(kinds):
    numbers = iter(range(len(kinds)))
    wanted = [(kind, [[next(numbers)] for _ in group]) for kind, group in groupby(kinds)]
    assert taken(phases_of(kinds)) == wanted


def test_hot_batches_that_no_push_takes_are_of_mixed_phases():
    """Of one rank those that are too large, of several those that are too large together."""
    alone = taken(phases_of([True] * 10, bytes_max=7))
    assert [(is_hot, len(b)) for is_hot, b in alone] == [(True, 8), (False, 2)]
    meeting = Meeting(2)

    def of_rank(rank: int) -> Any:
        return taken(phases_of([True] * 12 if rank else [True] * 8, meeting.of(rank), bytes_max=9))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(of_rank, range(2)))
    assert [[(is_hot, len(b)) for is_hot, b in phases] for phases in found] == [
        [(True, 5), (False, 3), (True, 4)]
    ] * 2


@given(ranks=st.lists(kinds_of_a_rank, min_size=2, max_size=3))
@settings(max_examples=60)
def test_ranks_agree_and_lose_no_batch(ranks):
    meeting = Meeting(len(ranks))
    with ThreadPoolExecutor(len(ranks)) as pool:
        found = list(
            pool.map(
                lambda rank: taken(phases_of(ranks[rank], meeting.of(rank), bytes_max=1000)),
                range(len(ranks)),
            )
        )
    for kinds, phases in zip(ranks, found, strict=True):
        assert [(is_hot, len(b)) for is_hot, b in phases] == [(h, len(b)) for h, b in found[0]]
        batches = [*chain.from_iterable(b for _, b in phases)]
        assert batches[: len(kinds)] == [[number] for number in range(len(kinds))]
        assert not any(batches[len(kinds) :]), "empty batches stand at the end"
        hot = [*chain.from_iterable(chain.from_iterable(b for is_hot, b in phases if is_hot))]
        assert all(kinds[number] for number in hot), "a mixed batch was trained as a hot one"
    assert sum(len(b) for _, b in found[0]) == max(map(len, ranks))
    assert all(0 < len(b) <= AGREED_BATCHES_MAX for _, b in found[0])


def test_ranks_of_alike_streams_train_all_their_hot_batches_hot():
    kinds = ([True] * 70 + [False] * 30) * 2
    meeting = Meeting(2)
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(lambda rank: taken(phases_of(kinds, meeting.of(rank), 1000)), range(2))
        )
    assert found[0] == found[1]
    assert sum(len(b) for is_hot, b in found[0] if is_hot) == 140


def test_what_a_store_s_sessions_are_is_no_call():
    class Sessions:
        is_embedded = False

        def t(self) -> int:
            return 7

    counted = _CountedSessions(Sessions())
    assert counted.is_embedded is False and counted.calls == 0
    assert counted.t() == 7 and counted.calls == 1
