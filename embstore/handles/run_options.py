"""The options of a trainer's run over a session: name, default, meaning and check of each, once.

`Store.session` takes them by name and has this text in its help; a run, here or of hot and cold
rows, takes them as one value.
"""

from dataclasses import dataclass
from typing import Any

from embstore.checks.arguments import integer
from embstore.commands import LEASE_MS, LOOKAHEAD, RANK_TIMEOUT_MS, RowsWhere, Waits
from embstore.errors import InvalidArgumentError
from embstore.handles.waits import check_wait_s


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a trainer's steps are announced, shared and finished; a bad value raises
    InvalidArgumentError.

    Parameters
    ----------
    lookahead : steps that are announced beyond the last finished one; with 1 that is the step at
        hand alone, and no rows come while the step before computes
    name : by which the run can be resumed, and its ranks find each other; None: neither, and it is
        rank, world_size : this trainer among several that share each step
    rank, world_size : of several trainers that share each step
    planner : "per_step", "group:N" or "window", see `Sessions.open`
    shared : let others write to the tables too
    lease_ms : a trainer that is silent for longer loses its place
    rank_timeout_ms : how long ranks wait for one another before the session fails
    wait_s : how long entering a run waits, at most, for a place and for tables that a killed
        trainer still has: until its lease runs out; None: one and a half leases
    waits : "late": each update waits for the store, and a lookup for the rows that it changes;
        "none": the trainer applies updates itself, and the store follows
    depth : with "none": steps that may be finished here and not yet acknowledged, at most
        `lookahead`; None: 4, or `lookahead` where that is less
    all_gather : with "none" and several ranks: a function that returns the objects which all ranks
        gave it, in rank order, as `torch.distributed.all_gather_object` does
    resume : for a name that was used before, whether the loops of the run are given the batches of
        all its steps, the finished ones too, which are then read and left out; False, and None: the
        batches after `last_step`. None warns if `last_step` was never read
    rows : where lookups of steps return rows: "host"; "device", in the memory of the store's device
        (CuPy arrays of a GPU, NumPy's on the CPU), where the store then spreads them and sums
        gradients, which may be there too: of an embedded store, or of a server that shares its
        GPU's memory with this process; "auto": where the keys of their batch were, so that keys in
        a GPU's memory keep all of a step there; on the host where that is not reached. With
        waits="none" the trainer's rows are there with "device", of an embedded store alone
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
