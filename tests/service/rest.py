"""A service with its REST border, driven in the test's process, over a real store and thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

import embstore
from embstore import RowWiseAdagrad, Sgd, Uniform
from embstore.handles.store import Store
from embstore_server.host.host import Host
from embstore_server.path.service import Service
from embstore_server.setup.settings import Settings
from embstore_server.telemetry.metrics import Metrics
from embstore_server.transports.rest.app import make_rest

BASE = "http://127.0.0.1:8080"


class Rest:
    """A service, and a client of its REST border."""

    def __init__(
        self,
        service: Service,
        client: httpx.AsyncClient,
        stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.service = service
        self.client = client
        self._stop = stop

    async def stop(self) -> None:
        """Close the store, if this is what has opened it."""
        assert self._stop is not None
        await self._stop()

    async def get(self, path: str, status: int = 200, **headers: str) -> Any:
        return await self._answer("GET", path, status, headers)

    async def post(self, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        content = {} if body is None else {"json": body}
        return await self._answer("POST", path, status, headers, **content)

    async def put(self, path: str, content: bytes, status: int = 200, **headers: str) -> Any:
        told = {"content_type": "application/octet-stream"} | headers
        return await self._answer("PUT", path, status, told, content=content)

    async def file(self, path: str) -> bytes:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/octet-stream"
        return answer.content

    async def _answer(
        self, method: str, path: str, status: int, headers: dict[str, str], **content: Any
    ) -> Any:
        names = {name.replace("_", "-"): text for name, text in headers.items()}
        answer = await self.client.request(method, path, headers=names, **content)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def samples(self, **headers: str) -> dict[str, float]:
        """Return {name{label}{label}: value} of a scrape, values in the order of their labels."""
        names = {name.replace("_", "-"): text for name, text in headers.items()}
        answer = await self.client.get("/metrics", headers=names)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {
            sample.name + "".join(f"{{{v}}}" for v in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    async def on_engine(self, work: Callable[[embstore.Store], Any]) -> Any:
        task = self.service.worker.submit(
            "Test", lambda engine: work(Store(engine)), client="test", deadline=monotonic() + 300
        )
        return await task.outcome

    @asynccontextmanager
    async def busy_engine(self) -> AsyncIterator[None]:
        """Keep the engine at work inside."""
        gate, begun = threading.Event(), threading.Event()
        task = self.service.worker.submit(
            "Digest",
            lambda engine: begun.set() or gate.wait(300),
            client="test",
            deadline=monotonic() + 300,
        )
        await asyncio.to_thread(begun.wait, 60)
        try:
            yield
        finally:
            gate.set()
            await task.outcome


@asynccontextmanager
async def unopened(
    data: Path, **options: Any
) -> AsyncIterator[tuple[Rest, Callable[[], Awaitable[None]]]]:
    """Yield a REST server whose store is not open yet, and what opens it."""
    settings = Settings(data, **({"admin": "127.0.0.1:8080"} | options))

    def open_engine() -> Any:
        return embstore.open(
            data,
            cache_bytes=1 << 20,
            policy=settings.policy,
            count_rate=settings.count_rate,
            read_only=settings.read_only,
        ).executor

    host = Host(settings, open_engine, Metrics())
    transport = httpx.ASGITransport(make_rest(host.service))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        yield Rest(host.service, client, host.stop), host.open


@asynccontextmanager
async def serving(data: Path, **options: Any) -> AsyncIterator[Rest]:
    async with unopened(data, **options) as (rest, opening):
        await opening()
        try:
            yield rest
        finally:
            await rest.stop()


def fill(store: embstore.Store) -> None:
    """Make "ads" and "ads/stats", and do something with the first."""
    ads = store.create_table(
        "ads",
        dim=8,
        rows=1000,
        optimizer=RowWiseAdagrad(learning_rate=0.1),
        initializer=Uniform(-1, 1),
        seed=2**64 - 1,
    )
    store.create_table(
        "ads/stats", dim=4, rows=50, optimizer=Sgd(learning_rate=0.5), initializer=Uniform(-1, 1)
    )
    ads.lookup([1, 2, 2, 3])
    ads.lookup([1, 1, 4])
    ads.update([1, 2], np.ones((2, 8), np.float32))


def filled(directory: Path) -> Path:
    """Make a store in `directory` with "ads" and "ads/stats", used a little; return it."""
    with embstore.open(directory, cache_bytes=1 << 20) as store:
        fill(store)
    return directory
