"""What a client says of a call that was not answered in time: by the effect of its command."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.commands import COMMANDS, Effect, Retry
from embstore.errors import DeadlineError
from embstore_client.grpc_wire import GrpcWire
from embstore_client.transport import Transport
from embstore_proto.verbs import VERBS
from tests.commands.values import command

PATIENCE_S = 300.0
NOTHING = "did not answer in time"
READ_T = "it may have been applied: read t and the command number before another try"
LOOK = "it may have been applied: look whether it was before another try"
AGAIN = "if it was started, it goes on to its end, and may be sent again"
ADVICE = {
    (Effect.READS, Retry.FREE): NOTHING,
    (Effect.PROMPT, Retry.FREE): NOTHING,
    (Effect.WRITES, Retry.WINDOW): READ_T,
    (Effect.WRITES, Retry.STEP): READ_T,
    (Effect.TUNES, Retry.WINDOW): LOOK,
    (Effect.TUNES, Retry.FREE): AGAIN,
    (Effect.LONG, Retry.FREE): "; it may be sent again",
}


class Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Takes every call, and answers none."""

    def service(self, details: Any) -> Any:
        def never(_: Any, context: Any) -> Any:
            over = threading.Event()
            context.add_callback(over.set)
            over.wait(PATIENCE_S)

        return grpc.stream_stream_rpc_method_handler(never)


@pytest.fixture(scope="module")
def transport() -> Iterator[Transport]:
    with ThreadPoolExecutor(len(COMMANDS)) as threads:
        server = grpc.server(threads, handlers=[Silent()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        made = Transport(GrpcWire(address, label=""), address, timeout_s=0.05)
        yield made
        made.close()
        server.stop(None).wait(PATIENCE_S)


@pytest.mark.parametrize("name", COMMANDS)
@settings(max_examples=1)
@given(data=st.data())
def test_a_timeout_advises_by_the_effect_of_its_command(transport, name, data):
    verb = VERBS[name]
    request = verb.outgoing(data.draw(command(verb.command)))
    with pytest.raises(DeadlineError) as caught:
        if verb.is_streamed and not verb.is_bulk:
            transport.receive(verb, request, list)
        else:
            transport.send(verb, request)
    expected = ADVICE[verb.command.effect, verb.command.retry]
    assert str(caught.value).endswith(expected)
