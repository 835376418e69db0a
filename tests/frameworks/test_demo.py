"""The demo in a framework: its losses are those of NumPy, and its tables are exact."""

from dataclasses import replace
from pathlib import Path

import pytest

from embstore.device.gpu import GpuDevice
from embstore.handles.sessions import Sessions
from embstore_tools.demo import synthetic
from embstore_tools.demo.job import Job
from embstore_tools.demo.result import DemoResult
from embstore_tools.demo.ways import Ahead, Calls, Way
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.service.demo.embedded import LOST, lose, open_store, train, trained

JOB = Job(samples=6000, batch=256, dim=8, scale=0.002)
FRAMEWORKS = ["torch"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "train.txt"
    synthetic.write(path, samples=JOB.samples, rows=JOB.rows)
    return path


@pytest.fixture(scope="module")
def by_numpy(path: Path, tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return trained(JOB, path, tmp_path_factory.mktemp("numpy"))


@pytest.mark.parametrize("way", [Ahead(4), Calls()], ids=["session", "no session"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_is_exact_and_its_losses_are_those_of_numpy(
    path: Path, tmp_path: Path, by_numpy: DemoResult, framework: str, way: Way
) -> None:
    pytest.importorskip(framework, reason=f"needs {framework}")
    result = trained(replace(JOB, framework=framework, way=way), path, tmp_path)
    assert result.exact and result.framework == framework
    assert (result.steps, result.samples) == (by_numpy.steps, by_numpy.samples)
    assert result.loss == pytest.approx(by_numpy.loss, rel=1e-6)
    assert result.auc == pytest.approx(by_numpy.auc, abs=1e-3)
    assert (result.session is None) == isinstance(way, Calls)
    if result.session is not None:
        assert (result.session.lookahead, result.session.hit_rate) == (4, 1.0)


def test_raw_text_trains_a_table_of_sparse_keys(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    job = replace(JOB, sparse=True, samples=2000)
    plain = trained(job, path, tmp_path / "numpy")
    result = trained(replace(job, framework="torch"), path, tmp_path / "torch")
    assert result.exact and plain.exact
    assert result.loss == pytest.approx(plain.loss, rel=1e-6)


def test_on_a_gpu_the_rows_stay_there_but_for_the_check(
    path: Path, tmp_path: Path, by_numpy: DemoResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from embstore_tools.demo.frameworks.torch_learner import TorchLearner
    from tests.frameworks.emulated_cuda import EmulatedCuda

    job = replace(JOB, framework="torch", device="cuda:0", samples=1500, way=Ahead(4))
    runtime = EmulatedRuntime(name="cuda:0")
    with open_store(job, tmp_path, device=GpuDevice(runtime, 1), host_cache_bytes=0) as store:
        cuda = EmulatedCuda.of(store, monkeypatch)
        # Parameters that are made there are there. What another thread moves there, no mode sees.
        monkeypatch.setattr(torch.nn.Module, "to", lambda module, device: module)
        monkeypatch.setattr(TorchLearner, "there", lambda learner, array: cuda.tensor(array))
        with cuda, cuda.reading():
            result = train(job, store, path)
    assert result.exact and result.steps > 3
    rows = result.samples * result.dim * result.tables
    read = cuda.elements_read - result.steps  # losses
    assert 2 * rows <= read < 2.5 * rows, "rows and gradients of each step, once, and the scores"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_lost_gradient_is_found(
    path: Path, tmp_path: Path, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(framework, reason=f"needs {framework}")
    lose(monkeypatch, Sessions, "update_step")
    result = trained(replace(JOB, framework=framework), path, tmp_path)
    assert not result.exact
    assert result.first_difference is not None
    assert result.first_difference.startswith(f"step 4, table '{LOST}', key ")
