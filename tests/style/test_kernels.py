"""kernels/ has pairs alone: a CPU kernel <verb>.py, its CUDA twin <verb>.cu, and tests of both."""

import ast
import re

import pytest

from tests.style.sources import ROOT, parse

KERNELS = ROOT / "embstore" / "kernels"
TESTS = ROOT / "tests" / "kernels"
NO_VERBS = {
    "__init__",
    "sources",  # the text of all .cu files, which the tests of each of them have built
}
OF_GPUS = {"exchange"}
"""Rows change levels, and the cache of a CPU has one."""
VERBS = sorted(
    {path.stem for path in KERNELS.iterdir() if path.suffix in (".py", ".cu")} - NO_VERBS
)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_twins_and_a_test_file(verb):
    twins = [KERNELS / f"{verb}.cu", *([KERNELS / f"{verb}.py"] if verb not in OF_GPUS else [])]
    files = [*twins, TESTS / f"test_{verb}.py"]
    assert not [str(path.relative_to(ROOT)) for path in files if not path.is_file()]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in OF_GPUS])
def test_a_cuda_source_names_its_twin_and_every_kernel_of_it(verb):
    source = (KERNELS / f"{verb}.cu").read_text(encoding="utf-8")
    head = " ".join(line[2:].strip() for line in source.splitlines() if line.startswith("//"))
    assert re.search(rf"[Tt]win: {verb}\.py\b", head), f"{verb}.cu does not name {verb}.py"
    missing = [name for name in _kernels(verb) if not re.search(rf"\b{name}", source)]
    assert not missing, f"{verb}.cu names none of {missing}"


def _kernels(verb: str) -> list[str]:
    """Return the functions of <verb>.py that are compiled to be called from Python."""
    return [
        node.name
        for node in parse(KERNELS / f"{verb}.py").body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "kernel" for d in node.decorator_list)
    ]


def test_kernels_lie_in_one_flat_folder():
    elsewhere = [
        str(path.relative_to(ROOT))
        for pattern in ("*.cu", "*.cuh")
        for path in (ROOT / "embstore").rglob(pattern)
        if path.parent != KERNELS
    ]
    assert not elsewhere


def test_every_header_is_included():
    texts = [path.read_text(encoding="utf-8") for path in KERNELS.iterdir() if path.is_file()]
    headers = {path.name for path in KERNELS.glob("*.cuh")}
    assert headers == set(re.findall(r'^#include "(.+)"$', "\n".join(texts), re.MULTILINE))
