"""When keys are used again: against dictionaries, in windows, and the memory of a long session."""

import numpy as np
import pytest

from embstore.lookahead.uses import Uses

SEED = 53


def keys_of(*keys):
    return np.array(keys, np.int64)


def test_a_forgotten_step_is_no_previous_use():
    uses = Uses()
    uses.note(keys_of(1, 2), 1)
    uses.note(keys_of(2), 2)
    kept = uses.next_uses(1)
    uses.forget(1)
    uses.forget(0)
    assert uses.note(keys_of(1, 2), 3).tolist() == [0, 2]
    assert kept.tolist() == [0, 2]
    with pytest.raises(KeyError):
        uses.next_uses(1)


def test_a_session_may_begin_at_any_step():
    uses = Uses()
    uses.forget(999)
    assert uses.note(keys_of(3), 1000).tolist() == [0]
    assert uses.note(keys_of(3), 1001).tolist() == [1000]


def test_a_step_may_have_no_keys():
    uses = Uses()
    assert uses.note(keys_of(), 1).tolist() == []
    assert uses.next_uses(1).tolist() == []


@pytest.mark.parametrize("window", [1, 5, 40])
def test_random_steps_agree_with_a_dictionary(window):
    """Windows beyond the first 16 addresses, and tables beyond the first 4,096 places."""
    rng = np.random.default_rng(SEED)
    uses, steps, next_uses = Uses(), {}, {}
    for step in range(1, 121):
        keys = rng.choice(5000, rng.integers(0, 1500), replace=False) << 35
        previous = uses.note(keys, step)
        expected = np.zeros(len(keys), np.int64)
        for earlier in range(max(1, step - window), step):
            used, known = np.isin(steps[earlier], keys), next_uses[earlier]
            known[used & (known == 0)] = step
            assert uses.next_uses(earlier).tolist() == known.tolist()
            expected[np.isin(keys, steps[earlier])] = earlier
        assert previous.tolist() == expected.tolist()
        steps[step], next_uses[step] = keys, np.zeros(len(keys), np.int64)
        uses.forget(step - window)


def test_memory_is_bounded_by_the_window():
    uses, most = Uses(), 0
    for step in range(1, 400):
        uses.note(np.arange(2000, dtype=np.int64) + step * 2000, step)
        uses.forget(step - 4)
        most = max(most, uses.memory_bytes)
    keys_in_window = 5 * 2000
    assert most < 8 * 16 * (keys_in_window + 2000) + 8 * keys_in_window + 4096


def test_memory_of_a_large_step_is_given_back():
    uses = Uses()
    uses.note(np.arange(300_000, dtype=np.int64), 1)
    large = uses.memory_bytes
    uses.forget(1)
    for step in range(2, 1200):
        uses.note(np.arange(1000, dtype=np.int64) + step * 1_000_000, step)
        uses.forget(step - 1)
    assert uses.memory_bytes < large / 50
