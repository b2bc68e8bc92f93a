"""The whole system as `make run` starts it, with its own database, its own ports and a week of demo data."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"
USERS = {"vera": "viewer", "oscar": "operator", "ada": "admin"}

# One process does it all, since starting one takes longer than the work.
PREPARE = """
import sys
import django
django.setup()
from django.contrib.auth.models import Group, User
from django.core.management import call_command
call_command("migrate", verbosity=0, interactive=False)
for name, role in {users!r}.items():
    user = User.objects.create_user(name, password={password!r}, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
call_command("seed_demo", calls=int(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class System:
    url: str
    target: str
    tenant: str  # the tenant "demo", which has only the calls that tests submit
    key: str
    database: Path

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement on the database, for what would take hours otherwise. Return its rows."""
        with closing(sqlite3.connect(self.database, timeout=20)) as connection:
            found = connection.execute(statement, parameters).fetchall()
            connection.commit()
            return found

    def call_api(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the API with a key of the tenant, and return the document."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/tenants/{self.tenant}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def submit(self, name: str, path: str = "/ok", **terms: Any) -> str:
        """Submit a call to the mock target and return its id."""
        spec = {"method": "POST", "url": f"{self.target}{path}", "body": {"from": "a test"}}
        made = self.call_api("POST", "/service-calls", {"name": name, "requestSpec": spec, **terms})
        return str(made["serviceCallId"])

    def wait_for_end(self, call: str) -> dict[str, Any]:
        """Wait until the call has ended and return it."""
        return self.call_api("GET", f"/service-calls/{call}?wait=20s")  # type: ignore[no-any-return]

    def build_details_url(self, call: str) -> str:
        return f"/calls/{self.tenant}/{call}/"


@contextmanager
def run_system(folder: Path, calls: int) -> Iterator[System]:
    port, target_port = _find_free_ports(2)
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | {
        "DJANGO_SETTINGS_MODULE": "eventservice.settings",
        "DB_PATH": str(folder / "db.sqlite3"),
        "XDG_CONFIG_HOME": str(folder),
        "PORT": str(port),
        "TARGET_PORT": str(target_port),
        "LOG_LEVEL": "WARNING",
        "SHUTDOWN_SECONDS": "1",  # at the end nothing waits for calls in flight
    }
    prepare = PREPARE.format(users=USERS, password=PASSWORD)
    subprocess.run([sys.executable, "-c", prepare, str(calls)], cwd=ROOT, env=env, check=True)
    log = folder / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [sys.executable, "manage.py", "up"], cwd=ROOT, env=env, stdout=output, stderr=output
        )
    try:
        urls = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{target_port}"
        yield _wait_for_system(up, log, *urls, folder / "db.sqlite3")
    finally:
        up.terminate()
        try:
            up.wait(timeout=20)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


def _wait_for_system(up: subprocess.Popen[bytes], log: Path, url: str, target: str, database: Path) -> System:
    give_up = time.monotonic() + 60
    while not _is_answering(f"{url}/readyz") or not _is_answering(f"{target}/stats"):
        if up.poll() is not None or time.monotonic() > give_up:
            raise AssertionError(f"the system did not start:\n{log.read_text()}")
        time.sleep(0.1)
    text = log.read_text()
    tenant = re.search(r"^Tenant: \S+ \((\S+)\)$", text, re.MULTILINE)
    key = re.search(r"^API key: (\S+)$", text, re.MULTILINE)
    assert tenant, text
    assert key, text
    return System(url, target, tenant[1], key[1], database)


def _is_answering(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def _find_free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
