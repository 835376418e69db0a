"""Hot/cold training: batches that have only hot rows are trained at the trainer, without the store.

    classifier      which samples are hot
    ragged          columns of ids, with one, several or any number of ids per sample
    packer          packs a stream of samples into all-hot and mixed batches
    scheduler       the order of these batches, and a rate that follows the loss
    run             the loop: hot batches on a replica, mixed batches at the store
    steps           the steps, as the body of the loop uses them
    tally           which batches are finished, and which of them the store has
    replica         the hot rows at the trainer
    rows            one table's hot rows, in slots
    update          one update of the hot rows, of all ranks
    device_replica  a replica in the memory of the store's device, in the store's process
    torch_replica   a replica in torch tensors, on the trainer's device
    phases          stretches of batches of one kind, the same on all ranks
    same_hot_set    the check that all ranks have the same hot set

Hot/cold training works with an embedded store as well as with a server.
"""

from typing import TYPE_CHECKING

from embstore_training.hotcold.classifier import Classifier
from embstore_training.hotcold.packer import Packed, Packer, PackerStats
from embstore_training.hotcold.ragged import Ragged
from embstore_training.hotcold.replica import Replica
from embstore_training.hotcold.run import HotColdRun
from embstore_training.hotcold.scheduler import LossRate, RateController

if TYPE_CHECKING:
    from embstore_training.hotcold.torch_replica import TorchReplica

__all__ = [
    "Classifier",
    "HotColdRun",
    "LossRate",
    "Packed",
    "Packer",
    "PackerStats",
    "Ragged",
    "RateController",
    "Replica",
    "TorchReplica",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "TorchReplica":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from embstore_training.hotcold.torch_replica import TorchReplica  # loads torch

        return TorchReplica
