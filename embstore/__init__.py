"""embstore: an exact embedding store for training recommenders.

    with embstore.open("data") as store:
        ads = store.create_table(
            "ads", dim=64, rows=10_000_000,
            optimizer=RowWiseAdagrad(learning_rate=0.01), initializer=Uniform(-0.01, 0.01),
        )
        rows = ads.lookup(keys)
        ads.update(keys, grads)

`embstore.connect("127.0.0.1:50051")` returns a server's store with the same methods.
`embstore.torch`, `jax` and `keras` contain modules for these frameworks, and `embstore.files` reads
and writes tables as files. Import each of these modules by name, because it loads its framework or
library.

An import of the package loads only the errors. The other public names are loaded at their first use
(PEP 562). Therefore an import of any of the package's modules loads only what this module needs: a
light client can import `embstore.errors` or `embstore.config` without loading Numba or CuPy. The
code lists these names twice: as imports, which only type checkers read, and in `_HOMES`, which maps
each name to its module; tests/style compares the two lists.
"""

from typing import TYPE_CHECKING

from embstore import errors
from embstore.errors import *  # noqa: F403 - every error, and nothing else
from embstore.version import __version__ as __version__

if TYPE_CHECKING:
    from embstore.config import Adagrad as Adagrad
    from embstore.config import Adam as Adam
    from embstore.config import Constant as Constant
    from embstore.config import Ftrl as Ftrl
    from embstore.config import Normal as Normal
    from embstore.config import RowWiseAdagrad as RowWiseAdagrad
    from embstore.config import Sgd as Sgd
    from embstore.config import Uniform as Uniform
    from embstore.engine.opening import open as open
    from embstore.handles.store import Store as Store
    from embstore.handles.table import Table as Table
    from embstore.hashing import hash_ids as hash_ids
    from embstore_client.connecting import connect as connect
    from embstore_client.futures import background as background
    from embstore_client.futures import connect_async as connect_async
    from embstore_training.history import RunHistory as RunHistory
    from embstore_training.hotcold import HotColdRun as HotColdRun

_HOMES = {
    **dict.fromkeys(
        ("Adagrad", "Adam", "Constant", "Ftrl", "Normal", "RowWiseAdagrad", "Sgd", "Uniform"),
        "embstore.config",
    ),
    "HotColdRun": "embstore_training.hotcold",
    "RunHistory": "embstore_training.history",
    "Store": "embstore.handles.store",
    "Table": "embstore.handles.table",
    "background": "embstore_client.futures",
    "connect": "embstore_client.connecting",
    "connect_async": "embstore_client.futures",
    "hash_ids": "embstore.hashing",
    "open": "embstore.engine.opening",
}
"""The module of each name that is loaded at first use."""

_ERRORS = [name for name in vars(errors) if name.endswith("Error")]

__all__ = sorted({*_HOMES, *_ERRORS} - {"open"})
"""All names but `open`: `from embstore import *` must not replace Python's own `open`."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # the next use finds the name in this module
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
