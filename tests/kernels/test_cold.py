"""Asking for cold pages: memory that was never touched is as absent as a page still on the disk."""

import mmap
import os
import time

import numpy as np
import pytest

from embstore.arithmetic.jit import address
from embstore.storage.cold import count_absent, prefetch_cold_pages, will_need

PAGES = 256
PAGE = mmap.PAGESIZE


@pytest.fixture
def memory():
    """Fresh pages, none of them in memory; small ones, so that touching one brings in one."""
    mapping = mmap.mmap(-1, PAGES * PAGE)
    mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


@pytest.fixture
def cold_file(tmp_path):
    """A mapped file whose pages have been dropped from memory."""
    with open(tmp_path / "rows", "w+b") as file:
        file.write(b"\1" * (PAGES * PAGE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapping = mmap.mmap(file.fileno(), PAGES * PAGE, mmap.MAP_SHARED, mmap.PROT_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    pages = np.frombuffer(mapping, np.uint8)
    if absent(pages_of(pages, *range(PAGES))) < PAGES:
        pytest.skip("this file system (tmpfs?) does not drop pages from memory")
    return pages


def pages_of(memory, *pages):
    return np.array([address(memory) + page * PAGE for page in pages], np.uint64)


def absent(addresses, step=1):
    return count_absent(addresses, step)


def test_pages_are_absent_until_they_are_touched(memory):
    places = pages_of(memory, *range(PAGES))
    assert absent(places) == PAGES
    memory[[3 * PAGE, 9 * PAGE + 17]] = 1
    assert absent(places) == PAGES - 2


def test_only_every_step_th_address_is_looked_at(memory):
    memory[:] = 1
    cold = np.frombuffer(mmap.mmap(-1, PAGE), np.uint8)
    places = pages_of(memory, *range(10))
    places[4] = address(cold)
    assert absent(places, step=4) == 1
    assert absent(places, step=3) == 0


def test_addresses_inside_a_page_are_of_that_page(memory):
    memory[5 * PAGE] = 1
    assert absent(pages_of(memory, 5) + np.uint64(PAGE - 1)) == 0
    assert absent(pages_of(memory, 6) + np.uint64(1)) == 1


def test_zero_is_no_address(memory):
    places = np.zeros(4, np.uint64)
    assert absent(places) == 0
    will_need(places, 64)
    assert prefetch_cold_pages(places, 64) is False


def test_no_addresses_are_nothing_to_ask_for():
    assert prefetch_cold_pages(np.empty(0, np.uint64), 64) is False


def test_rows_in_memory_are_not_asked_for(memory):
    memory[:] = 1
    assert prefetch_cold_pages(pages_of(memory, *range(PAGES)), 64) is False


def test_one_cold_page_among_few_rows_is_noticed(memory):
    memory[: 20 * PAGE] = 1
    assert prefetch_cold_pages(pages_of(memory, *range(20), 100), 64) is True


def test_a_cold_tenth_of_many_rows_is_noticed(memory):
    memory[: PAGES * 9 // 10 * PAGE] = 1
    places = np.tile(pages_of(memory, *range(PAGES)), 50)
    assert prefetch_cold_pages(places, 64) is True


def test_records_over_several_pages_in_any_order_are_asked_for(memory):
    """Overlapping and neighbouring page ranges, an address of none among them."""
    places = np.append(pages_of(memory, 40, 2, 3, 41, 250), np.zeros(1, np.uint64))
    assert prefetch_cold_pages(places + np.uint64(100) * (places > 0), 3 * PAGE) is True


def test_asked_for_pages_come_and_no_others(cold_file):
    """The disk works on its own time: the pages are waited for, up to a generous bound."""
    places = pages_of(cold_file, 200, 40, 40, 100) + np.array([0, 4000, 0, 4000], np.uint64)
    wanted = pages_of(cold_file, 40, 41, 100, 101, 200)
    assert prefetch_cold_pages(places, 200) is True
    deadline = time.monotonic() + 120
    while absent(wanted) and time.monotonic() < deadline:
        os.sched_yield()
    assert absent(wanted) == 0
    others = np.setdiff1d(pages_of(cold_file, *range(PAGES)), wanted)
    assert absent(others) > 0.8 * len(others)
