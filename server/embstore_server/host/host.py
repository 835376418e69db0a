"""The host of a store: it opens the store, serves it, and closes it.

The host makes all objects that live as long as the process: first the service, then replication,
which refers to the service. When a standby takes over a commit of its leader, replication makes the
host open the store anew.
"""

from collections.abc import Callable
from time import monotonic

from embstore.engine.engine import Engine
from embstore.engine.opening import saying_how_to_mend
from embstore.storage.lineage import read as read_lineage
from embstore_server.host.shards import apply_shard_map, check_has_all
from embstore_server.path.service import Service
from embstore_server.replication.following import Following
from embstore_server.replication.standbys import Standbys
from embstore_server.setup.parsing import OFF, SECONDS_MAX
from embstore_server.setup.settings import Settings
from embstore_server.telemetry.metrics import Metrics


class Host:
    """A store, and its service in this process. Event loop only."""

    def __init__(
        self, settings: Settings, open_engine: Callable[[], Engine], metrics: Metrics
    ) -> None:
        """Make the service and its replication; open no store yet.

        `open_engine` opens the store that the settings name. It is called on the engine thread.
        """
        self._open_engine = open_engine
        self.service = Service(settings, metrics, self._opened, self._promote)
        self.standbys = Standbys(self.service)
        self.following = Following(self.service, self._reopen)

    async def open(self) -> None:
        """Open the store on the engine thread.

        From then on, calls are served. A server that leads accepts writes when this method returns.
        """
        self._use(await self.service.worker.start())
        self.following.start()
        await self.following.may_lead.wait()

    async def stop(self) -> None:
        """Finish the queued calls, and close the store, which commits it; see `Worker.stop`."""
        await self.following.stop()
        try:
            await self.service.worker.stop()
        finally:
            self.service.long_jobs.close()

    def _opened(self) -> Engine:
        """Open the store. Runs on the engine thread."""
        service = self.service
        if service.settings.follow == OFF:  # a leader compares what its standby has
            with saying_how_to_mend(service.settings.data):
                check_has_all(service.settings)
        engine = self._open_engine()
        try:
            with saying_how_to_mend(service.settings.data):
                apply_shard_map(service.settings, engine)
                service.lineage = read_lineage(engine.storage.files)
        except BaseException:
            engine.close()
            raise
        engine.replication = service.replication
        self.following.opened(engine, service.lineage)
        return engine

    def _use(self, engine: Engine) -> None:
        # not earlier, because until now the previous store was served, with its own role
        self.following.decide(engine)
        self.service.use(engine, self.standbys.wake)
        self.standbys.use(engine)

    async def _reopen(self) -> None:
        """Open the directory's current store, in place of the store that has been served."""
        worker = self.service.worker
        deadline = monotonic() + SECONDS_MAX
        task = worker.submit("Follow", worker.reopen, client="follow", deadline=deadline)
        self._use(await task.outcome)

    async def _promote(self) -> bool:
        return await self.following.promote()
