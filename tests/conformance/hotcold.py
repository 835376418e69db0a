"""What the cases of hot/cold training have in common: tables, samples, a trainer, ranks.

A trainer compares each step's rows with the dense reference, which it then gives the step's
gradients. Samples are numbered, so that a lost or repeated one is seen.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from embstore.frequency.hotset import HotSet
from embstore_client.hotcold.run import HotColdRun
from tests.conformance.cases import OPTIMIZERS, assert_same, config
from tests.conformance.traces import values, zipf_keys

ROWS = 600
TABLES = {
    kind: config(dim=dim, rows=ROWS, optimizer=OPTIMIZERS[kind])
    for kind, dim in {"sgd": 4, "adagrad": 9, "rowwise_adagrad": 40, "adam": 5}.items()
}
COLUMNS = {"c1": "sgd", "c2": "adagrad", "c3": "rowwise_adagrad", "bag": "adam", "c5": "sgd"}
"""Two columns share a table, and one has three ids a sample."""
BATCH = 20
_PATIENCE_S = 60.0


def tables_in(twin: Any) -> Any:
    """Make the tables, and return the twin."""
    for name, given in TABLES.items():
        twin.create_table(name, **given)
    return twin


def count_commands(twin: Any) -> None:
    """Give the reference the store's command number: many hot updates are one command."""
    twin.reference.command_number = twin.store.command


def hot_keys(count: int = 60) -> HotSet:
    """Return a hot set of the keys that `zipf_keys` draws most often, version 7."""
    keys = np.sort(np.arange(count) * 7919 % ROWS)
    return HotSet(dict.fromkeys(TABLES, keys), version=7)


def shape_of(column: str, samples: int) -> tuple[int, ...]:
    """Return the shape of a column of ids."""
    return (samples, 3) if column == "bag" else (samples,)


def chunks_of(rng: np.random.Generator, samples: int) -> list[dict[str, Any]]:
    """Return numbered samples in chunks of any length; about half of the samples are hot."""
    hot = hot_keys().tables["sgd"]
    columns: dict[str, Any] = {"number": np.arange(samples), "label": rng.random(samples)}
    is_hot = rng.random(samples) < 0.5
    for column in COLUMNS:
        shape = shape_of(column, samples)
        ids = zipf_keys(rng, ROWS, int(np.prod(shape))).reshape(shape)
        ids[is_hot] = rng.choice(hot, ids[is_hot].shape)
        columns[column] = ids
    cuts = np.sort(rng.integers(0, samples + 1, 6))
    pieces = {name: np.split(of_column, cuts) for name, of_column in columns.items()}
    return [{name: parts[i] for name, parts in pieces.items()} for i in range(len(cuts) + 1)]


class Trained(NamedTuple):
    """What one step of a loop saw and sent."""

    rows: dict[str, Any]
    share: dict[str, Any]  # By table, keys and gradients.
    options: dict[str, Any]


class Trainer:
    """The body of a loop: looks up and updates, and remembers what it sent."""

    def __init__(self, reference: Any = None, seed: int = 0) -> None:
        self._reference = reference
        self._rng = np.random.default_rng(seed)
        self.numbers: list[int] = []
        self.kinds: list[bool] = []
        self.steps: list[Trained] = []

    def train(self, step: Any) -> None:
        """Train one step, and the reference beside it."""
        rows = step.lookup()
        gradients = {t: values(self._rng, *r.shape, special=True) for t, r in rows.items()}
        gradients = {t: np.where(np.abs(g) > 9, rows[t], g) for t, g in gradients.items()}
        options = self._options(step)
        done = step.update(gradients, **options)
        share = {t: (step.keys[t], g) for t, g in gradients.items()}
        self.steps.append(Trained(rows, share, options))
        self.numbers += step.batch["number"].tolist() if "number" in step.batch else []
        self.kinds.append(step.is_hot)
        if self._reference is not None:
            for table, wanted in self._reference.lookup(step.keys).items():
                assert_same(rows[table], wanted)
            assert done.t == self._reference.update(share, **options)

    def _options(self, step: Any) -> dict[str, Any]:
        if len(self.steps) % 3:
            return {}
        return {"learning_rate": np.float32(0.05), "gradient_scale": np.float32(0.3)}


def replay(reference: Any, trainers: Sequence[Trainer], steps: int | None = None) -> None:
    """Do on the reference what the ranks did together, and compare what each looked up."""
    for ranks in zip(*(trainer.steps[:steps] for trainer in trainers), strict=True):
        for rows, share, _ in ranks:
            for table, wanted in reference.lookup({t: k for t, (k, _) in share.items()}).items():
                assert_same(rows[table], wanted)
        reference.update_ranks([trained.share for trained in ranks], **ranks[0].options)


def run_of(store: Any, **options: Any) -> HotColdRun:
    """Return a run with the usual hot set and columns."""
    return HotColdRun(store, hot_keys(), COLUMNS, **({"batch_size": BATCH} | options))


class Meeting:
    """An all-gather of threads."""

    def __init__(self, ranks: int) -> None:
        self._given: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=_PATIENCE_S)

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        """Return the hook of a rank."""

        def all_gather(share: Any) -> list[Any]:
            self._given[rank] = share
            self.barrier.wait()
            answer = list(self._given)
            self.barrier.wait()
            return answer

        return all_gather


def train_ranks(
    store: Any,
    work: Callable[[int, HotColdRun], Any],
    ranks: int = 2,
    make: Callable[..., HotColdRun] = run_of,
    **options: Any,
) -> list[Any]:
    """Do the work of every rank in a thread of its own, on the run that `make` makes of the store,
    rank and options; return what they return."""
    meeting = Meeting(ranks)

    def of_rank(rank: int) -> Any:
        try:
            with make(
                store,
                name="run",
                rank=rank,
                world_size=ranks,
                all_gather=meeting.of(rank),
                **options,
            ) as run:
                return work(rank, run)
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(of_rank, range(ranks)))
