"""What a store refuses in its replication role."""

import pytest

from embstore import commands as c
from embstore.engine.replication_role import ReplicationRole
from embstore.errors import PermissionDeniedError


@pytest.mark.parametrize("role", ["leader", "replaced_by"])
def test_a_standby_or_a_replaced_leader_answers_no_part_of_a_clusters_read(role):
    own, read = ReplicationRole(), c.GetTable("a")
    own.check(read, is_part=True)
    setattr(own, role, "127.0.0.1:1")
    own.check(read)
    with pytest.raises(PermissionDeniedError):
        own.check(read, is_part=True)
