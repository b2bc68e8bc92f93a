"""The whole system as `make run` starts it, on a database and ports of its own, with a made-up week in it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"
USERS = {"vera": "viewer", "oscar": "operator", "ada": "admin"}

# In one process: to start one takes longer than what it does.
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
    tenant: str  # the tenant "demo", which has no calls but those that are made here
    key: str

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Of the tenant, as any client of it: to prepare what is not looked at, and to see what has come of it."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/tenants/{self.tenant}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def submit(self, name: str, path: str = "/ok", **terms: Any) -> str:
        """The id of a new call to the mock target."""
        spec = {"method": "POST", "url": f"{self.target}{path}", "body": {"from": "a test"}}
        made = self.api("POST", "/service-calls", {"name": name, "requestSpec": spec, **terms})
        return str(made["serviceCallId"])

    def ended(self, call: str) -> dict[str, Any]:
        """The call, once it has come to an end."""
        return self.api("GET", f"/service-calls/{call}?wait=20s")  # type: ignore[no-any-return]

    def detail(self, call: str) -> str:
        return f"/calls/{self.tenant}/{call}/"


@contextmanager
def running(folder: Path, calls: int) -> Iterator[System]:
    port, target_port = _free_ports(2)
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | {
        "DJANGO_SETTINGS_MODULE": "eventservice.settings",
        "DB_PATH": str(folder / "db.sqlite3"),
        "PORT": str(port),
        "TARGET_PORT": str(target_port),
        "LOG_LEVEL": "WARNING",
        "SHUTDOWN_SECONDS": "1",  # nobody waits for what is under way at the end
    }
    prepare = PREPARE.format(users=USERS, password=PASSWORD)
    subprocess.run([sys.executable, "-c", prepare, str(calls)], cwd=ROOT, env=env, check=True)
    log = folder / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [sys.executable, "manage.py", "up"], cwd=ROOT, env=env, stdout=output, stderr=output
        )
    try:
        yield _introduced(up, log, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{target_port}")
    finally:
        up.terminate()
        try:
            up.wait(timeout=20)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


def _introduced(up: subprocess.Popen[bytes], log: Path, url: str, target: str) -> System:
    give_up = time.monotonic() + 60
    while not _answers(f"{url}/readyz") or not _answers(f"{target}/stats"):
        if up.poll() is not None or time.monotonic() > give_up:
            raise AssertionError(f"the system did not start:\n{log.read_text()}")
        time.sleep(0.1)
    said = dict(re.findall(r"^(\w[\w ]*): (\S+)$", log.read_text(), re.MULTILINE))
    return System(url, target, said["Tenant"], said["API key"])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
