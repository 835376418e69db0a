"""Bulk calls as messages: one function a verb, arrays in, header and message out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows, fp32_scalar
from embstore.errors import InvalidArgumentError
from embstore.feed.bags import StepBags
from embstore_client.shares import Sums, UniqueKeys
from embstore_proto.codec import Message
from embstore_proto.v1 import embstore_pb2 as pb

MODES = {"sum": pb.POOLING_MODE_SUM, "mean": pb.POOLING_MODE_MEAN}
SOURCES = {"counted": pb.PROFILE_SOURCE_COUNTED, "imported": pb.PROFILE_SOURCE_IMPORTED}
_ON_NONFINITE = {"refuse": pb.ON_NONFINITE_REFUSE, "skip": pb.ON_NONFINITE_SKIP}


def table_keys(
    message: Message, table: str, table_id: int | None, keys: Keys, counts: Any = None
) -> pb.TableKeys:
    """Return one table's keys, added to the message."""
    return pb.TableKeys(
        table=table,
        table_id=table_id,
        keys=message.add(keys),
        counts=None if counts is None else message.add(counts),
    )


def lookup(
    message: Message, keys: Mapping[str, UniqueKeys], ids: Mapping[str, int], admit: bool
) -> pb.LookupRequest.Header:
    """Return the header of a lookup."""
    return pb.LookupRequest.Header(
        tables=[
            table_keys(message, name, ids.get(name), once.keys, once.counts)
            for name, once in keys.items()
        ],
        admit=admit,
    )


def gradients(
    message: Message, shares: Mapping[str, Sums], ids: Mapping[str, int]
) -> list[pb.TableGradients]:
    """Return the gradients of several tables, added to the message."""
    return [
        pb.TableGradients(
            table=name,
            table_id=ids.get(name),
            keys=message.add(sums.keys),
            gradients=sums.add_to(message),
        )
        for name, sums in shares.items()
    ]


def ranks(
    message: Message, shares: Sequence[Mapping[str, Sums]], ids: Mapping[str, int]
) -> list[pb.UpdateRanksRequest.Rank]:
    """Return the gradients of several ranks, added to the message."""
    return [pb.UpdateRanksRequest.Rank(tables=gradients(message, s, ids)) for s in shares]


def bags(
    message: Message, offsets: NDArray[np.int64], mode: str, weights: Rows | None, table: str
) -> pb.Bags:
    """Return how keys are pooled, added to the message.

    Raises
    ------
    InvalidArgumentError : another mode.
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise InvalidArgumentError(
            f'table {table!r}: expected mode "sum" or "mean", found {mode!r}'
        )
    return pb.Bags(
        offsets=message.add(offsets),
        mode=MODES[mode],
        weights=None if weights is None else message.add(weights),
    )


def options(
    learning_rate: float | None, gradient_scale: float, on_nonfinite: str
) -> pb.UpdateOptions:
    """Return an update's options.

    Raises
    ------
    InvalidArgumentError : another on_nonfinite, or a number that is none, or out of range.
    """
    if not isinstance(on_nonfinite, str) or on_nonfinite not in _ON_NONFINITE:
        raise InvalidArgumentError(
            f'expected on_nonfinite to be "refuse" or "skip", found {on_nonfinite!r}'
        )
    if learning_rate is not None:
        learning_rate = fp32_scalar(learning_rate, "learning_rate")
    return pb.UpdateOptions(
        learning_rate=learning_rate,
        gradient_scale=fp32_scalar(gradient_scale, "gradient_scale"),
        on_nonfinite=_ON_NONFINITE[on_nonfinite],
    )


def document(message: Message, content: bytes) -> pb.Array:
    """Return a file's bytes, added to the message."""
    return message.add(np.frombuffer(content, np.uint8))


# Of a session's steps


def announced(
    message: Message, steps: Mapping[int, Mapping[str, Keys]]
) -> list[pb.AnnounceRequest.Step]:
    """Return steps with their keys, added to the message."""
    return [
        pb.AnnounceRequest.Step(
            step=step,
            tables=[
                pb.AnnounceRequest.Table(table=name, keys=message.add(k))
                for name, k in keys.items()
            ],
        )
        for step, keys in steps.items()
    ]


def step_gradients(
    message: Message, gradients: Mapping[str, Rows]
) -> list[pb.UpdateStepRequest.Table]:
    """Return the gradients of a step's announced keys, added to the message."""
    return [
        pb.UpdateStepRequest.Table(table=name, gradients=message.add(rows))
        for name, rows in gradients.items()
    ]


def replica_rows(
    message: Message, rows: Mapping[str, tuple[Keys, Rows, Rows, int]]
) -> list[pb.PutStepRowsRequest.Table]:
    """Return the rows of a hot replica, added to the message: keys, weights, state, t to add."""
    return [
        pb.PutStepRowsRequest.Table(
            table=name,
            keys=message.add(keys),
            weights=message.add(weights),
            state=message.add(state),
            add_t=add_t,
        )
        for name, (keys, weights, state, add_t) in rows.items()
    ]


def step_bags(
    message: Message, pooled: Mapping[str, StepBags]
) -> list[pb.LookupStepPooledRequest.Table]:
    """Return how a step's rows are pooled, added to the message; no index is below 0."""
    return [
        pb.LookupStepPooledRequest.Table(
            table=name,
            inverse=message.add(b.inverse.view(np.uint32)),
            bags=bags(message, b.offsets, b.mode, b.weights, name),
        )
        for name, b in pooled.items()
    ]
