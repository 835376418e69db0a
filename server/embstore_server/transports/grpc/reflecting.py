"""gRPC's reflection: the .proto files, for callers that the server knows.

gRPC accepts messages of any size for reflection. Therefore a request needs a token, if the server
has tokens, and is received like other small requests (receiving.py).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from embstore.errors import DeadlineError, EmbstoreError
from embstore_server.path.service import Service
from embstore_server.transports.grpc.endings import refuse
from embstore_server.transports.grpc.receiving import CONTROL_MAX, Receiving

SERVICE_NAME = reflection.SERVICE_NAME


class Reflection:
    """The service of reflection."""

    def __init__(self, service: Service, receiving: Receiving, names: Sequence[str]) -> None:
        """Prepare to show the services with these names."""
        self._service = service
        self._receiving = receiving
        self._replies = reflection.aio.ReflectionServicer(service_names=names)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handler of ServerReflectionInfo, for `add_generic_rpc_handlers`."""
        method = grpc.stream_stream_rpc_method_handler(
            self._answer,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"ServerReflectionInfo": method})

    async def _answer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            client = self._service.callers.principal_of(context).name or context.peer()
            each = self._each(requests, client)
            async for reply in self._replies.ServerReflectionInfo(each, context):
                yield reply
        except EmbstoreError as exc:
            self._service.memory_trim.release()
            await refuse(context, exc)

    async def _each(self, requests: AsyncIterator[Any], client: str) -> AsyncIterator[Any]:
        seconds = self._service.settings.handshake_timeout_s

        async def read() -> Any:
            async with asyncio.timeout(seconds):
                return await anext(requests, None)

        while True:
            try:
                request = await self._receiving.in_turn(client, CONTROL_MAX, read)
            except TimeoutError:
                raise DeadlineError(f"no request came for {seconds:g} s") from None
            if request is None:
                return
            yield request
