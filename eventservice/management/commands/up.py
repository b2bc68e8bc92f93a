from __future__ import annotations

import os
import secrets
import shlex
import sys
from argparse import ArgumentTypeError
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from eventservice.devtools.supervisor import Process, Supervisor
from eventservice.management.ports import HOST, require_free_ports
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import ApiKey, Tenant

DEMO = "demo"
OPERATOR = "operator"


class Command(BaseCommand):
    help = (
        "Run the whole system for development: web, engine, dispatcher and a mock target. Applies migrations, and"
        " creates a demo tenant on the first start."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=_parse_port, default=settings.PORT)
        parser.add_argument("--target-port", type=_parse_port, default=settings.TARGET_PORT)
        parser.add_argument("--web-workers", type=int, default=2)

    def handle(self, *args: object, port: int, target_port: int, web_workers: int, **options: object) -> None:
        require_free_ports({"PORT": port, "TARGET_PORT": target_port})
        call_command("migrate", verbosity=0, interactive=False)
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
        self._print_introduction(port, target_port)
        status = Supervisor(
            [
                Process("web", _build_web_command(port, web_workers), _build_web_environment(web_workers)),
                Process("cluster", [sys.executable, "manage.py", "cluster"]),
                Process(
                    "target",
                    [sys.executable, "-m", "eventservice.devtools.mock_target", "--port", str(target_port)],
                ),
            ]
        ).run()
        raise SystemExit(status)

    def _print_introduction(self, port: int, target_port: int) -> None:
        """Print addresses and credentials, one per line for scripts. Secrets are printed only when they are created."""
        say = self.stdout.write
        say(f"Console: http://{HOST}:{port}/")
        say(f"Target: http://{HOST}:{target_port}/ok")
        say("Calls and webhooks can reach servers on this machine, because ENVIRONMENT is development.")
        tenant, key = Tenant.objects.filter(name=DEMO).first(), ""
        if tenant is not None:
            say(f"Tenant: {tenant.tenant_id}")
            say(
                f"API key: printed on the first start. Create another: {_manage_command()} apikey create --tenant {DEMO}"
            )
            say(f"Operator: {OPERATOR}. Change the password: {_manage_command()} changepassword {OPERATOR}")
        else:
            # One transaction: if a start fails halfway, the next one must create and print the credentials.
            with transaction.atomic():
                tenant = create_tenant(DEMO)
                key = create_key(tenant.tenant_id, list(ApiKey.Scope), name="demo")[1]
                password = _create_operator()
            say(f"Tenant: {tenant.tenant_id}")
            say(f"API key: {key}")
            say(f"Operator: {OPERATOR}")
            say(f"Password: {password}")
        say(f"\nFor curl and the client commands, paste this into another shell ({_manage_command()} …):\n")
        for name, value in _build_variables(port, tenant, key).items():
            say(f"export {name}={shlex.quote(value) if value else '  # the API key'}")
        say("")
        self.stdout.flush()


def _build_variables(port: int, tenant: Tenant, key: str) -> dict[str, str]:
    """Return the environment variables for clients. DATABASE_URL is left out, because it may contain a password."""
    inherited = {name: os.environ[name] for name in ("DB_PATH", "TARGET_PORT") if os.environ.get(name)}
    return {
        **inherited,
        "EVENTSERVICE_URL": f"http://{HOST}:{port}",
        "EVENTSERVICE_TENANT": str(tenant.tenant_id),
        "EVENTSERVICE_KEY": key,
    }


def _manage_command() -> str:
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} manage.py"


def _parse_port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65_536):
        raise ArgumentTypeError(f"{text!r} is not a port between 1 and 65535")
    return int(text)


def _build_web_command(port: int, workers: int) -> list[str]:
    return [
        sys.executable, "-m", "gunicorn", "-c", "python:eventservice.runtime.gunicorn_config", "eventservice.wsgi",
        "--bind", f"{HOST}:{port}", "--workers", str(workers),
    ]  # fmt: skip


def _build_web_environment(workers: int) -> dict[str, str]:
    """Limit the requests that wait for a call, so that one worker is always free."""
    return {"API_MAX_WAITERS": os.environ.get("API_MAX_WAITERS", str(workers - 1))}


def _create_operator() -> str:
    password = secrets.token_urlsafe(12)
    get_user_model().objects.create_superuser(OPERATOR, password=password)
    return password
