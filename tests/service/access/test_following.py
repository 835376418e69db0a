"""A standby shows a token, and follows for as long as that is let in."""

import os

from embstore.config import Constant, Sgd
from embstore_client import connect
from embstore_server.access.tokens import change
from embstore_server.setup.launch import ServerProcess
from tests.service.access.tenants import token_of, write_tokens
from tests.service.faults.following import await_role, contents
from tests.service.faults.served import PATIENCE_S, until

DURABLE = ("--device", "cpu", "--cache-bytes", "4MiB", "--durability", "commands")


def test_a_standby_follows_with_a_token_until_it_is_removed(tmp_path):
    """The leader ends the stream that runs, and says who followed; what it wrote is readable for
    its owner alone."""
    tokens = write_tokens(tmp_path / "tokens.json", "operator", "owner")
    shown, token = tmp_path / "token", token_of("operator")
    shown.write_text(f"{token}\n")
    flags = (*DURABLE, "--tokens", str(tokens))
    with ServerProcess(tmp_path / "leader", *flags) as leader:
        follow = ("--follow", leader.address, "--follow-token", str(shown))
        with (
            ServerProcess(tmp_path / "standby", *flags, *follow) as standby,
            connect(leader.address, token=token, timeout_s=PATIENCE_S) as store,
            connect(standby.address, token=token, timeout_s=PATIENCE_S) as copy,
        ):
            await_role(store, standbys=1)
            store.create_table("a/t", dim=2, rows=10, optimizer=Sgd(1.0), initializer=Constant(1.0))
            until(lambda: copy.server_info().context.command == store.command)
            assert contents(copy) == contents(store)
            change(tokens, lambda entries: entries.pop("operator"))
            leader.reload("tokens read")
            until(lambda: any('"Follow"' in line and "UNAUTH" in line for line in leader.log))
    for folder, _, files in os.walk(tmp_path / "leader"):
        for path in (folder, *(os.path.join(folder, file) for file in files)):
            assert os.stat(path).st_mode & 0o077 == 0, path
