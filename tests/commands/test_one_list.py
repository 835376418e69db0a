"""Every verb is described once; what is found by its name is there, everywhere."""

from typing import Any

import pytest

from embstore.commands import COMMANDS, Effect, Retry
from embstore.engine.engine import HANDLERS
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.verbs import VERBS
from tests.commands import model

METHODS = pb.DESCRIPTOR.services_by_name["Embstore"].methods_by_name


def test_commands_handlers_rows_methods_and_the_model_have_the_same_verbs() -> None:
    verbs = set(COMMANDS)
    assert {kind.__name__ for kind in HANDLERS} == verbs
    assert {verb.name for verb in VERBS.values()} == set(VERBS) == verbs
    assert {name for name in METHODS if name.removesuffix("Stream") not in METHODS} <= verbs
    assert {name.removesuffix("Stream") for name in METHODS} == verbs
    assert {kind.__name__ for kind in model.VERBS} == verbs


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_a_verb_has_the_messages_of_its_method(verb: Any) -> None:
    one_message = METHODS[verb.name].input_type is verb.request.DESCRIPTOR
    assert one_message or (verb.is_streamed and METHODS[verb.name].input_type.name == "Chunk")
    if not verb.is_streamed or verb.name == "WarmCache":
        assert METHODS[verb.name].output_type is verb.reply.DESCRIPTOR
    if verb.has_twin:
        assert verb.is_bulk
        assert METHODS[f"{verb.name}Stream"].input_type is pb.Chunk.DESCRIPTOR


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_what_is_remembered_names_its_origin(verb: Any) -> None:
    header = verb.request.Header if verb.is_bulk else verb.request
    assert ("origin" in header.DESCRIPTOR.fields_by_name) == (verb.command.retry is Retry.WINDOW)
    assert (verb.command.retry is Retry.FREE) or verb.command.effect in (
        Effect.WRITES,
        Effect.TUNES,
    )


def test_every_reply_says_what_state_it_is_of() -> None:
    for verb in VERBS.values():
        header = verb.reply.Header if verb.has_bulk_reply else verb.reply
        fields = header.DESCRIPTOR.fields_by_name
        assert fields["context"].message_type is pb.Context.DESCRIPTOR, verb.name
