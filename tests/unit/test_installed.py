"""What is said of packages that are absent, their dependencies included."""

import sys

from tests import installed


def test_an_absent_dependency_of_a_module_that_is_there_is_named(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import the_dependency.api\n")
    (tmp_path / "whole.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.lacking(["whole"]) is None
    said = "not installed: the_dependency, not_there"
    assert installed.lacking(["whole", "half_installed", "not_there"]) == said
    sys.modules.pop("whole")
