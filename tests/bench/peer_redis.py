"""Redis as an embedding store: MGET and MSET of the batch's unique keys, over a Unix socket.

Redis is given every advantage. Duplicate keys are removed, key names are made and values are cut
before the clock starts. Nothing is written to disk. No optimizer runs, although a trainer would run
one between MGET and MSET. A lookup is MGET and one array made from the replies; an update is MSET.
The two threads are the server's and the client's. If hiredis is installed, the client parses with
it.
"""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any

import numpy as np
import redis

from tests.bench.rounds import Contender, warm
from tests.bench.scale import Scale
from tests.bench.worker import SkippedError
from tests.bench.workload import Keys, Rows, Workload

START_TIMEOUT_S = 20.0
PIPELINE_ROWS = 10_000


def names_of(keys: Keys) -> list[bytes]:
    """Return the 8 bytes of each key: the shortest names there are."""
    text = keys.astype("<i8").tobytes()
    return [text[i : i + 8] for i in range(0, len(text), 8)]


class Server:
    """A redis-server of our own, on a socket in a scratch folder, that saves nothing."""

    def __init__(self, scale: Scale) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise SkippedError("no redis-server on PATH")
        # A Unix socket's path has a limit of 107 bytes: not in data_dir, which can be long.
        self._folder = tempfile.mkdtemp(prefix="embstore-redis-")
        socket = str(pathlib.Path(self._folder) / "socket")
        options = ["--port", "0", "--unixsocket", socket, "--dir", self._folder]
        options += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        self._process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        self.client = redis.Redis(unix_socket_path=socket)
        try:
            self._wait()
            self._load(scale)
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(redis.exceptions.ConnectionError):
                self.client.ping()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SkippedError(f"redis-server did not start (code {self._process.poll()})")
            time.sleep(0.02)

    def _load(self, scale: Scale) -> None:
        rng = np.random.default_rng(scale.seed)
        for first in range(0, scale.rows, PIPELINE_ROWS):
            keys = np.arange(first, min(first + PIPELINE_ROWS, scale.rows), dtype=np.int64)
            rows = rng.standard_normal((len(keys), scale.dim), dtype=np.float32)
            pipeline = self.client.pipeline(transaction=False)
            for name, row in zip(names_of(keys), rows, strict=True):
                pipeline.set(name, row.tobytes())
            pipeline.execute()

    def close(self) -> None:
        """End the server and remove its folder."""
        self.client.close()
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class RedisLane:
    """Rows of `dim` fp32 under 8-byte names."""

    def __init__(self, scale: Scale, client: redis.Redis) -> None:
        self._client = client
        self._dim = scale.dim

    def prepare(self, keys: Keys, grads: Rows) -> Any:
        """Return the names of the unique keys, and names with new values."""
        unique_names = names_of(np.unique(keys))
        values = [grads[i].tobytes() for i in range(len(unique_names))]
        return unique_names, dict(zip(unique_names, values, strict=True))

    def lookup(self, prepared: Any) -> Any:
        """MGET, and the replies as one (unique, dim) array."""
        reply: Any = self._client.mget(prepared[0])
        return np.frombuffer(b"".join(reply), dtype=np.float32).reshape(-1, self._dim)

    def update(self, prepared: Any, looked_up: Any) -> None:
        self._client.mset(prepared[1])


class RedisContender(Contender):
    """Owns the server."""

    def __init__(self, scale: Scale) -> None:
        self._server = Server(scale)
        super().__init__(Workload(scale), {"redis": RedisLane(scale, self._server.client)})

    def close(self) -> None:
        self._server.close()


def start(scale: Scale, _: str) -> Contender:
    contender = RedisContender(scale)
    try:
        return warm(contender)
    except BaseException:
        contender.close()
        raise
