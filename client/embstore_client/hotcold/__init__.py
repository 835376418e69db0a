"""Hot/cold training: hot rows are trained at the trainer, in batches that need no store at all.

    classifier     which samples are hot
    packer         a stream of samples as all-hot and mixed batches
    scheduler      in which order these come, and a rate that follows the loss
    run            the loop: hot batches on a replica, mixed ones at the store
    steps          what its body sees of a batch
    replica        the hot rows at the trainer, in NumPy
    rows           one table's hot rows, in slots
    update         one update of them, of all ranks
    torch_replica  the same in torch tensors, on the trainer's device
    phases         stretches of one kind, on all ranks alike
    ranks          what ranks tell each other

It works over an embedded store as well as over a server's.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embstore_client.hotcold.classifier import Classifier
    from embstore_client.hotcold.packer import Packed, Packer, PackerStats
    from embstore_client.hotcold.replica import Replica
    from embstore_client.hotcold.run import HotColdRun
    from embstore_client.hotcold.scheduler import LossRate, RateController
    from embstore_client.hotcold.torch_replica import TorchReplica

__all__ = [
    "Classifier",
    "HotColdRun",
    "LossRate",
    "Packed",
    "Packer",
    "PackerStats",
    "RateController",
    "Replica",
    "TorchReplica",
]

_HOMES = {
    "Classifier": "classifier",
    "HotColdRun": "run",
    "LossRate": "scheduler",
    "Packed": "packer",
    "Packer": "packer",
    "PackerStats": "packer",
    "RateController": "scheduler",
    "Replica": "replica",
    "TorchReplica": "torch_replica",
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
