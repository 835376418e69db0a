"""One command of every verb, aimed at a namespace; and who may give it, written down once more.

The rights here are the oracle of the matrix: they are not read from the commands.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.config import Sgd, TableConfig, Uniform
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from embstore.sharding import ShardMap

DIM, ROWS = 4, 100
MEMBER = "member-of-{}-and-no-other"
SCAN = "scan-of-{}-and-no-other"

ANYONE, READ, WRITE, ADMIN, READ_ALL, ADMIN_ALL = range(6)
"""What a verb needs: to be known, a right on the namespace, or one on everything."""

NEEDED: dict[str, int] = {
    **dict.fromkeys(["GetServerInfo", "ListTables", "ListCheckpoints"], ANYONE),
    **dict.fromkeys(["GetStats", "GetTable", "GetDigest", "GetLeaves"], READ),
    **dict.fromkeys(["Lookup", "LookupPooled", "ReadRows"], READ),
    **dict.fromkeys(["OpenScan", "ReadScan", "CloseScan"], READ),
    **dict.fromkeys(["CreateTable", "GrowTable", "SetLearningRate", "Checkpoint"], WRITE),
    **dict.fromkeys(["Update", "UpdatePooled", "UpdateRanks", "Assign", "PutRows"], WRITE),
    **dict.fromkeys(["DeleteRows", "ClearTable"], WRITE),
    **dict.fromkeys(["OpenSession", "JoinSession", "RenewLease", "CloseSession"], WRITE),
    **dict.fromkeys(["EndSession", "Announce", "LookupStep", "LookupStepPooled"], WRITE),
    **dict.fromkeys(["ReadStep", "UpdateStep", "ReleaseStep", "SkipStep", "PutStepRows"], WRITE),
    **dict.fromkeys(["DropTable", "Flush", "SetRetention"], ADMIN),
    **dict.fromkeys(["ExportProfile", "GetHotSet"], READ_ALL),
    **dict.fromkeys(["ResizeCache", "CheckIntegrity", "Restore", "Backup", "Promote"], ADMIN_ALL),
    **dict.fromkeys(["SetPolicy", "SetShardMap", "PauseWrites", "ResumeWrites"], ADMIN_ALL),
    **dict.fromkeys(["ImportProfile", "PinHotSet", "UnpinHotSet", "ClearCounts"], ADMIN_ALL),
    "WarmCache": ADMIN_ALL,
}

KEYS = np.array([3, 1], np.int64)
ROWS_OF_KEYS = np.ones((2, DIM), np.float32)
BAGS = c.Bags(np.array([0, 2], np.int64))


def config(name: str) -> TableConfig:
    """Return the configuration of every table here."""
    return TableConfig.checked(
        name, dim=DIM, rows=ROWS, optimizer=Sgd(0.1), initializer=Uniform(-1.0, 1.0), seed=1
    )


def _keys(table: str) -> c.TableKeys:
    return c.TableKeys(table, None, KEYS)


def _gradients(table: str) -> c.TableGradients:
    return c.TableGradients(table, None, KEYS, ROWS_OF_KEYS)


def _state() -> Any:
    return np.zeros((2, 0), np.float32)


def sample(verb: str, space: str) -> c.Command[Any]:
    """Return a command of this verb that concerns `space`, as far as it concerns a part."""
    table, member = f"{space}/t", MEMBER.format(space)
    profile = Profile({table: TableProfile(table, 0, KEYS[::-1].copy(), np.ones(2, int), 2)})
    steps = (c.StepKeys(2, (c.StepTable(table, KEYS),)),)
    made: dict[str, Callable[[], c.Command[Any]]] = {
        "GetStats": lambda: c.GetStats(table),
        "ResizeCache": lambda: c.ResizeCache(1 << 20),
        "SetPolicy": lambda: c.SetPolicy("lru"),
        "CreateTable": lambda: c.CreateTable(config(f"{space}/new")),
        "GrowTable": lambda: c.GrowTable(table, None, ROWS + 1),
        "SetLearningRate": lambda: c.SetLearningRate(table, None, 0.5),
        "Flush": lambda: c.Flush(table),
        "Checkpoint": lambda: c.Checkpoint(f"{space}/label", {}),
        "SetRetention": lambda: c.SetRetention(f"{space}/kept", "protected"),
        "Restore": lambda: c.Restore("first"),
        "Backup": lambda: c.Backup("copy"),
        "SetShardMap": lambda: c.SetShardMap(ShardMap.even("none", ["127.0.0.1:1"])),
        "PauseWrites": lambda: c.PauseWrites("somebody"),
        "Lookup": lambda: c.Lookup((_keys(table),)),
        "LookupPooled": lambda: c.LookupPooled((c.PooledKeys(table, None, KEYS, BAGS),)),
        "ReadRows": lambda: c.ReadRows(_keys(table)),
        "Update": lambda: c.Update((_gradients(table),)),
        "UpdatePooled": lambda: c.UpdatePooled(
            (c.PooledGradients(table, None, KEYS, ROWS_OF_KEYS[:1], BAGS),)
        ),
        "UpdateRanks": lambda: c.UpdateRanks((c.Rank((_gradients(table),)),)),
        "Assign": lambda: c.Assign(_keys(table), ROWS_OF_KEYS),
        "PutRows": lambda: c.PutRows(_keys(table), ROWS_OF_KEYS, _state(), 1),
        "DeleteRows": lambda: c.DeleteRows(_keys(table), member=member),
        "ClearTable": lambda: c.ClearTable(table, member=member),
        "OpenScan": lambda: c.OpenScan(f"of {table}, before others", table),
        "ReadScan": lambda: c.ReadScan(SCAN.format(table), table, 0, 9),
        "CloseScan": lambda: c.CloseScan(SCAN.format(table), table),
        "OpenSession": lambda: c.OpenSession(f"{space}-other", (f"{space}/u",)),
        "JoinSession": lambda: c.JoinSession(f"{space}-session", 0, member),
        "EndSession": lambda: c.EndSession(f"{space}-session"),
        "Announce": lambda: c.Announce(member, steps),
        "LookupStep": lambda: c.LookupStep(member, 1),
        "LookupStepPooled": lambda: c.LookupStepPooled(
            member, 1, (c.StepBags(table, np.array([0, 1], np.uint32), BAGS),)
        ),
        "ReadStep": lambda: c.ReadStep(
            member, 1, (c.StepPositions(table, np.array([0, 1], np.uint32)),)
        ),
        "UpdateStep": lambda: c.UpdateStep(member, 1, (c.StepGradients(table, ROWS_OF_KEYS),)),
        "ReleaseStep": lambda: c.ReleaseStep(member, 1),
        "SkipStep": lambda: c.SkipStep(member, 1),
        "PutStepRows": lambda: c.PutStepRows(
            member, (c.StepPut(table, KEYS, ROWS_OF_KEYS, _state(), 1),)
        ),
        "ImportProfile": lambda: c.ImportProfile(profile, {}),
        "PinHotSet": lambda: c.PinHotSet(HotSet({table: np.sort(KEYS)}, 1 + (space == "b"))),
    }
    if verb in made:
        return made[verb]()
    kind = c.COMMANDS[verb]
    named = {"member": member} if "member" in kind.__annotations__ else {}
    named |= {"table": table} if "table" in kind.__annotations__ else {}
    return kind(**named)


def may(verb: str, rights: dict[str, str], space: str) -> bool:
    """Tell whether rights by pattern suffice for `sample(verb, space)`."""
    order = ["", "read", "write", "admin"]

    def granted(*patterns: str) -> int:
        return max([order.index(rights.get(pattern, "")) for pattern in patterns])

    everything, here = granted("*"), granted("*", f"{space}/*")
    match NEEDED[verb]:
        case 0:
            return True
        case 1 | 2 | 3 as level:
            return here >= level
        case 4:
            return everything >= 1
    return everything >= 3
