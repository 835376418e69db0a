"""What the cases of hot/cold training have in common: tables, samples, a trainer, ranks.

A trainer compares each step's rows with the dense reference, which it then gives the step's
gradients. Samples are numbered, so that a lost or repeated one is seen.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from embstore.profiles.hotset import HotSet
from embstore_training.hotcold.run import HotColdRun
from tests.conformance.cases import OPTIMIZERS, assert_same, config, ones
from tests.conformance.meeting import Meeting
from tests.conformance.traces import values, zipf_keys

ROWS = 600
TABLES = {
    kind: config(dim=dim, rows=ROWS, optimizer=OPTIMIZERS[kind])
    for kind, dim in {"sgd": 4, "adagrad": 9, "rowwise_adagrad": 40, "adam": 5, "ftrl": 6}.items()
}
COLUMNS = {
    "c1": "sgd",
    "c2": "adagrad",
    "c3": "rowwise_adagrad",
    "bag": "adam",
    "c5": "sgd",
    "c6": "ftrl",
}
"""Two columns share a table, and one has three ids a sample."""
BATCH = 20


def hotcold_twin(open_twin: Any, **options: Any) -> Any:
    """Return a twin with the tables, or those given; many hot updates are one command of it."""
    given = any(isinstance(option, dict) for option in options.values())
    twin = open_twin(**options, **({} if given else TABLES))
    twin.counts_commands = False
    return twin


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


def ones_for(step: Any) -> dict[str, Any]:
    """Return gradients of ones for a step."""
    return {t: ones(len(k), TABLES[t]["dim"]) for t, k in step.keys.items()}


def share_of(step: Any, gradients: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's gradients as an update of the reference takes them."""
    return {t: (step.keys[t], g) for t, g in gradients.items()}


class FailingPush:
    """A store, or its sessions: the first push fails, before or after it is done."""

    def __init__(self, wrapped: Any, error: BaseException, is_done: bool = True) -> None:
        self._wrapped, self._error, self._is_done = wrapped, error, is_done
        self.pushes = 0

    @classmethod
    def of(cls, store: Any, *how: Any) -> "FailingPush":
        """Return a store whose sessions are such."""
        made = cls(store, *how)
        made.sessions = cls(store.sessions, *how)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def put_rows(self, *args: Any) -> Any:
        """Push, and fail the first time."""
        self.pushes += 1
        if self.pushes > 1 or self._is_done:
            done = self._wrapped.put_rows(*args)
        if self.pushes == 1:
            raise self._error
        return done


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
        share = share_of(step, gradients)
        self.steps.append(Trained(rows, share, options))
        self.numbers += step.batch["number"].tolist() if "number" in step.batch else []
        self.kinds.append(step.is_hot)
        if self._reference is not None:
            for table, wanted in self._reference.lookup(step.keys).items():
                assert_same(rows[table], wanted)
            assert done.t == self._reference.update(share, **options)

    def train_all(self, steps: Any) -> None:
        """Train the steps of a loop."""
        for step in steps:
            self.train(step)

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
            meeting.leave()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(of_rank, range(ranks)))


def hot_run(store, hot_rows=ROWS, **options):
    """Return a run of one table, whose first rows are hot."""
    hot_set = HotSet({"adam": np.arange(hot_rows)})
    return HotColdRun(store, hot_set, {"id": "adam"}, **({"batch_size": 20} | options))


def ids(*values):
    """Return these ids as a stream of one chunk, numbered."""
    joined = np.concatenate(values)
    return [{"id": joined, "number": np.arange(len(joined))}]
