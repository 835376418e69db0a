"""docs/guide/other-languages.md, held against the client it quotes and the wire it describes."""

import json
import re
from textwrap import dedent

import pytest

from embstore.commands import Retry
from embstore_proto.status import ANSWERS
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.verbs import VERBS
from tests.style.sources import ROOT, table_rows

PAGE = (ROOT / "docs" / "guide" / "other-languages.md").read_text()
NODE = ROOT / "client" / "node"
GO = ROOT / "client" / "go"
TRAINER = ROOT / "tests" / "node" / "trainer.js"
SOURCES = {path.name: path.read_text() for path in (*NODE.glob("*.js"), TRAINER, *GO.glob("*.go"))}
QUOTES = re.findall(r"```(?:js|go)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("quote", QUOTES, ids=[quote.split("\n")[0].strip() for quote in QUOTES])
def test_an_example_stands_in_a_file_that_tests_run(quote):
    assert any(quote in source for source in SOURCES.values()), dedent(quote)


def test_every_error_is_there_with_its_status_and_whether_it_is_sent_again():
    found = {cells[0].strip("`"): cells[1:3] for cells in table_rows(PAGE, "`embstore-error`")}
    expected = {
        kind.__name__: [answer.code.name, "yes" if answer.retried else "no"]
        for kind, answer in ANSWERS.items()
    }
    assert found == expected


def test_every_field_of_an_origin_is_there_but_those_for_the_log():
    named = {cells[0].strip("`") for cells in table_rows(PAGE, "field")}
    fields = {field.name for field in pb.Origin.DESCRIPTOR.fields}
    assert fields - named == {"rank", "step"}


def test_calls_that_the_server_remembers_are_those_with_an_origin():
    for verb in VERBS.values():
        head = verb.request.Header if verb.is_bulk else verb.request
        has_origin = "origin" in head.DESCRIPTOR.fields_by_name
        assert has_origin == (verb.command.retry is Retry.WINDOW), verb.name


def test_verbs_that_answer_by_chunks_alone_are_named():
    (text,) = re.findall(r"always\nanswered by Chunks: (.*?);", PAGE, re.DOTALL)
    always = {name for name, verb in VERBS.items() if verb.is_streamed and verb.has_bulk_reply}
    assert set(re.findall(r"`(\w+)`", text)) == always


def test_packages_are_those_that_the_tests_install():
    bounds = json.loads((NODE / "package.json").read_text())["dependencies"]
    (command,) = re.findall(r"npm install (.+)", PAGE)
    assert command.split() == [f"{name}@{bound}" for name, bound in bounds.items()]
