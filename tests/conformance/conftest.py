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
BACKENDS = [
    "embedded",
    "emulated",
    "level-two",
    "large-level-two",
    "served",
    "shared",
    "sharded",
    "two-shards",
    *([] if why_not() else [pytest.param(name, marks=pytest.mark.gpu) for name in ON_GPU]),
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
    """Leave out what no cluster is asked for: what needs one_store."""
    left = [item for item in items if _is_of_cluster(item) and "one_store" in _needs(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


def _is_of_cluster(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    return spec is not None and spec.params.get("backend") in CLUSTERS


def _needs(item: pytest.Item) -> set[str]:
    return {offer for mark in item.iter_markers("needs") for offer in mark.args}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Embedded]:
    """Return where stores are opened; skip a case that needs more than it offers."""
    kind, circumstances = backend_named(request.param)
    missing = _needs(request.node) - kind.offers
    if missing:
        pytest.skip(f"{request.param} has no {', '.join(sorted(missing))}")
    with circumstances:
        made = kind(tmp_path)
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
