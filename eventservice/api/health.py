"""/livez: this process answers. /readyz: and what it needs does too."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from eventservice.api.problems import FieldError, Problem, build_problem_response
from eventservice.db.now import db_now
from eventservice.operators.health import check_role
from timers.models import NodeRole
from timers.operator_views import list_nodes


@csrf_exempt
@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


@csrf_exempt
@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    faults = [
        FieldError(f"/checks/{name}", wrong) for name, check in CHECKS.items() if (wrong := _made(check))
    ]
    if faults:
        names = ", ".join(fault.pointer.removeprefix("/checks/") for fault in faults)
        problem = Problem(503, "not_ready", f"Not ready: {names}.", faults, {"Retry-After": "2"})
        return build_problem_response(problem, request.correlation_id)  # type: ignore[attr-defined]
    return JsonResponse({"status": "ok", "checks": dict.fromkeys(CHECKS, "ok")})


def _made(check: Callable[[], str | None]) -> str | None:
    try:
        return check()
    except DatabaseError as broken:
        return f"the database says: {type(broken).__name__}"


def _database() -> str | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return None


def _migrations() -> str | None:
    try:
        _migrated()
    except LookupError:
        return "there are migrations to run: manage.py migrate"
    return None


@cache
def _migrated() -> None:
    """Once they have run, they stay so; what raises is not kept."""
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise LookupError


def _engine() -> str | None:
    finding = check_role(list_nodes(), NodeRole.ENGINE, db_now())
    return None if finding.is_ok else finding.text


CHECKS: dict[str, Callable[[], str | None]] = {
    "database": _database,
    "migrations": _migrations,
    "engine": _engine,
}
