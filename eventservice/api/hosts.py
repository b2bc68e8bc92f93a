"""The Host of a request must be one of ALLOWED_HOSTS, except where probes and scrapers ask by address."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from eventservice.api.correlation import get_correlation_id
from eventservice.api.problems import Problem, build_problem_response, mark_as_logged
from eventservice.kernel.logging import get_logger

log = get_logger(__name__)

PATHS_FOR_ANY_HOST = frozenset({"/livez", "/readyz", "/metrics"})
MAX_SHOWN_LENGTH = 100


class HostMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info in PATHS_FOR_ANY_HOST:
            # Their responses contain no address, so nothing depends on the host.
            request.get_host = request._get_raw_host  # type: ignore[method-assign, attr-defined]
            return self.get_response(request)
        try:
            request.get_host()
        except DisallowedHost:
            return _refuse(request)
        return self.get_response(request)


def _refuse(request: HttpRequest) -> HttpResponseBase:
    host = request.META.get("HTTP_HOST", "")[:MAX_SHOWN_LENGTH]
    log.warning("host_refused", host=host, path=request.path, setting="ALLOWED_HOSTS")
    detail = f"The Host {host!r} is not served here: it is not one of the setting ALLOWED_HOSTS."
    problem = Problem(400, "bad_request", detail)
    return mark_as_logged(build_problem_response(problem, get_correlation_id(request)))
