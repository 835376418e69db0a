"""Fixtures of the conformance suite: a backend, and stores beside their reference on it.

Backends are imported when they are asked for: a machine that is lent for its GPU has nothing of
what a server imports. `cuda` is among them where there is a CUDA device.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.conformance.backends import Embedded
from tests.conformance.cases import config
from tests.conformance.emulated import Emulated, WithLargeLevelTwo, WithLevelTwo
from tests.conformance.twin import Twin
from tests.gpu.backend import LevelTwoOnGpu, OnGpu, why_not

settings.register_profile("long", max_examples=5000)
"""For `--hypothesis-profile=long --timeout=0`: minutes, not seconds."""

CLUSTERS = "sharded", "two-shards"
ON_GPU = ("cuda", "level-two-cuda")
KINDS = (
    "embedded",
    "emulated",
    "level-two",
    "large-level-two",
    "served",
    "shared",
    *CLUSTERS,
    *([] if why_not() else ON_GPU),
)
SPARSE = "-sparse"
"""Behind the kind of a backend, whose tables are of sparse keys then."""
BACKENDS = [
    pytest.param(kind + keys, marks=[pytest.mark.gpu] if kind in ON_GPU else [])
    for kind in KINDS
    for keys in ("", SPARSE)
]


def backend_named(name: str) -> tuple[type[Embedded], AbstractContextManager[None]]:
    """Return a kind of backend, and the circumstances it runs in."""
    if name in ("served", "shared"):
        from tests.conformance.served import Served, Shared, small_pieces

        return Served if name == "served" else Shared, small_pieces()
    if name in CLUSTERS:
        from tests.conformance.sharded import Sharded, TwoShards

        return Sharded if name == "sharded" else TwoShards, nullcontext()
    kinds = {
        "embedded": Embedded,
        "emulated": Emulated,
        "level-two": WithLevelTwo,
        "large-level-two": WithLargeLevelTwo,
        "cuda": OnGpu,
        "level-two-cuda": LevelTwoOnGpu,
    }
    return kinds[name], nullcontext()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*offers): what of a backend a case cannot do without")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what no cluster is asked for, what needs one_store, and no sparse table, what needs
    plain_keys."""
    left = {item for item in items if _needs(item) & _never_asked(item)}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


def _never_asked(item: pytest.Item) -> set[str]:
    spec = getattr(item, "callspec", None)
    name = str(spec.params.get("backend")) if spec is not None else ""
    kind = name.removesuffix(SPARSE)
    of_clusters = {"one_store"} if kind in CLUSTERS else set()
    return of_clusters if kind == name else of_clusters | {"plain_keys"}


def _needs(item: pytest.Item) -> set[str]:
    return {offer for mark in item.iter_markers("needs") for offer in mark.args}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Embedded]:
    """Return where stores are opened; skip a case that needs more than it offers."""
    name = request.param.removesuffix(SPARSE)
    kind, circumstances = backend_named(name)
    missing = _needs(request.node) - kind.offers
    if missing:
        pytest.skip(f"{name} has no {', '.join(sorted(missing))}")
    with circumstances:
        made = kind(tmp_path, "dense" if name == request.param else "sparse")
        yield made
        made.close()


@pytest.fixture
def open_twin(backend: Embedded) -> Iterator[Callable[..., Twin]]:
    """Return a function that opens a store with its reference; all are compared at the end."""
    opened: list[Twin] = []

    def open_one(name: str = "store", **options: Any) -> Twin:
        opened.append(Twin(backend, name, **options))
        return opened[-1]

    yield open_one
    for twin in opened:
        twin.check()


@pytest.fixture
def open_table(open_twin: Callable[..., Twin]) -> Callable[..., tuple[Twin, Any]]:
    """Return a function that opens a store with its reference, and a table "a" in it."""

    def open_one(*name: str, **options: Any) -> tuple[Twin, Any]:
        twin = open_twin(*name, **({"a": config()} | options))
        return twin, twin.store.table("a")

    return open_one
