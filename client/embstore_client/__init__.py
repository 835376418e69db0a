"""The client of an embstore server: the object model of `embstore.open`, over gRPC.

    from embstore_client import connect
    with connect("127.0.0.1:50051") as store:
        ads = store.create_table("ads", dim=64, rows=10_000_000,
                                 optimizer=RowWiseAdagrad(learning_rate=0.01),
                                 initializer=Uniform(-0.01, 0.01))
        rows = ads.lookup(keys)
        ads.update(keys, grads)

    store      RemoteStore: the verbs of embstore.Store
    table      RemoteTable: the verbs of embstore.Table
    sessions   RemoteSessions: the verbs of store.sessions
    step_rows  StepRows: a step's rows on their way, and in their places
    calls      the verbs of the wire: requests made, replies taken apart
    messages   bulk calls as messages
    shares     keys made unique and gradients summed before they are sent
    transport  one call: unary or stream, deadline, attempts, errors
    origins    the numbers of mutating calls, and what was known when they were sent

It is light: NumPy, gRPC and protobuf; Numba only where it is installed and something is summed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embstore_client.sessions import RemoteSessions
    from embstore_client.step_rows import StepRows
    from embstore_client.store import RemoteStore, connect
    from embstore_client.table import RemoteTable

__all__ = ["RemoteSessions", "RemoteStore", "RemoteTable", "StepRows", "connect"]

_HOMES = {
    "RemoteSessions": "sessions",
    "RemoteStore": "store",
    "RemoteTable": "table",
    "StepRows": "step_rows",
    "connect": "store",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
