"""embstore: an exact embedding store for training recommenders.

    with embstore.open("data") as store:
        ads = store.create_table(
            "ads", dim=64, rows=10_000_000,
            optimizer=RowWiseAdagrad(learning_rate=0.01), initializer=Uniform(-0.01, 0.01),
        )
        rows = ads.lookup(keys)
        ads.update(keys, grads)

The public names are loaded at first use (PEP 562), so that `import embstore`, and any import of one
of its modules, costs nothing else: a light client takes `embstore.errors` or `embstore.config`
without drawing Numba or CuPy in. Type checkers read the imports below instead; tests/style compares
the two.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embstore.config import (
        Adagrad,
        Adam,
        Constant,
        Normal,
        RowWiseAdagrad,
        Sgd,
        Uniform,
    )
    from embstore.errors import (
        CapacityError,
        CheckpointExistsError,
        CheckpointNotFoundError,
        CorruptTableError,
        DeadlineError,
        DeviceError,
        EmbstoreError,
        InvalidArgumentError,
        OutcomeUnknownError,
        OverloadedError,
        PermissionDeniedError,
        RankFailedError,
        SessionExpiredError,
        StepNotFoundError,
        StorageError,
        StoreClosedError,
        StoreInUseError,
        TableExistsError,
        TableHeldError,
        TableMismatchError,
        TableNotFoundError,
    )
    from embstore.store import Store, open
    from embstore.table import Table

__version__ = "0.1.0"

__all__ = [
    "Adagrad",
    "Adam",
    "CapacityError",
    "CheckpointExistsError",
    "CheckpointNotFoundError",
    "Constant",
    "CorruptTableError",
    "DeadlineError",
    "DeviceError",
    "EmbstoreError",
    "InvalidArgumentError",
    "Normal",
    "OutcomeUnknownError",
    "OverloadedError",
    "PermissionDeniedError",
    "RankFailedError",
    "RowWiseAdagrad",
    "SessionExpiredError",
    "Sgd",
    "StepNotFoundError",
    "StorageError",
    "Store",
    "StoreClosedError",
    "StoreInUseError",
    "Table",
    "TableExistsError",
    "TableHeldError",
    "TableMismatchError",
    "TableNotFoundError",
    "Uniform",
    "open",
]

_HOMES = {"Store": "store", "Table": "table", "open": "store"}
"""Modules of the names that are neither errors nor configuration."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        home = "errors" if name.endswith("Error") else _HOMES.get(name, "config")
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value  # found here from now on
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
