"""Which labels a caller may make, protect and drop."""

from typing import Any

import pytest

from embstore import commands as c
from embstore.errors import (
    CheckpointNotFoundError,
    CheckpointProtectedError,
    PermissionDeniedError,
)
from tests.service.access.tenants import Caller, serving, token_of


def test_who_may_make_a_checkpoint_may_drop_it_and_no_more(tmp_path):
    def refused(caller: Caller, label: str, retention: Any) -> None:
        with pytest.raises(PermissionDeniedError, match=f"on '{label}'"):
            caller.execute(c.SetRetention(label, retention))

    with (
        serving(tmp_path) as server,
        Caller(server.address, token_of("writer")) as writer,
        Caller(server.address, token_of("reader")) as reader,
        Caller(server.address, token_of("owner")) as owner,
    ):
        for label in ("a/one", "a/two"):
            writer.execute(c.Checkpoint(label, {}))
        refused(reader, "a/one", "dropped")
        refused(writer, "b/none", "dropped")
        refused(writer, "first", "dropped")
        for retention in ("protected", "routine"):
            refused(writer, "a/one", retention)
        owner.execute(c.SetRetention("a/two", "protected"))
        with pytest.raises(CheckpointProtectedError):
            writer.execute(c.SetRetention("a/two", "dropped"))
        writer.execute(c.SetRetention("a/one", "dropped"))
        with pytest.raises(CheckpointNotFoundError):
            writer.execute(c.SetRetention("a/one", "dropped"))
