"""Ranks of a group of torch.distributed, and work of rank 0 for all of them.

A group that is None stands for this process alone. Work of rank 0 for all ranks begins when all
ranks have arrived, and its outcome is sent to the other ranks. So no rank continues before the work
is done, and no rank waits for work that has failed.
"""

from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError, RankFailedError
from embstore_client.frameworks.steps import ALONE, Ranks


def ranks_of(group: Any) -> Ranks:
    """Return the number of ranks of a group, and the rank of this process.

    Raises
    ------
    InvalidArgumentError : this process is not in the group.
    """
    if group is None:
        return ALONE
    rank = torch.distributed.get_rank(group)
    if rank < 0:
        raise InvalidArgumentError("expected a process group that this process belongs to")
    return Ranks(rank, torch.distributed.get_world_size(group), group)


def gathered(ranks: Ranks, own: Any) -> list[Any]:
    """Return the contributions of all ranks, in rank order. Every rank calls this function."""
    every: list[Any] = [None] * ranks.world_size
    torch.distributed.all_gather_object(every, own, group=ranks.group)
    return every


def by_first(ranks: Ranks, work: Callable[[], object]) -> None:
    """Make rank 0 do some work once all ranks have called this function.

    Raises
    ------
    RankFailedError : raised on the other ranks if the work has raised an error.
    """
    rank, world_size, group = ranks
    if world_size == 1:
        work()
        return
    torch.distributed.barrier(group)
    failure: list[str | None] = ["it was interrupted"]
    try:
        if rank == 0:
            try:
                work()
                failure = [None]
            except Exception as exc:
                failure = [f"{type(exc).__name__}: {exc}"]
                raise
    finally:
        torch.distributed.broadcast_object_list(failure, group=group, group_src=0)
    if failure[0] is not None:
        raise RankFailedError(f"rank 0 failed: {failure[0]}")
