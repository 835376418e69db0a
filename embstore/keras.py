"""Layers of Keras 3 over a store: the names of `embstore_client.keras`."""

from embstore_client.keras import *  # noqa: F403
from embstore_client.keras import __all__ as __all__
