"""Every command travels: what arrives is what was sent."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.commands import COMMANDS, Retry
from embstore_proto.envelope import Origin
from embstore_proto.verbs import VERBS
from tests.commands.values import command

ORIGINS = st.builds(
    Origin,
    client_id=st.text(max_size=4),
    sequence=st.integers(0, 2**64 - 1),
    rank=st.none() | st.integers(0, 2**32 - 1),
)


@pytest.mark.parametrize("name", COMMANDS)
@given(data=st.data())
def test_a_command_arrives_as_it_was_sent(name: str, data: Any) -> None:
    verb = VERBS[name]
    sent = data.draw(command(COMMANDS[name]))
    origin = data.draw(st.none() | ORIGINS) if verb.command.retry is Retry.WINDOW else None
    outgoing = verb.outgoing(sent)
    request = outgoing.serialised(origin)
    if outgoing.message is not None:
        request = outgoing.message.framed(request).joined()
    arrived = verb.arrived(request)
    assert type(arrived.command) is type(sent)
    assert arrived.command == sent
    assert arrived.origin == origin
