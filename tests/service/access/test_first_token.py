"""The image's command in a fresh volume: a token at the first start, and no answer without it."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import embstore
from embstore.commands import Right
from embstore.config import Sgd, Uniform
from embstore.errors import UnauthenticatedError
from embstore_client import connect
from embstore_server.access.tokens import make_first, read
from tests.serving import Server
from tests.style.sources import ROOT

DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
SHOWN = re.compile(r"\badmin\.[\w-]{43}\b")


def start_of_the_image(volume: Path) -> list[str]:
    """Return the words of the image's command, with a directory in place of its volume."""
    (command,) = re.findall(r"^CMD (\[.*?\])", DOCKERFILE, re.M | re.S)
    words: list[str] = json.loads(command.replace("\\\n", ""))
    return [re.sub(r"^/data\b", str(volume), word) for word in words]


def test_the_first_start_of_the_image_shows_a_token_and_nobody_is_answered_without(
    shell, tmp_path, monkeypatch
):
    started: list[Any] = []
    monkeypatch.setattr("embstore_server.host.app.serve", lambda made: started.append(made) or 0)
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # of this process, too
    words = start_of_the_image(tmp_path)
    first, second = shell(*words), shell(*words)
    assert (first.status, second.status) == (0, 0)
    (token,) = SHOWN.findall(first.out)
    assert not SHOWN.findall(second.out) and "embstore token add NAME" in second.out
    assert not any(token[6:].encode() in file.read_bytes() for file in tmp_path.iterdir())

    data, tokens = started[1].data, started[1].tokens
    assert {data.parent, tokens.parent} == {tmp_path} and started[1].insecure
    table = {"dim": 2, "rows": 3, "optimizer": Sgd(0.1), "initializer": Uniform(-1, 1)}
    with Server(lambda: embstore.open(data, cache_bytes=1 << 20), data, tokens=tokens) as server:
        with pytest.raises(UnauthenticatedError):
            connect(server.address, token="")
        with connect(server.address, token=token) as store:
            store.create_table("t", **table)
            store.drop_table("t")


def test_a_first_token_needs_a_file_of_tokens_and_leaves_one_that_has_every_right(shell, tmp_path):
    ended = shell("serve", "--data", tmp_path / "s", "--first-token")
    assert ended.status == 2 and "--tokens FILE" in ended.err
    path = tmp_path / "tokens"
    shell("token", "add", "prometheus", "--right", "read", "--tables", "*", "--tokens", path)
    assert make_first(path).startswith("admin.")
    before = path.read_bytes()
    assert make_first(path) == "" and path.read_bytes() == before
    assert list(read(path)) == ["prometheus", "admin"]
    for garbage in ("garbage", "[]", '{"version": 2}'):
        path.write_text(garbage)
        ended = shell("token", "list", "--tokens", path)
        assert "which `embstore token add --tokens FILE` makes" in " ".join(ended.err.split())


def test_compose_gives_prometheus_a_token_that_reads_everything_before_anything_starts(
    shell, tmp_path, monkeypatch
):
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    (script,) = services["tokens"]["command"]
    *words, _, written = shlex.split(script.partition("||")[2])
    folders = [
        dict(v.split(":")[:2] for v in services[name]["volumes"])["access"]
        for name in ("tokens", "prometheus")
    ]
    (scraped,) = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["authorization"]["credentials_file"] == written.replace(*folders)
    for name in ("embstore", "prometheus"):
        waited_for = services[name]["depends_on"]["tokens"]["condition"]
        assert waited_for == "service_completed_successfully"
    assert services["tokens"]["environment"] == services["embstore"]["environment"]
    command = start_of_the_image(Path("/data"))
    assert services["embstore"]["environment"]["EMBSTORE_TOKENS"] in command

    monkeypatch.setenv("EMBSTORE_TOKENS", str(tmp_path / "tokens.json"))
    assert shell(*words[1:]).out.startswith("prometheus.")
    assert read(tmp_path / "tokens.json")["prometheus"].rights == {"*": Right.READ}
