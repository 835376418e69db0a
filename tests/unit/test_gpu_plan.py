"""The plan of a GPU: its budget, what is left of a part, and every part on the emulated device."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.conformance.sessions.training import PATIENCE_S
from tests.gpu.plan.parts import parts_of
from tests.gpu.plan.runner import FAILED, LEFT_STATUS, PASSED, ROOT, SKIPPED, Part, Plan
from tests.kernels.emulation.build import COMPILER

LONG_S = 1e6


def part(name, program, usual_s=100.0, **more):
    return Part(name, "something", [sys.executable, "-c", program], usual_s, **more)


WRITES = "import pathlib; pathlib.Path({!r}).write_text('{{\"ms\": 3}}'); print('done'); print()"
FAILS = "print('what is wrong'); raise SystemExit(7)"
HANGS = "import threading; print('waiting', flush=True); threading.Event().wait()"


@pytest.fixture
def told():
    return []


@pytest.fixture
def plan(tmp_path, told):
    def make(*parts, budget_s=LONG_S, **more):
        return Plan(parts, tmp_path / "out", budget_s, told.append, **more)

    return make


def found(plan, name):
    return json.loads((plan.folder / f"{name}.json").read_text())


def test_parts_leave_what_they_found(plan, tmp_path, told):
    figures = tmp_path / "figures"
    made = plan(
        part("measures", WRITES.format(str(figures)), figures=figures),
        part("fails", FAILS),
        part("lacks", FAILS, lacks="torch is not installed"),
        part("passes", ""),
    )
    assert made.run() == 1
    results = {name: found(made, name)["result"] for name in ("measures", "fails", "passes")}
    assert results == {"measures": PASSED, "fails": FAILED, "passes": PASSED}
    measured = found(made, "measures")
    assert (measured["figures"], measured["last_lines"]) == ({"ms": 3}, ["done"])
    assert measured["command"][:2] == ["python", "-c"]
    assert "status 7" in found(made, "fails")["why"]
    assert "    what is wrong" in told
    assert found(made, "lacks")["result"] == SKIPPED
    assert found(made, "lacks")["why"] == "torch is not installed"


def test_a_plan_goes_on_and_runs_again_what_is_named(plan, tmp_path):
    marks = tmp_path / "marks"
    marks.write_text("")
    program = f"open({str(marks)!r}, 'a').write('{{}}')"
    parts = [part(name, program.format(name)) for name in "abc"]
    assert plan(parts[0]).run() == 0
    assert plan(*parts).run() == 0
    assert marks.read_text() == "abc"
    assert plan(*parts).run(["b"]) == 0
    assert marks.read_text() == "abcb"


def test_a_part_that_the_budget_ends_is_left_for_the_next_call(plan, told, monkeypatch):
    left_s = iter([LONG_S, LONG_S, 0.5])  # for the first, before the second, for it
    monkeypatch.setattr(Plan, "_left_s", lambda self: next(left_s))
    made = plan(part("first", ""), part("hangs", HANGS), part("next", ""))
    assert made.run() == LEFT_STATUS
    assert found(made, "first")["result"] == PASSED
    assert not (made.folder / "hangs.json").exists()
    assert told[-1].startswith("left: hangs next")


def test_a_part_that_had_all_of_a_calls_time_has_failed_and_holds_up_no_other(plan):
    parts = part("hangs", HANGS, usual_s=LONG_S), part("next", "")
    assert plan(*parts, budget_s=0.5).run() == 1
    made = plan(*parts)
    assert made.run() == 1
    assert found(made, "hangs")["result"] == FAILED
    assert found(made, "next")["result"] == PASSED


def test_a_part_that_hangs_has_failed_and_the_next_one_runs(plan, told, monkeypatch):
    monkeypatch.setattr("tests.gpu.plan.runner.LIMIT_LEAST_S", 2.0)
    made = plan(part("hangs", HANGS, usual_s=0.5), part("next", ""), told_every_s=0.1)
    assert made.run() == 1
    assert found(made, "hangs")["result"] == FAILED
    assert "took more than 2 s" in found(made, "hangs")["why"]
    assert any("hangs: " in line and "usually" in line for line in told)
    assert found(made, "next")["result"] == PASSED


def test_a_plan_that_is_ended_ends_its_part(tmp_path):
    """And all that the part has started: nothing goes on with the device."""
    fifo = tmp_path / "alive"
    child = f"import os; os.open({str(fifo)!r}, os.O_WRONLY); {HANGS}"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    outer = (
        "import pathlib, signal, sys; from tests.gpu.plan.runner import Part, Plan; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); "
        f"part = Part('hangs', '', [sys.executable, '-c', {program!r}], 1e6); "
        f"Plan([part], pathlib.Path({str(tmp_path)!r}), 1e6).run()"
    )
    subprocess.run(["mkfifo", str(fifo)], check=True)
    process = subprocess.Popen([sys.executable, "-c", outer], cwd=ROOT, stdout=subprocess.DEVNULL)
    with fifo.open("rb") as alive:  # the part's child is there
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 3
        assert alive.read() == b""  # nobody has it open any more
    assert not (tmp_path / "hangs.json").exists()


@pytest.mark.parametrize("is_emulated", [True, False])
def test_parts_have_names_of_their_own_and_say_what_they_settle(tmp_path, is_emulated):
    parts = parts_of(tmp_path, is_emulated=is_emulated)
    assert len({one.name for one in parts}) == len(parts)
    assert all(one.settles and one.usual_s > 0 for one in parts)
    files = [word for one in parts for word in one.command if word.startswith("tests/")]
    assert files and all((ROOT / name).exists() for name in files)


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
def test_the_program_runs_parts_on_the_emulated_device(tmp_path):
    command = [sys.executable, "-m", "tests.gpu.plan", "--emulated", "--out", str(tmp_path)]
    command += ["--minutes", "1000", "versions", "digests", "digests-large", "memcheck"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert {name: one["result"] for name, one in results.items()} == {
        "versions": PASSED,
        "digests": PASSED,
        "digests-large": PASSED,
        "memcheck": SKIPPED,
    }
    large = results["digests-large"]["figures"]["digests-large"]["rowwise_adagrad"]
    assert large["same"] and large["hit_rate"] < 1


def test_the_program_says_what_it_needs(tmp_path):
    command = [sys.executable, "-m", "tests.gpu.plan", "--out", str(tmp_path)]
    for words, said in ((["nonsense"], "found nonsense"), ([], "--emulated")):
        done = subprocess.run(
            [*command, *words],
            cwd=ROOT,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and said in done.stderr
