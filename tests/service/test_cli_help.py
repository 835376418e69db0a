"""`--help` of the commands: by topic, on a screen, and without loading what a command needs."""

import subprocess
import sys

from embstore_server.setup.settings import declared


def test_help_names_commands_and_exit_statuses(shell):
    shown = shell("--help")
    assert shown == shell("-h")
    assert shown.status == 0
    for word in ("serve", "demo", "table", "stats", "checkpoint", "digest", "bench"):
        assert word in shown.out
    assert "3  no such table, checkpoint or step" in shown.out


def loaded_by(*words: str) -> set[str]:
    """Return the modules that a command line has loaded when it ends."""
    code = f"""if True:
        import sys
        from embstore_server.cli import main
        assert main({words!r}) == 0
        sys.stderr.write(" ".join(sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_help_loads_nothing_heavy():
    heavy = {"numpy", "numba", "grpc", "google", "fastapi", "uvicorn", "asyncio"}
    assert not heavy & {module.partition(".")[0] for module in loaded_by("--help")}


def test_a_command_loads_no_other():
    loaded = loaded_by("digest", "--help")
    assert "embstore_server.cli.store" in loaded
    assert not {m for m in loaded if m.startswith("embstore_tools")}
    assert "embstore_server.setup.settings" not in loaded


def shown_help(shell, monkeypatch, *words: str) -> str:
    """Return the help of a command in a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    return shell(*words).out


def test_help_of_serve_fits_a_screen_and_help_all_has_every_setting(shell, monkeypatch):
    brief = shown_help(shell, monkeypatch, "serve", "--help")
    assert len(brief.splitlines()) <= 60
    for one in declared().values():
        assert (f" {one.flag} " in brief) == one.is_common, one.flag
    whole = shown_help(shell, monkeypatch, "serve", "--help-all")
    for one in declared().values():
        assert f" {one.flag} " in whole and f"─ {one.panel} ─" in whole
    assert "The device does not" in whole and "The device does not" not in brief


def test_first_clause_of_a_setting_makes_a_line_of_help():
    for one in declared().values():
        assert 10 < len(one.brief) <= 80, one.brief
        assert one.help.startswith(one.brief) and one.brief.count("(") == one.brief.count(")")


def test_every_command_has_a_line_under_a_topic(shell, monkeypatch):
    shown = shown_help(shell, monkeypatch, "--help")
    assert "─ Commands ─" not in shown  # the panel of those without a topic
    panels = shown.split("Show this message")[1].split("Exit status")[0]
    lines = [line for line in panels.splitlines() if line.startswith("│")]
    assert len(lines) > 35 and not [line for line in lines if line.startswith("│  ")]


def test_flags_of_the_connection_have_a_panel(shell, monkeypatch):
    own, connection = shown_help(shell, monkeypatch, "export", "--help").split("─ Connection (")
    assert "--since" in own and "--tls-ca" not in own
    assert "EMBSTORE_ADDRESS" in connection and "--tls-ca" in connection
