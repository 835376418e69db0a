"""Grafana's board and Prometheus's rules ask for metrics that the server has, with their labels."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.service.rest import Rest
from tests.service.test_rest_sessions import train
from tests.style.sources import ROOT

DOCKER = ROOT / "docker"
BOARD = json.loads((DOCKER / "grafana" / "embstore.json").read_text())
GROUPS = yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"]
ALERTS: dict[str, Any] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
OF_PROMETHEUS = {"up", "instance", "job"}
"""What Prometheus adds to what it scrapes."""
METRIC = re.compile(r"\b((?:embstore|process)_\w+)(?:\{([^}]*)\})?")


def panels() -> Iterator[dict[str, Any]]:
    yield from BOARD["panels"]


def queries() -> dict[str, str]:
    board = {f"{p['title']} {t['refId']}": t["expr"] for p in panels() for t in p["targets"]}
    return board | {name: rule["expr"] for name, rule in ALERTS.items()}


async def labels_of(rest: Rest) -> dict[str, set[str]]:
    """Return the labels of each metric that has a sample."""
    text = (await rest.client.get("/metrics")).text
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_each_query_asks_for_what_is_there(rest):
    await rest.on_engine(train)
    await rest.get("/api/v1/tables")
    found = await labels_of(rest)
    for name, query in queries().items():
        asked = METRIC.findall(query)
        assert asked or "up{" in query, name
        known: set[str] = set(OF_PROMETHEUS)
        for metric, matchers in asked:
            assert metric in found, f"{name}: no sample of {metric}"
            known |= found[metric]
            named = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
            assert set(named) <= found[metric] | OF_PROMETHEUS, f"{name}: {metric}{{{matchers}}}"
        for group in re.findall(r"\bby \(([^)]*)\)", query):
            assert {label.strip() for label in group.split(",")} <= known, f"{name}: by ({group})"


def test_rates_are_of_counters_and_quantiles_of_buckets():
    gauges_that_count = {"embstore_table_counted_accesses"}
    for name, query in queries().items():
        for metric in re.findall(r"\b(?:rate|increase)\((\w+)", query):
            assert metric.endswith(("_total", "_bucket")) or metric in gauges_that_count, name
        for _, metric in re.findall(r"histogram_quantile\(([\d.]+),.*?rate\((\w+)", query):
            assert metric.endswith("_bucket"), name


def test_legends_name_labels_of_their_query():
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = {
                label.strip()
                for group in re.findall(r"\bby \(([^)]*)\)", target["expr"])
                for label in group.split(",")
            }
            assert named <= grouped, panel["title"]


def test_panels_have_their_places():
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_alert_says_what_it_is_and_the_guide_what_to_do():
    guide = (ROOT / "docs" / "guide" / "operating.md").read_text()
    assert len(ALERTS) == sum(len(group["rules"]) for group in GROUPS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["summary"]
        assert f"`{name}`" in guide


def test_the_files_that_compose_mounts_are_there():
    text = (DOCKER / "compose.yaml").read_text()
    mounted = re.findall(r"- (\./[\w./-]+):", text)
    assert len(mounted) >= 4
    for path in mounted:
        assert (DOCKER / path).exists(), path
    assert "alerts.yml" in (DOCKER / "prometheus.yml").read_text()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_promtool_finds_nothing_wrong(tmp_path):
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        command = ["promtool", "check", kind, str(DOCKER / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
