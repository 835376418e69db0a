"""gather, gather_rows and what reads rows with them: copies, bit for bit, by segment."""

import numpy as np
import pytest

from embstore.arrays import KEY_MASK
from embstore.device import gpu_rows, staging
from embstore.score import CLOCK_BITS, COUNT_KEEP, COUNT_NONE, COUNT_UP, FORESEEN, PENDING, PIN_ONE
from tests.kernels.samples import (
    DIMS,
    awkward,
    batch_of,
    bits,
    devices,
    down,
    gpu_device,
    records,
    row_keys,
    rows_in,
    slots_with,
    up,
    wide,
)

SEED = 3


@pytest.mark.parametrize("piece_bytes", [None, 1000])
@pytest.mark.parametrize("dim", DIMS)
def test_gather_copies_the_weights_of_every_position(monkeypatch, dim, piece_bytes):
    """In pieces, too, that end within a row, and outputs that end within a piece."""
    if piece_bytes:
        monkeypatch.setattr(staging, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(staging, "LARGE_BYTES", 2 * piece_bytes)
    rng = np.random.default_rng(SEED)
    rows = awkward(rng, 40, (dim + 4) // 4 * 4, finite=False)
    keys = [rng.integers(0, 12, n) for n in (0, 50, 1, 0, 333)]
    for device in devices():
        memory, batch = slots_with(device, rows), batch_of(device, *keys)
        slots = rng.permutation(40)[: len(batch.unique_keys)]
        outs = [np.empty((len(k), dim), np.float32) for k in keys]
        device.rows.gather(memory.rows, up(device, slots), batch, dim, outs)
        expected = rows[slots[down(device, batch.inverse)], :dim]
        assert bits(np.concatenate(outs)) == bits(expected)


def test_gather_leaves_positions_without_a_slot_alone():
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    for device in devices():
        memory, batch = slots_with(device, rows), batch_of(device, np.array([7, 8, 7, 9]))
        out = up(device, np.full((4, 4), 5, np.float32))
        device.rows.gather(memory.rows, up(device, np.array([1, -1, 0])), batch, 4, [out])
        expected = [[4, 5, 6, 7], [5] * 4, [4, 5, 6, 7], [0, 1, 2, 3]]
        assert down(device, out).tolist() == expected


@pytest.mark.parametrize("dim", [4, 64])
@pytest.mark.parametrize("skipped", [0, 1, 2, 4])
def test_outputs_of_the_host_and_of_the_device_in_one_call(dim, skipped):
    """Those of the device begin where their owner says, at 16 bytes or not."""
    rng, device = np.random.default_rng(SEED), gpu_device()
    rows, keys = records(rng, 40, dim), [rng.integers(0, 12, n) for n in (9, 20, 5)]
    memory, batch = slots_with(device, rows), batch_of(device, *keys)
    slots = rng.permutation(40)[: len(batch.unique_keys)]
    d_out = device.memory.allocate(20 * dim + skipped, np.float32)[skipped:].view(
        np.float32, width=dim
    )
    outs = [np.empty((9, dim), np.float32), d_out, np.empty((5, dim), np.float32)]
    device.rows.gather(memory.rows, up(device, slots), batch, dim, outs)
    found = np.concatenate([outs[0], down(device, d_out), outs[2]])
    assert bits(found) == bits(rows[slots[down(device, batch.inverse)]])


@pytest.mark.parametrize("stride", [4, 8, 16, 68, 4100])
def test_gather_rows_copies_whole_records(stride):
    rng = np.random.default_rng(SEED)
    rows = awkward(rng, 60, stride, finite=False)
    slots = rng.integers(0, 60, 45)
    for device in devices():
        memory, out = slots_with(device, rows), device.memory.allocate_rows(45, wide(stride))
        device.rows.gather_rows(memory.rows, up(device, slots), out, 0)
        assert bits(device.rows.read_rows(out, up(device, np.arange(45)))) == bits(rows[slots])
        assert bits(device.rows.read_rows(memory.rows, up(device, slots))) == bits(rows[slots])


def test_gather_rows_fills_a_buffer_part_by_part_and_passes_absent_ones_over():
    rng = np.random.default_rng(SEED)
    rows, all_slots = records(rng, 60, 8), rng.permutation(60)[:50]
    slots = np.where(rng.random(50) < 0.3, -1, all_slots)
    expected = np.where(slots[:, None] < 0, np.float32(7), rows[slots])
    for device in devices():
        memory, out = slots_with(device, rows), device.memory.allocate_rows(50, wide(8))
        device.rows.scatter_rows(np.full((50, 8), 7, np.float32), out, np.arange(50))
        d_slots = up(device, slots)
        for low, high in ((0, 20), (20, 20), (20, 50)):
            device.rows.gather_rows(memory.rows, d_slots[low:high], out, low)
        assert bits(device.rows.read_rows(out, up(device, np.arange(50)))) == bits(expected)


@pytest.mark.parametrize("stride", [4, 8, 68, 4100])
def test_copy_slots_copies_whole_records_to_slots_of_another_pool(stride):
    rng = np.random.default_rng(SEED)
    rows, others = awkward(rng, 60, stride, finite=False), records(rng, 90, stride)
    slots, places = rng.integers(0, 60, 45), rng.permutation(90)[:45]
    expected = others.copy()
    expected[places] = rows[slots]
    for device in devices():
        memory = slots_with(device, rows)
        targets = slots_with(device, others, slab_slots=8)
        device.rows.copy_slots(memory.rows, slots, targets.rows, places)
        device.rows.copy_slots(memory.rows, slots[:0], targets.rows, places[:0])
        assert bits(rows_in(device, targets, 90)) == bits(expected)


def test_rows_go_to_the_slots_below_a_gpu_and_come_back():
    """Those are the host's to number, and nobody's but the GPU's to read."""
    rng, device = np.random.default_rng(SEED), gpu_device()
    rows, below = records(rng, 64, 8), device.levels.below
    memory, back = slots_with(device, rows), slots_with(device, np.zeros((64, 8), np.float32))
    kept = below.memory.allocate_slots(wide(8))
    below.memory.reserve_slots(kept, 0, 96, 32)
    below.memory.add_slots(kept, 0, 64)
    below.memory.add_slots(kept, 64, 96)
    places, everywhere = rng.permutation(96)[:64], np.arange(64)
    device.rows.copy_slots(memory.rows, everywhere, kept.rows, places)
    device.rows.copy_slots(kept.rows, places, back.rows, everywhere)
    assert bits(rows_in(device, back, 64)) == bits(rows)
    below.memory.drop_slots(kept, 32, 96)
    assert len(kept.slabs) == 1
    first = places < 32
    device.rows.copy_slots(kept.rows, places[first], back.rows, everywhere[: first.sum()])
    assert bits(rows_in(device, back, first.sum())) == bits(rows[first])
    below.memory.drop_slots(kept, 0, 32)
    device.close()


@pytest.mark.parametrize("piece_bytes", [1, 200, 3200, 1 << 20])
@pytest.mark.parametrize("count", [1, 2, 45])
def test_row_pieces_are_all_records_in_their_order(monkeypatch, piece_bytes, count):
    monkeypatch.setattr(gpu_rows, "_VICTIM_BYTES", piece_bytes)
    rng = np.random.default_rng(SEED)
    rows, slots = awkward(rng, 60, 16, finite=False), rng.permutation(60)[:count]
    for device in devices():
        memory = slots_with(device, rows)
        seen, found = [], []
        for piece, host, places in device.rows.row_pieces(memory.rows, slots):
            seen += np.arange(count)[piece].tolist()
            found.append(host[places].copy())
        assert seen == list(range(count))
        assert bits(np.concatenate(found)) == bits(rows[slots])


def test_row_pieces_that_are_left_early_do_no_harm(monkeypatch):
    """As storage does whose disk is full; the next call has the same buffers."""
    monkeypatch.setattr(gpu_rows, "_VICTIM_BYTES", 200)
    rng = np.random.default_rng(SEED)
    rows = records(rng, 60, 16)
    for device in devices():
        memory = slots_with(device, rows)
        for left_at in range(4):
            pieces = device.rows.row_pieces(memory.rows, np.arange(60))
            for _ in range(left_at):
                next(pieces, None)
            pieces.close()
            all_rows = np.empty((60, 16), np.float32)
            for piece, host, places in device.rows.row_pieces(
                memory.rows, np.arange(60)[::-1].copy()
            ):
                all_rows[piece] = host[places]
            assert bits(all_rows) == bits(rows[::-1])


def small_lookup(device, rng, scores=()):
    """Return slots and an index with 400 rows, the row key of each slot, and the rows."""
    rows = records(rng, 400, 8)
    keys = row_keys(0, rng.permutation(1000)[:300])
    keys = np.concatenate([keys, row_keys(5, rng.permutation(1000)[:100])])
    memory = slots_with(device, rows, keys=keys, scores=scores)
    index = device.memory.allocate_index(400)
    assert device.keys.insert(index, keys, np.arange(400))()
    return memory, index, keys, rows


def look_up(device, memory, index, segments, clock=9, counting=COUNT_UP):
    outs = [np.full((len(keys), 7), -1, np.float32) for _, _, keys in segments]
    touched = device.rows.look_up(memory, index, segments, outs, 7, clock, counting, 0)
    return touched, outs, device.slots.read_range(memory, 0, 400).scores


@pytest.mark.parametrize("counting", [COUNT_NONE, COUNT_UP, COUNT_KEEP])
@pytest.mark.parametrize("clock", [0, 9])
def test_look_up_is_unique_probe_touch_and_gather(counting, clock):
    for device in devices():
        rng = np.random.default_rng(SEED)
        scores = rng.integers(0, 9, 400) | rng.integers(0, 99, 400) << CLOCK_BITS
        scores[::7] |= FORESEEN | 9  # whose bits of a clock are those of the call, by chance
        scores[::5] += PIN_ONE
        memory, index, keys, rows = small_lookup(device, rng, scores)
        slots = [np.minimum(rng.zipf(1.2, n), 300) - 1 for n in (900, 0, 40)]
        slots.append(300 + rng.integers(0, 100, 60))
        asked = [(table, keys[s]) for table, s in zip((0, 5, 0, 5), slots, strict=True)]
        segments = [(table, 1000, of_table & KEY_MASK) for table, of_table in asked]
        touched, outs, after = look_up(device, memory, index, segments, clock, counting)
        for out, of_segment in zip(outs, slots, strict=True):
            assert bits(out) == bits(rows[of_segment][:, :7])
        unique, d_slots = np.unique(np.concatenate(slots)), small_lookup(device, rng, scores)[0]
        if clock:
            device.slots.touch(d_slots, up(device, unique), clock, counting)
        assert after.tolist() == device.slots.read_range(d_slots, 0, 400).scores.tolist()
        assert touched == (len(unique) if clock else 0)


@pytest.mark.parametrize("wrong", ["missing", "outside", "below 0", "pending"])
def test_look_up_does_nothing_where_one_key_cannot_be_looked_up(wrong):
    for device in devices():
        rng, scores = np.random.default_rng(SEED), np.zeros(400, np.int64)
        scores[299] = PENDING if wrong == "pending" else 0
        memory, index, keys, _ = small_lookup(device, rng, scores)
        asked = keys[:300].copy()
        absent = int(np.setdiff1d(np.arange(1000), keys[:300])[0])
        asked[299] = {"missing": absent, "outside": 1000, "below 0": -1, "pending": asked[299]}[
            wrong
        ]
        touched, outs, after = look_up(
            device, memory, index, [(0, 1000, keys[:9]), (0, 1000, asked)]
        )
        assert touched == -1
        assert after.tolist() == scores.tolist()
        assert all((out == -1).all() for out in outs)
