"""Blocks of a launch, and of two, at the same time: the emulation of it, and kernels in it.

A kernel whose blocks wait for each other by hand is right with any number of resident blocks, or
it is wrong: small GPUs have few, and a GPU that others use has fewer still.
"""

from inspect import signature

import numpy as np
import pytest

from embstore.device.gpu import GpuDevice
from embstore.device.gpu_positions import by_id
from embstore.device.gpu_work import GpuBatch
from tests.kernels import (
    test_apply,
    test_begin_update,
    test_count_accesses,
    test_gather,
    test_group,
    test_insert,
    test_scores,
    test_select_victims,
    test_sum_by_key,
    test_unique,
)
from tests.kernels.emulation.build import KernelError, Launch, build, run
from tests.kernels.emulation.runtime import EmulatedRuntime, run_at_once
from tests.kernels.emulation.samples import SOURCES, made
from tests.kernels.gpu_samples import everything, expected
from tests.kernels.gpu_samples import made as gpu_made
from tests.kernels.samples import cpu_devices, down, gpu_device, up

BLOCKS = 5
TILE = test_group.TILE


def meeting(arrived, wanted, out):
    """Return a launch of blocks that wait until so many have arrived."""
    words = [arrived.ctypes.data, wanted, out.ctypes.data]
    return Launch(build(SOURCES["waiting"])["meet"], len(out) // 256, words)


def mirrored(blocks):
    return np.arange(256 * blocks).reshape(-1, 256)[:, ::-1].ravel().tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("resident", [BLOCKS, 100])
def test_resident_blocks_meet_and_each_has_its_own_shared_memory(seed, resident):
    arrived, out = np.zeros(1, np.uint32), np.zeros(256 * BLOCKS, np.uint32)
    run(meeting(arrived, BLOCKS, out), seed=seed, resident_blocks=resident)
    assert out.tolist() == mirrored(BLOCKS)


@pytest.mark.parametrize("resident", [1, BLOCKS - 1])
def test_a_barrier_of_more_blocks_than_are_resident_is_reported(resident):
    arrived, out = np.zeros(1, np.uint32), np.zeros(256 * BLOCKS, np.uint32)
    with pytest.raises(KernelError, match=r"meet: waiting.cu:\d+ __nanosleep: polls for what no"):
        run(meeting(arrived, BLOCKS, out), resident_blocks=resident)
    run(meeting(np.zeros(1, np.uint32), 1, out), resident_blocks=resident)
    assert out.tolist() == mirrored(BLOCKS)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_two_launches_meet(seed):
    arrived, outs = np.zeros(1, np.uint32), [np.zeros(256 * n, np.uint32) for n in (2, 3)]
    launches = [meeting(arrived, 5, out) for out in outs]
    run(*launches, seed=seed, resident_blocks=5)
    assert [out.tolist() for out in outs] == [mirrored(2), mirrored(3)]
    arrived[0] = 0
    with pytest.raises(KernelError, match=r"meet and meet: .* polls for what no thread writes"):
        run(*launches, seed=seed, resident_blocks=4)


def test_threads_that_have_parted_are_reported_once_no_block_goes_on():
    runtime = made(resident_blocks=3)
    runtime.launch("leave_early", 4, runtime.allocate(256, np.int32))
    with pytest.raises(KernelError, match=r"threads of block \d have parted: 40 waiting.cu"):
        runtime.close()


# Kernels


CASES = [
    *((test_group.test_group_of_many, {"kind": "some hot", "count": n}) for n in (257, 2049)),
    (test_group.test_kernels_sort_ids_of_any_count, {"kind": "half hot", "count": 6444}),
    (test_group.test_a_large_call_is_sorted_in_larger_tiles, {"kind": "skewed", "count": 9000}),
    *((test_group.test_slots_are_ids_and_a_position_without_one_is_a_group_of_its_own, {"count": n})
      for n in (300, 6149)),
    *((test_sum_by_key.test_sums_are_those_of_the_numpy_twin, {"dim": dim, "scale": 1 / 3})
      for dim in (1, 7, 64)),
    (test_sum_by_key.test_keys_of_every_heat_in_one_call, {"dim": 7}),
    (test_sum_by_key.test_every_form_of_bag_in_one_call, {"dim": 13}),
    (test_sum_by_key.test_what_is_large_is_found_in_every_chunk_of_a_hot_key, {"place": 4095}),
    (test_unique.test_unique_stays_right_while_its_scratch_grows_and_is_used_again, {}),
    (test_unique.test_unique_reports_the_first_key_outside_its_table, {"wrong": 10, "position": 9}),
    (test_insert.test_colliding_keys_go_to_the_stash_until_it_is_full, {"device": gpu_device()}),
    (test_insert.test_an_index_of_all_slots_is_that_of_their_keys,
     {"device": gpu_device(), "slot_count": 3000}),
    (test_gather.test_gather_copies_the_weights_of_every_position,
     {"dim": 64, "piece_bytes": None}),
    (test_apply.test_updates_are_those_of_the_numpy_twin,
     {"optimizer": test_apply.OPTIMIZERS[2], "dim": 13, "finite": False}),
    *((test_begin_update.test_rows_scores_and_flags_are_those_of_an_update_in_steps,
       {"optimizer": test_begin_update.OPTIMIZERS[i], "dim": 8, "way": way})
      for i, way in enumerate(test_begin_update.WAYS)),
    (test_begin_update.test_what_is_wrong_with_one_pool_leaves_every_pool_as_it_is,
     {"wrong": next(iter(test_begin_update.WRONG)), "way": "grouped"}),
    (test_count_accesses.test_count_accesses_of_many, {}),
    (test_scores.test_counts_of_many_slots, {"on_device": True}),
    (test_select_victims.test_victims_of_many_slots, {"kind": "wide", "count": 4_999}),
    (test_select_victims.test_victims_of_slots_that_fill_ranges, {"slot_count": 8193}),
    (test_gather.test_look_up_is_unique_probe_touch_and_gather, {"counting": 1, "clock": 9}),
]  # fmt: skip
"""Tests of kernels, whose bodies run here with other blocks beside each block; every launch has
another seed."""


@pytest.mark.parametrize("resident", [2, 7])
@pytest.mark.parametrize(
    "check, arguments", CASES, ids=[f"{c.__module__[14:]}-{c.__name__[5:30]}" for c, _ in CASES]
)
def test_kernels_are_their_twins_together(monkeypatch, check, arguments, resident):
    monkeypatch.setattr(EmulatedRuntime, "resident_blocks", resident)
    if "monkeypatch" in signature(check).parameters:
        arguments = {**arguments, "monkeypatch": monkeypatch}
    check(**arguments)


@pytest.mark.parametrize("resident", [2, 5])
def test_every_verb_is_its_twin_together(resident):
    assert everything(gpu_made(resident_blocks=resident)) == expected()


# group, whose blocks wait for tickets before theirs


def queued(ids, **options):
    """Return a runtime that was given ids to group, and a check of what it found."""
    runtime, count = EmulatedRuntime(**options), int(ids.max()) + 1
    device = GpuDevice(runtime, 1)
    findings = up(device, np.array([count, *[0] * 7]))
    batch = GpuBatch(device.memory.allocate(count, np.int64), up(device, ids), [0, len(ids)])
    starts, positions, _ = by_id(device.work, batch, findings)

    def check():
        expected = np.argsort(ids, kind="stable")
        assert np.array_equal(down(device, positions), expected)
        begins = np.searchsorted(ids[expected], np.arange(count + 1))
        assert np.array_equal(down(device, starts)[: count + 1], begins)
        device.close()

    return runtime, check


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("resident", [1, 2, 3, 100])
@pytest.mark.parametrize("count", [1, TILE, TILE + 1, 3 * TILE, 7 * TILE + 5])
def test_group_is_right_with_any_number_of_resident_blocks(count, resident, seed):
    ids = test_group.ids_of("half hot", count)
    queued(ids, seed=seed, fibers=True, resident_blocks=resident)[1]()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("resident", [1, 2, 5, 100])
@pytest.mark.parametrize("kind", ["alike", "skewed"])
def test_two_servers_group_on_one_gpu_at_the_same_time(kind, resident, seed):
    (first, check_first), (second, check_second) = (
        queued(test_group.ids_of(kind, n), seed=seed) for n in (5 * TILE + 1, 2 * TILE + 300)
    )
    run_at_once(first, second, seed=seed, resident_blocks=resident)
    check_first()
    check_second()


@pytest.mark.parametrize("resident", [1, 3, 100])
def test_two_servers_update_on_one_gpu_at_the_same_time(resident):
    runtimes = [EmulatedRuntime(seed=seed) for seed in range(2)]
    optimizer = test_begin_update.OPTIMIZERS[2]
    pools = [
        test_begin_update.Pool(GpuDevice(runtime, 1), optimizer, dim, seed=dim)
        for runtime, dim in zip(runtimes, (8, 7), strict=True)
    ]
    answers = [pool.device.rows.begin_update([pool.part()]) for pool in pools]
    run_at_once(*runtimes, resident_blocks=resident)
    assert [answer() for answer in answers] == [True, True]
    for pool in pools:
        alone = test_begin_update.Pool(cpu_devices()[0], optimizer, pool.dim, seed=pool.dim)
        alone.update()
        assert pool.contents() == alone.contents()
        pool.device.close()
