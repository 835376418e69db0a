"""The systemd unit and the Kubernetes manifests: right by the checkers of systemd and by the schema
of Kubernetes, with settings that a server takes, and as the image is."""

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from embstore_server.metrics import Metrics
from embstore_server.parsing import BYTES
from embstore_server.rest.app import make_rest
from embstore_server.service import Service
from embstore_server.settings import Settings, declared, load
from tests.style.sources import ROOT

SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = (SYSTEMD / "embstore.service").read_text()
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "embstore.yaml").read_text())
)
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


def one(kind: str, name: str = "embstore") -> dict[str, Any]:
    """Return a manifest."""
    (found,) = [m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = one("StatefulSet")["spec"]["template"]["spec"]
    return spec


def settings_of(words: list[str], environ: dict[str, str], config: Path | None = None) -> Settings:
    """Return the settings that a server makes of `serve` and these words."""
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    named = {name.replace("-", "_"): value or True for name, value in flags.items()}
    assert named.keys() <= declared().keys()
    return load(named, environ, config)


# systemd


def test_the_unit_has_settings_that_a_server_takes() -> None:
    environ = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT, re.MULTILINE))
    own = {name: value for name, value in environ.items() if name.startswith("EMBSTORE_")}
    made = settings_of([], own, SYSTEMD / "embstore.toml")
    assert (str(made.data), str(made.socket_path)) == ("/var/lib/embstore", "/run/embstore/socket")
    assert (made.cache_bytes, made.log_format) == (4 << 30, "json")
    assert "StateDirectory=embstore" in UNIT
    assert "CacheDirectory=embstore" in UNIT  # below it are compiled kernels
    assert environ["XDG_CACHE_HOME"] == "/var/cache"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_and_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / "embstore.service"  # whose program is here
    unit.write_text(UNIT.replace("/opt/embstore/bin/embstore", sys.executable))
    for words in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        done = subprocess.run(
            ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stderr.strip()


# Kubernetes


def is_valid(manifest: dict[str, Any]) -> bool:
    """Tell whether a manifest is what Kubernetes 1.37 takes; no field that it does not know."""
    schema = json.loads((ROOT / "tests" / "data" / "kubernetes-1.37.json").read_text())
    of_kind = schema | {"$ref": f"#/$defs/{manifest['kind']}"}
    return jsonschema_rs.validator_for(of_kind).is_valid(manifest)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: one["metadata"]["name"])
def test_a_manifest_is_what_the_schema_of_kubernetes_says(manifest: dict[str, Any]) -> None:
    assert is_valid(manifest)
    for wrong in ({"spce": {}}, {"apiVersion": "v9"}, {"spec": {"ports": [{"port": "grpc"}]}}):
        assert not is_valid(manifest | wrong)


def test_the_schema_sees_into_the_container() -> None:
    broken = copy.deepcopy(one("StatefulSet"))
    (container,) = broken["spec"]["template"]["spec"]["containers"]
    container["securityContext"]["readOnlyRootFileSystem"] = True  # a large S too many
    assert not is_valid(broken)


def test_the_container_has_settings_that_a_server_takes_and_memory_for_them() -> None:
    (container,) = pod()["containers"]
    verb, *words = container["args"]
    made = settings_of(words, {})
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert verb == "serve"
    assert made.listen == f"0.0.0.0:{ports['grpc']}"
    assert made.admin == f"0.0.0.0:{ports['admin']}"
    assert isinstance(made.cache_bytes, int)
    memory = BYTES.read(container["resources"]["limits"]["memory"].replace("Gi", "GiB"))
    assert memory >= made.cache_bytes + made.inflight_bytes_max + (2 << 30)
    assert (
        container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
    )
    assert pod()["terminationGracePeriodSeconds"] >= made.drain_s + 120


def test_probes_ask_what_the_server_answers(tmp_path: Path) -> None:
    (container,) = pod()["containers"]
    service = Service(Settings(tmp_path), lambda: pytest.fail("not opened"), Metrics())
    routes = make_rest(service).openapi()["paths"]
    for kind, path in (("startup", "readyz"), ("readiness", "readyz"), ("liveness", "healthz")):
        asked = container[f"{kind}Probe"]["httpGet"]
        assert asked == {"path": f"/{path}", "port": "admin"}
        assert asked["path"] in routes


def test_the_pod_writes_where_the_image_does_and_has_no_right_of_root() -> None:
    (container,) = pod()["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (user,) = re.findall(r"--uid (\d+)", DOCKERFILE)
    assert pod()["securityContext"]["runAsUser"] == pod()["securityContext"]["fsGroup"] == int(user)
    (made,) = re.findall(
        r"--group embstore \\\n\s+(.*) /etc/embstore\n",  # tokens, where there are some
        DOCKERFILE,
    )
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounted.keys() == {*made.split(), "/tmp"}
    (claim,) = one("StatefulSet")["spec"]["volumeClaimTemplates"]
    named = {volume["name"] for volume in pod()["volumes"]} | {claim["metadata"]["name"]}
    assert {*mounted.values()} == named
    assert mounted["/data"] == claim["metadata"]["name"]


def test_names_and_labels_find_the_pod() -> None:
    labels = one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert one("StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    assert one("StatefulSet")["spec"]["replicas"] == 1, "a store has one writer"
    own = one("StatefulSet")["spec"]["serviceName"]
    for name in ("embstore", own):
        assert one("Service", name)["spec"]["selector"] == labels
        for port in one("Service", name)["spec"]["ports"]:
            assert port["targetPort"] in {"grpc", "admin"}
    for kind, field in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        assert one(kind)["spec"][field]["matchLabels"] == labels
