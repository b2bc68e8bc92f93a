"""/livez reports that the process responds, /readyz that everything it needs is available, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from eventservice.api.correlation import get_correlation_id
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
    failures = {name: failure for name, check in CHECKS.items() if (failure := _run(check))}
    if failures:
        errors = [FieldError(f"/checks/{name}", failure) for name, failure in failures.items()]
        problem = Problem(
            503, "not_ready", f"Not ready: {', '.join(failures)}.", errors, {"Retry-After": "2"}
        )
        return build_problem_response(problem, get_correlation_id(request))
    return JsonResponse({"status": "ok", "checks": dict.fromkeys(CHECKS, "ok")})


def _run(check: Callable[[], str | None]) -> str | None:
    """Return what is wrong, or None."""
    try:
        return check()
    except DatabaseError as error:
        return f"the database failed: {type(error).__name__}"


def _check_database() -> str | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return None


def _check_migrations() -> str | None:
    try:
        _require_migrations()
    except LookupError:
        return "migrations are missing: run manage.py migrate"
    return None


@cache
def _require_migrations() -> None:
    """Raise LookupError if migrations are missing. Only success is cached, because it is final."""
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise LookupError


def _check_engine() -> str | None:
    finding = check_role(list_nodes(), NodeRole.ENGINE, db_now())
    return None if finding.is_ok else finding.text


CHECKS: dict[str, Callable[[], str | None]] = {
    "database": _check_database,
    "migrations": _check_migrations,
    "engine": _check_engine,
}
