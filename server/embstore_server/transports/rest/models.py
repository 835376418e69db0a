"""The models of requests and replies; reply models are made from declared stats."""

from dataclasses import dataclass, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from embstore.stats import Stat, declared, document, gauge, text

_EXAMPLES: dict[Any, Any] = {int: 1000, float: 0.5, bool: False}
_KEYS = {"table": "ads", "verb": "Lookup", "code": "OK", "stage": "gather"}
"""Examples of the keys of a stat's dict, by the stat's label."""


class Request(BaseModel):
    """A request's body: types are not converted, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ErrorReply(BaseModel):
    """A refusal. Nothing has changed, unless the message says otherwise."""

    error: str = Field(description="The class of embstore.errors; InternalError: see the log")
    message: str = Field(description="What was expected, and what was found")
    request: str = Field(description="The request's id, as in the log and in X-Request-Id")


REFUSED: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorReply, "description": "Refused"},
}
"""The refusals that any call can get."""


@dataclass
class Context:
    """The store that answered, and its state."""

    store_id: str = text("Id of the directory, which never changes.")
    epoch: int = gauge(
        "1 at first; grows with each restore, and with each crash that lost commands."
    )
    command: int = gauge("Number of the last acknowledged mutating command.")
    instance: str = text("Id of the process's life: it changes with a restart.")


def examples(*values: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a model, with `values` as its examples."""
    return ConfigDict(json_schema_extra={"examples": [*values]})


@cache
def model_of(of: type) -> type[BaseModel]:
    """Return the model of a class of declared stats, with help texts and an example."""
    fields: dict[str, Any] = {}
    for stat in declared(of):
        default = None if NoneType in get_args(stat.type) else ...
        fields[stat.name] = (_modelled(stat.type), Field(default, description=stat.help))
    config = examples(example_of(of))
    return create_model(of.__name__, __doc__=of.__doc__, __config__=config, **fields)


def reply_model(name: str, doc: str, /, **parts: Any) -> type[BaseModel]:
    """Return the model of a reply: a context, and parts given as (type, description)."""
    fields: dict[str, Any] = {
        part: (_modelled(kind), Field(description=text)) for part, (kind, text) in parts.items()
    }
    context = (model_of(Context), Field(description="The state that answered."))
    return create_model(name, __doc__=doc, context=context, **fields)


def reply(context: Any, **parts: Any) -> dict[str, Any]:
    """Return a reply made of the context (the store that answered, and its state) and the given
    parts."""
    return {"context": document(Context, context), **parts}


def _modelled(kind: Any) -> Any:
    """Return a type with its declared classes replaced by models."""
    if is_dataclass(kind):
        return model_of(kind)  # type: ignore[arg-type]  # no instance is a type
    arguments = tuple(map(_modelled, get_args(kind)))
    origin = get_origin(kind)
    return origin[arguments] if origin in (list, dict) else kind


def example_of(of: type) -> dict[str, Any]:
    """Return an example of a document of stats."""
    return {stat.name: _example(stat, stat.type) for stat in declared(of)}


def _example(stat: Stat, kind: Any) -> Any:
    if is_dataclass(kind):
        return example_of(kind)  # type: ignore[arg-type]
    inner = [_example(stat, argument) for argument in get_args(kind)]
    if get_origin(kind) is dict:
        return {_KEYS.get(stat.label, "kind"): inner[1]}
    if get_origin(kind) is list:
        return inner
    return inner[0] if inner else _EXAMPLES.get(kind, stat.name)
