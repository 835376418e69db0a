"""Values as messages and back, by the annotations of their fields.

A command and its parts, and what they return, are dataclasses; a message of the .proto file has
fields of the same names. So one codec serves all: a field's annotation says how it travels.

    int, float, bool, str     as they are; where the message tells absence, absent is the default
    Literal["a", "b"]         an enum of the message, whose names end in A, B
    X | None                  absent for None
    NDArray with ArraySpec    a place in the payload (frame.py); dtype and dimensions are checked
    Profile, HotSet           the bytes of its file, as an array of uint8
    dict[str, Any]            JSON, in the field NAME_json
    dict[str, int or str]     a map
    tuple[X, ...]             repeated
    a dataclass               a message
    TableConfig               a message with a oneof for optimizer and initializer (configs.py)

A field of a dataclass that the message has not is not sent; `command` of an acknowledgement is that
of the reply's context. Codecs are made once for a pair of dataclass and message.
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Union, cast, get_args, get_origin
from typing import get_type_hints as hints_of

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from embstore.arrays import ArraySpec
from embstore.config import INITIALIZERS, OPTIMIZERS, TableConfig
from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.results import (
    Checkpoint,
    ServerInfo,
    ServerLimits,
    State,
    TableDescription,
    TableEntry,
)
from embstore_proto.configs import config_of, message_of
from embstore_proto.frame import (
    DTYPES,
)
from embstore_proto.received import (
    array_of,
)
from embstore_proto.v1 import embstore_pb2 as pb

Encode = Callable[[Any, Any, Any], None]
"""encode(value, message, places): set the field of the message; arrays go to `places`."""
Decode = Callable[[Any, Any, str], Any]
"""decode(message, received, what): return the field; `what` names it in errors."""


class Field(NamedTuple):
    """How one field travels; of an array `Codec` knows, since a function for each is slow."""

    name: str
    encode: Encode
    decode: Decode
    wire_name: str
    is_optional: bool
    """Absent for None."""
    array: ArraySpec | None = None


class Codec:
    """Turns values of one dataclass into messages of one type, and back."""

    def __init__(self, cls: Any, descriptor: Descriptor) -> None:
        self._cls = cls
        hints = hints_of(cls, include_extras=True)
        self._scalars: list[str] = []
        """Fields that travel as they are. One loop sets them: a function for each is slow."""
        self._fields: list[Field] = []
        for one in fields(cls):
            hint = hints[one.name]
            name = f"{one.name}_json" if hint == dict[str, Any] else one.name
            wire = descriptor.fields_by_name.get(name)
            default = None if one.default is MISSING else one.default
            if wire is None:
                continue
            if hint in _SCALARS and not _needs_default(wire, default):
                self._scalars.append(name)
            else:
                self._fields.append(field_of(one.name, hint, wire, default))
        self._has_table = "table" in descriptor.fields_by_name

    def encode(self, value: Any, message: Any, places: Any) -> None:
        """Set the fields of a message."""
        name = ""
        try:
            for name in self._scalars:
                setattr(message, name, getattr(value, name))
        except (ValueError, TypeError) as exc:
            raise _cannot_be_sent(name, exc) from exc
        for name, encode, _, _, is_optional, array in self._fields:
            found = getattr(value, name)
            if found is None and is_optional:
                continue
            if array is not None:
                getattr(message, name).CopyFrom(places.add(found))
            else:
                encode(found, message, places)

    def decode(self, message: Any, received: Any, **more: Any) -> Any:
        """Return the value of a message; `more` are fields that it has not.

        Raises InvalidArgumentError: an array of another dtype or shape, or outside the payload; an
        enum or document that is none.
        """
        where = f"table {message.table!r}: " if self._has_table else ""
        for name in self._scalars:
            more[name] = getattr(message, name)
        for name, _, decode, wire_name, is_optional, array in self._fields:
            if is_optional and not message.HasField(wire_name):
                more[name] = None
            elif array is not None:
                more[name] = array_of(received, getattr(message, name), *array, where + name)
            else:
                more[name] = decode(message, received, where + name)
        return self._cls(**more)


@cache
def codec(cls: Any, descriptor: Descriptor) -> Codec:
    """Return what encodes values of a class into messages of a type, and decodes them."""
    return _SPECIAL.get(cls, Codec)(cls, descriptor)


def field_of(name: str, hint: Any, wire: FieldDescriptor, default: Any = None) -> Field:
    """Return how a value of this annotation travels in a field of a message."""
    is_optional = False
    if get_origin(hint) in (Union, UnionType):
        is_optional = NoneType in get_args(hint)
        hint = next(part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is Annotated:
        return Field(name, _no_way, _no_way, wire.name, is_optional, hint.__metadata__[0])
    return Field(name, *_plain(hint, wire, default), wire.name, is_optional)


def _no_way(*_: Any) -> NoReturn:
    raise AssertionError("arrays travel by Codec")


def _plain(hint: Any, wire: FieldDescriptor, default: Any) -> tuple[Encode, Decode]:
    """Return how a field travels that is there."""
    origin, name = get_origin(hint), wire.name
    if origin is Literal:
        return _literal(wire)
    if origin is tuple:
        return _tuple(wire, get_args(hint)[0])
    if hint == dict[str, Any]:
        return _json(name)
    if origin is dict:
        return lambda v, m, _: getattr(m, name).update(v), lambda m, r, _: dict(getattr(m, name))
    if hint in (Profile, HotSet):
        return _document(name, hint)
    if hint is TableConfig:
        return _config(wire)
    if is_dataclass(hint):
        return _message(wire, hint)
    return _scalar(wire, default)


def _scalar(wire: FieldDescriptor, default: Any) -> tuple[Encode, Decode]:
    name = wire.name

    def encode(value: Any, message: Any, places: Any) -> None:
        try:
            setattr(message, name, value)
        except (ValueError, TypeError) as exc:
            raise _cannot_be_sent(name, exc) from exc

    if wire.has_presence and default is not None:
        return encode, lambda m, r, what: getattr(m, name) if m.HasField(name) else default
    if _needs_default(wire, default):  # absent and empty are one on the wire
        return encode, lambda m, r, what: getattr(m, name) or default
    return encode, lambda m, r, what: getattr(m, name)


_SCALARS = (int, float, bool, str)


def _needs_default(wire: FieldDescriptor, default: Any) -> bool:
    """Return whether what is absent on the wire has a default of its own."""
    return default is not None if wire.has_presence else isinstance(default, str) and default != ""


def _cannot_be_sent(name: str, exc: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(f"expected {name} that can be sent: {exc}")


def _literal(wire: FieldDescriptor) -> tuple[Encode, Decode]:
    assert wire.enum_type is not None
    prefix = "".join(f"_{c}" if c.isupper() else c for c in wire.enum_type.name).strip("_").upper()
    numbers = {
        value.name.removeprefix(f"{prefix}_").lower(): value.number
        for value in wire.enum_type.values
    }
    words = {number: word for word, number in numbers.items()}
    name = wire.name

    def encode(value: Any, message: Any, places: Any) -> None:
        setattr(message, name, numbers[value])

    def decode(message: Any, received: Any, what: str) -> Any:
        number = getattr(message, name)
        if number not in words:
            expected = " or ".join(word.upper() for word in numbers)
            raise InvalidArgumentError(f"{what}: expected {expected}, found {number}")
        return words[number]

    return encode, decode


def _document(name: str, kind: Any) -> tuple[Encode, Decode]:
    def encode(value: Any, message: Any, places: Any) -> None:
        content = np.frombuffer(value.to_bytes(), np.uint8)
        getattr(message, name).CopyFrom(places.add(content))

    def decode(message: Any, received: Any, what: str) -> Any:
        content = array_of(received, getattr(message, name), "u1", 1, what)
        return kind.from_bytes(content.tobytes(), f"the {name.replace('_', ' ')}")

    return encode, decode


def _json(name: str) -> tuple[Encode, Decode]:
    def encode(value: Any, message: Any, places: Any) -> None:
        setattr(message, name, json.dumps(value))

    def decode(message: Any, received: Any, what: str) -> Any:
        try:
            return json.loads(getattr(message, name) or "{}")
        except (ValueError, RecursionError) as exc:
            raise InvalidArgumentError(f"expected {name} to be a JSON object: {exc}") from exc

    return encode, decode


def _tuple(wire: FieldDescriptor, inner: Any) -> tuple[Encode, Decode]:
    name = wire.name
    if not is_dataclass(inner):

        def extend(value: Any, message: Any, places: Any) -> None:
            getattr(message, name).extend(value)

        return extend, lambda m, r, what: tuple(getattr(m, name))
    of_part = codec(cast(Any, inner), wire.message_type)

    def encode(value: Any, message: Any, places: Any) -> None:
        repeated = getattr(message, name)
        for part in value:
            of_part.encode(part, repeated.add(), places)

    def decode(message: Any, received: Any, what: str) -> Any:
        return tuple([of_part.decode(part, received) for part in getattr(message, name)])

    return encode, decode


def _message(wire: FieldDescriptor, kind: Any) -> tuple[Encode, Decode]:
    name, of_part = wire.name, codec(kind, wire.message_type)

    def encode(value: Any, message: Any, places: Any) -> None:
        part = getattr(message, name)
        part.SetInParent()
        of_part.encode(value, part, places)

    return encode, lambda m, r, what: of_part.decode(getattr(m, name), r)


def _config(wire: FieldDescriptor) -> tuple[Encode, Decode]:
    name = wire.name
    has_state_dim = "state_dim" in cast(Descriptor, wire.containing_type).fields_by_name

    def encode(value: Any, message: Any, places: Any) -> None:
        message_of(value, getattr(message, name))
        if has_state_dim:  # of a description: for clients that know no optimizers
            message.state_dim = value.state_dim

    return encode, lambda m, r, what: config_of(getattr(m, name))


class _Checkpoints(Codec):
    """A kept checkpoint, its tables described."""

    _TABLES = TableDescription, pb.TableDescription.DESCRIPTOR

    def encode(self, value: Checkpoint, message: Any, places: Any) -> None:
        super().encode(value, message, places)
        message.command = value.state.command
        for entry in value.state.tables:
            described = TableDescription(entry.config(), entry.table_id, entry.t)
            codec(*self._TABLES).encode(described, message.tables.add(), places)

    def decode(self, message: Any, received: Any, **more: Any) -> Any:
        tables = [codec(*self._TABLES).decode(part, received) for part in message.tables]
        entries = tuple(
            TableEntry(
                table.table_id,
                table.config.identity(),
                table.config.rows,
                table.config.optimizer.learning_rate,
                table.t,
            )
            for table in tables
        )
        return super().decode(message, received, state=State(0, message.command, entries))


class _Infos(Codec):
    """What a server says of itself, with what a client's code cannot know."""

    _LIMITS = ServerLimits, pb.ServerLimits.DESCRIPTOR

    def encode(self, value: ServerInfo, message: Any, places: Any) -> None:
        super().encode(value, message, places)
        codec(*self._LIMITS).encode(value.server, message.limits, places)
        names = pb.DeviceInfo.DESCRIPTOR.fields_by_name
        facts = {name: fact for name, fact in value.device_info.items() if name in names}
        more = pb.GetServerInfoReply(
            device_info=pb.DeviceInfo(**facts),
            dtypes=DTYPES,
            optimizers=OPTIMIZERS,
            initializers=INITIALIZERS,
            key_spaces=[pb.KEY_SPACE_DENSE],
        )
        message.MergeFrom(more)

    def decode(self, message: Any, received: Any, **more: Any) -> Any:
        facts = {field.name: value for field, value in message.device_info.ListFields()}
        server = codec(*self._LIMITS).decode(message.limits, None)
        names = {number: name for name, number in pb.DType.items()}
        dtypes = (names.get(number, "") for number in message.dtypes)  # a newer server's are more
        known = tuple(name.removeprefix("DTYPE_").lower() for name in dtypes if name)
        return super().decode(
            message, received, device_info=facts, server=server, wire_dtypes=known
        )


_SPECIAL: dict[Any, type[Codec]] = {Checkpoint: _Checkpoints, ServerInfo: _Infos}
