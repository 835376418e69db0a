"""The systemd unit and the Kubernetes manifests: right by the checkers of systemd and by the schema
of Kubernetes, with settings that a server takes, and as the image is. Those of a cluster by KubeRay
have not been run.

What a RayCluster may have stands here as the API's types say (ray.io/v1, of KubeRay 1.5); pods in
it are what the schema of Kubernetes says of any.
"""

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

from embstore_server.host.host import Host
from embstore_server.setup.parsing import BYTES
from embstore_server.setup.settings import Settings, declared, load
from embstore_server.telemetry.metrics import Metrics
from embstore_server.transports.rest.app import make_rest
from tests.style.sources import ROOT

SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = (SYSTEMD / "embstore.service").read_text()
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "embstore.yaml").read_text())
)
RAY_TEXT = (ROOT / "deploy" / "kubernetes" / "kuberay.yaml").read_text()
RAY_MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all(RAY_TEXT))
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


def test_the_unit_has_settings_that_a_server_takes():
    environ = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT, re.MULTILINE))
    own = {name: value for name, value in environ.items() if name.startswith("EMBSTORE_")}
    made = settings_of([], own, SYSTEMD / "embstore.toml")
    assert (str(made.data), str(made.socket_path)) == ("/var/lib/embstore", "/run/embstore/socket")
    assert (made.cache_bytes, made.log_format) == (4 << 30, "json")
    assert "StateDirectory=embstore" in UNIT
    assert "CacheDirectory=embstore" in UNIT  # below it are compiled kernels
    assert environ["XDG_CACHE_HOME"] == "/var/cache"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_and_little_exposed(tmp_path):
    unit = tmp_path / "embstore.service"  # whose program is here
    unit.write_text(UNIT.replace("/opt/embstore/bin/embstore", sys.executable))
    for words in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        done = subprocess.run(
            ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stderr.strip()


# Kubernetes


KUBERNETES = json.loads((ROOT / "tests" / "data" / "kubernetes-1.37.json").read_text())
_CORE, _META = "#/$defs/io.k8s.api.core.v1.", "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1."
_COUNT = {"type": "integer", "minimum": 0}
_GROUP = {
    "rayStartParams": {"type": "object", "additionalProperties": {"type": "string"}},
    "template": {"$ref": f"{_CORE}PodTemplateSpec"},
}
RAY_CLUSTER: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": {"$ref": f"{_META}ObjectMeta"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["headGroupSpec"],
            "properties": {
                "rayVersion": {"type": "string"},
                "enableInTreeAutoscaling": {"type": "boolean"},
                "suspend": {"type": "boolean"},
                "headServiceAnnotations": {"type": "object"},
                "headGroupSpec": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["rayStartParams", "template"],
                    "properties": _GROUP
                    | {"serviceType": {"type": "string"}, "enableIngress": {"type": "boolean"}},
                },
                "workerGroupSpecs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["groupName", "minReplicas", "maxReplicas", *_GROUP],
                        "properties": _GROUP
                        | {"groupName": {"type": "string"}}
                        | dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), _COUNT),
                    },
                },
            },
        },
    },
}


def is_valid(manifest: dict[str, Any]) -> bool:
    """Tell whether a manifest is what Kubernetes 1.37 takes; no field that it does not know."""
    kind = manifest["kind"]
    place = _CORE if kind == "PersistentVolumeClaim" else "#/$defs/"
    of_kind = KUBERNETES | (RAY_CLUSTER if kind == "RayCluster" else {"$ref": f"{place}{kind}"})
    return jsonschema_rs.validator_for(of_kind).is_valid(manifest)


@pytest.mark.parametrize(
    "manifest", [*MANIFESTS, *RAY_MANIFESTS], ids=lambda one: one["metadata"]["name"]
)
def test_a_manifest_is_what_the_schemas_say(manifest):
    assert is_valid(manifest)
    for wrong in ({"spce": {}}, {"apiVersion": "v9"}, {"spec": {"ports": [{"port": "grpc"}]}}):
        assert not is_valid(manifest | wrong)


def test_the_schema_sees_into_the_container():
    broken = copy.deepcopy(one("StatefulSet"))
    (container,) = broken["spec"]["template"]["spec"]["containers"]
    container["securityContext"]["readOnlyRootFileSystem"] = True  # a large S too many
    assert not is_valid(broken)


def test_the_container_has_settings_that_a_server_takes_and_memory_for_them():
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


def test_probes_ask_what_the_server_answers(tmp_path):
    (container,) = pod()["containers"]
    service = Host(Settings(tmp_path), lambda: pytest.fail("not opened"), Metrics()).service
    routes = make_rest(service).openapi()["paths"]
    for kind, path in (("startup", "readyz"), ("readiness", "readyz"), ("liveness", "healthz")):
        asked = container[f"{kind}Probe"]["httpGet"]
        assert asked == {"path": f"/{path}", "port": "admin"}
        assert asked["path"] in routes


def test_the_pod_writes_where_the_image_does_and_has_no_right_of_root():
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


def test_names_and_labels_find_the_pod():
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


# KubeRay


def cluster() -> dict[str, Any]:
    (found,) = [one for one in RAY_MANIFESTS if one["kind"] == "RayCluster"]
    return found


def groups() -> list[dict[str, Any]]:
    spec: dict[str, Any] = cluster()["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def pods() -> list[dict[str, Any]]:
    return [group["template"]["spec"] for group in groups()]


def test_the_schema_sees_into_groups_and_containers():
    for spoil in (
        lambda spec: spec["workerGroupSpecs"][1].update(replica=1),
        lambda spec: spec["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda spec: spec["headGroupSpec"]["template"]["spec"]["containers"][0].update(img="x"),
        lambda spec: spec["workerGroupSpecs"][0].pop("maxReplicas"),
    ):
        broken = copy.deepcopy(cluster())
        spoil(broken["spec"])
        assert not is_valid(broken)


def test_each_host_has_a_volume_of_its_own_and_keeps_its_address():
    claims = {m["metadata"]["name"] for m in RAY_MANIFESTS if m["kind"] == "PersistentVolumeClaim"}
    mounted = []
    for pod in pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounted.append(volumes["data"]["persistentVolumeClaim"]["claimName"])
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
        assert pod["hostNetwork"]
    assert len(mounted) == len({*mounted})
    assert {*mounted} == claims
    for group in cluster()["spec"]["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 1


def test_pods_are_told_apart_by_node_and_kept_by_their_labels():
    (budget,) = [one for one in RAY_MANIFESTS if one["kind"] == "PodDisruptionBudget"]
    labels = budget["spec"]["selector"]["matchLabels"]
    for group in groups():
        assert labels.items() <= group["template"]["metadata"]["labels"].items()
        affinity = group["template"]["spec"]["affinity"]["podAntiAffinity"]
        (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"] == labels


def test_probes_ask_ports_that_ray_listens_at():
    for group, pod in zip(groups(), pods(), strict=True):
        (container,) = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["node-manager"] == int(group["rayStartParams"]["node-manager-port"])
        asked = {
            container[f"{kind}Probe"]["tcpSocket"]["port"]
            for kind in ("startup", "readiness", "liveness")
        }
        assert asked <= ports.keys()
        assert ports.get("gcs", 6379) == 6379


def test_ray_takes_calls_with_a_token_only_and_runs_as_the_image_does():
    (user,) = re.findall(r"--uid (\d+)", DOCKERFILE)
    for pod in pods():
        (container,) = pod["containers"]
        environ = {one["name"]: one for one in container["env"]}
        assert environ["RAY_AUTH_MODE"]["value"] == "token"
        secret = environ["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert f"--from-literal={secret['key']}=" in RAY_TEXT
        assert f"secret generic {secret['name']} " in RAY_TEXT
        assert pod["securityContext"]["runAsUser"] == int(user)
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_command_that_is_shown_fits_the_hosts(shell):
    (line,) = re.findall(r"embstore cluster start (.*)", RAY_TEXT)
    words = line.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    shown = shell("cluster", "start", "--help").out
    assert all(flag in shown for flag in given)
    workers = cluster()["spec"]["workerGroupSpecs"]
    cpus = sum(int(group["rayStartParams"]["num-cpus"]) for group in workers)
    assert int(given["--shards"]) * float(given["--cpus"]) <= cpus
    of_host = int(given["--shards"]) // len(workers)
    cache = BYTES.read(given["--cache-bytes"])
    for group in workers:
        (container,) = group["template"]["spec"]["containers"]
        memory = BYTES.read(container["resources"]["limits"]["memory"].replace("Gi", "GiB"))
        assert memory >= of_host * (cache + (5 << 30)) + (2 << 30)
        assert group["template"]["spec"]["volumes"][0]["name"] == "data"
    (container,) = pods()[0]["containers"]
    assert {"name": "data", "mountPath": given["--data"]} in container["volumeMounts"]
