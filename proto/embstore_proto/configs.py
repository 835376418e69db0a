"""Tables as messages and back: configurations, and what a table is today."""

from dataclasses import dataclass, fields
from typing import Any

from embstore.config import INITIALIZERS, OPTIMIZERS, TableConfig
from embstore.errors import InvalidArgumentError
from embstore_proto.v1 import embstore_pb2 as pb


@dataclass(frozen=True)
class Described:
    """A table as a server describes it."""

    config: TableConfig  # with today's rows and learning rate
    table_id: int
    t: int


def message_of(config: TableConfig) -> pb.TableConfig:
    """Return a configuration as a message; every value is given."""
    message = pb.TableConfig(name=config.name, dim=config.dim, rows=config.rows, seed=config.seed)
    for part in (config.optimizer, config.initializer):
        into = getattr(message, part.kind)
        into.SetInParent()  # one whose values are all 0 is given too
        for field in fields(part):
            setattr(into, field.name, getattr(part, field.name))
    return message


def config_of(message: pb.TableConfig) -> TableConfig:
    """Return the configuration of a message, checked.

    Raises
    ------
    InvalidArgumentError
    """
    if message.key_space != pb.KEY_SPACE_DENSE:
        raise InvalidArgumentError(
            f"table {message.name!r}: expected key_space dense, found {message.key_space}"
        )
    return TableConfig.checked(
        message.name,
        dim=message.dim,
        rows=message.rows,
        optimizer=_part(message, "optimizer", OPTIMIZERS),
        initializer=_part(message, "initializer", INITIALIZERS),
        seed=message.seed if message.HasField("seed") else None,
    )


def _part(message: pb.TableConfig, oneof: Any, kinds: dict[str, type[Any]]) -> Any:
    """Return the optimizer or initializer that is set; what is absent has its default."""
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


def description_of(described: Described) -> pb.TableDescription:
    """Return a table as a message."""
    return pb.TableDescription(
        config=message_of(described.config),
        table_id=described.table_id,
        t=described.t,
        state_dim=described.config.state_dim,
    )


def described_of(message: pb.TableDescription) -> Described:
    """Return the table of a message, checked as any configuration."""
    return Described(config_of(message.config), message.table_id, message.t)
