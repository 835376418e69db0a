"""The manifests of a cluster by KubeRay: right by the fields of its API and by the schema of
Kubernetes, with settings that the commands take. They have not been run.

What a RayCluster may have stands here as the API's types say (ray.io/v1, of KubeRay 1.5); pods in
it are what the schema of Kubernetes says of any.
"""

import copy
import json
import re
from typing import Any

import jsonschema_rs
import pytest
import yaml

from embstore_server.parsing import BYTES
from tests.service.shell import Shell
from tests.style.sources import ROOT

TEXT = (ROOT / "deploy" / "kubernetes" / "kuberay.yaml").read_text()
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
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
    kind = manifest["kind"]
    if kind == "RayCluster":
        schema = KUBERNETES | RAY_CLUSTER
    elif kind == "PersistentVolumeClaim":
        schema = KUBERNETES | {"$ref": f"{_CORE}{kind}"}
    else:
        schema = KUBERNETES | {"$ref": f"#/$defs/{kind}"}
    return jsonschema_rs.validator_for(schema).is_valid(manifest)


def cluster() -> dict[str, Any]:
    (found,) = [one for one in MANIFESTS if one["kind"] == "RayCluster"]
    return found


def groups() -> list[dict[str, Any]]:
    spec: dict[str, Any] = cluster()["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def pods() -> list[dict[str, Any]]:
    return [group["template"]["spec"] for group in groups()]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: one["metadata"]["name"])
def test_a_manifest_is_what_the_schemas_say(manifest: dict[str, Any]) -> None:
    assert is_valid(manifest)
    for wrong in ({"spce": {}}, {"apiVersion": "v9"}):
        assert not is_valid(manifest | wrong)


def test_the_schema_sees_into_groups_and_containers() -> None:
    for spoil in (
        lambda spec: spec["workerGroupSpecs"][1].update(replica=1),
        lambda spec: spec["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda spec: spec["headGroupSpec"]["template"]["spec"]["containers"][0].update(img="x"),
        lambda spec: spec["workerGroupSpecs"][0].pop("maxReplicas"),
    ):
        broken = copy.deepcopy(cluster())
        spoil(broken["spec"])
        assert not is_valid(broken)


def test_each_host_has_a_volume_of_its_own_and_keeps_its_address() -> None:
    claims = {m["metadata"]["name"] for m in MANIFESTS if m["kind"] == "PersistentVolumeClaim"}
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


def test_pods_are_told_apart_by_node_and_kept_by_their_labels() -> None:
    (budget,) = [one for one in MANIFESTS if one["kind"] == "PodDisruptionBudget"]
    labels = budget["spec"]["selector"]["matchLabels"]
    for group in groups():
        assert labels.items() <= group["template"]["metadata"]["labels"].items()
        affinity = group["template"]["spec"]["affinity"]["podAntiAffinity"]
        (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"] == labels


def test_probes_ask_ports_that_ray_listens_at() -> None:
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


def test_ray_takes_calls_with_a_token_only_and_runs_as_the_image_does() -> None:
    (user,) = re.findall(r"--uid (\d+)", DOCKERFILE)
    for pod in pods():
        (container,) = pod["containers"]
        environ = {one["name"]: one for one in container["env"]}
        assert environ["RAY_AUTH_MODE"]["value"] == "token"
        secret = environ["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert f"--from-literal={secret['key']}=" in TEXT
        assert f"secret generic {secret['name']} " in TEXT
        assert pod["securityContext"]["runAsUser"] == int(user)
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_command_that_is_shown_fits_the_hosts(shell: Shell) -> None:
    (line,) = re.findall(r"embstore cluster start (.*)", TEXT)
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
