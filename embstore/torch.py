"""Modules of PyTorch over a store: the names of `embstore_client.torch`."""

from embstore_client.torch import *  # noqa: F403
from embstore_client.torch import __all__ as __all__
