"""The wire's map is complete: errors, verbs, generated code."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from grpc import StatusCode

from embstore import errors
from embstore_proto.status import ANSWERS, ERROR_METADATA, answer_of, error_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server import bulk, control, frequency, sessions
from tests.style.sources import ROOT

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and value is not errors.EmbstoreError
]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_class_has_an_answer_and_comes_back_as_itself(kind: type) -> None:
    error = kind("expected this, found that")
    answer = answer_of(error)
    trailing = ((ERROR_METADATA, kind.__name__),)
    back = error_of(answer.code, message_of(error), trailing)
    assert type(back) is kind
    assert str(back) == str(error)


def test_the_map_has_no_class_that_the_tree_lacks() -> None:
    assert set(ANSWERS) == set(CLASSES)


def test_other_errors_do_not_tell_their_text() -> None:
    assert message_of(RuntimeError("secret")) == "internal error"
    assert answer_of(RuntimeError("secret")).code is StatusCode.INTERNAL


def test_a_long_message_fits_a_status() -> None:
    text = message_of(errors.InvalidArgumentError("x" * 100_000))
    assert len(text) < 3000
    assert "100000 characters" in text


def test_every_method_has_a_handler_and_every_handler_a_method() -> None:
    methods = set(pb.DESCRIPTOR.services_by_name["Embstore"].methods_by_name)
    arrays = bulk.VERBS | sessions.BULK | frequency.BULK
    streams = {f"{name}Stream" for name in arrays} | {
        *(*sessions.READS, *frequency.DOCUMENTS, *frequency.FOLLOWED)
    }
    single = control.VERBS | sessions.CONTROL | frequency.CONTROL
    assert methods == {"GetServerInfo", *single, *arrays, *streams}


def test_control_verbs_have_the_messages_of_the_proto_file() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Embstore"].methods_by_name
    for name, verb in (control.VERBS | sessions.CONTROL | frequency.CONTROL).items():
        found = (methods[name].input_type, methods[name].output_type)
        assert found == (verb.request.DESCRIPTOR, verb.reply.DESCRIPTOR)
        assert verb.mutates == ("origin" in verb.request.DESCRIPTOR.fields_by_name)


def test_every_reply_says_what_state_it_is_of() -> None:
    for method in pb.DESCRIPTOR.services_by_name["Embstore"].methods:
        reply = method.output_type
        if reply.name == "Chunk":
            continue
        fields = reply.fields_by_name
        if "header" in fields:
            fields = fields["header"].message_type.fields_by_name
        assert fields["context"].message_type is pb.Context.DESCRIPTOR, method.name


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools, of the extra 'dev'")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}"]
    command += [f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    source = "embstore_proto/v1/embstore.proto"
    subprocess.run([*command, source], cwd=ROOT / "proto", check=True, timeout=120)
    made = sorted((tmp_path / "embstore_proto" / "v1").iterdir())
    assert [path.name for path in made] == [
        "embstore_pb2.py",
        "embstore_pb2.pyi",
        "embstore_pb2_grpc.py",
    ]
    for path in made:
        committed = ROOT / "proto" / "embstore_proto" / "v1" / path.name
        assert committed.read_text() == path.read_text(), f"run make proto: {path.name} differs"
