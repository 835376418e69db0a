"""The options of a trainer's run over a session: the name, default, meaning and check of each
option, in one place.

`Store.session` takes the options by name and shows this text in its help. The classes of runs, with
or without hot and cold rows, take them as one value.
"""

from dataclasses import dataclass
from typing import Any

from embstore.checks.arguments import integer
from embstore.commands import LEASE_MS, LOOKAHEAD, RANK_TIMEOUT_MS, RowsWhere, Waits
from embstore.errors import InvalidArgumentError
from embstore.handles.waits import check_wait_s


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options by which a trainer's steps are announced, shared and finished.

    A bad value raises InvalidArgumentError.

    Parameters
    ----------
    lookahead : number of steps that are announced beyond the last finished step; with 1 only the
        current step is announced, and no rows arrive while the previous step computes
    name : name by which the run can be resumed and its ranks find each other; None: the run has one
        rank and cannot be resumed
    rank, world_size : index of this trainer, and number of the trainers that share each step
    planner : "per_step", "group:N" or "window", see `Sessions.open`
    shared : whether other clients can write to the tables too
    lease_ms : milliseconds for which a trainer can be silent before its session ends
    rank_timeout_ms : time in milliseconds that ranks wait for one another before the session fails
    wait_s : longest wait in seconds when a run is entered while another trainer uses the run's rank
        or tables; if that trainer was killed, rank and tables are free when that trainer's lease
        runs out. None: one and a half leases
    waits : "late": each update waits for the store, and each lookup waits for the rows that the
        update changed; "none": the trainer applies updates itself, and the store follows. ("mixed"
        is for `HotColdRun`.)
    depth : with waits="none", the maximum number of steps that the trainer has finished and the
        store has not yet acknowledged; at most `lookahead`. None: 4, or `lookahead` if that is less
    all_gather : with waits="none" and several ranks, a function that returns the objects which all
        ranks passed to it, in rank order, as `torch.distributed.all_gather_object` does
    resume : for a run whose name was used before: True if the loops are given the batches of all
        steps; the loops then read and leave out the batches of finished steps. False or None: the
        loops are given only the batches after `last_step`; None gives a warning if `last_step` was
        never read
    rows : memory in which lookups of steps return rows. "host": the host's memory. "device": the
        memory of the store's device (CuPy arrays of a GPU, NumPy arrays on the CPU). The store then
        spreads rows over occurrences and sums gradients in that memory, and the gradients can be in
        it, too. The store must be embedded, or its server must share its GPU's memory with this
        process. "auto": the memory of the keys of the batch, so that all of a step stays on the GPU
        if its keys are there; the host's memory if the device cannot be reached. With waits="none"
        and rows="device", which needs an embedded store, the trainer's own rows are on the device
        too
    """

    lookahead: int = LOOKAHEAD
    name: str | None = None
    rank: int = 0
    world_size: int = 1
    planner: str = "per_step"
    shared: bool = False
    lease_ms: int = LEASE_MS
    rank_timeout_ms: int = RANK_TIMEOUT_MS
    wait_s: float | None = None
    waits: Waits = "late"
    depth: int | None = None
    all_gather: Any = None
    resume: bool | None = None
    rows: RowsWhere = "auto"

    def __post_init__(self) -> None:
        if self.name is None and self.resume:
            raise InvalidArgumentError("expected a name, by which a session is resumed, found none")
        if self.name is None and self.world_size != 1:
            raise InvalidArgumentError(
                f"expected a name, by which the {self.world_size} ranks of a session find each "
                "other, found none"
            )
        integer(self.rank, "rank", 0, integer(self.world_size, "world_size", 1) - 1)
        if self.wait_s is not None:
            check_wait_s(self.wait_s)
