"""Conversion of values to messages and back, by the annotations of their fields.

Commands, their parts and their results are dataclasses, and a message of the .proto file has fields
of the same names. So one codec works for all: the annotation of a field determines its form in the
message.

    int, float, bool, str     unchanged; an absent field means the default, if presence is recorded
    Literal["a", "b"]         an enum of the message, whose names end in A, B
    X | None                  None is sent as an absent field
    NDArray with ArraySpec    a position in the payload (frame.py); dtype and dimensions are checked
    Profile, HotSet           the bytes of its file, as an array of uint8
    dict[str, Any]            JSON, in the field NAME_json
    dict[str, int or str]     a map
    tuple[X, ...]             repeated
    a dataclass               a message
    TableConfig               a message with a oneof for optimizer and initializer (configs.py)

A field of the dataclass is not sent if the message has no field of its name. For example, `command`
of an acknowledgement is read from the reply's context instead. A codec is made once per pair of
dataclass and message type.
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
from embstore.results import ServerInfo, ServerLimits
from embstore_proto.configs import config_of, message_of
from embstore_proto.frame import DTYPES
from embstore_proto.received import array_of
from embstore_proto.v1 import embstore_pb2 as pb

Encode = Callable[[Any, Any, Any], None]
"""encode(value, message, places): set the field of the message; arrays are added to `places`."""
Decode = Callable[[Any, Any, str], Any]
"""decode(message, received, what): return the field; `what` names it in errors."""


class Field(NamedTuple):
    """The conversion of a field that is not a scalar; `Codec` itself converts arrays and parts."""

    name: str
    encode: Encode
    decode: Decode
    wire_name: str
    is_optional: bool
    array: ArraySpec | None = None
    parts: "Codec | None" = None


class Codec:
    """Converts values of one dataclass into messages of one type, and back.

    The common kinds of fields (numbers, names, arrays, parts) are handled by loops: a function per
    field would be slow.
    """

    def __init__(self, cls: Any, descriptor: Descriptor) -> None:
        self._cls = cls
        hints = hints_of(cls, include_extras=True)
        self._scalars: list[tuple[str, bool, bool, Any]] = []
        """Scalar fields: the name, whether None is sent as absent, whether the message records
        presence, and the value of an absent field."""
        self._fields: list[Field] = []
        for one in fields(cls):
            hint = hints[one.name]
            name = f"{one.name}_json" if hint == dict[str, Any] else one.name
            wire = descriptor.fields_by_name.get(name)
            default = None if one.default is MISSING else one.default
            if wire is None:
                continue
            given, is_optional = _given(hint)
            is_text = isinstance(default, str) and default != "" and not wire.has_presence
            if given in _SCALARS and not is_text:
                tells_absence = wire.has_presence and (is_optional or default is not None)
                self._scalars.append((name, is_optional, tells_absence, default))
            else:
                self._fields.append(field_of(one.name, hint, wire, default))
        self._has_table = "table" in descriptor.fields_by_name

    def encode(self, value: Any, message: Any, places: Any) -> None:
        """Set the fields of a message."""
        name = ""
        try:
            for name, is_optional, _, _ in self._scalars:
                found = getattr(value, name)
                if found is not None or not is_optional:
                    setattr(message, name, found)
        except (ValueError, TypeError) as exc:
            raise InvalidArgumentError(f"expected {name} that can be sent: {exc}") from exc
        for name, encode, _, _, is_optional, array, parts in self._fields:
            found = getattr(value, name)
            if found is None and is_optional:
                continue
            if array is not None:
                getattr(message, name).CopyFrom(places.add(found))
            elif parts is not None:
                repeated = getattr(message, name)
                for part in found:
                    parts.encode(part, repeated.add(), places)
            else:
                encode(found, message, places)

    def decode(self, message: Any, received: Any, **more: Any) -> Any:
        """Return the value in a message; `more` contains fields of the value that the message
        lacks.

        Raises InvalidArgumentError if an array has another dtype or shape or is outside the
        payload, or if an enum or a document is invalid.
        """
        where = f"table {message.table!r}: " if self._has_table else ""
        for name, _, tells_absence, absent in self._scalars:
            is_there = not tells_absence or message.HasField(name)
            more[name] = getattr(message, name) if is_there else absent
        for name, _, decode, wire_name, is_optional, array, parts in self._fields:
            if is_optional and not message.HasField(wire_name):
                more[name] = None
            elif array is not None:
                more[name] = array_of(received, getattr(message, name), *array, where + name)
            elif parts is not None:
                found: list[Any] = []
                for part in getattr(message, name):
                    found.append(parts.decode(part, received))  # noqa: PERF401 - a frame less
                more[name] = tuple(found)
            else:
                more[name] = decode(message, received, where + name)
        return self._cls(**more)


@cache
def codec(cls: Any, descriptor: Descriptor) -> Codec:
    """Return the codec for values of a class and messages of a type."""
    return _SPECIAL.get(cls, Codec)(cls, descriptor)


def _given(hint: Any) -> tuple[Any, bool]:
    """Return an annotation without its `| None`, and whether it has a `| None`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    given = next(part for part in get_args(hint) if part is not NoneType)
    return given, NoneType in get_args(hint)


def field_of(name: str, hint: Any, wire: FieldDescriptor, default: Any = None) -> Field:
    """Return how a value of this annotation is encoded in a field of a message."""
    given, is_optional = _given(hint)
    if get_origin(given) is Annotated:
        array = given.__metadata__[0]
        return Field(name, _by_codec, _by_codec, wire.name, is_optional, array)
    kind: Any = get_args(given)[0] if get_origin(given) is tuple else None
    parts = codec(cast(Any, kind), wire.message_type) if is_dataclass(kind) else None
    return Field(name, *_plain(given, wire, default), wire.name, is_optional, None, parts)


def _by_codec(*_: Any) -> NoReturn:
    raise AssertionError("arrays travel by Codec")


def _plain(hint: Any, wire: FieldDescriptor, default: Any) -> tuple[Encode, Decode]:
    """Return the functions that encode and decode a field that is present."""
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
    """Return the functions that convert a number or text. An absent text equals an empty one."""
    name = wire.name
    if default:
        return lambda v, m, _: setattr(m, name, v), lambda m, r, _: getattr(m, name) or default
    return lambda v, m, _: setattr(m, name, v), lambda m, r, _: getattr(m, name)


_SCALARS = (int, float, bool, str)


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
        if has_state_dim:  # only in descriptions, for clients that do not know optimizers
            message.state_dim = value.state_dim

    return encode, lambda m, r, what: config_of(getattr(m, name))


class _Infos(Codec):
    """The codec of a server's facts about itself, with more facts that a client's code cannot
    know."""

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
            key_spaces=[pb.KEY_SPACE_DENSE, pb.KEY_SPACE_SPARSE],
        )
        message.MergeFrom(more)

    def decode(self, message: Any, received: Any, **more: Any) -> Any:
        facts = {field.name: value for field, value in message.device_info.ListFields()}
        server = codec(*self._LIMITS).decode(message.limits, None)
        names = {number: name for name, number in pb.DType.items()}
        dtypes = (names.get(number, "") for number in message.dtypes)  # newer servers know more
        known = tuple(name.removeprefix("DTYPE_").lower() for name in dtypes if name)
        return super().decode(
            message, received, device_info=facts, server=server, wire_dtypes=known
        )


_SPECIAL: dict[Any, type[Codec]] = {ServerInfo: _Infos}
