"""deploy/kubernetes: manifests that the API server accepts, pods that are restricted, and selectors that find their pods.

What needs a Kubernetes cluster is not shown: that pods are scheduled, and that its network enforces the policies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
from cryptography.fernet import Fernet
from django.conf import settings
from django.urls import resolve

from eventservice.api.health import livez
from eventservice.settings import env
from tests.deploy.manifests import DEPLOY, ROOT, VERSION, Document, read_dockerfile, read_documents

# The oldest and the newest that the manifests are checked against.
KUBERNETES_VERSIONS = ("1.29", "1.35")
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DOCUMENTS = [document for path in FILES for document in read_documents(path)]
WORKLOADS = {"Deployment", "StatefulSet", "Job", "CronJob"}


def name_document(document: Document) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def list_documents(*kinds: str) -> list[Document]:
    return [document for document in DOCUMENTS if document["kind"] in kinds]


def get_pod(workload: Document) -> Document:
    """Return the template of the pods of a workload."""
    spec = workload["spec"]
    if workload["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Document = spec["template"]
    return template


PODS = {name_document(workload): get_pod(workload) for workload in list_documents(*WORKLOADS)}


def list_containers() -> Iterator[tuple[str, Document]]:
    for name, pod in PODS.items():
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
            yield f"{name}/{container['name']}", container


CONTAINERS = dict(list_containers())


def has_labels(pod: Document, labels: dict[str, str]) -> bool:
    own: dict[str, str] = pod["metadata"]["labels"]
    return labels.items() <= own.items()


def find_pods(labels: dict[str, str]) -> set[str]:
    return {name for name, pod in PODS.items() if has_labels(pod, labels)}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("document", DOCUMENTS, ids=name_document)
def test_a_manifest_matches_the_schema_of_kubernetes(document: Document, version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_refuses_an_unknown_field() -> None:
    wrong = {**DOCUMENTS[0], "metdata": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES_VERSIONS[0], strict=True)


def test_there_is_everything_that_an_installation_needs() -> None:
    assert {name_document(document) for document in DOCUMENTS} >= {
        "ConfigMap/eventservice",
        "CronJob/eventservice-prune",
        "Deployment/eventservice-web",
        "Ingress/eventservice",
        "Job/eventservice-migrate",
        "NetworkPolicy/eventservice",
        "PodDisruptionBudget/eventservice-cluster",
        "PodDisruptionBudget/eventservice-web",
        "Service/eventservice-web",
        "StatefulSet/eventservice-cluster",
    }
    names = [(document["kind"], document["metadata"]["name"]) for document in DOCUMENTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", PODS)
def test_a_pod_runs_without_root_and_without_access_to_the_api_server(name: str) -> None:
    spec = PODS[name]["spec"]
    user, _, group = dict(read_dockerfile())["USER"].partition(":")
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": int(group),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_is_restricted(name: str) -> None:
    container = CONTAINERS[name]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp"}
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_has_the_image_and_the_settings_of_the_release(name: str) -> None:
    container = CONTAINERS[name]
    assert container["image"].endswith(f"/eventservice:{VERSION}")
    assert container["envFrom"] == [
        {"configMapRef": {"name": "eventservice"}},
        {"secretRef": {"name": "eventservice"}},
    ]


def test_the_settings_are_accepted() -> None:
    (config,) = list_documents("ConfigMap")
    own = {
        entry["name"]: entry.get("value", "eventservice-cluster-0")
        for container in CONTAINERS.values()
        for entry in container.get("env", ())
    }
    assert {*config["data"], *own} <= env.names
    secrets = {
        "ENVIRONMENT": "production",
        "SECRET_KEY": os.urandom(32).hex(),
        "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "DATABASE_URL": "postgres://eventservice:secret@postgresql:5432/eventservice",
    }
    subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=ROOT,
        env={**os.environ, **config["data"], **own, **secrets},
        check=True,
    )


def list_probes() -> list[tuple[Document, Document]]:
    return [
        (container, probe)
        for container in CONTAINERS.values()
        for name, probe in container.items()
        if name.endswith("Probe")
    ]


def test_probes_request_the_health_endpoint_at_a_port_of_the_container() -> None:
    assert len(list_probes()) == 3
    for container, probe in list_probes():
        # Not /readyz, which fails on all web pods at once when there is no engine.
        assert resolve(probe["httpGet"]["path"]).func is livez
        assert probe["httpGet"]["port"] in {port["name"] for port in container["ports"]}
    web = CONTAINERS["Deployment/eventservice-web/web"]
    command = dict(read_dockerfile())["CMD"]
    assert f':{web["ports"][0]["containerPort"]}"' in command


def test_selectors_find_the_pods_that_they_mean() -> None:
    for document in list_documents("Deployment", "StatefulSet"):
        name = name_document(document)
        assert find_pods(document["spec"]["selector"]["matchLabels"]) == {name}
        for constraint in document["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert find_pods(constraint["labelSelector"]["matchLabels"]) == {name}
    for document in list_documents("Service"):
        (found,) = find_pods(document["spec"]["selector"])
        assert found.endswith(f"/{document['metadata']['name']}")
    for document in list_documents("PodDisruptionBudget"):
        (found,) = find_pods(document["spec"]["selector"]["matchLabels"])
        assert found.endswith(f"/{document['metadata']['name']}")


def test_a_disruption_budget_lets_a_node_be_drained() -> None:
    replicas = {
        d["metadata"]["name"]: d["spec"]["replicas"] for d in list_documents("Deployment", "StatefulSet")
    }
    for document in list_documents("PodDisruptionBudget"):
        spec, count = document["spec"], replicas[document["metadata"]["name"]]
        assert count > 1
        assert spec.get("minAvailable", 0) < count
        assert spec.get("maxUnavailable", 1) >= 1


def test_names_that_refer_to_other_objects_exist() -> None:
    (ingress,) = list_documents("Ingress")
    services = {document["metadata"]["name"]: document for document in list_documents("Service")}
    for rule in ingress["spec"]["rules"]:
        for path in rule["http"]["paths"]:
            backend = path["backend"]["service"]
            ports = services[backend["name"]]["spec"]["ports"]
            assert backend["port"]["name"] in {port["name"] for port in ports}
    (cluster,) = list_documents("StatefulSet")
    assert cluster["spec"]["serviceName"] in services
    (config,) = list_documents("ConfigMap")
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == config["data"]["ALLOWED_HOSTS"].split(",")


def test_every_pod_is_under_the_network_policy_and_only_the_web_pods_can_be_reached() -> None:
    policies = {d["metadata"]["name"]: d["spec"] for d in list_documents("NetworkPolicy")}
    everything = policies["eventservice"]
    assert find_pods(everything["podSelector"]["matchLabels"]) == PODS.keys()
    assert everything["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in everything
    reachable = {
        pod
        for spec in policies.values()
        if "ingress" in spec
        for pod in find_pods(spec["podSelector"]["matchLabels"])
    }
    assert reachable == {"Deployment/eventservice-web"}
    (calling,) = [spec for name, spec in policies.items() if name != "eventservice" and "egress" in spec]
    assert find_pods(calling["podSelector"]["matchLabels"]) == {"StatefulSet/eventservice-cluster"}


def test_a_cluster_has_the_time_that_it_needs_to_stop_and_a_name_of_its_own() -> None:
    cluster = PODS["StatefulSet/eventservice-cluster"]["spec"]
    assert cluster["terminationGracePeriodSeconds"] > settings.SHUTDOWN_SECONDS + 10
    variables: list[Any] = cluster["containers"][0]["env"]
    assert variables == [{"name": "CLUSTER_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]


def test_processes_wait_for_the_migrations() -> None:
    for name in ("Deployment/eventservice-web", "StatefulSet/eventservice-cluster"):
        (waiting,) = PODS[name]["spec"]["initContainers"]
        assert waiting["args"] == ["python", "manage.py", "migrate", "--check"]
