"""Sums of gradients by key on a GPU.

The pass that computes sums also checks that they are finite; another pass applies them. A single
kernel for both would save writing and reading the sums, a third of the gradients' bytes if each key
occurs three times. But an update must be known to be valid before the first row changes. So another
pass over all gradients would have to run before this kernel, and that pass would read three times
the bytes that the kernel saves.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from embstore.arithmetic.sums import CHUNK_OCCURRENCES
from embstore.device.gpu_positions import by_id
from embstore.device.gpu_work import LANES, NULL, GpuBatch, GpuWork, findings_of
from embstore.device.runtime import BLOCK_THREADS, Argument, DeviceArray
from embstore.device.values import Batch, Gradients
from embstore.kernels.sum_by_key import form_of
from embstore.layout import VALUE

COMBINED_COLUMNS = 8
"""The number of columns that a warp of `combine` sums; `sum_by_key.cu` has the same number."""


class Summed(NamedTuple):
    """The arrays from which the sums of a batch are computed."""

    findings: DeviceArray
    starts: DeviceArray
    positions: DeviceArray
    of_segments: DeviceArray
    segments: int
    placed: list[list[DeviceArray | None]]
    """The gradients. Their memory is not freed as long as there is a reference to this object."""


def summed(
    work: GpuWork,
    batch: Batch,
    gradients: Sequence[Gradients],
    scale: np.float32,
    sums: DeviceArray,
    dim: int,
    *,
    keeps_all: bool,
) -> Summed:
    """Queue the sums of a batch, which has at least one position, and return the arrays that they
    are computed from.

    keeps_all : whether the sums of all keys are stored, by id. If False, only the sums of keys that
        occur more than once are stored (`place_of_sum` in segments.cuh)
    """
    findings, n = findings_of(batch), batch.position_count
    assert isinstance(batch, GpuBatch) and findings is not None
    ids: Argument = NULL
    windows = 0
    more: Argument = NULL
    if batch.is_distinct:
        starts, positions = work.numbers(n + 1, np.int64), batch.inverse
    else:
        starts, positions, ids = batch.groups or by_id(work, batch, findings)
        windows = -(-n // CHUNK_OCCURRENCES)
        more = work.scratch.take(windows, VALUE, width=dim)
    placed = [
        _all_resident(work, [part.rows for part in gradients], VALUE, dim),
        _all_resident(work, [part.source for part in gradients], np.int32),
        _all_resident(work, [part.coefficients for part in gradients], np.float32),
    ]
    (of_segments,) = work.send_numbers(
        [
            *batch.bounds.tolist(),
            *(_address(array) for arrays in placed for array in arrays),
            *(form_of(part.coefficients, part.divide) for part in gradients),
        ]
    )
    of_ids = (ids, np.int64(n))
    of_sums = (np.int32(dim), np.int32(keeps_all), findings)
    # Each group of lanes gets a run of positions. Some runs take more work than others. There are
    # more blocks than run at once, and waiting blocks even out the differences.
    work.runtime.launch(
        "sum_chunks", -(-n // BLOCK_THREADS), starts, positions, *of_ids, of_segments,
        np.int32(len(gradients)), scale, sums, more, *of_sums,
    )  # fmt: skip
    if windows:
        warps = -(-windows // LANES) * -(-dim // COMBINED_COLUMNS)
        work.launch("combine", warps * LANES, starts, *of_ids, sums, more, scale, *of_sums)
    return Summed(findings, starts, positions, of_segments, len(gradients), placed)


def _all_resident(
    work: GpuWork, arrays: Sequence[Any], dtype: DTypeLike, width: int = 1
) -> list[DeviceArray | None]:
    """Return the arrays of segments in the device's memory; host arrays are sent in one copy."""
    on_host = [array for array in arrays if isinstance(array, np.ndarray)]
    if not on_host:
        return [*arrays]
    together, low = work.join(on_host, dtype, width), 0
    placed: list[DeviceArray | None] = []
    for array in arrays:
        if isinstance(array, np.ndarray):
            placed.append(together[low : low + len(array)])
            low += len(array)
        else:
            placed.append(array)
    return placed


def _address(array: DeviceArray | None) -> int:
    return 0 if array is None else array.address
