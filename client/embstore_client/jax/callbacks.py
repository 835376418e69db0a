"""Lookups from within a compiled function, by ordered callbacks to the host.

The function that looks up ids has a custom gradient (`jax.custom_vjp`). In the backward pass, a
second callback sends the gradients of the function's outputs to the host, where they are kept until
`Embeddings.step`. JAX's backward pass visits only values that depend on differentiated values, and
ids are not differentiated. Therefore the function has one more argument, the **anchor**: a scalar
that is differentiated, with a gradient of 0.

Forward and backward callbacks are ordered: JAX runs each callback exactly as often as it occurs in
the program, and in the program's order. The number of a forward is passed to its backward pass
within the program, so a forward without a backward pass leaves no data on the host. If a program
does not differentiate, its lookups are for evaluation, and admit no rows to the cache. An output
that the loss does not use gets no gradient (`symbolic_zeros`).

JAX flushes denormals in the threads that run callbacks; code of this project that computes there
keeps denormals (`embstore.arithmetic.denormals`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax  # type: ignore[import-not-found, unused-ignore]
import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]
import numpy as np
from jax.custom_derivatives import SymbolicZero  # type: ignore[import-not-found, unused-ignore]
from jax.experimental import io_callback  # type: ignore[import-not-found, unused-ignore]

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.occurrences import given_of, keys_by_table, pooled
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.steps import Steps
from embstore_client.frameworks.tables import FeatureLookup, Ids

LookUp = Callable[[Mapping[str, Keys], bool], dict[str, Found]]
"""Returns the rows of keys (n,) by table; the bool determines whether missing rows are admitted to
the cache."""
_INT32_ROWS = 1 << 31
"""A table with more rows than this has ids beyond int32."""


@dataclass(eq=False)
class Host:
    """The host's side of callbacks. Compiled functions keep this object, and compare it by
    identity."""

    tables: Mapping[str, Ids]
    lookups: Sequence[FeatureLookup]
    look_up: LookUp
    steps: Steps
    """The module's steps, which keep the gradients of backward passes."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def activations(host: Host, anchor: Any, features: Any) -> dict[str, Any]:
    """Return the pooled rows of each feature; see `Embeddings.callback`."""
    read: dict[str, Any] = io_callback(
        partial(_read, host, admit=False), _outputs(host, features), features, ordered=True
    )
    return read


def _forward(host: Host, anchor: Any, features: Any) -> tuple[Any, Any]:
    values = jax.tree.map(lambda leaf: leaf.value, features)
    shapes = (jax.ShapeDtypeStruct((), jnp.int32), _outputs(host, values))
    number, read = io_callback(partial(_begin, host), shapes, values, ordered=True)
    return read, (number, values, anchor.value)


def _backward(host: Host, kept: Any, gradients: dict[str, Any]) -> tuple[Any, None]:
    number, features, anchor = kept
    wanted = {name: of for name, of in gradients.items() if not isinstance(of, SymbolicZero)}
    if wanted:
        io_callback(partial(_keep, host), None, number, features, wanted, ordered=True)
    return jnp.zeros_like(anchor), None


activations.defvjp(_forward, _backward, symbolic_zeros=True)


def _outputs(host: Host, features: Any) -> dict[str, Any]:
    """Return the shape and dtype of activations, from the shape and dtype of ids."""
    examples = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), features)
    outputs = {}
    given = given_of(host.lookups, examples)
    for lookup in host.lookups:
        name, table = lookup.name, lookup.of
        dtype = jax.tree.leaves(examples[lookup.feature])[0].dtype
        has_more = table.rows is None or table.rows > _INT32_ROWS
        if has_more and dtype == np.int32 and not table.hashes:
            keys = "sparse keys" if table.rows is None else f"{table.rows} rows"
            raise InvalidArgumentError(
                f"feature {name!r}: expected int64 ids, because table {table.name!r} has "
                f"{keys}, found int32; set jax_enable_x64, or look up outside of "
                "what is compiled"
            )
        outputs[name] = jax.ShapeDtypeStruct((*given[name].shape, table.dim), jnp.float32)
    return outputs


def _read(host: Host, features: Any, *, admit: bool) -> dict[str, Any]:
    given = given_of(host.lookups, features)
    return pooled(given, host.look_up(keys_by_table(given), admit))


def _begin(host: Host, features: Any) -> tuple[Any, dict[str, Any]]:
    return np.int32(host.steps.gradients.next_forward()), _read(host, features, admit=True)


def _keep(host: Host, number: Any, features: Any, gradients: dict[str, Any]) -> None:
    for index, (name, of) in enumerate(given_of(host.lookups, features).items()):
        if name in gradients:
            host.steps.gradients.keep((int(number), index), of, np.asarray(gradients[name]))
