"""The whole system on one machine: `make run`."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from eventservice.devtools.supervisor import Process, Supervisor
from eventservice.management.ports import HOST, refuse_taken
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import ApiKey, Tenant

DEMO = "demo"
OPERATOR = "operator"


class Command(BaseCommand):
    help = (
        "Migrate, make a demo tenant on the first start, and run web, engine, dispatcher and a mock target."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=_port, default=settings.PORT)
        parser.add_argument("--target-port", type=_port, default=settings.TARGET_PORT)
        parser.add_argument("--web-workers", type=int, default=2)

    def handle(self, *args: Any, port: int, target_port: int, web_workers: int, **options: Any) -> None:
        refuse_taken({"PORT": port, "TARGET_PORT": target_port})
        call_command("migrate", verbosity=0, interactive=False)
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
        self._introduce(port, target_port)
        # The mock target is on loopback, which nothing else may call.
        env = {
            "EGRESS_ALLOW": ",".join(filter(None, [os.environ.get("EGRESS_ALLOW"), f"{HOST}:{target_port}"]))
        }
        status = Supervisor(
            [
                Process("web", _web(port, web_workers), _waiters(web_workers)),
                Process("cluster", [sys.executable, "manage.py", "cluster"], env),
                Process(
                    "target",
                    [sys.executable, "-m", "eventservice.devtools.mock_target", "--port", str(target_port)],
                ),
            ]
        ).run()
        raise SystemExit(status)

    def _introduce(self, port: int, target_port: int) -> None:
        """Each on a line of its own, so that a script can read it. Secrets are shown once, when they are made."""
        say = self.stdout.write
        say(f"Console: http://{HOST}:{port}/")
        say(f"Target: http://{HOST}:{target_port}/ok")
        tenant, key = Tenant.objects.filter(name=DEMO).first(), ""
        if tenant is not None:
            say(f"Tenant: {tenant.tenant_id}")
            say(f"API key: shown when it was made; {_manage()} apikey create --tenant {DEMO} makes another")
            say(f"Operator: {OPERATOR}; {_manage()} changepassword {OPERATOR} sets another password")
        else:
            # All or none: of a start that fails here, the next one would tell no key.
            with transaction.atomic():
                tenant = create_tenant(DEMO)
                key = create_key(tenant.tenant_id, list(ApiKey.Scope), name="demo")[1]
                password = _create_operator()
            say(f"Tenant: {tenant.tenant_id}")
            say(f"API key: {key}")
            say(f"Operator: {OPERATOR}")
            say(f"Password: {password}")
        say(f"\nIn another shell, for curl and for the commands ({_manage()} …):\n")
        for name, value in _variables(port, tenant, key).items():
            say(f"export {name}={shlex.quote(value) if value else '  # the API key'}")
        say("")
        self.stdout.flush()


def _variables(port: int, tenant: Tenant, key: str) -> dict[str, str]:
    """What a shell needs to speak to this system. No password: DATABASE_URL is left to whoever has set it."""
    chosen = {name: os.environ[name] for name in ("DB_PATH", "TARGET_PORT") if os.environ.get(name)}
    return {
        **chosen,
        "EVENTSERVICE_URL": f"http://{HOST}:{port}",
        "EVENTSERVICE_TENANT": str(tenant.tenant_id),
        "EVENTSERVICE_KEY": key,
    }


def _manage() -> str:
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} manage.py"


def _port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65_536):
        raise ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def _web(port: int, workers: int) -> list[str]:
    return [
        sys.executable, "-m", "gunicorn", "-c", "python:eventservice.runtime.gunicorn_config", "eventservice.wsgi",
        "--bind", f"{HOST}:{port}", "--workers", str(workers),
    ]  # fmt: skip


def _waiters(workers: int) -> dict[str, str]:
    """One worker is always free for those who do not wait."""
    return {"API_MAX_WAITERS": os.environ.get("API_MAX_WAITERS", str(workers - 1))}


def _create_operator() -> str:
    password = secrets.token_urlsafe(12)
    get_user_model().objects.create_superuser(OPERATOR, password=password)
    return password
