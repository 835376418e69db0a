"""Requests made of the OpenAPI document, of every operation, by callers with a token and without.

Answers are of a documented status, type and schema; no refusal is the server's own mistake; what
was acknowledged was done, and nothing else was.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.service.access.tenants import token_of, write_tokens
from tests.service.faults.logged import LoggedServer
from tests.service.faults.mutated import CACHE_BYTES

COUNT, REFUSED, SOAKED = 5, 1, 300
"""Requests of an operation that fit, and as many that do not, and as many about what there is: in
`make test`, of those who may do little, and in `make soak`."""
TOKENS = ["operator", "reader", "wrong", "none"]


@pytest.fixture(scope="module")
def servers(module_path: Path) -> Iterator[dict[bool, LoggedServer]]:
    """A server that knows nobody, and one of tokens."""
    tokens = write_tokens(module_path / "tokens.json")
    options = ("--cache-bytes", str(CACHE_BYTES), "--backup-within", str(module_path / "backups"))
    with (
        LoggedServer(module_path / "open", *options) as anybody,
        LoggedServer(module_path / "known", *options, "--tokens", str(tokens)) as known,
    ):
        yield {False: anybody, True: known}


def token(caller: str) -> str | None:
    """Return what a caller shows."""
    shown = {"wrong": "operator.no-such-secret", "none": None, "anybody": None}
    return shown[caller] if caller in shown else token_of(caller)


@pytest.mark.parametrize("caller", ["anybody", *TOKENS])
def test_documented_requests_are_answered_as_documented(caller, servers, pytestconfig):
    from tests.service.faults.documented import PROBES, Requests  # whose imports take seconds

    server, may_act = servers[caller in TOKENS], caller in ("anybody", "operator")
    count = COUNT if may_act else REFUSED
    if pytestconfig.getoption("soak") > 1:
        count = SOAKED if may_act else SOAKED // 10
    operator = token_of("operator") if caller in TOKENS else None
    total: Counter[int] = Counter()
    with closing(Requests(server, token(caller), operator)) as requests:
        requests.begin()
        for operation in requests.operations():
            statuses = requests.request(operation, count)
            sys.stdout.write(f"{operation.label} {dict(statuses)}\n")
            if caller in ("wrong", "none"):
                assert statuses.keys() == {200 if operation.path in PROBES else 401}
            total += statuses
            if may_act:
                requests.end()
                requests.begin()
        requests.end()
        requests.store.check_integrity()
    assert total[200] and (total[400] or not may_act)
    assert not server.complaints()
