"""The headlines of four papers beside our figures on the same kind of work, as a table.

``python -m tests.bench.papers`` reads the newest results of `tests.bench.hot` and of
`tests.bench.lookahead` in ``docs/figures/``; ``make papers`` runs these two benchmarks before. The
page ``docs/papers.md`` has the table, made from the result files that the page names.

The figures of a paper depend on its authors' machine, model and baseline. Our figures are ratios of
two runs on one machine, which the result files name. Neither of them shows what would be measured
on the other machine.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from tests.bench.program import RESULTS

_HEAD = ("paper", "its headline", "ours, on the same kind of work", "figure")


class Row(NamedTuple):
    """One line of the table."""

    paper: str
    headline: str
    ours: str
    figure: str


def table(hot: Mapping[str, Any], lookahead: Mapping[str, Any]) -> str:
    """Return the lines of the table, in Markdown."""
    lines: list[Sequence[str]] = [_HEAD, ["---"] * len(_HEAD), *_rows(hot, lookahead["cells"])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def newest(name: str, part: str, folder: pathlib.Path = RESULTS) -> pathlib.Path:
    """Return the newest results of a benchmark that have a part. Raises FileNotFoundError."""
    for path in sorted(folder.glob(f"{name}-*.json"), reverse=True):
        if part in json.loads(path.read_text()):
            return path
    raise FileNotFoundError(
        f"{folder}: no results of {name} with {part}: run python -m tests.bench.{name}"
    )


def _rows(hot: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    found = hot["training"]["contestants"]
    ahead, ranked, bound = found["ahead-lru"], found["rank"], found["all-cached"]
    fitting = [cell for cell in cells if cell["fits"]]
    yield Row(
        "ScratchPipe (ISCA 2022)",
        "always hit; 2.8 times as fast as a static cache, at most 4.2",
        "hits at lookup; step of a fixed hot cache : step of look-ahead, median and most of "
        f"{len(cells)} cells; step : all rows cached, where the next batches fit",
        f"{ahead['hit_rate_by_access']:.0%}; {median(_over(cells, 'static')):.2f}, "
        f"{max(_over(cells, 'static')):.1f}; {1 / median(_over(fitting, 'bound')):.2f}",
    )
    yield Row(
        "CachedEmbedding (arXiv 2208.05321)",
        "1.5 % of the rows on the GPU train at a decent speed",
        "hits by access, and samples/s : all rows cached, with 1.5 % of the rows, by frequency",
        f"{ranked['hit_rate_by_access']:.1%}; {ranked['ratio']:.2f}",
    )
    yield Row(
        "cDLRM (RecSys 2021)",
        "one device trains a model of any size, as accurately",
        "AUC with 1.5 % of the rows cached and look-ahead; with all of them",
        f"{ahead['auc']:.4f}; {bound['auc']:.4f}",
    )
    cold = found["hot-100"]
    yield Row(
        "FAE (VLDB 2022)",
        "1.52 times as fast as a hybrid of CPU and GPU, as accurate",
        "samples/s of hot/cold : look-ahead, and AUC; here one machine computes both",
        f"{cold['ratio'] / ahead['ratio']:.2f}; {cold['auc']:.4f}",
    )


def _over(cells: Sequence[Mapping[str, Any]], other: str) -> list[float]:
    """Return by cell how many times as long a step of another contestant takes."""
    steps = [cell["contestants"] for cell in cells]
    return [one[other]["step_ms"] / one["lookahead"]["step_ms"] for one in steps]


def main() -> int:
    """Print the table of results, and the files that it is made of."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.papers", description=__doc__)
    parser.add_argument("--hot", type=pathlib.Path, help="results of tests.bench.hot")
    parser.add_argument("--lookahead", type=pathlib.Path, help="results of tests.bench.lookahead")
    arguments = parser.parse_args()
    paths = (
        arguments.hot or newest("hot", "training"),
        arguments.lookahead or newest("lookahead", "cells"),
    )
    hot, lookahead = (json.loads(path.read_text()) for path in paths)
    print(table(hot, lookahead))
    print(f"\nfrom {paths[0].name}, {paths[1].name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
