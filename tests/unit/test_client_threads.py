"""What the threads of one client share: a run that waits for nothing has a dozen of them."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from embstore.results import Context
from embstore_client.members import Place
from embstore_client.origins import Origins


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Have another thread do something again and again."""
    ends = threading.Event()

    def run() -> None:
        while not ends.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    ends.set()
    thread.join()


def test_steps_are_announced_while_others_are_finished():
    place = Place()
    place.counts = {step: {} for step in range(1, 10_000)}
    steps = itertools.count(10_000)

    def announce() -> None:
        place.counts[next(steps)] = {}

    with meanwhile(announce):
        for _ in range(30):
            place.finished(0)


def test_no_epoch_is_newer_than_the_one_that_the_next_reply_tells():
    origins = Origins()
    with meanwhile(origins.changed_epoch):
        for _ in range(30_000):
            origins.read(Context("store", 1, "instance"))
