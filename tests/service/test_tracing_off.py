"""Without the extra `otel`: nothing is traced, a server that is asked to says so, and calls pass
through what they always did."""

import logging
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from embstore.version import pip_install
from embstore_client import tracing
from embstore_server.doctor import installed
from embstore_server.telemetry import tracing as server_tracing
from tests.serving import on_loop, patient

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def test_a_server_without_the_extra_says_what_is_missing_and_serves(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, EXPORTER, None)
    with caplog.at_level(logging.WARNING, "embstore"):
        assert server_tracing.begun({VARIABLE: "http://user:secret@127.0.0.1:4318"}) is None
    (record,) = caplog.records
    said = vars(record)["embstore_fields"]
    assert record.getMessage() == "no traces"
    assert said["asked_by"] == VARIABLE
    assert pip_install("otel") in said["reason"]
    assert "secret" not in str(said)


def test_doctor_says_that_traces_are_asked_for_and_the_extra_is_missing():
    (sdk, exporter), environ = server_tracing.PACKAGES, {VARIABLE: "http://127.0.0.1:4318"}
    assert not list(installed.of_traces({}, {sdk: "", exporter: ""}))
    (found,) = installed.of_traces(environ, {sdk: "1.45.2", exporter: ""})
    assert found.status == "warn"
    assert exporter in found.found and sdk not in found.found
    assert pip_install("otel") in found.change
    both = {sdk: "1.45.2", exporter: "1.45.2"}
    (found,) = installed.of_traces(environ, both)
    assert (found.status, found.change) == ("ok", "")
    (found,) = installed.of_traces(environ | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, both)
    assert (found.status, "http/protobuf" in found.change) == ("warn", True)


def test_without_traces_no_code_of_theirs_is_called(server, monkeypatch):
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    called: Counter[str] = Counter()

    def profile(frame: FrameType, kind: str, _: object) -> None:
        called[Path(frame.f_code.co_filename).name] += 1

    async def look(profile: Any) -> None:
        sys.setprofile(profile)  # of the thread of the event loop

    for address in (server.address, f"unix:{server.socket}"):
        with patient(address) as store:
            before = sys.getprofile()
            on_loop(look(profile))
            sys.setprofile(profile)
            try:
                store.lookup({"ads": [1, 2]})
            finally:
                sys.setprofile(before)
                on_loop(look(None))
    assert {"transport.py", "grpc_wire.py", "shared_memory.py", "calls.py", "caller.py"} <= {
        *called
    }
    assert not {"tracing.py", "timed_calls.py"} & {*called}
