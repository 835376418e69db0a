"""Configurations of tables, converted to messages and back."""

from dataclasses import fields
from typing import Any

from embstore.config import INITIALIZERS, OPTIMIZERS, TableConfig
from embstore.errors import InvalidArgumentError
from embstore_proto.v1 import embstore_pb2 as pb

_KEY_SPACES = {"dense": pb.KEY_SPACE_DENSE, "sparse": pb.KEY_SPACE_SPARSE}


def message_of(config: TableConfig, message: Any) -> None:
    """Write a configuration into a message; every value is set, including defaults."""
    message.name, message.dim, message.rows = config.name, config.dim, config.rows
    message.seed, message.key_space = config.seed, _KEY_SPACES[config.key_space]
    for part in (config.optimizer, config.initializer):
        into = getattr(message, part.kind)
        into.SetInParent()  # makes the part present even if all its values are 0
        for field in fields(part):
            setattr(into, field.name, getattr(part, field.name))


def config_of(message: Any) -> TableConfig:
    """Return the configuration in a message. Raises InvalidArgumentError if it is invalid."""
    key_space = next((k for k, v in _KEY_SPACES.items() if v == message.key_space), None)
    if key_space is None:
        raise InvalidArgumentError(
            f"table {message.name!r}: expected key_space dense or sparse, found {message.key_space}"
        )
    return TableConfig.checked(
        message.name,
        dim=message.dim,
        rows=message.rows or (0 if key_space == "dense" else None),
        optimizer=_part(message, "optimizer", OPTIMIZERS),
        initializer=_part(message, "initializer", INITIALIZERS),
        seed=message.seed if message.HasField("seed") else None,
        key_space=key_space,
    )


def _part(message: Any, oneof: str, kinds: dict[str, type[Any]]) -> Any:
    """Return the optimizer or initializer that a message contains; absent values have their
    defaults."""
    kind = message.WhichOneof(oneof)
    if kind is None:
        raise InvalidArgumentError(
            f"table {message.name!r}: expected an {oneof}, one of {', '.join(kinds)}"
        )
    part = getattr(message, kind)
    values = {
        field.name: getattr(part, field.name)
        for field in fields(kinds[kind])
        if not part.DESCRIPTOR.fields_by_name[field.name].has_presence or part.HasField(field.name)
    }
    return kinds[kind](**values)
