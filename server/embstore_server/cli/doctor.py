"""`embstore doctor`: find causes of a slow or failing server on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embstore_server.cli import exits, output

if TYPE_CHECKING:
    from embstore_server.doctor.findings import Finding


def doctor(
    data: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Data directory of the server; need not exist.")
    ] = Path(),
    *,
    as_json: output.AsJson = False,
) -> None:
    """Check limits, disk, clock, processor, memory, GPU, versions; suggest changes.

    Run it as the server's user, where the server will run, such as in its container. It writes 32
    MiB to DIR and removes them. Status 1: something fails; a warning is no failure.
    """
    from embstore_server.doctor import disk, installed, limits, machine
    from embstore_server.doctor.findings import System

    system = System()
    has_gpu = installed.has_gpu(system)
    findings = [
        *limits.looked_at(system, has_gpu=has_gpu),
        *disk.looked_at(system, data),
        *machine.looked_at(system, has_gpu=has_gpu),
        *installed.looked_at(system),
    ]
    document = {"findings": [asdict(finding) for finding in findings]}
    output.show(document, "\n".join(map(_line, findings)), as_json=as_json)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(exits.FAILED)


def _line(finding: "Finding") -> str:
    change = f"\n      {finding.change}" if finding.change else ""
    return f"{finding.status:5} {finding.name}: {finding.found}{change}"
