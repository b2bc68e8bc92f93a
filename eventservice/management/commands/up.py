"""The whole system on one machine: `make run`."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from eventservice.supervisor import Process, Supervisor
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import ApiKey, Tenant
from eventservice.tenants.public import create_tenant

DEMO = "demo"
OPERATOR = "operator"


class Command(BaseCommand):
    help = (
        "Migrate, make a demo tenant on the first start, and run web, engine, dispatcher and a mock target."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
        parser.add_argument("--target-port", type=int, default=int(os.environ.get("TARGET_PORT", "9000")))
        parser.add_argument("--web-workers", type=int, default=2)

    def handle(self, *args: Any, port: int, target_port: int, web_workers: int, **options: Any) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
        self._introduce(port, target_port)
        # The mock target is on loopback, which nothing else may call.
        env = {
            "EGRESS_ALLOW": ",".join(
                filter(None, [os.environ.get("EGRESS_ALLOW"), f"127.0.0.1:{target_port}"])
            )
        }
        status = Supervisor(
            [
                Process("web", _web(port, web_workers)),
                Process("cluster", [sys.executable, "manage.py", "cluster"], env),
                Process(
                    "target", [sys.executable, "-m", "eventservice.mock_target", "--port", str(target_port)]
                ),
            ]
        ).run()
        raise SystemExit(status)

    def _introduce(self, port: int, target_port: int) -> None:
        """Each on a line of its own, so that a script can read it. Secrets are shown once, when they are made."""
        say = self.stdout.write
        say(f"Console: http://127.0.0.1:{port}/admin/")
        tenant = Tenant.objects.filter(name=DEMO).first()
        if tenant is not None:
            say(f"Tenant: {tenant.tenant_id}")
            say("API key: shown when it was made, at the first start")
        else:
            tenant = create_tenant(DEMO)
            say(f"Tenant: {tenant.tenant_id}")
            say(f"API key: {create_key(tenant.tenant_id, list(ApiKey.Scope), name='demo')[1]}")
            say(f"Operator: {OPERATOR}")
            say(f"Password: {_create_operator()}")
        say(f"Target: http://127.0.0.1:{target_port}/ok")


def _web(port: int, workers: int) -> list[str]:
    return [
        sys.executable, "-m", "gunicorn", "eventservice.wsgi", "--bind", f"127.0.0.1:{port}",
        "--workers", str(workers), "--preload", "--log-level", "warning",
    ]  # fmt: skip


def _create_operator() -> str:
    password = secrets.token_urlsafe(12)
    get_user_model().objects.create_superuser(OPERATOR, password=password)
    return password
