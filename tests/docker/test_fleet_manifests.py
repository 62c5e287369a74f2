"""The fleet's image, compose file and Kubernetes manifests, checked without a container engine or a cluster.

The schemas are those of KubeRay and Kubernetes, whose origin the file tells.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import yaml
from image_steps import DOCKER, ROOT, environment, is_sent, pins, stages

from service.settings import Settings

SCHEMAS = json.loads(gzip.decompress((ROOT / "tests/docker/kubernetes-schemas.json.gz").read_bytes()))
MANIFESTS = list(yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text()))
FLEET = yaml.safe_load((DOCKER / "compose.fleet.yaml").read_text())
[RAY] = [
    line.removeprefix("ray==")
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "fleet"
    ]
]


def strict(schema: Any) -> Any:
    """A schema that refuses fields which it does not name, as a cluster drops them in silence."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(one) for name, one in schema.items()}
    whole = "x-kubernetes-preserve-unknown-fields" not in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and whole:
        found.setdefault("additionalProperties", False)
    return found


def why_refused(manifest: Any) -> list[str]:
    """What the schema of its kind says against a manifest."""
    kind = strict(SCHEMAS["kinds"][manifest["kind"]])
    if manifest["kind"] == "RayCluster":
        kind["properties"]["metadata"].pop("additionalProperties", None)
    validator = jsonschema_rs.validator_for({**kind, "definitions": SCHEMAS["definitions"]})
    return [error.message for error in validator.iter_errors(manifest)]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each container with the kind of its manifest and its pod."""
    for manifest in MANIFESTS:
        spec = manifest["spec"]
        if manifest["kind"] == "RayCluster":
            groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
        else:
            groups = [spec] if manifest["kind"] == "Deployment" else []
        for group in groups:
            pod = group["template"]["spec"]
            yield from ((manifest["kind"], one, pod) for one in pod["containers"])


def pods(part: Any) -> Iterator[dict[str, Any]]:
    """Each pod of a manifest, wherever it is."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    if isinstance(part, dict) and "containers" in part:
        yield part
    for one in inner:
        yield from pods(one)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
def test_a_manifest_meets_its_schema(manifest: Any) -> None:
    assert why_refused(manifest) == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("RayCluster", ("spec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        ("RayCluster", ("spec", "authOptions", "mode"), "password"),
        ("RayCluster", ("spec", "workerGroupSpec"), []),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "imagee"), "x"),
        ("Service", ("spec", "ports", 0, "port"), "http"),
        ("NetworkPolicy", ("spec", "ingress", 0, "from", 0, "podselector"), {}),
    ],
)
def test_the_schemas_refuse_what_is_wrong(kind: str, path: tuple[Any, ...], value: Any) -> None:
    manifest = json.loads(json.dumps(next(one for one in MANIFESTS if one["kind"] == kind)))
    at = manifest
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert why_refused(manifest)


def test_every_ray_is_the_one_that_is_locked_and_asks_for_a_token() -> None:
    cluster = MANIFESTS[0]["spec"]
    assert cluster["rayVersion"] == RAY
    assert pins(ROOT / "requirements-fleet.lock")["ray"] == {f"=={RAY}"}
    assert cluster["authOptions"] == {"mode": "token", "secretName": "tilewright"}
    final = stages(DOCKER / "Dockerfile.fleet")[-1]
    assert environment(final)["RAY_AUTH_MODE"] == "token"
    names = {name for one in FLEET["services"].values() for name in one["environment"]}
    assert "RAY_AUTH_TOKEN" in names
    assert all("RAY_AUTH_TOKEN" in one["environment"] for one in FLEET["services"].values())


def test_nothing_listens_beyond_loopback_without_a_key() -> None:
    final = stages(DOCKER / "Dockerfile.fleet")[-1]
    assert environment(final)["TILEWRIGHT_ALLOW_REMOTE"] == "0"
    variables = {one["name"] for _, container, _ in containers() for one in container.get("env", ())}
    assert "TILEWRIGHT_ALLOW_REMOTE" not in variables
    assert all("ports" not in one for one in FLEET["services"].values())
    assert all("TILEWRIGHT_ALLOW_REMOTE" not in one["environment"] for one in FLEET["services"].values())
    [policy] = [one for one in MANIFESTS if one["kind"] == "NetworkPolicy"]
    opened = [rule["ports"] for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert opened == [[{"port": "http"}]]


def test_pods_have_no_rights_that_they_do_not_need() -> None:
    found = list(containers())
    assert len(found) == 3
    for kind, container, pod in found:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert not pod["automountServiceAccountToken"]
        assert "limits" in container["resources"]
        assert {"readinessProbe", "livenessProbe"} <= container.keys(), kind


def test_no_service_of_kubernetes_is_taken_for_a_setting() -> None:
    """By default each Service gives all pods variables of its name, such as TILEWRIGHT_PORT."""
    found = list(pods(MANIFESTS))
    assert len(found) == 3
    assert [pod.get("enableServiceLinks", True) for pod in found] == [False] * 3


def test_the_settings_that_are_named_exist() -> None:
    named = {one["name"] for _, container, _ in containers() for one in container.get("env", ())}
    named |= {name for one in FLEET["services"].values() for name in one["environment"]}
    named |= set(environment(stages(DOCKER / "Dockerfile.fleet")[-1]))
    ours = {name.removeprefix("TILEWRIGHT_").lower() for name in named if name.startswith("TILEWRIGHT_")}
    assert ours == {"engine", "ray_address", "signing_key", "allowed_hosts", "database_url", "allow_remote"}
    assert ours <= Settings.model_fields.keys()


def test_compose_starts_the_head_first_and_keeps_its_ports_private() -> None:
    base = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    head, worker, service = (FLEET["services"][name] for name in ("head", "worker", "service"))
    assert head["networks"] == worker["networks"] == ["private"]
    assert base["networks"]["private"] == {"internal": True}
    for one in (worker, service):
        assert one["depends_on"]["head"]["condition"] == "service_healthy"
    for one in FLEET["services"].values():
        assert (DOCKER / one["build"]["context"] / one["build"]["dockerfile"]).exists()
    assert "--num-cpus=0" in head["entrypoint"]
    assert "--num-cpus=0" in service["command"][0]


def test_compose_knows_when_a_node_is_up() -> None:
    for name in ("head", "worker"):
        check = FLEET["services"][name]["healthcheck"]  # "up --wait" fails where there is none
        assert check["test"] == ["CMD", "test", "-e", "/tmp/ray/ray_current_cluster"]
        assert "--block" in FLEET["services"][name]["entrypoint"]


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_the_node_of_a_service_comes_back_after_the_head(where: str) -> None:
    if where == "compose":
        [script] = FLEET["services"]["service"]["command"]
    else:
        [script] = next(one["args"] for kind, one, _ in containers() if kind == "Deployment")
    subprocess.run(["sh", "-n", "-c", script], check=True)
    *_, node, joined, service = script.splitlines()
    assert node.startswith("while true; do ray start ")
    assert node.endswith(" --block; sleep 1; done &")
    assert joined.startswith("until test -e /tmp/ray/ray_current_cluster; ")
    assert service == "exec python -m service.cli.main serve"


def test_a_node_that_is_told_to_stop_does_not_wait_for_its_actors() -> None:
    final = stages(DOCKER / "Dockerfile.fleet")[-1]
    assert environment(final)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"


def test_the_image_adds_locked_packages_alone() -> None:
    *_, packages, final = stages(DOCKER / "Dockerfile.fleet")
    assert [step.arguments[0] for step in packages if step.word == "COPY"] == ["requirements-fleet.lock"]
    assert is_sent("requirements-fleet.lock")
    assert [step.word for step in final] == ["FROM", "COPY", "ENV"]
    used, base = pins(ROOT / "requirements-fleet.lock"), pins(DOCKER / "requirements-cpu.lock")
    assert {name: one for name, one in base.items() if used.get(name) != one} == {}
