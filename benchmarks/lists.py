"""How long lists and the console's pages take with a million calls: first pages, filtered by tag and status, and pages
far down by cursor."""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.command_line import create_parser, parse_positive, run_program
from benchmarks.pending import CHUNK_SIZE
from benchmarks.processes import BenchmarkError
from benchmarks.report import Report, log_progress, summarize_distribution
from benchmarks.system import System, Workspace, build_environment, start_agent, start_system

# One tag is on every second call, one on every hundredth, and one on every thousandth.
TAGS = [["common"] * (n % 2 == 0) + ["some"] * (n % 100 == 0) + ["rare"] * (n == 0) for n in range(1000)]
QUERIES: dict[str, dict[str, str]] = {
    "all": {},
    "status": {"status": "Succeeded"},
    "few of a status": {"status": "Failed"},
    "tag, half of all": {"tag": "common"},
    "tag, 1 of 100": {"tag": "some"},
    "tag, 1 of 1,000": {"tag": "rare"},
    "tag and status": {"tag": "some", "status": "Scheduled"},
    "common tag, few of a status": {"tag": "common", "status": "Failed"},
}
DAY_SECONDS = 86_400.0
MONTH_SECONDS = 30 * DAY_SECONDS
# The console's pages except the list of all calls.
PAGES = {
    "dashboard, 1 h": "/?range=1h",
    "dashboard, 24 h": "/?range=24h",
    "dashboard, 30 d": "/?range=30d",
    "calls, by a prefix": "/calls/?name=benchmark+1",
    "suggested names": "/calls/suggestions/name/?name=benchmark+1",
    "new call": "/calls/new/",
    "cluster": "/cluster/",
    "timers": "/timers/",
    "timers by id": "/timers/?id=order",
    "events": "/events/",
    "webhooks": "/webhooks/",
    "tenants": "/tenants/",
    "audit log": "/audit-log/",
    "admin, calls": "/admin/orchestration/servicecall/",
    "admin, events": "/admin/outbox/outboxevent/",
}

ResponseTimes = dict[str, list[float]]


def create_calls(workspace: Workspace, database: dict[str, str], count: int) -> dict[str, int]:
    """Create calls of one tenant: nine of ten ended within the last month, the others are due in the next month.

    Return how many calls have which status.
    """
    with start_agent(workspace, build_environment(database)) as agent:
        tenant = agent("ensure_tenant", name="lists", limits=False)["id"]
        ended, now, url = count * 9 // 10, time.time(), "http://127.0.0.1:9/never"
        parts = ((ended, now - MONTH_SECONDS, DAY_SECONDS), (count - ended, now + DAY_SECONDS, None))
        for size, due, ahead in parts:
            step = MONTH_SECONDS * CHUNK_SIZE / size
            for number, first in enumerate(range(0, size, CHUNK_SIZE)):
                chunk = min(CHUNK_SIZE, size - first)
                agent(
                    "submit_calls", tenant=tenant, url=url, count=chunk, due=due + number * step,
                    over=step * chunk / CHUNK_SIZE, tags=TAGS, ahead=ahead,
                )  # fmt: skip
        statuses: dict[str, int] = agent("finish_past_calls", tenant=tenant)
        agent("mark_all_published")
        agent("checkpoint")
        agent("run_rollup")
    return statuses


class PageClient:
    """A client of the API or the console that sends the same headers with each request."""

    def __init__(self, system: System, headers: dict[str, str]) -> None:
        self.system = system
        self.headers = headers

    def get(self, path: str) -> tuple[int, bytes, float]:
        """Return the status, the body and the time in milliseconds."""
        started = time.monotonic()
        with closing(http.client.HTTPConnection("127.0.0.1", self.system.port, timeout=60)) as connection:
            connection.request("GET", path, headers=self.headers)
            response = connection.getresponse()
            body = response.read()
        return response.status, body, (time.monotonic() - started) * 1000


def fetch_pages(client: PageClient, path: str, query: dict[str, str], depth: int) -> Iterator[float]:
    """Yield the milliseconds of each page, down to this depth or the end of the list."""
    cursor: dict[str, str] = {}
    for _ in range(depth):
        status, body, milliseconds = client.get(f"{path}?{urlencode({**query, 'limit': '50', **cursor})}")
        if status != 200:
            raise BenchmarkError(f"a list was answered with {status}: {body[:300]!r}")
        yield milliseconds
        next_cursor = json.loads(body)["nextCursor"]
        if not next_cursor:
            return
        cursor = {"cursor": next_cursor}


def measure_api(client: PageClient, path: str, requests: int, depth: int) -> dict[str, ResponseTimes]:
    """Fetch the first page of each list many times, in random order, and further pages by cursor."""
    first: ResponseTimes = defaultdict(list)
    deep: ResponseTimes = defaultdict(list)
    order = [name for name in QUERIES for _ in range(max(1, requests // len(QUERIES)))]
    random.Random(1).shuffle(order)
    for name in order:
        first[name] += fetch_pages(client, path, QUERIES[name], 1)
    for name, query in QUERIES.items():
        deep[name] += list(fetch_pages(client, path, query, depth))[1:]
    return {"first page": first, "by cursor": deep}


def sign_in(system: System, log: Path) -> dict[str, str]:
    """Sign in as the user whose name and password `up` printed to the log, and return the headers of the session."""
    # The first word is Operator in older versions.
    credentials = re.search(r"^(?:User|Operator): (\S+)\nPassword: (\S+)", log.read_text(), re.MULTILINE)
    if credentials is None:
        raise BenchmarkError("`up` printed no password")
    with closing(http.client.HTTPConnection("127.0.0.1", system.port, timeout=60)) as connection:
        connection.request("GET", "/login/")
        response = connection.getresponse()
        response.read()
        token = str(response.getheader("Set-Cookie")).partition("csrftoken=")[2].partition(";")[0]
        form = {
            "username": credentials[1],
            "password": credentials[2],
            "csrfmiddlewaretoken": token,
            "next": "/",
        }
        headers = {
            "Cookie": f"csrftoken={token}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Referer": f"http://127.0.0.1:{system.port}/login/",
        }
        connection.request("POST", "/login/", urlencode(form), headers)
        response = connection.getresponse()
        response.read()
    cookies = "; ".join(
        value.partition(";")[0] for name, value in response.getheaders() if name == "Set-Cookie"
    )
    if response.status != 302:
        raise BenchmarkError(f"the user could not sign in: {response.status}")
    return {"Cookie": cookies}


def measure_console(
    client: PageClient, call_path: str, trace_path: str, requests: int
) -> dict[str, ResponseTimes]:
    """Fetch the list of calls with each query, and every other page, including that of one call and its trace."""
    lists = {name: f"/calls/?{urlencode(query)}" for name, query in QUERIES.items()}
    pages = {**PAGES, "details": call_path, "trace": trace_path}
    return {
        "console, list": _fetch_in_random_order(client, lists, requests),
        "console, page": _fetch_in_random_order(client, pages, requests),
    }


def _fetch_in_random_order(client: PageClient, paths: dict[str, str], requests: int) -> ResponseTimes:
    times: ResponseTimes = defaultdict(list)
    order = [name for name in paths for _ in range(max(1, requests // len(paths)))]
    random.Random(2).shuffle(order)
    for name in order:
        status, body, milliseconds = client.get(paths[name])
        if status != 200:
            raise BenchmarkError(f"{paths[name]} was answered with {status}: {body[:300]!r}")
        times[name].append(milliseconds)
    return times


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    database = workspace.create_database()
    with start_system(workspace, database):
        # The first start creates the tables and the user, and prints the password.
        log = workspace.folder / "first.log"
        log.write_text((workspace.folder / "up.log").read_text())
    log_progress(f"creating {options.calls:,} calls")
    started = time.monotonic()
    report.figures["calls"] = create_calls(workspace, database, options.calls)
    log_progress(f"created in {time.monotonic() - started:.0f} s: {report.figures['calls']}")
    with start_system(workspace, database) as system:
        tenant = system.agent("ensure_tenant", name="lists", limits=False)
        path = f"/api/v1/tenants/{tenant['id']}/service-calls"
        client = PageClient(system, {"Authorization": f"Bearer {tenant['key']}"})
        operator = PageClient(system, {**sign_in(system, log), "Accept": "text/html"})
        call = json.loads(client.get(f"{path}?limit=1")[1])["items"][0]
        call_path = f"/calls/{tenant['id']}/{call['serviceCallId']}/"
        trace_path = f"/traces/{tenant['id']}/{call['correlationId']}/"
        trace = {"trace": f"/api/v1/tenants/{tenant['id']}/traces/{call['correlationId']}"}
        measure_api(client, path, requests=1, depth=2)  # to warm up
        measure_console(operator, call_path, trace_path, requests=1)
        api_times = measure_api(client, path, options.requests, options.depth)
        measured = {f"API, {kind}": times for kind, times in api_times.items()}
        measured["API, one"] = _fetch_in_random_order(client, trace, options.requests // len(QUERIES))
        measured |= measure_console(operator, call_path, trace_path, options.requests)
    rows = []
    for kind, times_by_name in measured.items():
        figures = {name: summarize_distribution(times, 1) for name, times in times_by_name.items()}
        all_times = [time for times in times_by_name.values() for time in times]
        figures["together"] = summarize_distribution(all_times, 1)
        report.figures[kind] = figures
        rows += [
            [f"{kind}: {name}", each["p50"], each["p95"], each["max"], each["count"]]
            for name, each in figures.items()
        ]
    report.add_table(
        f"Lists of {options.calls:,} calls: ms per request", ["", "p50", "p95", "max", "requests"], rows
    )


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("lists", __doc__, rounds=1)
    parser.add_argument(
        "--calls", type=parse_positive, default=1_000_000, help="calls in the database (default: %(default)s)"
    )
    parser.add_argument(
        "--requests",
        type=parse_positive,
        default=400,
        help="requests for first pages, over all lists (default: %(default)s)",
    )
    parser.add_argument(
        "--depth", type=parse_positive, default=40, help="pages of 50 calls by cursor (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "lists", measure)
