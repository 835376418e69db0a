"""Embeddings of a store for JAX: the names of `embstore_client.jax`."""

from embstore_client.jax import *  # noqa: F403
from embstore_client.jax import __all__ as __all__
