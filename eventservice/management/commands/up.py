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
    TARGET_PORT,
    TENANT,
    URL,
    format_exports,
    format_path,
    get_profile_path,
    is_replaceable,
    read_profile,
    write_profile,
)
from eventservice.management.user_changes import record_saved_users
from eventservice.operators.audit_log import CommandLine, record_action
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key, find_key
from eventservice.tenants.models import ApiKey, Tenant

DEMO = "demo"
# The first user of the console, who has the role admin.
ADMIN = "admin"
# The ports in the commands of README.md and docs, which are the defaults.
DOCUMENTED_PORTS = {"PORT": 8000, "TARGET_PORT": 9000}
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
        parser.add_argument("--web-workers", type=int, default=3)

    def handle(self, *args: object, port: int, target_port: int, web_workers: int, **options: object) -> None:
        if settings.PRODUCTION:
            raise CommandError(
                "`up` is for development: it creates a demo tenant and a user, and lets calls reach this machine."
                " Unset ENVIRONMENT, or start the processes of docs/operations.md."
            )
        require_free_ports({"PORT": port, "TARGET_PORT": target_port}, DOCUMENTED_PORTS)
        call_command("migrate", verbosity=0, interactive=False)
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
        self._print_introduction(port, target_port)
        status = Supervisor(
            [
                Process("web", _build_web_command(port, web_workers), _build_web_environment(web_workers)),
                Process("cluster", [sys.executable, "manage.py", "cluster"], _build_environment()),
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
        if (port, target_port) != tuple(DOCUMENTED_PORTS.values()):
            documented = " and ".join(map(str, DOCUMENTED_PORTS.values()))
            say(
                f"The documentation's commands use the ports {documented}: replace them by {port} and {target_port}."
            )
        tenant, key, password = Tenant.objects.filter(name=DEMO).first(), "", ""
        if tenant is None:
            # One transaction: if a start fails halfway, the next one must create and print the credentials.
            with transaction.atomic():
                tenant = create_tenant(DEMO)
                record_action(
                    CommandLine(), "tenant-create", tenant_id=tenant.pk, subject=tenant.pk, name=DEMO
                )
                key = _create_key(tenant)
                password = _create_admin()
        say(f"Tenant: {DEMO} ({tenant.tenant_id})")
        if key:
            say(f"API key: {key}")
        self._print_user(password)
        self._update_profile(_build_variables(port, target_port, tenant, key), tenant)
        self.stdout.flush()

    def _print_user(self, password: str) -> None:
        if password:
            self.stdout.write(f"User: {ADMIN}")
            self.stdout.write(f"Password: {password}")
        elif name := _find_user():
            command = f"{_manage_command()} changepassword {shlex.quote(name)}"
            self.stdout.write(f"User: {name}. Change the password: {command}")
        else:
            self.stdout.write(f"User: none. Create one: {_manage_command()} createsuperuser")

    def _update_profile(self, variables: dict[str, str], tenant: Tenant) -> None:
        """Write the profile with a valid key, and print how to use it. One that somebody else wrote stays as it is."""
        say, profile = self.stdout.write, read_profile()
        if is_replaceable():
            variables[KEY] = variables[KEY] or _find_valid_key(tenant, profile) or _create_key(tenant)
            try:
                path = write_profile(variables)
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
            reason = f"The profile {get_profile_path()} was not written by `make run` for this machine, and stays as it is."
        say("")
        say(f"{reason} For curl and client commands, paste this into another shell:")
        say("")
        for line in format_exports(variables):
            say(f"    {line}")
        if not variables[KEY]:
            say("")
            say(f"Create an API key: {_manage_command()} apikey create --tenant {DEMO}")
        say("")


def _find_valid_key(tenant: Tenant, profile: Mapping[str, str]) -> str:
    """Return the key of the profile if it is valid for the tenant in this database."""
    key = find_key(profile.get(KEY, ""))
    return profile[KEY] if key and key.tenant_id == tenant.tenant_id else ""


def _create_key(tenant: Tenant) -> str:
    with transaction.atomic():
        key, text = create_key(tenant.tenant_id, list(ApiKey.Scope), name=DEMO)
        record_action(CommandLine(), "key-create", tenant_id=tenant.pk, subject=key.key_id, name=DEMO)
    return text


def _build_variables(port: int, target_port: int, tenant: Tenant, key: str) -> dict[str, str]:
    """Return the environment variables for clients. DATABASE_URL is left out, because it may contain a password."""
    path = Path(settings.BASE_DIR, Path(os.environ.get("DB_PATH", "")).expanduser())
    return {
        "DB_PATH": str(path) if os.environ.get("DB_PATH") else "",
        TARGET_PORT: str(target_port),
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
    """Let as many requests wait for calls as leave a worker for an expensive read, and one for everything else."""
    waiters = max(0, workers - settings.MAX_EXPENSIVE_READS - 1)
    return {"API_MAX_WAITERS": os.environ.get("API_MAX_WAITERS", str(waiters)), **_build_environment()}


def _build_environment() -> dict[str, str]:
    """Say what the processes would assume, so that they do not warn of it."""
    return {"ENVIRONMENT": settings.ENVIRONMENT}


def _create_admin() -> str:
    """Create the first user and return the password. Return "" if there is somebody who can sign in as admin already."""
    if _find_user():
        return ""
    password = secrets.token_urlsafe(12)
    with record_saved_users("user-create"):
        get_user_model().objects.create_superuser(ADMIN, password=password)
    return password


def _find_user() -> str:
    """Return the name of the first superuser, or "" if there is none."""
    user = get_user_model().objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    return user.get_username() if user else ""
