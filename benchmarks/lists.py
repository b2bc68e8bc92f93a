"""How long lists and the console's pages take when there are a million calls: filtered by tag and status, and far
down by cursor."""

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

from benchmarks import harness
from benchmarks.figures import Report, distribution, say
from benchmarks.harness import BenchmarkError, Stage, System
from benchmarks.pending import CHUNK

# A tag that every second call has, one that every hundredth has, and one that no more than a thousandth has.
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
DAY = 86_400.0
MONTH = 30 * DAY
# The console's pages beside the list itself.
PAGES = {
    "dashboard, 1 h": "/?range=1h",
    "dashboard, 24 h": "/?range=24h",
    "dashboard, 30 d": "/?range=30d",
    "request": "/calls/new/",
    "timers and nodes": "/timers/",
    "outbox": "/outbox/",
    "tenants": "/tenants/",
    "action log": "/actions/",
    "admin, calls": "/admin/orchestration/servicecall/",
    "admin, events": "/admin/outbox/outboxevent/",
}

Measured = dict[str, list[float]]


def fill(stage: Stage, database: dict[str, str], count: int) -> dict[str, int]:
    """Calls of one tenant: nine of ten ended within the last month, the rest pending for the next."""
    with harness.agent(stage.env(database), stage.folder) as agent:
        tenant = agent("tenant", name="lists", limits=False)["id"]
        ended, now, url = count * 9 // 10, time.time(), "http://127.0.0.1:9/never"
        for part, due, ahead in ((ended, now - MONTH, DAY), (count - ended, now + DAY, None)):
            step = MONTH * CHUNK / part
            for number, first in enumerate(range(0, part, CHUNK)):
                here = min(CHUNK, part - first)
                agent(
                    "submit_calls",
                    tenant=tenant, url=url, count=here, due=due + number * step, over=step * here / CHUNK, tags=TAGS, ahead=ahead,
                )  # fmt: skip
        statuses: dict[str, int] = agent("end_past", tenant=tenant)
        agent("publish_all")
        agent("checkpoint")
        agent("count_for_charts")
    return statuses


class Client:
    def __init__(self, system: System, headers: dict[str, str]) -> None:
        self.system = system
        self.headers = headers

    def get(self, path: str) -> tuple[int, bytes, float]:
        """With the milliseconds that it took."""
        began = time.monotonic()
        with closing(http.client.HTTPConnection("127.0.0.1", self.system.port, timeout=60)) as connection:
            connection.request("GET", path, headers=self.headers)
            answer = connection.getresponse()
            body = answer.read()
        return answer.status, body, (time.monotonic() - began) * 1000


def pages(client: Client, path: str, query: dict[str, str], depth: int) -> Iterator[float]:
    """The milliseconds of each page, down to this depth or the end."""
    cursor: dict[str, str] = {}
    for _ in range(depth):
        status, body, took = client.get(f"{path}?{urlencode({**query, 'limit': '50', **cursor})}")
        if status != 200:
            raise BenchmarkError(f"a list was answered with {status}: {body[:300]!r}")
        yield took
        found = json.loads(body)["nextCursor"]
        if not found:
            return
        cursor = {"cursor": found}


def api(client: Client, path: str, options: argparse.Namespace) -> dict[str, Measured]:
    """First pages, again and again in any order, and pages by cursor."""
    first: Measured = defaultdict(list)
    deep: Measured = defaultdict(list)
    order = [name for name in QUERIES for _ in range(max(1, options.requests // len(QUERIES)))]
    random.Random(1).shuffle(order)
    for name in order:
        first[name] += pages(client, path, QUERIES[name], 1)
    for name, query in QUERIES.items():
        deep[name] += list(pages(client, path, query, options.depth))[1:]
    return {"first page": first, "by cursor": deep}


def signed_in(system: System, log: Path) -> dict[str, str]:
    """The headers of the operator, whose password `up` shows at the first start."""
    password = re.search(r"^Password: (\S+)", log.read_text(), re.MULTILINE)
    if password is None:
        raise BenchmarkError("`up` has shown no password")
    with closing(http.client.HTTPConnection("127.0.0.1", system.port, timeout=60)) as connection:
        connection.request("GET", "/login/")
        answer = connection.getresponse()
        answer.read()
        token = str(answer.getheader("Set-Cookie")).partition("csrftoken=")[2].partition(";")[0]
        form = {
            "username": "operator",
            "password": password[1],
            "csrfmiddlewaretoken": token,
            "next": "/",
        }
        headers = {
            "Cookie": f"csrftoken={token}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Referer": f"http://127.0.0.1:{system.port}/login/",
        }
        connection.request("POST", "/login/", urlencode(form), headers)
        answer = connection.getresponse()
        answer.read()
    cookies = "; ".join(
        value.partition(";")[0] for name, value in answer.getheaders() if name == "Set-Cookie"
    )
    if answer.status != 302:
        raise BenchmarkError(f"the operator could not sign in: {answer.status}")
    return {"Cookie": cookies}


def console(client: Client, call: str, options: argparse.Namespace) -> dict[str, Measured]:
    """The list with each query, and every other page; `call` is the path of one call's page."""
    lists = {name: f"/calls/?{urlencode(query)}" for name, query in QUERIES.items()}
    pages = {**PAGES, "details": call}
    return {
        "console, list": _visits(client, lists, options.requests),
        "console, page": _visits(client, pages, options.requests),
    }


def _visits(client: Client, paths: dict[str, str], requests: int) -> Measured:
    found: Measured = defaultdict(list)
    order = [name for name in paths for _ in range(max(1, requests // len(paths)))]
    random.Random(2).shuffle(order)
    for name in order:
        status, body, took = client.get(paths[name])
        if status != 200:
            raise BenchmarkError(f"{paths[name]} was answered with {status}: {body[:300]!r}")
        found[name].append(took)
    return found


def measure(stage: Stage, options: argparse.Namespace, report: Report) -> None:
    database = stage.database()
    with harness.system(stage, database):
        # The first start makes the operator and the tables, and says the password.
        log = stage.folder / "first.log"
        log.write_text((stage.folder / "up.log").read_text())
    say(f"making {options.calls:,} calls")
    began = time.monotonic()
    report.figures["calls"] = fill(stage, database, options.calls)
    say(f"made in {time.monotonic() - began:.0f} s: {report.figures['calls']}")
    found: dict[str, Measured] = {}
    with harness.system(stage, database) as system:
        tenant = system.agent("tenant", name="lists", limits=False)
        path = f"/api/v1/tenants/{tenant['id']}/service-calls"
        client = Client(system, {"Authorization": f"Bearer {tenant['key']}"})
        operator = Client(system, {**signed_in(system, log), "Accept": "text/html"})
        call = json.loads(client.get(f"{path}?limit=1")[1])["items"][0]["serviceCallId"]
        once = argparse.Namespace(requests=1, depth=2)
        api(client, path, once)
        console(operator, f"/calls/{tenant['id']}/{call}/", once)
        found |= {f"API, {kind}": times for kind, times in api(client, path, options).items()}
        found |= console(operator, f"/calls/{tenant['id']}/{call}/", options)
    rows = []
    for kind, measured in found.items():
        figures = {name: distribution(times, 1) for name, times in measured.items()}
        figures["together"] = distribution([one for times in measured.values() for one in times], 1)
        report.figures[kind] = figures
        rows += [
            [f"{kind}: {name}", one["p50"], one["p95"], one["max"], one["count"]]
            for name, one in figures.items()
        ]
    report.table(
        f"Lists of {options.calls:,} calls: ms of a request", ["", "p50", "p95", "max", "requests"], rows
    )


def arguments() -> argparse.ArgumentParser:
    made = harness.parser("lists", __doc__, rounds=1)
    made.add_argument("--calls", type=harness.positive, default=1_000_000)
    made.add_argument("--requests", type=harness.positive, default=400, help="of first pages, in all")
    made.add_argument("--depth", type=harness.positive, default=40, help="pages of 50 by cursor")
    return made


if __name__ == "__main__":
    harness.run_program(arguments(), "lists", measure)
