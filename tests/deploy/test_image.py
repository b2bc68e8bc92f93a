"""The image of deploy/Dockerfile is built, and runs the services of deploy/compose.yaml in the order of that file."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from eventservice.client import Client
from tests.deploy.containers import Image, Pod, build_image, find_missing_tools
from tests.deploy.manifests import DEPLOY, read_documents
from tests.process_harness import wait_until

MISSING = find_missing_tools()
WEB = "http://127.0.0.1:8000"
# The only address of this machine that a call may reach, as production accepts it: one address with one port.
TARGET_PORT = 9000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sqlite_only,
    pytest.mark.skipif(
        bool(MISSING) or os.geteuid() != 0,
        reason=f"building and running an image needs root and {', '.join(MISSING) or 'its tools'}",
    ),
]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with build_image() as image:
        yield image


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    (compose,) = read_documents(DEPLOY / "compose.yaml")
    services: dict[str, Any] = compose["services"]
    return services


@pytest.fixture
def pod(image: Image, services: dict[str, Any], tmp_path: Path) -> Iterator[Pod]:
    """Return a pod with the settings of compose.yaml and a volume, as the image creates it."""
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    user, _, group = image.config["User"].partition(":")
    os.chown(volume, int(user), int(group))
    env = {
        **services["web"]["environment"],
        "SECRET_KEY": os.urandom(32).hex(),
        "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "ALLOWED_HOSTS": "127.0.0.1",
        "EGRESS_ALLOW": f"127.0.0.1:{TARGET_PORT}",
    }
    pod = Pod(image, tmp_path, env, volume)
    try:
        yield pod
    finally:
        pod.close()


def list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_image_contains_what_the_service_needs_and_nothing_else(image: Image) -> None:
    assert list_names(image.root / "app") == {
        "__pycache__", "data", "eventservice", "execution", "manage.py", "orchestration", "outbox", "requirements.lock", "templates", "timers",
    }  # fmt: skip
    assert list_names(image.root / "app" / "data") == {"static"}
    (packages,) = (image.root / "opt" / "venv" / "lib").glob("python3*/site-packages")
    assert {"django", "gunicorn"} <= list_names(packages)
    assert not {"pytest", "mypy"} & list_names(packages)


def test_the_code_belongs_to_root_and_the_process_does_not(image: Image, pod: Pod) -> None:
    status, output = pod.run(
        "user", ["sh", "-c", "id -u; id -g; touch /app/file; echo /tmp/* && touch /tmp/file"]
    )
    assert output.split("\n")[:2] == image.config["User"].split(":")
    assert "Read-only file system" in output
    assert status == 0
    writable = {path for path in (image.root / "app").rglob("*") if path.stat().st_uid != 0}
    assert writable == set()


def test_a_container_without_settings_names_those_that_are_missing(image: Image, tmp_path: Path) -> None:
    pod = Pod(image, tmp_path, {})
    try:
        for name, command in (("web", image.command), ("cluster", ["python", "manage.py", "cluster"])):
            status, output = pod.run(name, command)
            assert status != 0
            for setting in ("SECRET_KEY", "ENCRYPTION_KEYS", "ALLOWED_HOSTS"):
                assert f"{setting} must be set" in output
        status, key = pod.run("key", ["python", "manage.py", "newkey"])
        assert status == 0
        Fernet(key.strip())
    finally:
        pod.close()


def read(path: str) -> bytes:
    with urllib.request.urlopen(f"{WEB}{path}", timeout=60) as response:
        content: bytes = response.read()
        return content


def test_the_services_of_compose_work_on_a_read_only_root(
    image: Image, services: dict[str, Any], pod: Pod
) -> None:
    assert all(service["read_only"] and service["tmpfs"] == ["/tmp"] for service in services.values())
    assert pod.run("unhealthy", image.health_check)[0] == 1
    status, output = pod.run("migrate", services["migrate"]["command"])
    assert status == 0, output
    tenant = pod.run("tenant", ["python", "manage.py", "tenant", "create", "acme"])[1]
    key = pod.run("key", ["python", "manage.py", "apikey", "create", "--tenant", "acme"])[1]
    found_tenant, found_key = re.search(r"[0-9a-f-]{36}", tenant), re.search(r"es_\w+", key)
    assert found_tenant, tenant
    assert found_key, key

    web = pod.start("web", services["web"].get("command", ()))
    cluster = pod.start("cluster", services["cluster"]["command"])
    target = [sys.executable, "-m", "eventservice.devtools.mock_target", "--port", str(TARGET_PORT)]
    pod.start_beside("target", target)
    wait_until(lambda: pod.run("healthy", image.health_check)[0] == 0, "the health check succeeds")
    assert b"body" in pod.call(read, "/static/console/console.css")
    with Client(WEB, found_tenant[0], found_key[0]) as client:
        submitted = pod.call(client.submit, "hello", "POST", f"http://127.0.0.1:{TARGET_PORT}/ok")
        call = pod.call(client.wait, submitted["serviceCallId"])
    assert call["status"] == "Succeeded", (call, pod.read_log("cluster"))
    assert json.loads(pod.call(read, "/readyz"))["status"] == "ok"
    status, output = pod.run("prune", services["prune"]["command"])
    assert status == 0, output
    status, output = pod.run("sessions", ["python", "manage.py", "clearsessions"])
    assert status == 0, output
    assert (pod.stop(cluster), pod.stop(web)) == (0, 0), pod.read_log("cluster") + pod.read_log("web")


def test_the_files_of_the_database_can_be_read_by_the_service_only(pod: Pod, tmp_path: Path) -> None:
    status, output = pod.run("migrate", ["python", "manage.py", "migrate", "--noinput"])
    assert status == 0, output
    files = [path for path in (tmp_path / "volume").iterdir() if path.is_file()]
    assert files
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
