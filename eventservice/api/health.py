"""/livez reports that the process responds, /readyz that everything it needs is available, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from eventservice.api.correlation import get_correlation_id
from eventservice.api.problems import FieldError, Problem, build_problem_response, mark_as_logged
from eventservice.db.errors import explain_error, is_migration_missing
from eventservice.db.now import db_now
from eventservice.kernel.logging import get_logger
from eventservice.operators.health import check_role, check_starting, check_writing
from timers.models import NodeRole
from timers.operator_views import list_nodes

log = get_logger(__name__)


@csrf_exempt
@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


@csrf_exempt
@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    cause = {}
    try:
        failures = _list_failures()
    except (DatabaseError, InterfaceError) as error:
        name = "migrations" if is_migration_missing(error) else "database"
        failures, cause = {name: explain_error(error).text}, {"error": str(error)}
    if not failures:
        return JsonResponse({"status": "ok", "checks": dict.fromkeys(CHECKS, "ok")})
    log.error("not_ready", checks=failures, **cause)
    errors = [FieldError(f"/checks/{name}", failure) for name, failure in failures.items()]
    problem = Problem(503, "not_ready", f"Not ready: {', '.join(failures)}.", errors, {"Retry-After": "2"})
    return mark_as_logged(build_problem_response(problem, get_correlation_id(request)))


def _list_failures() -> dict[str, str]:
    """Return what is wrong, by the name of the check. If the database cannot be written to, nothing else is blamed."""
    failures = {}
    for name, check in CHECKS.items():
        if failure := check():
            failures[name] = failure
            if name == "migrations":
                break  # the other checks may need tables that are missing
    if failures and not (writing := check_writing()).is_ok and not writing.lacks_tables:
        return {"database": writing.text}
    return failures


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


def _check_starting() -> str | None:
    finding = check_starting(db_now())
    return None if finding.is_ok else finding.text


CHECKS: dict[str, Callable[[], str | None]] = {
    "database": _check_database,
    "migrations": _check_migrations,
    "engine": _check_engine,
    "starting": _check_starting,
}
