"""Every error is an RFC 9457 problem: what the API raises, what Django makes by itself, and what nobody foresaw."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.defaults import bad_request
from rest_framework.exceptions import APIException, MethodNotAllowed

from eventservice.api.correlation import HEADER
from eventservice.db.errors import is_outcome_unknown
from eventservice.kernel.errors import Conflict, DomainError, NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.logging import get_logger
from orchestration.admission import PendingLimitReached

log = get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
# Of the faults of one request, or of one item of a batch: an answer is no larger than what it answers.
MAX_ERRORS = 100
# What programs call; elsewhere a browser may be given a page.
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
    400: "The request cannot be understood.",
    403: "The request is refused.",
    404: "There is nothing at this address.",
    405: "This address does not know that method.",
    413: "The request is larger than what is taken.",
    414: "The address is longer than what is taken.",
    431: "The headers are larger than what is taken.",
    500: "Something went wrong here. The correlation id leads to what it was.",
}
DATABASE_BUSY = "The database did not answer in time. Nothing has been changed; try again."
OUTCOME_UNKNOWN = (
    "The database did not answer. If this was to change something, it is not known whether it has: look, or send it "
    "again under the same idempotency key."
)


class FieldError(NamedTuple):
    """One thing that is wrong with a request, and where: a JSON pointer into its body.

    A fault of the query or of a header has a pointer too: `/query/<parameter>`, `/headers/<name>`.
    """

    pointer: str
    detail: str


class Problem(APIException):
    """An answer other than success. Raise it: the exception handler renders it as application/problem+json."""

    detail: str  # type: ignore[assignment]  # a plain text, where APIException has nested lists of them too

    def __init__(
        self,
        status_code: int,
        code: str,
        detail: str,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        Exception.__init__(self, detail)
        self.status_code, self.code, self.detail = status_code, code, detail
        self.errors = errors
        self.headers = dict(headers or {})


class InvalidRequest(Problem):
    """A request with fields that break a rule: all of them at once."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        count = "1 field is" if len(errors) == 1 else f"{len(errors)} fields are"
        super().__init__(400, "invalid", f"{count} invalid.", errors)


def raise_for_errors(errors: Sequence[FieldError]) -> None:
    """Raise InvalidRequest if there are any."""
    if errors:
        raise InvalidRequest(sorted(errors))


def truncate_errors(faults: Sequence[FieldError]) -> list[dict[str, str]]:
    """The first ones, and how many more there are."""
    shown = [fault._asdict() for fault in faults[:MAX_ERRORS]]
    if left := len(faults) - len(shown):
        shown.append(FieldError("", f"and {left} more")._asdict())
    return shown


def render_problem(problem: Problem, correlation_id: Any) -> dict[str, Any]:
    """`instance` is the occurrence's name, which it shares with all that is logged of it.

    It is not the path: for a tenant's own eyes and an intruder's the same 404 is the same, byte for byte.
    """
    return {
        "type": f"urn:event-service:problem:{problem.code}",
        "title": HTTPStatus(problem.status_code).phrase,
        "status": problem.status_code,
        "detail": problem.detail,
        "instance": f"urn:uuid:{correlation_id}",
        "code": problem.code,
        "correlationId": str(correlation_id),
        "errors": truncate_errors(problem.errors),
    }


def build_problem_response(problem: Problem, correlation_id: Any) -> HttpResponse:
    body = json.dumps(render_problem(problem, correlation_id), ensure_ascii=False)
    return HttpResponse(body.encode(), MEDIA_TYPE, problem.status_code, headers=problem.headers)


def handle_exception(raised: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """Django REST framework's exception handler: nothing passes it."""
    problem = find_problem(raised)
    if problem is not None:
        return build_problem_response(problem, context["request"].correlation_id)
    log.error("request_failed", exc_info=raised)
    return mark_as_logged(build_problem_response(_by_status(500), context["request"].correlation_id))


def mark_as_logged(response: HttpResponse) -> HttpResponse:
    """One that Django need not log: it has been."""
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def find_problem(raised: Exception) -> Problem | None:
    match raised:
        case Problem():
            return raised
        case PendingLimitReached():
            return Problem(429, raised.code, raised.message, headers={"Retry-After": "5"})
        case DomainError():
            return _of_domain(raised)
        case Http404():
            return _by_status(404)
        case APIException():
            return _of_framework(raised)
        case RequestDataTooBig():
            return _by_status(413)
        case SuspiciousOperation():
            return _by_status(400)
        case OperationalError():
            return _of_database(raised)
        case _:
            return None


def _of_database(error: OperationalError) -> Problem:
    if not is_outcome_unknown(error):
        log.warning("database_busy", error=str(error))
        return Problem(503, "database_busy", DATABASE_BUSY, headers={"Retry-After": "1"})
    return _outcome_unknown(error)


def _outcome_unknown(error: OperationalError) -> Problem:
    """Nobody is asked to try again: of a submission without a key that could make a second call."""
    log.warning("database_lost", error=str(error))
    return Problem(503, "outcome_unknown", OUTCOME_UNKNOWN)


@contextmanager
def reading_after_commit() -> Iterator[None]:
    """Nothing was undone, whatever the error of such a read says: what was asked for has been done."""
    try:
        yield
    except OperationalError as lost:
        raise _outcome_unknown(lost) from lost


def _of_domain(error: DomainError) -> Problem:
    status = 404 if isinstance(error, NotFound) else 409 if isinstance(error, Conflict) else 400
    return Problem(status, error.code, error.message, list_field_errors(error))


def list_field_errors(error: DomainError) -> list[FieldError]:
    return [FieldError("/" + name, rule) for name, rule in error.errors.items()]


def _of_framework(raised: APIException) -> Problem:
    status = raised.status_code
    headers = {}
    if isinstance(raised, MethodNotAllowed):
        return _by_status(405)
    if challenge := getattr(raised, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    return Problem(status, CODES.get(status, CODES[400]), str(raised.detail), headers=headers)


def _by_status(status: int) -> Problem:
    return Problem(
        status, CODES.get(status, CODES[400 if status < 500 else 500]), DETAILS.get(status, DETAILS[400])
    )


def refuse_unreadable(status: int) -> HttpResponse:
    """What the web server cannot take for a request, so that it reaches no middleware."""
    correlation_id = new_id()
    log.warning("request_refused_unread", status=status, correlation_id=str(correlation_id))
    answer = build_problem_response(_by_status(status), correlation_id)
    answer[HEADER] = str(correlation_id)
    return answer


class ProblemMiddleware:
    """What Django itself refuses (an unknown path, a host, a CSRF token), and what breaks outside the API's views.

    It refuses a NUL itself, in a path, a query or a cookie: nothing has one in its name, and PostgreSQL takes none.
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
        made = build_problem_response(_by_status(response.status_code), request.correlation_id)  # type: ignore[attr-defined]
        for kept in ("Allow", "Retry-After"):
            if kept in response:
                made[kept] = response[kept]
        return mark_as_logged(made) if getattr(response, "_has_been_logged", False) else made

    def process_view(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        if "\0" in request.path:
            raise Http404
        query = request.META.get("QUERY_STRING", "")
        # The API says itself which parameter it is.
        if ("%00" in query or "\0" in query) and not request.path.startswith("/api/"):
            return bad_request(request, BadRequest())
        if any("\0" in value for value in request.COOKIES.values()):
            return bad_request(request, BadRequest())
        return None


def is_for_machines(request: HttpRequest) -> bool:
    shows_pages = "text/html" in request.headers.get("Accept", "") or "HX-Request" in request.headers
    return request.path.startswith(MACHINE_PATHS) or not shows_pages
