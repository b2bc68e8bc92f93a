"""deploy/compose*.yaml: restricted containers in the right order, with settings that the service accepts.

tests/deploy/test_image.py runs the services of compose.yaml in the image.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from django.conf import settings

from eventservice.kernel.env import parse_env_file
from eventservice.settings import env
from outbox.publisher_spec import BROKERS
from tests.deploy.manifests import DEPLOY, IMAGE_NAME, ROOT, VERSION, Document, read_documents

FILES = sorted(DEPLOY.glob("compose*.yaml"))
EXAMPLE = DEPLOY / "env.example"
OURS = {"migrate", "web", "cluster", "prune"}


def get_name(path: Path) -> str:
    return path.name


def read_compose(path: str) -> Document:
    (document,) = read_documents(DEPLOY / path)
    return document


def list_services(name: str) -> dict[str, Document]:
    services: dict[str, Document] = read_compose(name)["services"]
    return services


SERVICES = {
    f"{path.name}/{name}": service for path in FILES for name, service in list_services(path.name).items()
}
OWN_SERVICES = {name: service for name, service in SERVICES.items() if name.rpartition("/")[2] in OURS}
SERVERS = {name: service for name, service in SERVICES.items() if name not in OWN_SERVICES}


def test_both_files_have_the_same_processes() -> None:
    assert len(FILES) == 2
    assert {*list_services("compose.yaml")} == OURS
    assert {*list_services("compose.postgres.yaml")} == OURS | {"postgres", "nats"}


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_process_is_the_same_in_both_files_but_for_its_database(name: str) -> None:
    one, other = (dict(list_services(path.name)[name]) for path in FILES)
    for service in (one, other):
        for differing in ("environment", "volumes", "depends_on"):
            service.pop(differing, None)
    assert one == other


@pytest.mark.parametrize("name", OWN_SERVICES)
def test_a_container_of_the_service_is_restricted(name: str) -> None:
    service = OWN_SERVICES[name]
    assert service["image"] == f"{IMAGE_NAME}:{VERSION}"
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service  # that of the image, which is not root
    assert service["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}


@pytest.mark.parametrize("name", OWN_SERVICES)
def test_a_process_has_the_time_that_it_needs_to_stop(name: str) -> None:
    seconds = re.fullmatch(r"(\d+)s", OWN_SERVICES[name]["stop_grace_period"])
    assert seconds
    assert int(seconds[1]) > settings.SHUTDOWN_SECONDS + 10
    assert OWN_SERVICES[name]["ulimits"]["nofile"] > settings.ENGINE_IN_FLIGHT


@pytest.mark.parametrize("name", SERVERS)
def test_the_image_of_a_server_is_pinned_and_its_data_are_on_a_volume(name: str) -> None:
    service = SERVERS[name]
    assert re.search(r":\d+\.\d+", service["image"])
    assert "healthcheck" in service
    (volume,) = service["volumes"]
    assert volume.partition(":")[0] in read_compose(name.partition("/")[0])["volumes"]


@pytest.mark.parametrize("path", FILES, ids=get_name)
def test_nothing_starts_before_the_migrations_and_these_after_the_database(path: Path) -> None:
    services = list_services(path.name)
    for name in ("web", "cluster"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert services[name]["restart"] == "unless-stopped"
    assert services["migrate"]["restart"] == "no"
    if "postgres" in services:
        assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


@pytest.mark.parametrize("path", FILES, ids=get_name)
def test_only_the_proxy_of_the_machine_reaches_the_web_processes_and_is_trusted(path: Path) -> None:
    compose = read_compose(path.name)
    published = {name: s["ports"] for name, s in compose["services"].items() if "ports" in s}
    assert published == {"web": ["127.0.0.1:8000:8000"]}
    (network,) = compose["networks"]["default"]["ipam"]["config"]
    trusted = compose["services"]["web"]["environment"]["TRUSTED_PROXIES"]
    assert trusted == network["gateway"]
    assert ip_address(trusted) in ip_network(network["subnet"])


def substitute(value: str, variables: dict[str, str]) -> str:
    """Replace ${NAME:?message}, as compose does. Raise KeyError for a variable that is not set."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: variables[found[1]], value)


@pytest.mark.parametrize("path", FILES, ids=get_name)
def test_the_settings_are_accepted_once_the_example_is_completed(path: Path) -> None:
    example = parse_env_file(EXAMPLE.read_text(), EXAMPLE)
    assert {name for name, value in example.items() if not value} == {
        "SECRET_KEY",
        "ENCRYPTION_KEYS",
        "POSTGRES_PASSWORD",
    }
    assert example.keys() - {"POSTGRES_PASSWORD"} <= env.names
    completed = example | {
        "SECRET_KEY": os.urandom(32).hex(),
        "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "POSTGRES_PASSWORD": "secret",
    }
    services = list_services(path.name)
    own = {name: substitute(value, completed) for name, value in services["web"]["environment"].items()}
    assert own.keys() <= env.names
    scheme = own.get("PUBLISHERS", "main=redis:").partition("=")[2].partition(":")[0]
    if scheme not in BROKERS:
        pytest.skip(f"there is no publisher for {scheme}:// yet")
    done = check_settings({**completed, **own})
    assert done.returncode == 0, done.stderr
    refused = check_settings({**example, **own})
    assert refused.returncode == 1
    assert "SECRET_KEY" in refused.stderr
    assert "ENCRYPTION_KEYS" in refused.stderr


def check_settings(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=ROOT,
        env={**os.environ, "ENVIRONMENT": "production", **variables},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that loads a compose file as Docker Compose does."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    program = tmp_path_factory.mktemp("loader") / "loader"
    source = Path(__file__).with_name("compose_loader")
    done = subprocess.run(
        ["go", "build", "-o", program, "."],
        cwd=source,
        env={**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"the library of Docker Compose cannot be built: {done.stderr.strip()}")
    return program


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a copy of the files, with settings."""
    for path in (*FILES, EXAMPLE):
        shutil.copy(path, tmp_path)
    (tmp_path / ".env").write_text(
        EXAMPLE.read_text().replace("POSTGRES_PASSWORD=", "POSTGRES_PASSWORD=secret")
    )
    return tmp_path


def load(loader: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """Load a file from another folder than its own."""
    env = {name: value for name, value in os.environ.items() if name != "POSTGRES_PASSWORD"}
    return subprocess.run([loader, path], cwd="/", env=env, capture_output=True, text=True)


@pytest.mark.parametrize("path", FILES, ids=get_name)
def test_docker_compose_understands_the_file(path: Path, loader: Path, installed: Path) -> None:
    done = load(loader, installed / path.name)
    assert done.returncode == 0, done.stderr
    project = json.loads(done.stdout)
    assert project["services"].keys() == list_services(path.name).keys()
    settings_of_web = project["services"]["web"]["environment"]
    assert settings_of_web["ALLOWED_HOSTS"] == "calls.example"
    if "postgres" in project["services"]:
        assert settings_of_web["DATABASE_URL"] == "postgres://eventservice:secret@postgres:5432/eventservice"


def test_docker_compose_would_refuse_an_unknown_name_and_a_missing_password(
    loader: Path, installed: Path
) -> None:
    path = installed / "compose.postgres.yaml"
    (installed / ".env").write_text(EXAMPLE.read_text())
    assert "set it in deploy/.env" in load(loader, path).stderr
    path.write_text((DEPLOY / "compose.yaml").read_text().replace("read_only:", "readonly:"))
    assert "readonly" in load(loader, path).stderr
