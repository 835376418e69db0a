"""What requests and replies have in common: the state that answered, and the form of an error."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from embstore_proto.v1 import embstore_pb2 as pb


def examples(*values: dict[str, Any]) -> ConfigDict:
    """Return what shows `values` as examples of a model."""
    return ConfigDict(json_schema_extra={"examples": [*values]})


class Request(BaseModel):
    """A request's body: types are taken as they come, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Reply(BaseModel):
    """A reply, or a part of one."""

    model_config = ConfigDict(frozen=True)


class Context(Reply):
    """Which state of which store answered."""

    store_id: str = Field(description="The directory's own name, which never changes")
    epoch: int = Field(description="Grows with every restore")
    command: int = Field(description="Number of the last acknowledged mutating command")
    instance: str = Field(description="Of the server's life; another one after a restart")

    @classmethod
    def of(cls, context: pb.Context) -> "Context":
        """Return a gRPC reply's context."""
        return cls(
            store_id=context.store_id,
            epoch=context.epoch,
            command=context.command,
            instance=context.instance,
        )


CONTEXT_EXAMPLE: dict[str, Any] = {
    "store_id": "5c9f5e0d3b7c4d0e",
    "epoch": 1,
    "command": 120000,
    "instance": "0b6ec5a8f1e74f4f9d2f0a4e6f1c2d3b",
}


class ErrorReply(Reply):
    """A refusal. Nothing has changed, unless the message says otherwise."""

    model_config = examples(
        {
            "error": "TableNotFoundError",
            "message": "no table 'adds'; tables are: 'ads', 'users'",
            "request": "4f0c9a5be1d24c55",
        }
    )

    error: str = Field(description="The class of embstore.errors; InternalError: see the log")
    message: str = Field(description="What was expected, and what was found")
    request: str = Field(description="The request's id, as in the log and in X-Request-Id")
