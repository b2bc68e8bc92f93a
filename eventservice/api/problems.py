"""Every error is a problem (RFC 9457): those that views raise, those of Django and DRF, and unexpected exceptions.

Problems are rendered without DRF's `Response`, because the same function also answers where there is no DRF view:
in the middleware, for unreadable requests, and for /readyz and /metrics.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.defaults import bad_request
from rest_framework.exceptions import APIException, MethodNotAllowed, PermissionDenied

from eventservice.api.correlation import HEADER, get_correlation_id
from eventservice.api.formats import parse_uuid
from eventservice.db.errors import explain_error, find_trouble, is_migration_missing, is_outcome_unknown
from eventservice.kernel.errors import Conflict, DomainError, NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.logging import get_logger
from orchestration.admission import PendingLimitReached, StorageLimitReached
from orchestration.feeder.store_errors import TimerOutcomeUnknown, TimerStoreUnavailable
from orchestration.feeder.timer_changes import TimerFiring

log = get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
# Of one request, or of one item of a batch: a response must not be much larger than its request.
MAX_ERRORS = 100
# As the middleware sets them on all other responses.
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
TENANT_IN_PATH = re.compile(r"/api/v1/tenants/([^/]+)")
TENANT_IS_NO_ID = "The tenant must be an id (a UUID) in addresses, not a name. GET /api/v1/tenants lists it for the key that you use."
ID_IN_PATH = re.compile(r"/api/v1/tenants/[^/]+/(?:service-calls|traces)/([^/]+)")
ID_IS_NO_UUID = "The id in the address must be a UUID."
NO_SLASH = "Addresses have no slash at the end."
# Programs call these. Elsewhere a browser gets a page.
MACHINE_PATHS = ("/api/", "/livez", "/readyz", "/metrics")

CODES = {
    400: "bad_request",
    401: "not_authenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    414: "address_too_long",
    415: "unsupported_media_type",
    429: "too_many_requests",
    431: "headers_too_large",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
}
DETAILS = {
    400: "The request could not be understood.",
    403: "The request was refused.",
    404: "Nothing was found at this address.",
    405: "Method not allowed.",
    413: "The request is too large.",
    414: "The address is too long.",
    431: "The headers are too large.",
    500: "An unexpected error occurred. The log has its details under the correlation id.",
}
NOTHING_CHANGED = "Nothing was changed; try again."
OUTCOME_UNKNOWN = (
    "If the request was to change something, it is unknown whether it did: look it up, or send the request again with the "
    "same idempotency key."
)


TOO_LITTLE_MEMORY = "The server has too little memory for this request. Send fewer or smaller calls at once."


class FieldError(NamedTuple):
    """A value of the request that breaks a rule.

    The pointer is a JSON pointer into the body, or `/query/<parameter>`, `/headers/<name>` or `/path/<parameter>`. The
    detail completes a sentence that begins with the name of the value: "must be a string".
    """

    pointer: str
    detail: str


class Problem(APIException):
    """A response other than success. Raise it: the exception handler renders it as application/problem+json."""

    detail: str  # type: ignore[assignment]  # always a string

    def __init__(
        self,
        status_code: int,
        code: str,
        detail: str,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        *,
        existing_call_id: uuid.UUID | None = None,
    ) -> None:
        Exception.__init__(self, detail)
        self.status_code, self.code, self.detail = status_code, code, detail
        self.errors = errors
        self.existing_call_id = existing_call_id
        self.headers = dict(headers or {})


class InvalidRequest(Problem):
    """An invalid request, with all of its errors."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        count = "1 field is" if len(errors) == 1 else f"{len(errors)} fields are"
        super().__init__(400, "invalid", f"{count} invalid.", errors)


def raise_for_errors(errors: Sequence[FieldError]) -> None:
    """Raise InvalidRequest if there are any."""
    if errors:
        raise InvalidRequest(sorted(errors))


def truncate_errors(errors: Sequence[FieldError]) -> list[dict[str, str]]:
    """Return the first errors, and one that says how many were omitted."""
    listed = [error._asdict() for error in errors[:MAX_ERRORS]]
    if omitted := len(errors) - len(listed):
        listed.append(FieldError("", f"and {omitted} more")._asdict())
    return listed


def problem_to_json(problem: Problem, correlation_id: uuid.UUID) -> dict[str, object]:
    """Return the members of the problem.

    `instance` names this occurrence, like everything that is logged of it. It is not the path: a 404 for an object of
    another tenant must not differ from one for an object that does not exist.
    """
    document: dict[str, object] = {
        "type": f"urn:event-service:problem:{problem.code}",
        "title": HTTPStatus(problem.status_code).phrase,
        "status": problem.status_code,
        "detail": problem.detail,
        "instance": f"urn:uuid:{correlation_id}",
        "code": problem.code,
        "correlationId": str(correlation_id),
        "errors": truncate_errors(problem.errors),
    }
    if problem.existing_call_id is not None:
        document["existingServiceCallId"] = str(problem.existing_call_id)
    return document


def build_problem_response(problem: Problem, correlation_id: uuid.UUID) -> HttpResponse:
    body = json.dumps(problem_to_json(problem, correlation_id), ensure_ascii=False)
    response = HttpResponse(body.encode(), MEDIA_TYPE, problem.status_code, headers=problem.headers)
    response.problem_code = problem.code  # type: ignore[attr-defined]  # for the log
    return response


def handle_exception(raised: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """Return the response to any exception: the EXCEPTION_HANDLER of Django REST framework."""
    problem = find_problem(raised)
    correlation_id = get_correlation_id(context["request"])
    if problem is not None:
        return build_problem_response(problem, correlation_id)
    log.error("request_failed", exc_info=raised)
    return mark_as_logged(build_problem_response(_build_problem(500), correlation_id))


def mark_as_logged(response: HttpResponse) -> HttpResponse:
    """Keep Django from logging a response that has been logged."""
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def find_problem(raised: Exception) -> Problem | None:
    """Return the problem that describes an expected exception, or None."""
    match raised:
        case Problem():
            return raised
        case PendingLimitReached():
            return Problem(429, raised.code, raised.message, headers={"Retry-After": "5"})
        case StorageLimitReached():
            return Problem(429, raised.code, raised.message, headers={"Retry-After": "60"})
        case TimerStoreUnavailable():
            return Problem(503, raised.code, raised.message, headers={"Retry-After": "5"})
        case TimerOutcomeUnknown():
            # Like that of the database, it has no Retry-After.
            return Problem(503, raised.code, raised.message)
        case TimerFiring():
            return Problem(409, raised.code, raised.message, headers={"Retry-After": str(raised.retry_after)})
        case DomainError():
            return _convert_domain_error(raised)
        case Http404():
            return _build_problem(404)
        case APIException():
            return _convert_api_exception(raised)
        case RequestDataTooBig():
            return _build_problem(413)
        case SuspiciousOperation():
            return _build_problem(400)
        case OperationalError():
            return _convert_database_error(raised)
        case MemoryError():
            log.error("memory_short")
            return Problem(503, "unavailable", f"{TOO_LITTLE_MEMORY} {OUTCOME_UNKNOWN}")
        case DatabaseError() if find_trouble(raised):  # SQLite reports a damaged file so
            return _convert_database_error(raised)
        case _:
            return None


def describe_refusal(error: DatabaseError) -> str:
    """Describe an error of the database that has changed nothing."""
    return f"{explain_error(error).text} {NOTHING_CHANGED}"


def _convert_database_error(error: DatabaseError) -> Problem:
    if is_migration_missing(error):
        # The statement could not be executed, so nothing was changed. A repeat fails until an operator acts.
        log.error("migration_missing", error=str(error))
        return _build_problem(503, f"{explain_error(error).text} Nothing was changed.")
    if not is_outcome_unknown(error):
        log.warning("database_busy", error=str(error))
        return Problem(503, "database_busy", describe_refusal(error), headers={"Retry-After": "1"})
    return _build_outcome_unknown(error)


def _build_outcome_unknown(error: DatabaseError) -> Problem:
    # There is no Retry-After: without an idempotency key, a second submission could make a second call.
    log.warning("database_lost", error=str(error))
    return Problem(503, "outcome_unknown", f"{explain_error(error).text} {OUTCOME_UNKNOWN}")


@contextmanager
def reading_after_commit() -> Iterator[None]:
    """Report an error of the database or of a timer store as an unknown outcome: what was to be written has been
    committed before."""
    try:
        yield
    except OperationalError as lost:
        raise _build_outcome_unknown(lost) from lost
    except TimerStoreUnavailable as unavailable:
        raise TimerOutcomeUnknown from unavailable


def _convert_domain_error(error: DomainError) -> Problem:
    status = 404 if isinstance(error, NotFound) else 409 if isinstance(error, Conflict) else 400
    return Problem(status, error.code, error.message, list_field_errors(error))


def list_field_errors(error: DomainError, at: str = "") -> list[FieldError]:
    """Return the fields that a rule of the domain names, as errors of the body. Pointers start with `at`."""
    return [FieldError(f"{at}/{name}", rule) for name, rule in error.errors.items()]


def _convert_api_exception(raised: APIException) -> Problem:
    status, code = raised.status_code, raised.get_codes()
    if isinstance(raised, MethodNotAllowed):
        return _build_problem(405)
    if not isinstance(raised, PermissionDenied) or code == PermissionDenied.default_code:
        code = CODES.get(status, CODES[400])  # otherwise it is that of the permission class
    challenge = getattr(raised, "auth_header", None)
    return Problem(
        status, str(code), str(raised.detail), headers={"WWW-Authenticate": challenge} if challenge else None
    )


def _build_problem(status: int, detail: str | None = None) -> Problem:
    return Problem(
        status,
        CODES.get(status, CODES[400 if status < 500 else 500]),
        detail or DETAILS.get(status, DETAILS[400]),
    )


def _explain_path(path: str, status: int) -> str | None:
    """Return what is wrong with a path that was not found, as far as its form shows it: it is the same whether there is a
    tenant of that name or not."""
    if status != 404:
        return None
    tenant = TENANT_IN_PATH.match(path)
    if tenant and parse_uuid(tenant[1]) is None:
        return TENANT_IS_NO_ID
    if path.startswith("/api/") and path.endswith("/"):
        return f"{DETAILS[404]} {NO_SLASH}"
    found = ID_IN_PATH.match(path)
    return f"{DETAILS[404]} {ID_IS_NO_UUID}" if found and parse_uuid(found[1]) is None else None


def refuse_unreadable(status: int) -> HttpResponse:
    """Return the response to what the web server cannot parse, so that it reaches no middleware."""
    correlation_id = new_id()
    problem = _build_problem(status)
    log.warning(
        "request_refused_unread", status=status, code=problem.code, correlation_id=str(correlation_id)
    )
    response = build_problem_response(problem, correlation_id)
    response[HEADER] = str(correlation_id)
    for name, value in SECURITY_HEADERS.items():
        response[name] = value
    return response


class ProblemMiddleware:
    """Turns errors outside the API's views into problems: an unknown path, a bad host, a CSRF failure, a bug.

    It also refuses NUL characters in a path, query or cookie: no name contains one, and PostgreSQL accepts none.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if (
            response.status_code < 400
            or response.get("Content-Type") == MEDIA_TYPE
            or not is_for_machines(request)
        ):
            return response
        # A page of the console says what it shows. All others have nothing but their status.
        described: Problem | None = getattr(response, "problem", None)
        problem = build_problem_response(
            described
            or _build_problem(response.status_code, _explain_path(request.path, response.status_code)),
            get_correlation_id(request),
        )
        for kept in ("Allow", "Retry-After"):
            if kept in response:
                problem[kept] = response[kept]
        return mark_as_logged(problem) if getattr(response, "_has_been_logged", False) else problem

    def process_view(self, request: HttpRequest, *_: object) -> HttpResponse | None:
        if "\0" in request.path:
            raise Http404
        query = request.META.get("QUERY_STRING", "")
        # The API reports which parameter it is.
        if ("%00" in query or "\0" in query) and not request.path.startswith("/api/"):
            return bad_request(request, BadRequest())
        if any("\0" in value for value in request.COOKIES.values()):
            return bad_request(request, BadRequest())
        return None


def is_for_machines(request: HttpRequest) -> bool:
    """Return whether the client is a program, which gets a problem, and not a browser, which gets a page."""
    shows_pages = "text/html" in request.headers.get("Accept", "") or "HX-Request" in request.headers
    return request.path.startswith(MACHINE_PATHS) or not shows_pages
