"""The README's example is pasted by everybody, so it runs as it stands."""

import re

import pytest

from tests.style.sources import ROOT

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_readme_example_runs(example: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    digest = capsys.readouterr().out.split()[-1]
    assert re.fullmatch("[0-9a-f]{64}", digest)


def test_readme_has_an_example() -> None:
    assert EXAMPLES
