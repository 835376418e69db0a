"""`embstore token`: the callers of a server, and their rights. The commands write a file."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import output
from embstore_server.cli.flags import YES, flag
from embstore_server.cli.parameters import byte_count

Name = Annotated[str, typer.Argument(metavar="NAME")]
Tokens = Annotated[
    Path, flag("The file, that of `embstore serve --tokens`.", "FILE", envvar="EMBSTORE_TOKENS")
]
OneRight = Annotated[str, flag("read, write or admin; each has those before it.", "RIGHT")]
Tables = Annotated[
    list[str], flag("Names that it is for: a table, 'team/*', or '*'; several times.", "PATTERN")
]
Limits = Annotated[
    list[str],
    flag(
        "What, and how much: queue_calls, call_bytes, inflight_bytes, sessions, tables, rows, "
        "disk_bytes; several times.",
        "LIMIT=COUNT",
    ),
]
_AGAIN = "a running server takes it at SIGHUP"


def add(
    name: Name,
    *,
    tokens: Tokens,
    right: OneRight,
    tables: Tables,
    certificate: Annotated[
        bool, flag("Make no token: a client certificate of this name has the right.")
    ] = False,
    as_json: output.AsJson = False,
) -> None:
    """Make a token, and show it this one time: the file contains only a hash of it.

    A trainer needs the right write: it creates tables, looks up, updates, opens sessions and
    makes checkpoints. Dropping tables, and commands that affect all clients, need admin.
    """
    from embstore_server.access import tokens as file

    secret, hashed = (None, None) if certificate else file.new_secret()
    rights = _rights(right, tables)
    file.check_name(name)

    def added(entries: dict[str, Any]) -> None:
        if name in entries:
            raise InvalidArgumentError(f"{name!r} is there already: grant it more, or remove it")
        entries[name] = file.Entry(name, hashed, rights)

    _change(tokens, added, may_be_new=True)
    token = "" if secret is None else f"{name}.{secret}"
    typer.echo(f"{name} was added; {_AGAIN}", err=True)
    output.show({"name": name, "token": token or None}, token, as_json=as_json)


def grant(
    name: Name, *, tokens: Tokens, right: OneRight, tables: Tables, as_json: output.AsJson = False
) -> None:
    """Give a token a right, in place of its present right on the same tables."""
    rights = _rights(right, tables)

    def granted(entries: dict[str, Any]) -> None:
        entry = entries[_known(name, entries)]
        entries[name] = replace(entry, rights={**entry.rights, **rights})

    _change(tokens, granted)
    text = f"{name} may {right} {', '.join(tables)}; {_AGAIN}"
    output.show({"name": name, "right": right, "tables": tables}, text, as_json=as_json)


def limit(
    name: Name,
    *,
    tokens: Tokens,
    to: Limits,
    as_json: output.AsJson = False,
) -> None:
    """Limit a token's use of shared resources, by a number, or by bytes as 4GiB."""
    from embstore_server.access.tokens import check_limit
    from embstore_server.setup.parsing import pairs

    written = pairs("--to", "LIMIT=COUNT", to)
    limits = {check_limit(what): byte_count("--to", count) for what, count in written.items()}

    def limited(entries: dict[str, Any]) -> None:
        entry = entries[_known(name, entries)]
        entries[name] = replace(entry, limits={**entry.limits, **limits})

    _change(tokens, limited)
    output.show({"name": name, "limits": limits}, f"{name} was limited; {_AGAIN}", as_json=as_json)


def remove(
    name: Name,
    *,
    tokens: Tokens,
    yes: Annotated[bool, YES] = False,
    as_json: output.AsJson = False,
) -> None:
    """Remove a token: a server refuses its calls from then on."""
    if not yes:
        output.ask(f"Refuse the calls of {name!r} from then on?", f"token {name!r}", "removed")
    _change(tokens, lambda entries: entries.pop(_known(name, entries)))
    output.show({"name": name}, f"{name} was removed; {_AGAIN}", as_json=as_json)


def list(*, tokens: Tokens, as_json: output.AsJson = False) -> None:
    """List the tokens and certificates that can call, and their rights."""
    from embstore_server.access.tokens import read

    listed = [
        {
            "name": one.name,
            "shows": "certificate" if one.secret is None else "token",
            "rights": {pattern: right.name.lower() for pattern, right in one.rights.items()},
            "limits": dict(one.limits),
        }
        for one in read(tokens).values()
    ]
    lines = [(str(one["name"]), _written(one)) for one in listed]
    output.show(listed, partial(output.parts, [(str(tokens), lines)]), as_json=as_json)


def _written(one: dict[str, Any]) -> str:
    rights = ", ".join(f"{right} {pattern}" for pattern, right in one["rights"].items())
    limits = "".join(f"; {what} at most {count:,}" for what, count in one["limits"].items())
    return f"{one['shows']}: {rights}{limits}"


def _rights(right: str, tables: Any) -> dict[str, Any]:
    from embstore_server.access.tokens import check_pattern, right_named

    return {check_pattern(pattern): right_named(right) for pattern in tables}


def _known(name: str, entries: dict[str, Any]) -> str:
    if name not in entries:
        raise InvalidArgumentError(
            f"expected one of {', '.join(entries) or 'none'}, found {name!r}"
        )
    return name


def _change(path: Path, how: Callable[[dict[str, Any]], Any], *, may_be_new: bool = False) -> None:
    from embstore_server.access.tokens import change

    change(path, how, may_be_new=may_be_new)
