"""The wire's map is complete: errors, generated code."""

import inspect
import subprocess

import pytest
from grpc import StatusCode

from embstore import errors
from embstore_proto.status import ANSWERS, ERROR_METADATA, answer_of, error_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb
from tests.style.sources import ROOT

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and value is not errors.EmbstoreError
]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_class_has_an_answer_and_comes_back_as_itself(kind):
    error = kind("expected this, found that")
    answer = answer_of(error)
    trailing = ((ERROR_METADATA, kind.__name__),)
    back = error_of(answer.code, message_of(error), trailing)
    assert type(back) is kind
    assert str(back) == str(error)


def test_the_map_has_no_class_that_the_tree_lacks():
    assert set(ANSWERS) == set(CLASSES)


def test_other_errors_do_not_tell_their_text():
    assert message_of(RuntimeError("secret")) == "internal error"
    assert answer_of(RuntimeError("secret")).code is StatusCode.INTERNAL


def test_a_long_message_fits_a_status():
    text = message_of(errors.InvalidArgumentError("x" * 100_000))
    assert len(text) < 3000
    assert "100000 characters" in text


def test_the_generated_code_is_that_of_the_proto_file(tmp_path):
    compiler = ROOT / ".venv-proto" / "bin" / "python"
    if not compiler.exists():
        pytest.skip("needs .venv-proto, which `make check` and `make proto` make")
    if subprocess.run([compiler, "-c", "import grpc_tools"], check=False).returncode:
        pytest.skip("needs grpcio-tools, which has no wheel for this Python")
    command = [str(compiler), "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}"]
    command += [f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    source = "embstore_proto/v1/embstore.proto"
    subprocess.run([*command, source], cwd=ROOT / "proto", check=True, timeout=600)
    made = sorted((tmp_path / "embstore_proto" / "v1").iterdir())
    assert [path.name for path in made] == [
        "embstore_pb2.py",
        "embstore_pb2.pyi",
        "embstore_pb2_grpc.py",
    ]
    for path in made:
        committed = ROOT / "proto" / "embstore_proto" / "v1" / path.name
        assert committed.read_text() == path.read_text(), f"run make proto: {path.name} differs"


def test_the_proto_file_names_packages_of_other_languages():
    """Go's compiler refuses a file without one, and Java made one class of all."""
    options = pb.DESCRIPTOR.GetOptions()
    assert options.go_package == "embstore_proto/v1;embstorev1"
    assert options.java_package == "embstore.v1" and options.java_multiple_files


def test_the_generated_code_runs_with_every_protobuf():
    """Code of newer compilers compares versions when it is loaded, and refuses or warns."""
    generated = (ROOT / "proto" / "embstore_proto" / "v1" / "embstore_pb2.py").read_text()
    assert "ValidateProtobufRuntimeVersion" not in generated
