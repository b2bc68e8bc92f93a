"""Counts of HTTP requests and their durations, of all web processes of one gunicorn together.

They are kept in memory that the processes share, because each scrape is answered by one of them. Each process writes to a
slot of its own, without locks; the slot of a process that has ended is continued by the next one.
"""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern, URLResolver, get_resolver
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other")
CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Requests that no view answers: static files, unknown paths, refused hosts.
NO_ROUTE = "none"
ADMIN = "admin/"

SLOTS = 64
MAX_ROUTES = 150
COUNTS = len(METHODS) * len(CLASSES)
TIMES = len(BUCKETS) + 2  # also the requests that took longer, and the sum of all durations
ROUTE_WIDTH = COUNTS + TIMES
SLOT_WIDTH = 1 + MAX_ROUTES * ROUTE_WIDTH  # the first value is the process id

# The error codes of refusals that are counted one by one. All other errors are counted together.
REFUSAL_CODES = (
    "not_authenticated", "scope_missing", "operators_only", "session_reads_only", "forbidden", "not_found",
    "too_many_requests", "too_many_bytes", "busy", "pending_ceiling", "storage_limit", "database_busy", "outcome_unknown",
    "store_unavailable", "timer_firing", "other",
)  # fmt: skip

_memory = memoryview(mmap.mmap(-1, SLOTS * SLOT_WIDTH * 8)).cast("d")
_refusals = memoryview(mmap.mmap(-1, SLOTS * len(REFUSAL_CODES) * 8)).cast("d")


class HttpMetricsMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        started_at = time.perf_counter()
        response = self.get_response(request)
        record_request(request, response.status_code, time.perf_counter() - started_at)
        if code := getattr(response, "problem_code", None):
            record_refusal(code)
        return response


def record_request(request: HttpRequest, status: int, seconds: float) -> None:
    route = _find_route(request)
    start = _find_slot(os.getpid()) + 1 + _list_routes().get(route, 0) * ROUTE_WIDTH
    method = METHODS.index(request.method) if request.method in METHODS else len(METHODS) - 1
    _memory[start + method * len(CLASSES) + min(max(status // 100, 1), 5) - 1] += 1
    times = start + COUNTS
    _memory[times + bisect_left(BUCKETS, seconds)] += 1
    _memory[times + TIMES - 1] += seconds


def record_refusal(code: str) -> None:
    """Count a response with a problem by the problem's error code."""
    slot = _find_slot(os.getpid()) // SLOT_WIDTH
    place = REFUSAL_CODES.index(code) if code in REFUSAL_CODES else len(REFUSAL_CODES) - 1
    _refusals[slot * len(REFUSAL_CODES) + place] += 1


def _find_route(request: HttpRequest) -> str:
    match = request.resolver_match
    if match is None:
        return NO_ROUTE
    return ADMIN if match.route.startswith(ADMIN) else match.route


@cache
def _list_routes() -> dict[str, int]:
    """Return the number of each route, the same in all processes."""
    routes = sorted({ADMIN if route.startswith(ADMIN) else route for route in _walk(get_resolver(), "")})
    return {NO_ROUTE: 0, **{route: number for number, route in enumerate(routes[: MAX_ROUTES - 1], 1)}}


def _walk(resolver: URLResolver, prefix: str) -> Iterator[str]:
    for pattern in resolver.url_patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield path
        else:
            yield from _walk(pattern, path)


@cache
def _find_slot(pid: int) -> int:
    """Return where the values of this process begin: its own slot, a free one, or that of a process that has ended."""
    for offset in range(SLOTS):
        start = (pid + offset) % SLOTS * SLOT_WIDTH
        owner = int(_memory[start])
        if owner in (0, pid) or not Path(f"/proc/{owner}").exists():
            _memory[start] = pid
            return start
    return pid % SLOTS * SLOT_WIDTH  # shared with another process: a few requests may not be counted


def list_web_processes() -> list[int]:
    """Return the ids of the web processes that have answered requests."""
    return [int(_memory[slot * SLOT_WIDTH]) for slot in _list_used_slots()]


def _list_used_slots() -> list[int]:
    return [slot for slot in range(SLOTS) if _memory[slot * SLOT_WIDTH]]


def collect_http_metrics() -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "eventservice_http_requests",
        "HTTP requests by route, method and class of the status, since gunicorn was started.",
        labels=("route", "method", "status"),
    )
    durations = HistogramMetricFamily(
        "eventservice_http_request_duration_seconds",
        "How long HTTP requests took, by route, since gunicorn was started.",
        labels=("route",),
    )
    slots = _list_used_slots()
    for route, number in _list_routes().items():
        values = _sum_up(slots, number)
        for place, count in enumerate(values[:COUNTS]):
            if count:
                method, status = divmod(place, len(CLASSES))
                requests.add_metric((route, METHODS[method], CLASSES[status]), count)
        *counts, total = values[COUNTS:]
        if any(counts):
            cumulated = [sum(counts[: place + 1]) for place in range(len(counts))]
            bounds = [*map(str, BUCKETS), "+Inf"]
            durations.add_metric((route,), list(zip(bounds, cumulated, strict=True)), total)
    yield requests
    yield durations
    refusals = CounterMetricFamily(
        "eventservice_http_refusals",
        "HTTP requests that were answered with a problem, by its error code, since gunicorn was started.",
        labels=("code",),
    )
    for place, code in enumerate(REFUSAL_CODES):
        refusals.add_metric((code,), sum(_refusals[slot * len(REFUSAL_CODES) + place] for slot in slots))
    yield refusals


def _sum_up(slots: list[int], number: int) -> list[float]:
    """Return the values of one route, summed over all processes."""
    starts = [slot * SLOT_WIDTH + 1 + number * ROUTE_WIDTH for slot in slots]
    columns = zip(*(_memory[start : start + ROUTE_WIDTH] for start in starts), strict=True)
    return [sum(column) for column in columns] or [0.0] * ROUTE_WIDTH
