"""The wire form of each verb: converts commands and results to messages and back.

A verb has one name everywhere: as a command, as a method of the .proto file, and as a handler. The
verb's messages are found by that name: the request of the verb `Name` is `NameRequest`, and the
.proto file declares the method's reply. Fields are converted by their annotations (fields.py). A
result is either a dataclass with the reply's fields, or the one field of the reply apart from its
context.

A *control* verb has plain messages. A *bulk* verb has messages {header, padding, payload} with
arrays in the payload (frame.py). Unless the verb is streamed anyway, it also has a stream twin for
large messages.
"""

from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from types import NoneType
from typing import Any, NamedTuple, NoReturn, cast, get_args

from embstore.commands import COMMANDS, Command, Retry
from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.results import Context, RowsRead, StepRows
from embstore_proto.envelope import Origin
from embstore_proto.fields import codec, field_of
from embstore_proto.frame import HEADER_BYTES_MAX, NARROW, Blank, Framed, Message
from embstore_proto.received import Growth, Received, parse, split
from embstore_proto.v1 import embstore_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Embstore"]

_STREAMED_RESULTS = {"LookupStep": StepRows}
"""By verb, the type of a stream's messages, if the command's result has another type."""


class Arrived(NamedTuple):
    """A received command. `stages`: whether the reply is to contain the time of each stage."""

    command: Command[Any]
    origin: Origin | None
    stages: bool
    rows_dtype: str = "float32"
    """The type in which the rows of the reply are to be sent."""
    grown_bytes: int = 0
    """The decoded size, in bytes, of arrays that arrived in a smaller form."""


class Answer(NamedTuple):
    """A received result."""

    value: Any
    context: Context


class Verb:
    """The wire form of one verb: the classes of its messages, and properties derived from them."""

    def __init__(self, command: type[Command[Any]]) -> None:
        self.name = name = command.__name__
        self.command = command
        method = SERVICE.methods_by_name[name]
        (base,) = command.__orig_bases__  # type: ignore[attr-defined]
        self.result: Any = _STREAMED_RESULTS.get(name) or get_args(base)[0]
        """The type of the command's result or, for a stream, of its messages."""
        self.request: Any = getattr(pb, f"{name}Request")
        replied = method.output_type.name
        if replied == "Chunk":  # the pieces of one message; the result's type determines its name
            (kind, *_) = get_args(self.result) or (self.result,)
            replied = "RowsReply" if kind is RowsRead else f"{kind.__name__}Reply"
        self.reply: Any = getattr(pb, replied)
        self.is_bulk = hasattr(self.request, "Header")
        """Whether the request carries arrays."""
        self.has_bulk_reply = hasattr(self.reply, "Header")
        self.is_streamed = bool(method.server_streaming)
        """Whether the reply is always a stream."""
        self.has_twin = f"{name}Stream" in SERVICE.methods_by_name
        """Whether there is a stream twin for large messages."""
        self.reads_rows = self.result is RowsRead and self.reply is pb.RowsReply
        """Whether the reply consists of rows, which are written directly into it."""
        kinds = {f.type for f in fields(cast(Any, command))}
        self.document = "a profile" if Profile in kinds else "a hot set" if HotSet in kinds else ""
        """The kind of file in the request, in words; "": none."""
        self.has_json = not (
            self.is_bulk or self.has_bulk_reply or self.is_streamed or command.retry is Retry.STEP
        )
        """Whether the verb can be called by the JSON form of its messages."""
        self._head = self.request.Header if self.is_bulk else self.request
        self._reply_head = self.reply.Header if self.has_bulk_reply else self.reply

    @cached_property
    def _command_codec(self) -> Any:
        return codec(cast(Any, self.command), self._head.DESCRIPTOR)

    @cached_property
    def _result_codec(self) -> "_Result":
        return _Result(self.result, self._reply_head.DESCRIPTOR)

    # JSON

    def request_of_json(self, text: str | bytes) -> Any:
        """Return the request in a protobuf-JSON text; an empty text is a request without fields."""
        from google.protobuf import json_format  # imported here, as clients do not need it

        if not self.has_json:
            raise InvalidArgumentError(
                f"{self.name} carries arrays or a file, answers by a stream, or finishes a step: "
                f"call it by a client; JSON calls are {', '.join(JSON_VERBS)}"
            )
        text = (text.encode() if isinstance(text, str) else text).strip() or b"{}"
        if not text.startswith(b"{"):  # `Parse` accepts an array as a message without fields
            raise InvalidArgumentError(f"expected the JSON object of a {self.name}Request")
        try:
            return json_format.Parse(text, self.request())
        except (json_format.ParseError, ValueError, RecursionError) as exc:
            raise InvalidArgumentError(f"expected the JSON of a {self.name}Request: {exc}") from exc

    def reply_json(self, value: Any, context: Context) -> str:
        """Return a result as the reply's protobuf-JSON, with field names of the .proto file."""
        from google.protobuf import json_format

        reply = self.reply.FromString(self.framed(value, context).joined())
        return json_format.MessageToJson(
            reply, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
        )

    # Commands

    def outgoing(
        self,
        command: Command[Any],
        message: Message | None = None,
        *,
        rows_dtype: str = "float32",
    ) -> "Outgoing":
        """Return a command, ready to be sent, with its arrays in `message` or in a new one.

        `rows_dtype` is the type in which the server is to send the rows of the reply, if the verb
        supports a choice.
        """
        head, message = self._head(), message or (Message() if self.is_bulk else None)
        if rows_dtype in NARROW and "rows_dtype" in head.DESCRIPTOR.fields_by_name:
            head.rows_dtype = NARROW[rows_dtype]
        self._command_codec.encode(command, head, message)
        return Outgoing(head, message)

    def arrived(
        self,
        request: bytes | memoryview | Received,
        header_bytes_max: int = HEADER_BYTES_MAX,
        *,
        call_bytes_max: int | None = None,
    ) -> Arrived:
        """Return the command of a serialised request, or of a request that arrived in parts.

        Arrays that arrived in a smaller form can have `call_bytes_max` decoded bytes together;
        None: any number. Raises InvalidArgumentError if the request is invalid, or has unknown
        fields or wrong arrays.
        """
        growth = None if call_bytes_max is None else Growth(call_bytes_max)
        if isinstance(request, Received):
            received = request._replace(growth=growth) if self.is_bulk else None
            serialised = request.header
        elif self.is_bulk:
            received = split(request, header_bytes_max, growth)
            serialised = received.header
        else:
            received, serialised = None, bytes(request)
        head = parse(self._head, serialised)
        names = head.DESCRIPTOR.fields_by_name
        origin = None
        if "origin" in names and head.HasField("origin"):
            origin = _ORIGIN.decode(head.origin, None)
        stages = "trace" in names and head.trace.stages
        number = head.rows_dtype if "rows_dtype" in names else pb.DTYPE_FLOAT32
        rows_dtype = _ROWS_DTYPES.get(number) or _no_rows_dtype(number)
        command = self._command_codec.decode(head, received)
        grown_bytes = growth.bytes if growth else 0
        return Arrived(command, origin, stages, rows_dtype, grown_bytes)

    # Results

    def framed(
        self,
        value: Any,
        context: Context,
        *,
        stage_seconds: dict[str, float] | None = None,
        places: Blank | None = None,
    ) -> Framed:
        """Return a result as a serialised reply.

        `stage_seconds` are the times of the call's stages; `places` is the message that already
        contains the arrays of the result.
        """
        head, message = self._reply_head(), places or Message()
        self._result_codec.encode(value, head, message)
        _CONTEXT.encode(context, head.context, None)
        if stage_seconds:
            head.stage_seconds.update(stage_seconds)
        serialised = head.SerializeToString()
        if self.has_bulk_reply:
            return message.framed(serialised)
        return Framed([serialised], len(serialised), serialised)

    def answer(self, reply: bytes | Received) -> Answer:
        """Return the result of a serialised reply."""
        received = reply if isinstance(reply, Received) else None
        head = self._reply_head.FromString(reply if received is None else received.header)
        context = _CONTEXT.decode(head.context, None)
        return Answer(self._result_codec.decode(head, received, context), context)


_ROWS_DTYPES = {pb.DTYPE_UNSPECIFIED: "float32", pb.DTYPE_FLOAT32: "float32"}
_ROWS_DTYPES |= {number: name for name, number in NARROW.items()}


def _no_rows_dtype(number: pb.DType) -> NoReturn:
    raise InvalidArgumentError(f"expected rows_dtype FLOAT32, FLOAT16 or BFLOAT16, found {number}")


@dataclass(frozen=True)
class Outgoing:
    """A command to be sent: its arrays, and its header, in which the origin changes with each
    attempt."""

    head: Any
    message: Message | None

    @property
    def payload_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return 0 if self.message is None else self.message.payload_bytes

    def serialised(self, origin: Origin | None) -> bytes:
        """Return the header; for a control verb, the whole request."""
        if origin is not None:
            _ORIGIN.encode(origin, self.head.origin, None)
        serialised: bytes = self.head.SerializeToString()
        return serialised


class _Result:
    """The wire form of a result: the fields of the reply, or its one field apart from the
    context."""

    def __init__(self, result: Any, descriptor: Any) -> None:
        own = [name for name in descriptor.fields_by_name if name != "context"]
        names = {f.name for f in fields(result)} if is_dataclass(result) else set()
        self._has_command = "command" in names
        self._whole = self._field = None
        if names & set(own) or "context" in names:
            self._whole = codec(result, descriptor)
        elif result is not NoneType:
            self._field = field_of(own[0], result, descriptor.fields_by_name[own[0]])

    def encode(self, value: Any, head: Any, places: Any) -> None:
        if self._whole is not None:
            self._whole.encode(value, head, places)
        elif self._field is not None and (value is not None or not self._field.is_optional):
            self._field.encode(value, head, places)

    def decode(self, head: Any, received: Received | None, context: Context) -> Any:
        if self._whole is not None:
            more = {"command": context.command} if self._has_command else {}
            return self._whole.decode(head, received, **more)
        field = self._field
        if field is None or (field.is_optional and not head.HasField(field.wire_name)):
            return None
        return field.decode(head, received, "the reply")


_CONTEXT = codec(Context, pb.Context.DESCRIPTOR)
_ORIGIN = codec(Origin, pb.Origin.DESCRIPTOR)
VERBS = {name: Verb(command) for name, command in COMMANDS.items()}
"""All verbs, by the name of command and method."""
JSON_VERBS = {name: verb for name, verb in VERBS.items() if verb.has_json}
"""The verbs that can be called by JSON: over REST, and by `embstore call`."""
