"""The JSON Schema of a message's protobuf-JSON, for the OpenAPI document.

A reply contains every field without presence (in protobuf's sense), under its name in the .proto
file. Requests are accepted in more forms than the schema describes: with lowerCamelCase names, and
with null for an absent field.
"""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_FLOAT: dict[str, Any] = {
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}


def _small(lowest: int, highest: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def _large(lowest: int, highest: int) -> dict[str, Any]:
    """Return the schema of a 64-bit integer. As it may be too large for a JSON number, replies
    contain a string."""
    digits = {"type": "string", "pattern": "^-?[0-9]{1,19}$" if lowest else "^[0-9]{1,20}$"}
    return {"anyOf": [digits, _small(lowest, highest)]}


_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_DOUBLE: _FLOAT,
    FieldDescriptor.TYPE_FLOAT: _FLOAT,
    FieldDescriptor.TYPE_INT32: _small(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: _large(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_UINT32: _small(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: _large(0, 2**64 - 1),
}


def schema_of(message: Descriptor, *, is_reply: bool) -> dict[str, Any]:
    """Return the schema of a message, including the schemas of its parts."""
    schema: dict[str, Any] = {
        "type": "object",
        "title": message.name,
        "properties": {f.name: _field(f, is_reply) for f in message.fields},
        "additionalProperties": False,
    }
    choices = [one for one in message.oneofs if len(one.fields) > 1]
    if choices:
        schema["allOf"] = [
            {"not": {"required": [one.name, other.name]}}
            for choice in choices
            for n, one in enumerate(choice.fields)
            for other in choice.fields[:n]
        ]
    if is_reply and (always := [f.name for f in message.fields if not f.has_presence]):
        schema["required"] = always
    return schema


def _field(field: Any, is_reply: bool) -> dict[str, Any]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        value = _value(message.fields_by_name["value"], is_reply)
        return {"type": "object", "additionalProperties": value}
    value = _value(field, is_reply)
    return {"type": "array", "items": value} if _is_repeated(field) else value


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):  # not before protobuf 6.31, which has deprecated `label`
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def _value(field: Any, is_reply: bool) -> dict[str, Any]:
    if field.message_type is not None:
        return schema_of(field.message_type, is_reply=is_reply)
    if field.enum_type is not None:
        return {"enum": [value.name for value in field.enum_type.values]}
    return _SCALARS[field.type]
