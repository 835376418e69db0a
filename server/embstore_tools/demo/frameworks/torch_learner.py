"""The model in Torch, whose embeddings are an EmbeddingBagCollection of `embstore_client.torch`.

Each bag has one id, so an activation is a row. Therefore the dense check can compare the result of
a forward pass with rows; `step` sends the gradient of this result. The dense part begins with the
weights of dlrm.py, and is trained by Torch's own Adam. If the model is on a GPU, all data stays
there, except the rows that the check compares, which are copied to the host.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError
from embstore_client.torch import Bag, EmbeddingBagCollection
from embstore_tools.demo.criteo import CATEGORIES, INTEGERS, Samples
from embstore_tools.demo.dlrm import Dlrm, Mlp, dense_features
from embstore_tools.demo.frameworks.learner import DENSE_LEARNING_RATE
from embstore_tools.demo.result import SessionResult
from embstore_tools.demo.steps import Batch, TrainingStep
from embstore_tools.demo.ways import Ahead, Calls, Feed, Way, WayInput, session_of

if TYPE_CHECKING:
    from embstore.handles.store import Store


class TorchLearner:
    """The learner in Torch; see `learner.Learner`."""

    def __init__(
        self, store: "Store", configs: list[TableConfig], *, seed: int, device: str
    ) -> None:
        tables = [
            Bag(
                config.name,
                dim=config.dim,
                rows=None if config.is_sparse else config.rows,
                features=[config.name],
                optimizer=config.optimizer,
                initializer=config.initializer,
            )
            for config in configs
        ]
        self.embeddings = EmbeddingBagCollection(store, tables)
        self._device = device
        self._model = _DenseDlrm(CATEGORIES, configs[0].dim, seed).to(device)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=DENSE_LEARNING_RATE)
        self._outputs: dict[str, Any] = {}  # The activations of the current step, by table.

    @contextmanager
    def opened(self, way: Way, material: WayInput) -> Iterator[Feed]:
        """Return a feed that uses single calls, or a look-ahead session."""
        if not isinstance(way, Calls | Ahead):
            raise InvalidArgumentError("expected NumPy to train hot/cold, found Torch")
        lookahead = way.lookahead if isinstance(way, Ahead) else None
        with _one_thread(), closing(_TorchFeed(material, self, lookahead)) as feed:
            yield feed

    def look_up(self, ids: dict[str, Any]) -> dict[str, Rows]:
        """Compute a forward pass of the embeddings, and return its activations, which are rows."""
        self._outputs = self.embeddings(ids)
        for output in self._outputs.values():
            output.retain_grad()
        return {name: _on_host(output) for name, output in self._outputs.items()}

    def learn(self, batch: Batch, rows: dict[str, Rows]) -> tuple[float, dict[str, Rows]]:
        """Return the loss and the gradients, which a backward pass through the last forward pass
        computes."""
        features = self.there(dense_features(batch.integers))
        logits = self._model(features, list(self._outputs.values()))
        labels = self.there(batch.labels)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        gradients = {name: _on_host(output.grad) for name, output in self._outputs.items()}
        return float(_on_host(loss)), gradients

    def there(self, array: NDArray[Any]) -> Any:
        """Return an array on the model's device."""
        return torch.from_numpy(array).to(self._device)

    def send(self, gradients: Any) -> None:
        """Send the gradients of the backward pass."""
        self.embeddings.step()

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def scores(self, integers: NDArray[np.int64], rows: dict[str, Rows]) -> NDArray[np.float32]:
        """Return logits."""
        embeddings = [self.there(rows[name].copy()) for name in self.embeddings.tables]
        return _on_host(self._model(self.there(dense_features(integers)), embeddings))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread, because barriers of several threads would spin on cores that the
    server needs."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _on_host(tensor: Any) -> NDArray[np.float32]:
    """Return a tensor on the host, for the check. On a GPU this waits for the tensor."""
    array: NDArray[np.float32] = tensor.detach().cpu().numpy()
    return array


class _Ready(NamedTuple):
    """A batch whose ids are on the model's device. If a forward pass gets the tensors that were
    announced, it does not read the ids again."""

    batch: Batch
    ids: dict[str, Any]
    """The ids by table, (n,)."""


class _TorchFeed(Feed):
    """The steps of a training loop of the Torch model; if `lookahead` is None, the loop has no
    session."""

    def __init__(self, material: WayInput, learner: TorchLearner, lookahead: int | None) -> None:
        super().__init__(material)
        self._learner, self._lookahead = learner, lookahead
        self._loop: Any = None  # None before the first step.
        self._session: SessionResult | None = None

    def steps(self, blocks: Iterable[Samples]) -> Iterator[TrainingStep]:
        learner = self._learner
        self._loop = self._ready(blocks)
        if self._lookahead is not None:
            self._loop = learner.embeddings.ahead(
                self._loop, features=lambda ready: ready.ids, lookahead=self._lookahead
            )
        for batch, ids in self._loop:
            yield TrainingStep(batch, partial(learner.look_up, ids), learner.send)
            if self._lookahead is not None:  # the session ends with the loop
                self._session = session_of(self._material)

    def _ready(self, blocks: Iterable[Samples]) -> Iterator[_Ready]:
        for batch in self._material.batches(blocks):
            there = self._learner.there
            yield _Ready(batch, {name: there(keys) for name, keys in batch.keys.items()})

    def session(self) -> SessionResult | None:
        return self._session

    def close(self) -> None:
        """End the session if the loop was left early."""
        if self._loop is not None:
            self._loop.close()


class _DenseDlrm(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """The dense part of `dlrm.Dlrm`, with the same initial weights."""

    def __init__(self, columns: int, dim: int, seed: int) -> None:
        super().__init__()
        plain = Dlrm(integers=INTEGERS, columns=columns, dim=dim, seed=seed)
        self.bottom, self.top = _mlp(plain.bottom), _mlp(plain.top)
        self._pairs = torch.tril_indices(columns + 1, columns + 1, -1)

    def forward(self, features: Any, embeddings: list[Any]) -> Any:
        """Return logits (n,) of features (n, integers) and of embeddings. `embeddings` has an array
        for each table: the n rows of the table's first column, then those of the next column."""
        bottom = self.bottom(features)
        columns = [of for rows in embeddings for of in rows.reshape(-1, *bottom.shape)]
        vectors = torch.stack([bottom, *columns], dim=1)
        products = (vectors @ vectors.mT)[:, *self._pairs]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


def _mlp(plain: Mlp) -> Any:
    """Return an MLP of dlrm.py as a Torch module."""
    layers: list[Any] = []
    for weights, bias in zip(plain.parameters[::2], plain.parameters[1::2], strict=True):
        linear = torch.nn.Linear(*weights.shape)
        linear.load_state_dict({"weight": torch.tensor(weights.T), "bias": torch.tensor(bias)})
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*(layers[:-1] if plain.linear_end else layers))
