"""Packs a stream of samples into all-hot and mixed batches.

No sample is lost or repeated. The order of the stream is kept among the hot samples, and among the
other samples.

A **chunk** is a piece of the stream: any number of samples, in columns. A **mixed** batch contains
the samples that are not hot (some of their ids may be). Samples are copied once, from the chunk to
their position in a batch of their kind. The receiver of a batch owns the batch's memory, which is
no part of a chunk.

A **window** has `window_batches` batches of both kinds together, and ends with the sample that
completes the last of these batches. Then the scheduler orders the batches. Thus the batches depend
on the samples alone, and not on the boundaries of chunks. The end of the stream ends the last
window, in which the last batch of each kind may be short.

The packer keeps the batches of a window, an unfinished batch of each kind, and the rest of one
chunk: at most (window_batches + 2) * batch_size samples and that rest. The next chunk is requested
only when the rest is used up.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.checks.arguments import integer
from embstore.errors import InvalidArgumentError
from embstore_training.hotcold.classifier import Chunk, Classifier, Flags
from embstore_training.hotcold.ragged import Ragged
from embstore_training.hotcold.scheduler import RateController, as_controller, batch_kinds

Batch = dict[str, Any]
"""Columns by name: arrays with the same first dimension, or `Ragged` columns of equal length."""


@dataclass(frozen=True, eq=False)
class Packed:
    """One batch, and its kind."""

    batch: Batch
    """The columns of the batch, in the order of the stream's first chunk."""
    is_hot: bool
    """Whether all samples of the batch are hot."""
    switch: bool
    """Whether the previous batch was of the other kind, so that rows are exchanged with the store
    before this batch. A packer's first batch counts as if it followed a mixed batch, because
    training begins with all rows at the store."""


@dataclass(frozen=True)
class PackerStats:
    """The numbers of batches and samples that a packer has emitted, in total over all streams."""

    hot_batches: int
    mixed_batches: int
    hot_samples: int
    mixed_samples: int
    switches: int
    held_samples_max: int
    """The maximum number of samples in memory at once, including the samples of the current
    chunk."""


class Packer:
    """Packs one stream of samples at a time. Only one thread may use it at a time."""

    def __init__(
        self,
        classifier: Classifier,
        batch_size: int,
        *,
        window_batches: int = 64,
        rate: int | RateController = 50,
    ) -> None:
        """Prepare a packer.

        Parameters
        ----------
        batch_size : samples per batch
        window_batches : number of batches that the scheduler orders together; a larger window makes
            longer phases, and keeps more samples in memory
        rate : the percentage of a window's batches of one kind that are in one phase, or a
            controller of that percentage

        Raises
        ------
        InvalidArgumentError : a size is below 1, or `rate` is not an integer from 1 to 100.
        """
        self._classifier = classifier
        self._batch_size = integer(batch_size, "batch_size", 1)
        self._window_batches = integer(window_batches, "window_batches", 1)
        self._controller = as_controller(rate)
        self._layout: _Layout | None = None  # Of the last stream; None before its first chunk.
        self._is_hot = False  # The kind of the last batch emitted.
        self._batches = {True: 0, False: 0}  # By whether batches are hot; likewise the samples.
        self._samples = {True: 0, False: 0}
        self._switches = 0
        self._held_samples_max = 0
        self.kept_samples = 0
        """The number of samples taken from the stream and not emitted yet."""

    @property
    def empty_batch(self) -> Batch | None:
        """A batch of no samples, with all columns of the stream; None before the stream's first
        chunk."""
        return None if self._layout is None else _filled(_room(self._layout, 0), 0)

    @property
    def stats(self) -> PackerStats:
        """The numbers so far."""
        return PackerStats(
            hot_batches=self._batches[True],
            mixed_batches=self._batches[False],
            hot_samples=self._samples[True],
            mixed_samples=self._samples[False],
            switches=self._switches,
            held_samples_max=self._held_samples_max,
        )

    def pack(self, chunks: Iterable[Chunk]) -> Iterator[Packed]:
        """Yield the samples of `chunks` in hot and mixed batches.

        If a caller stops early, the samples in memory are lost.

        Parameters
        ----------
        chunks : samples in columns, by name: arrays with the same first dimension, or `Ragged`
            columns of equal length. The classifier's columns contain ids; other columns are copied
            to the batches. All chunks have the same columns, with the same dtypes and shapes per
            sample

        Raises
        ------
        InvalidArgumentError : a chunk has another form, or the classifier refuses an id. Neither
            the samples of that chunk nor samples in memory are emitted.
        """
        self.kept_samples = 0
        self._layout = None
        queues: dict[bool, _Queue] | None = None
        for chunk in chunks:
            columns = _as_columns(chunk)
            if queues is None:
                layout = self._layout = _layout(columns)
                queues = {kind: _Queue(layout, self._batch_size) for kind in (True, False)}
            _check_layout(columns, layout)
            yield from self._add(queues, columns)
            del chunk, columns  # Free this chunk before the next one is made.
        if queues is not None:
            for queue in queues.values():
                queue.end()
            yield from self._emit_window(queues)

    def _add(self, queues: dict[bool, "_Queue"], columns: Batch) -> Iterator[Packed]:
        """Add a chunk's samples to the queues, and yield the windows that they complete."""
        hot = self._classifier.hot(columns)
        self.kept_samples += len(hot)
        self._held_samples_max = max(self._held_samples_max, self.kept_samples)
        begin = 0
        for end in [*self._window_ends(queues, hot), len(hot)]:
            piece = {name: _part(values, begin, end) for name, values in columns.items()}
            flags = hot[begin:end]
            queues[True].add(piece, np.flatnonzero(flags))
            queues[False].add(piece, np.flatnonzero(~flags))
            begin = end
            if len(queues[True].batches) + len(queues[False].batches) == self._window_batches:
                yield from self._emit_window(queues)

    def _window_ends(self, queues: dict[bool, "_Queue"], hot: Flags) -> NDArray[np.int64]:
        """Return, ascending, the numbers of samples of a chunk after which a window is complete."""
        size, window = self._batch_size, self._window_batches
        completed = len(queues[True].batches) + len(queues[False].batches)
        hot_filled, mixed_filled = queues[True].filled, queues[False].filled

        def batches_after(hot_counts: Any, counts: Any) -> Any:
            mixed_counts = counts - hot_counts
            return (
                completed
                + (hot_filled + hot_counts) // size
                + (mixed_filled + mixed_counts) // size
            )

        windows = int(batches_after(np.count_nonzero(hot), len(hot))) // window
        if not windows:
            return np.empty(0, np.int64)
        after = batches_after(np.cumsum(hot), np.arange(1, len(hot) + 1))
        return np.searchsorted(after, window * np.arange(1, windows + 1)).astype(np.int64) + 1

    def _emit_window(self, queues: dict[bool, "_Queue"]) -> Iterator[Packed]:
        hot, mixed = len(queues[True].batches), len(queues[False].batches)
        for is_hot in batch_kinds(hot, mixed, self._controller, hot_first=self._is_hot):
            batch = queues[is_hot].batches.popleft()
            switch, self._is_hot = is_hot != self._is_hot, is_hot
            samples = len(next(iter(batch.values())))
            self._switches += switch
            self._batches[is_hot] += 1
            self._samples[is_hot] += samples
            self.kept_samples -= samples
            yield Packed(batch, is_hot, switch)


class _Queue:
    """The samples of one kind that are in memory: in whole batches, and in a batch that is being
    filled."""

    def __init__(self, layout: "_Layout", batch_size: int) -> None:
        self.batches: deque[Batch] = deque()
        self.filled = 0  # The number of samples in the batch being filled, below batch_size.
        self._layout = layout
        self._batch_size = batch_size
        self._open: Batch = {}

    def add(self, piece: Batch, samples: NDArray[np.intp]) -> None:
        """Copy samples of `piece`, given by their positions, after the samples that are in the
        queue."""
        begin = 0
        while begin < len(samples):
            if not self.filled:
                self._open = _room(self._layout, self._batch_size)
            end = min(len(samples), begin + self._batch_size - self.filled)
            upto = self.filled + end - begin
            for name, values in self._open.items():
                if isinstance(values, list):
                    values.append(piece[name][samples[begin:end]])
                    continue
                # No position is out of range, so none is clipped; another mode would copy the
                # output.
                piece[name].take(
                    samples[begin:end], axis=0, out=values[self.filled : upto], mode="clip"
                )
            self.filled, begin = upto, end
            if self.filled == self._batch_size:
                self.end()

    def end(self) -> None:
        """Move the batch that is being filled to the whole batches, unless it is empty."""
        if self.filled:
            self.batches.append(_filled(self._open, self.filled))
        self._open, self.filled = {}, 0


_Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...] | None]]
"""By column, the dtype, and the shape of one sample in the column; None: the column is ragged."""


def _layout(columns: Batch) -> _Layout:
    return {name: (values.dtype, _shape(values)) for name, values in columns.items()}


def _shape(values: Any) -> tuple[int, ...] | None:
    return None if isinstance(values, Ragged) else values.shape[1:]


def _room(layout: _Layout, samples: int) -> Batch:
    """Return columns to be filled: an array per column or, for a ragged column, a list of parts."""
    return {
        name: [] if shape is None else np.empty((samples, *shape), dtype)
        for name, (dtype, shape) in layout.items()
    }


def _filled(room: Batch, samples: int) -> Batch:
    """Return the columns that were filled with `samples` samples."""
    return {
        name: Ragged.joined(values) if isinstance(values, list) else values[:samples]
        for name, values in room.items()
    }


def _part(values: Any, begin: int, end: int) -> Any:
    part = values[begin:end]
    return part if isinstance(part, Ragged) else np.ascontiguousarray(part)


def _as_columns(chunk: Chunk) -> Batch:
    """Return the checked columns of a chunk: plain arrays with the same first dimension, or ragged
    columns."""
    if not chunk:
        raise InvalidArgumentError("expected a chunk to have columns, found none")
    for name, values in chunk.items():
        if isinstance(values, Ragged):
            continue
        if not isinstance(values, np.ndarray) or not values.ndim:
            raise InvalidArgumentError(
                f"column {name!r}: expected an array of samples, found "
                f"{type(values).__name__} {getattr(values, 'shape', '')}"
            )
    lengths = {name: len(values) for name, values in chunk.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidArgumentError(f"expected columns of one length, found {lengths}")
    return {n: v if isinstance(v, Ragged) else np.asarray(v) for n, v in chunk.items()}


def _check_layout(columns: Batch, layout: _Layout) -> None:
    """Check that a chunk has the columns, dtypes and shapes of the stream's first chunk."""
    if columns.keys() != layout.keys():
        raise InvalidArgumentError(
            f"expected the columns of the stream's first chunk, {sorted(layout)}, found "
            f"{sorted(columns)}"
        )
    for name, (dtype, shape) in layout.items():
        values = columns[name]
        if (values.dtype, _shape(values)) != (dtype, shape):
            wanted = "ragged" if shape is None else f"of shape (n, *{shape})"
            found = "ragged" if isinstance(values, Ragged) else values.shape
            raise InvalidArgumentError(
                f"column {name!r}: expected {dtype} {wanted} as in the stream's first chunk, found "
                f"{values.dtype} {found}"
            )
