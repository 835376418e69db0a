"""Writes a file in the Criteo format with a planted signal, for tests without the real file.

The file has those properties of a real file that matter to an embedding store: 26 columns of very
different sizes, categories that follow Zipf's law (a few are in every batch, most are rare), and
empty fields. Labels are drawn from a logistic model, so that a model can learn, and a held-out AUC
is meaningful:

    logit = bias + sum over integers of w * log(1 + x) + sum over columns of the category's effect

w and the effects are drawn once, from normal distributions. A permutation scatters the ranks of a
column's categories over the ids, because the hot rows of a hashed table are scattered, too.

A category's token is an id plus a multiple of the number of rows of the table. Therefore a reader
that computes the token modulo the number of rows gets the id, and a column of three categories
still has three.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore_tools.demo.criteo import INTEGERS

_ZIPF_EXPONENT = 1.05
_BLOCK = 8192
_TOKENS = 1 << 32
_BIAS = -1.2
"""The bias of the logit. Together with the spread of the logits, it makes about one label in four
1, as in the real file."""
_INTEGERS_STD = 0.8
_CATEGORIES_STD = 1.8
"""Standard deviations of the two sums of the logit."""
_MISSING_MAX = 0.15
"""The largest share of empty fields in a column; the share is drawn uniformly between 0 and this
value."""

Ints = NDArray[np.int64]


class _Column:
    """One categorical column: its distribution, its tokens as text, and each category's effect."""

    def __init__(self, rows: int, rng: np.random.Generator, spread: float) -> None:
        self._ids = rng.permutation(rows)
        self._cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -_ZIPF_EXPONENT)
        self._tokens = np.arange(rows) + rows * rng.integers(_TOKENS // rows, size=rows)
        self.effects = rng.normal(0.0, spread, rows)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        draws = rng.random(count) * self._cumulated[-1]
        ranks = np.searchsorted(self._cumulated, draws, side="right")
        ids: Ints = self._ids[np.minimum(ranks, len(self._ids) - 1)]
        return ids

    def texts(self, ids: Ints) -> list[str]:
        return [f"{token:08x}" for token in self._tokens[ids].tolist()]


class Source:
    """Draws samples from the planted model; each seed makes one file."""

    def __init__(self, rows: tuple[int, ...], seed: int) -> None:
        self._rng = rng = np.random.default_rng(seed)
        spread = _CATEGORIES_STD / np.sqrt(len(rows))
        self._columns = [_Column(count, rng, spread) for count in rows]
        self._logs_mean = rng.uniform(0.0, 3.0, INTEGERS)
        self._integer_weights = rng.normal(0.0, _INTEGERS_STD / np.sqrt(INTEGERS), INTEGERS)
        self._missing = rng.uniform(0.0, _MISSING_MAX, INTEGERS + len(rows))

    def lines(self, count: int) -> list[str]:
        """Return the next `count` lines, without line ends."""
        rng, columns = self._rng, self._columns
        integers = np.exp(rng.normal(self._logs_mean, 1.0, (count, INTEGERS))).astype(np.int64)
        integers -= 1  # some become negative, as in the real file
        ids = np.stack([column.draw(count, rng) for column in columns], axis=1)
        missing = rng.random((count, len(self._missing))) < self._missing
        integers[missing[:, :INTEGERS]] = 0
        ids[missing[:, INTEGERS:]] = 0
        labels = rng.random(count) < self._probabilities(integers, ids)
        texts = [list(map(str, integers[:, j].tolist())) for j in range(INTEGERS)]
        texts += [column.texts(ids[:, j]) for j, column in enumerate(columns)]
        for j, text in enumerate(texts):
            for i in np.flatnonzero(missing[:, j]).tolist():
                text[i] = ""
        label_texts = ["1" if label else "0" for label in labels.tolist()]
        return ["\t".join(fields) for fields in zip(label_texts, *texts, strict=True)]

    def _probabilities(self, integers: Ints, ids: Ints) -> Any:
        logs = np.log1p(np.maximum(integers, 0)) - self._logs_mean
        logits = _BIAS + logs @ self._integer_weights
        for j, column in enumerate(self._columns):
            logits += column.effects[ids[:, j]]
        return 1 / (1 + np.exp(-logits))


def write(
    path: Path,
    *,
    samples: int,
    rows: tuple[int, ...],
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Write `samples` lines to a new file; call `advance` with the number of lines of each block.

    Parameters
    ----------
    rows : number of rows of each column's table; the Criteo format has 26 columns
    """
    source = Source(rows, seed)
    with path.open("x", encoding="ascii", newline="\n") as file:
        for start in range(0, samples, _BLOCK):
            lines = source.lines(min(_BLOCK, samples - start))
            file.write("\n".join(lines) + "\n")
            advance(len(lines))
