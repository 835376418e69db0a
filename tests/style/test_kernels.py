"""Every kernel has a CPU twin, <verb>.py beside <verb>.cu, and tests/kernels/test_<verb>.py."""

from tests.style.sources import ROOT

KERNELS = ROOT / "embstore" / "kernels"
TESTS = ROOT / "tests" / "kernels"
NO_VERBS = {
    "__init__",
    "sources",  # the text of all .cu files, which the tests of each of them have built
}


def test_every_verb_has_a_test_file() -> None:
    verbs = sorted({path.stem for path in KERNELS.iterdir() if path.suffix in (".py", ".cu")})
    verbs = [verb for verb in verbs if verb not in NO_VERBS]
    missing = [verb for verb in verbs if not (TESTS / f"test_{verb}.py").is_file()]
    assert not missing, f"no tests/kernels/test_<verb>.py for {missing}"


def test_every_cuda_source_has_a_cpu_twin() -> None:
    alone = [
        path.name for path in sorted(KERNELS.glob("*.cu")) if not path.with_suffix(".py").is_file()
    ]
    assert not alone, f"no CPU twin (<verb>.py) beside {alone}"


def test_kernels_lie_in_one_flat_folder() -> None:
    elsewhere = [
        str(path.relative_to(ROOT))
        for pattern in ("*.cu", "*.cuh")
        for path in (ROOT / "embstore").rglob(pattern)
        if path.parent != KERNELS
    ]
    assert not elsewhere
