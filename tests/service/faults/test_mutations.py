"""Thousands of messages that are almost right, to every method of the wire.

A method's memory is compared after the first third of its rounds and at the end. Both are sums over
so many messages, whatever the machine's speed; what is allowed between them is what allocators keep
for themselves, and less than an object a message where the rounds are many.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from tests.service.faults.mutated import METHODS, MutatedServer, Rounds

SEED = 20_261_214
MESSAGES, SOAKED = 200, 20_000
"""To a method of a server that knows nobody, and as many to one that asks for a token."""
ROUND, SOAKED_ROUND, SHORT_ROUND = 50, 125, 100
CONSUMING = "DropTable", "OpenSession", "CloseSession", "EndSession", "Announce", "PinHotSet"
"""What few of can be valid in a round, which begins with what they take away."""
OF_SHARDS = ("SetShardMap", "PauseWrites", "ResumeWrites")
"""What no server does that is no shard."""
GROWTH_BYTES = 16 << 20


@pytest.fixture(scope="module")
def servers(module_path: Path) -> Iterator[dict[bool, MutatedServer]]:
    """A server that knows nobody, and one of tokens."""
    places = {has_tokens: module_path / str(has_tokens) for has_tokens in (False, True)}
    with ExitStack() as stack:
        made = {}
        for has_tokens, place in places.items():
            place.mkdir()
            server = MutatedServer(place, has_tokens=has_tokens)
            made[has_tokens] = stack.enter_context(server)
        yield made


@pytest.mark.parametrize("has_tokens", [False, True], ids=["anybody", "tokens"])
@pytest.mark.parametrize("path", METHODS)
def test_mutations_are_answered_and_do_what_they_say(path, has_tokens, servers, pytestconfig):
    server = servers[has_tokens]
    sys.stdout.write(f"seed {SEED}\n")
    count, size = MESSAGES, ROUND
    if pytestconfig.getoption("soak") > 1:
        is_consuming = path.partition("/")[2].removesuffix("Stream") in CONSUMING
        count, size = SOAKED, SHORT_ROUND if is_consuming else SOAKED_ROUND
    answers: Counter[str] = Counter()
    memory = []
    with closing(Rounds(server, np.random.default_rng([SEED, *path.encode()]))) as rounds:
        for _ in range(count // size):
            answers.update(reply.error or "OK" for reply in rounds.round(path, size))
            memory.append(server.resident_bytes())
        rounds.store.check_integrity()
    sys.stdout.write(f"{dict(answers)}, MiB {[used >> 20 for used in memory]}\n")
    assert bool(answers["OK"]) == (path.partition("/")[2] not in OF_SHARDS)
    assert answers["InvalidArgumentError"] and answers.total() == count
    assert memory[-1] - memory[len(memory) // 3] < GROWTH_BYTES
    assert not server.complaints()
