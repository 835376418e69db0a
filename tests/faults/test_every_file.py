"""Each file and folder of a store, at rest: deleted, cut to half, with a flipped bit, or swapped
with an older copy of itself. Then the store is verified, and opened.

A file that is not named below has to be missed: opening, or the first read of its rows, is refused,
and says which file, and how to mend that. Damage is tried in a child process, because a bad map
could end it (SIGBUS).
"""

import re
from typing import Any

import pytest

from embstore.storage import catalogue as catalogues
from tests.faults.damage import results
from tests.faults.every_file import (
    OLDER,
    Case,
    Made,
    Outcome,
    make,
    make_taking,
    names_of,
    try_cases,
)
from tests.faults.refusing import kind_of

ANY = ".*"
OLD = "as it was.*"
ALLOWED: list[tuple[str, str, set[str]]] = [
    ("LOCK", ANY, {"right"}),
    ("frequency(/.*)?", ANY, {"right"}),
    ("commands/N.spare", ANY, {"right"}),
    # Of a crash: no commit names them.
    ("unnamed", ANY, {"right"}),
    # A record that a newer one replaces is of no row, and padding is of nothing.
    ("(log|base|ids)/.*", "flipped.*", {"right", "refused"}),
    # Files that a commit names never change: their older copies are the same. One that was copied
    # while it was written is not.
    ("log|base|ids", OLD, {"right", "refused"}),
    # Not noticed by the directory alone.
    ("LINEAGE|SHARD", "deleted", {"right"}),
    ("LINEAGE|SHARD", OLD, {"right"}),
    ("CATALOGUE", OLD, {"refused", "older"}),
    ("commands(/N.commands)?", OLD, {"refused", "older"}),
    ("commands/N.commands", "halved", {"refused", "shorter"}),
    ("commands/N.commands", "flipped.*", {"refused", "right", "older"}),
]
"""What may come of damage to a kind of file, where it is not "refused"; the first that fits."""
REPLACED = "store.json|CATALOGUE|LINEAGE|SHARD|LOCK|commands.*|(log|base|ids)(/.*)?"
TAKING: list[tuple[str, str, set[str]]] = [
    # The commit that has come replaces these; of files that it shares it has copies of its own.
    ("store.json", "deleted", {"refused"}),
    (REPLACED, ANY, {"right"}),
    # Without its catalogue it has not come.
    ("incoming|incoming/CATALOGUE", "deleted", {"older"}),
    ("incoming/(log|base|ids)/.*", "flipped.*", {"right", "refused"}),
    ("incoming/(log|base|ids)", OLD, {"right"}),
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("every-file"))


@pytest.fixture(scope="module")
def taking(killed: Made) -> Made:
    return make_taking(killed, killed.path.parent)


def allowed(case: Case, unnamed: set[str], rules: list[tuple[str, str, set[str]]]) -> set[str]:
    """Return what may come of damage."""
    name, what = case
    kind = "unnamed" if name in unnamed else kind_of(name)
    fitting = (
        outcomes
        for kinds, whats, outcomes in rules
        if re.fullmatch(kinds, kind) and re.fullmatch(whats, what)
    )
    return next(fitting, {"refused"})


def is_told(case: Case, found: Outcome) -> bool:
    """Return whether an outcome that is neither right nor known to be silent was told with its
    file, or, of an older catalogue and of a folder, with one that it lacks."""
    name = case[0].removeprefix("incoming/")
    is_row = found.said.startswith("table ") and "record of" in found.said
    if (name, case[1]) in [("CATALOGUE", older) for older in OLDER]:
        is_named, is_found = bool(found.said), bool(found.problems)
    else:
        is_named = name in found.said or is_row
        is_found = any(name in problem for problem in found.problems)
    if found.opened == "refused":
        return is_named and is_found and (is_row or "embstore verify" in found.said)
    return found.opened != "shorter" or (is_named and is_found)


def unnamed_of(made: Made) -> set[str]:
    """Return the files of log, base and ids that no commit names."""
    catalogue = catalogues.decode((made.path / catalogues.PATH).read_bytes())
    return set(catalogues.unnamed(catalogue, [n for n in names_of(made.path) if "/" in n])) & {
        name for name in names_of(made.path) if name.startswith(("log/", "base/", "ids/"))
    }


def wrong(found: dict[Any, Any], made: Made, rules: list[tuple[str, str, set[str]]]) -> Any:
    unnamed = unnamed_of(made)
    return {
        case: outcome
        for case, outcome in found.items()
        if outcome.opened not in allowed(case, unnamed, rules) or not is_told(case, outcome)
    }


def show(bad: dict[Any, Outcome]) -> str:
    return "\n".join(f"{case}: {o.opened}: {o.said}: {o.problems}" for case, o in bad.items())


def test_damage_to_any_file_is_told_or_harmless(forks, killed):
    found = results(forks, try_cases, killed.save())
    assert not (bad := wrong(found, killed, ALLOWED)), show(bad)
    came = {(kind_of(name), outcome.opened) for (name, _), outcome in found.items()}
    kinds = {kind for kind, _ in came}
    assert {
        "log/N.log",
        "base/N-N.rows",
        "ids/N.ids",
        "commands/N.spare",
        "frequency/HOTSET",
    } < kinds
    assert {("CATALOGUE", "refused"), ("commands/N.commands", "shorter")} < came


def test_damage_to_a_commit_that_has_come_is_told_or_harmless(forks, taking):
    found = results(forks, try_cases, taking.save())
    assert not (bad := wrong(found, taking, TAKING)), show(bad)
    assert {"incoming/CATALOGUE", "incoming/LINEAGE"} < {name for name, _ in found}
