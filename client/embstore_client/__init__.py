"""The client of an embstore server: `connect` returns a store like that of `embstore.open`.

    from embstore import connect
    with connect("127.0.0.1:50051") as store:
        ads = store.create_table("ads", dim=64, rows=10_000_000,
                                 optimizer=RowWiseAdagrad(learning_rate=0.01),
                                 initializer=Uniform(-0.01, 0.01))
        rows = ads.lookup(keys)
        ads.update(keys, grads)

The package is light: it needs NumPy, gRPC and protobuf. If Numba is installed, the package uses it
to sum gradients, and for nothing else.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embstore_client.connecting import connect
    from embstore_client.executor import RemoteExecutor
    from embstore_client.futures import (
        BackgroundStore,
        BackgroundTable,
        Call,
        background,
        connect_async,
    )
    from embstore_client.step_rows import StepRows

__all__ = [
    "BackgroundStore",
    "BackgroundTable",
    "Call",
    "RemoteExecutor",
    "StepRows",
    "background",
    "connect",
    "connect_async",
]

_HOMES = {
    "BackgroundStore": "futures",
    "BackgroundTable": "futures",
    "Call": "futures",
    "RemoteExecutor": "executor",
    "StepRows": "step_rows",
    "background": "futures",
    "connect": "connecting",
    "connect_async": "futures",
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
