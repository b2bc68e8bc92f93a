from __future__ import annotations

import os
import secrets
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from eventservice.devtools.supervisor import Process, Supervisor
from eventservice.management.ports import HOST, require_free_ports
from eventservice.management.profile import (
    KEY,
    TENANT,
    URL,
    format_exports,
    format_path,
    get_profile_path,
    is_replaceable,
    read_profile,
    write_profile,
)
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key, find_key
from eventservice.tenants.models import ApiKey, Tenant

DEMO = "demo"
OPERATOR = "operator"
# The cluster takes up to 10 s more than SHUTDOWN_SECONDS.
STOP_GRACE_SECONDS = 12


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
        if settings.PRODUCTION:
            raise CommandError(
                "`up` is for development: it creates a demo tenant and an operator, and lets calls reach this machine."
                " Unset ENVIRONMENT, or start the processes of docs/operations.md."
            )
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
            ],
            grace=settings.SHUTDOWN_SECONDS + STOP_GRACE_SECONDS,
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
            say(f"Operator: {OPERATOR}. Change the password: {_manage_command()} changepassword {OPERATOR}")
        else:
            # One transaction: if a start fails halfway, the next one must create and print the credentials.
            with transaction.atomic():
                tenant = create_tenant(DEMO)
                key = _create_key(tenant)
                password = _create_operator()
            say(f"Tenant: {tenant.tenant_id}")
            say(f"API key: {key}")
            say(f"Operator: {OPERATOR}")
            say(f"Password: {password}")
        self._update_profile(port, tenant, key)
        self.stdout.flush()

    def _update_profile(self, port: int, tenant: Tenant, new_key: str) -> None:
        """Write the profile with a valid key, and print how to use it. One that somebody else wrote stays as it is."""
        say, profile = self.stdout.write, read_profile()
        if is_replaceable():
            key = new_key or _find_valid_key(tenant, profile) or _create_key(tenant)
            try:
                path = write_profile(_build_variables(port, tenant, key))
            except OSError as error:
                reason = f"The profile could not be written ({error.strerror or error})."
            else:
                say(f"Profile: {path}")
                say("")
                say("Client commands use this profile. For curl, load it into your shell:")
                say("")
                say(f"    . {format_path(path)}")
                say("")
                return
        else:
            key = new_key
            reason = f"The profile {get_profile_path()} was not written by `make run` for this machine, and stays as it is."
        say("")
        say(f"{reason} For curl and client commands, paste this into another shell:")
        say("")
        for line in format_exports(_build_variables(port, tenant, key)):
            say(f"    {line}")
        if not key:
            say("")
            say(f"Create an API key: {_manage_command()} apikey create --tenant {DEMO}")
        say("")


def _find_valid_key(tenant: Tenant, profile: Mapping[str, str]) -> str:
    """Return the key of the profile if it is valid for the tenant in this database."""
    key = find_key(profile.get(KEY, ""))
    return profile[KEY] if key and key.tenant_id == tenant.tenant_id else ""


def _create_key(tenant: Tenant) -> str:
    return create_key(tenant.tenant_id, list(ApiKey.Scope), name=DEMO)[1]


def _build_variables(port: int, tenant: Tenant, key: str) -> dict[str, str]:
    """Return the environment variables for clients. DATABASE_URL is left out, because it may contain a password."""
    path = Path(settings.BASE_DIR, Path(os.environ.get("DB_PATH", "")).expanduser())
    return {
        "DB_PATH": str(path) if os.environ.get("DB_PATH") else "",
        "TARGET_PORT": os.environ.get("TARGET_PORT", ""),
        URL: f"http://{HOST}:{port}",
        TENANT: str(tenant.tenant_id),
        KEY: key,
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
