"""Two models as they are in Torch, whose rows are either Torch's or a store's: DIN and SASRec.

Each says what it looks up of a batch; the rest does not know where rows come from. Batches have
padding (id 0), empty histories among them.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from embstore import Adagrad
from embstore.handles.store import Store
from embstore_client.torch import Bag, EmbeddingBagCollection, Ids

DIM, LENGTH, SAMPLES = 8, 7, 12
ROWS = {"movies": 60, "users": 30, "genres": 15}
RATE = 0.1


def _padded(rng: torch.Generator) -> Any:
    ids = torch.randint(1, ROWS["movies"], (SAMPLES, LENGTH), generator=rng)
    lengths = torch.randint(0, LENGTH + 1, (SAMPLES, 1), generator=rng)
    return ids.masked_fill(torch.arange(LENGTH) < LENGTH - lengths, 0)


def din_batches(count: int) -> list[Any]:
    """Return features and labels; "genres" are bags of any length, empty ones too."""
    rng, batches = torch.Generator().manual_seed(3), []
    for _ in range(count):
        lengths = torch.randint(0, 4, (SAMPLES,), generator=rng)
        genres = torch.randint(ROWS["genres"], (int(lengths.sum()),), generator=rng)
        features = {
            "item": torch.randint(1, ROWS["movies"], (SAMPLES,), generator=rng),
            "history": _padded(rng),
            "user": torch.randint(ROWS["users"], (SAMPLES,), generator=rng),
            "genres": (genres, lengths.cumsum(0) - lengths),
        }
        labels = torch.randint(2, (SAMPLES,), generator=rng).float()
        batches.append((features, labels))
    return batches


def sasrec_batches(count: int) -> list[Any]:
    """Return sequences, the next items, and negative samples, as a loader draws them."""
    rng, batches = torch.Generator().manual_seed(4), []
    for _ in range(count):
        ids = _padded(rng)
        wanted = torch.roll(ids, -1, 1).masked_fill(ids == 0, 0)
        negatives = torch.randint(1, ROWS["movies"], (SAMPLES, LENGTH), generator=rng)
        features = {"history": ids, "item": wanted, "negative": negatives}
        batches.append((features, torch.empty(0)))
    return batches


class Din(torch.nn.Module):
    """Target attention over the history of items, beside pooled and plain features."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.Sequential(
            torch.nn.Linear(4 * DIM, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 1)
        )
        self.out = torch.nn.Linear(4 * DIM, 1)

    def forward(self, rows: dict[str, Any], batch: Any) -> Any:
        features, labels = batch
        history, item = rows["history"], rows["item"][:, None].expand_as(rows["history"])
        scores = self.attention(
            torch.cat([item, history, item - history, item * history], dim=-1)
        ).masked_fill(features["history"][..., None] == 0, 0.0)
        read = (scores * history).sum(1)
        logits = self.out(torch.cat([rows["item"], read, rows["user"], rows["genres"]], dim=1))
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels)


class SasRec(torch.nn.Module):
    """One block of causal attention with positions; items are scored by their own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.nn.Embedding(LENGTH, DIM)
        self.block = torch.nn.TransformerEncoderLayer(
            DIM, 2, 16, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, rows: dict[str, Any], batch: Any) -> Any:
        ids = batch[0]["history"]
        causal = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
        inputs = rows["history"] * DIM**0.5 + self.positions(torch.arange(LENGTH))
        inputs = inputs * (ids != 0)[..., None]
        hidden, known = self.block(inputs, causal), batch[0]["item"] != 0
        scores = [(hidden * rows[name]).sum(-1)[known] for name in ("item", "negative")]
        return functional.softplus(scores[1] - scores[0]).mean()


class Model(NamedTuple):
    """A model, its batches, and which features are looked up in which tables."""

    dense: Callable[[], Any]
    batches: Callable[[int], list[Any]]
    features: dict[str, list[str]]


MODELS = {
    "DIN": Model(
        Din,
        din_batches,
        {"movies": ["item", "history"], "users": ["user"], "genres": ["genres"]},
    ),
    "SASRec": Model(SasRec, sasrec_batches, {"movies": ["history", "item", "negative"]}),
}


class OfTorch(torch.nn.Module):
    """The tables of a model in Torch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        kinds: dict[str, Any] = {
            "movies": lambda: torch.nn.Embedding(ROWS["movies"], DIM, padding_idx=0),
            "users": lambda: torch.nn.Embedding(ROWS["users"], DIM),
            "genres": lambda: torch.nn.EmbeddingBag(ROWS["genres"], DIM),
        }
        self.tables = torch.nn.ModuleDict({name: kinds[name]() for name in model.features})

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return dict(self._looked_up(features))

    def _looked_up(self, features: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for table, names in self.model.features.items():
            for name in names:
                ids = features[name]
                of = self.tables[table]
                yield name, of(*ids) if isinstance(ids, tuple) else of(ids)


def of_store(store: Store, model: Model) -> EmbeddingBagCollection:
    """Return the same tables of a store."""
    options: dict[str, Any] = {"dim": DIM, "optimizer": Adagrad(RATE, epsilon=1e-10)}
    kinds: dict[str, Any] = {
        "movies": lambda **how: Ids("movies", padding_idx=0, **how),
        "users": lambda **how: Ids("users", **how),
        "genres": lambda **how: Bag("genres", mode="mean", **how),
    }
    return EmbeddingBagCollection(
        store,
        [
            kinds[name](rows=ROWS[name], features=features, **options)
            for name, features in model.features.items()
        ],
    )
