"""The commands of deploy/ are executed: those of the units, of the compose files, of the manifests and of the image."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.deploy.manifests import DEPLOY, ROOT, Document, read_dockerfile, read_documents, read_unit
from tests.process_harness import wait_until

pytestmark = pytest.mark.sqlite_only

DAEMONS = {"cluster", "gunicorn"}


def find_commands(document: object) -> Iterator[list[str]]:
    """Yield the commands of containers in a compose file or a manifest."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name in ("args", "command") and value[0] == "python":
                yield value
            else:
                yield from find_commands(value)
    elif isinstance(document, list):
        for value in document:
            yield from find_commands(value)


def list_commands() -> set[tuple[str, ...]]:
    """Return all commands, without the folder of the virtual environment."""
    files = [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("kubernetes/*.yaml")]
    documents: list[Document] = [document for path in files for document in read_documents(path)]
    found = [command for document in documents for command in find_commands(document)]
    for path in DEPLOY.glob("systemd/*.service"):
        found += map(shlex.split, read_unit(path)["Service"]["ExecStart"])
    found.append(json.loads(dict(read_dockerfile())["CMD"]))
    return {(Path(program).name, *arguments) for program, *arguments in found}


COMMANDS = list_commands()


def is_daemon(command: tuple[str, ...]) -> bool:
    return bool(DAEMONS & {*command})


def get_port(command: tuple[str, ...]) -> int:
    return int(command[command.index("--bind") + 1].rpartition(":")[2])


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "ENVIRONMENT": "production",
        "SECRET_KEY": os.urandom(32).hex(),
        "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "ALLOWED_HOSTS": "calls.example",
        "DATABASE_URL": "",
        "DB_PATH": str(tmp_path / "event_service.db"),
    }


def build_argv(command: tuple[str, ...], port: int = 0) -> list[str]:
    """Return the command with the programs of this virtual environment, and another port than that of the service."""
    program, *arguments = command
    modules = [] if program == "python" else ["-m", program]
    return [
        sys.executable,
        *modules,
        *(re.sub(r"^([\d.]+):8000$", rf"127.0.0.1:{port}", argument) for argument in arguments),
    ]


def test_the_commands_are_those_of_an_installation() -> None:
    names = {command[2] if command[0] == "python" else command[0] for command in COMMANDS}
    assert names == {"migrate", "gunicorn", "cluster", "prune", "clearsessions"}
    assert {get_port(command) for command in COMMANDS if command[0] == "gunicorn"} == {8000}


def test_commands_that_end_do_so_successfully(env: dict[str, str]) -> None:
    check = ("python", "manage.py", "migrate", "--check")
    assert subprocess.run(build_argv(check), cwd=ROOT, env=env, capture_output=True).returncode == 1
    # The one that creates the tables comes first.
    for command in sorted(
        {c for c in COMMANDS if not is_daemon(c)}, key=lambda c: c[2:] != ("migrate", "--noinput")
    ):
        done = subprocess.run(build_argv(command), cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.parametrize("command", sorted(filter(is_daemon, COMMANDS)), ids=" ".join)
def test_a_process_starts_in_production_and_stops_when_it_is_told_to(
    command: tuple[str, ...], env: dict[str, str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=env, check=True)
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(build_argv(command, port), cwd=ROOT, env=env, stdout=file, stderr=file)

    def is_at_work() -> bool:
        assert process.poll() is None, log.read_text()
        if "cluster" in command:
            return log.read_text().count('"role_acquired"') == 2
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/livez") as response,
        ):
            return bool(response.status == 200)
        return False

    try:
        wait_until(is_at_work, "it is at work")
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
