"""The loops of next uses against dictionaries: previous and next uses, entries taken over."""

import numpy as np

from embstore.arithmetic.jit import address
from embstore.host.key_table import lower
from embstore.lookahead.uses import POSITION_BITS, note

SEED = 47
ADDRESSES = 8


class Model:
    """Steps noted one by one, with the kernel beside plain dictionaries."""

    def __init__(self, places):
        self.table = np.zeros((places, 2), np.int64)
        self.taken = self.forgotten = self.step = 0
        self.addresses = np.zeros(ADDRESSES, np.int64)
        self.next_uses = {}
        self.keys = {}

    def note(self, keys):
        self.step += 1
        self.keys[self.step] = keys
        self.next_uses[self.step] = np.zeros(len(keys), np.int64)
        self.addresses[self.step % ADDRESSES] = address(self.next_uses[self.step])
        previous = np.full(len(keys), -7)
        arguments = (self.step, self.forgotten, self.addresses, previous)
        self.taken += note(self.table, np.array(keys, np.int64), *arguments)
        return previous.tolist()

    def expected_previous(self, keys):
        steps = range(self.forgotten + 1, self.step)
        return [max((s for s in steps if key in self.keys[s]), default=0) for key in keys]

    def check(self):
        for step in range(self.forgotten + 1, self.step + 1):
            later = range(step + 1, self.step + 1)
            assert self.next_uses[step].tolist() == [
                min((s for s in later if key in self.keys[s]), default=0) for key in self.keys[step]
            ]


def test_a_forgotten_key_further_on_is_not_entered_twice():
    rng = np.random.default_rng(SEED)
    model = Model(64)
    for _ in range(500):
        keys = rng.choice(40, rng.integers(0, 20), replace=False).tolist()
        previous = model.note(keys)
        assert previous == model.expected_previous(keys)
        model.check()
        model.forgotten = max(model.forgotten, model.step - int(rng.integers(1, ADDRESSES)))
        used = model.table[model.table[:, 1] != 0, 0]
        assert len(set(used.tolist())) == len(used) == model.taken


def entries_of(table):
    return {key: (tag >> POSITION_BITS, tag % (1 << POSITION_BITS)) for key, tag in table if tag}


def test_a_purge_frees_what_is_forgotten_and_leaves_the_rest_findable():
    """Full but for one place, so that runs wrap around the end of the table."""
    rng = np.random.default_rng(SEED)
    for _ in range(200):
        model = Model(16)
        keys = rng.choice(1000, 15, replace=False).tolist()
        cut = int(rng.integers(0, 15))
        model.note(keys[:cut])
        model.note(keys[cut:])
        model.forgotten = 1
        assert lower(model.table, (2 << POSITION_BITS) - 1, 0) == 15 - cut
        kept = {key: (2, position) for position, key in enumerate(keys[cut:])}
        assert entries_of(model.table.tolist()) == kept
        assert model.note(keys[cut:]) == [2] * (15 - cut)
