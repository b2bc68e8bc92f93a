"""What a benchmark does inside the system, in a process of its own beside it: it submits in bulk and reads what was
recorded. One JSON line in, one out: `{"do": "submit", "with": {…}}`. It sleeps while nothing is asked.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import django

django.setup()

from django.db import connection, connections, transaction  # noqa: E402
from django.db.models import Count, Max  # noqa: E402

from benchmarks.figures import distribution  # noqa: E402
from eventservice.db.now import pin_time  # noqa: E402
from eventservice.tenants.directory import clear_profile_cache, create_tenant  # noqa: E402
from eventservice.tenants.keys import create_key  # noqa: E402
from eventservice.tenants.models import ApiKey, Tenant  # noqa: E402
from execution.addresses import AddressPolicy  # noqa: E402
from execution.egress import Egress, Limits  # noqa: E402
from execution.models import HttpExecution  # noqa: E402
from execution.outcome import Attempt, Responded  # noqa: E402
from orchestration.commands import RequestSpec, SubmitServiceCall  # noqa: E402
from orchestration.lifecycle import submit  # noqa: E402
from orchestration.models import ServiceCall  # noqa: E402
from orchestration.states import Status  # noqa: E402
from orchestration.statistics.rollup import roll_up  # noqa: E402
from outbox.models import OutboxEvent  # noqa: E402
from timers.models import Node, TimerShard  # noqa: E402

BATCH = 1000
BODY = "y" * 200
PLENTY = 2_000_000_000


def facts() -> dict[str, Any]:
    if connection.vendor == "sqlite":
        library = connections["default"].Database  # type: ignore[attr-defined]
        version = f"{library.sqlite_version} ({library.__name__})"
        return {"database": "sqlite", "version": version}
    with connection.cursor() as cursor:
        cursor.execute("SELECT version()")
        return {"database": connection.vendor, "version": str(cursor.fetchone()[0]).split(" on ")[0]}


def ready() -> bool:
    """One engine, which has all the shards, and one dispatcher."""
    nodes = dict(Node.objects.values_list("role", "owner_id"))
    return (
        Node.objects.count() == 2
        and set(nodes) == {"engine", "dispatcher"}
        and TimerShard.objects.exists()
        and not TimerShard.objects.exclude(owner_id=nodes["engine"]).exists()
    )


def pids() -> dict[str, int]:
    """By role."""
    return dict(Node.objects.values_list("role", "process_id"))


def tenant(name: str, limits: bool = True, **changes: Any) -> dict[str, str]:
    """Found or made, with a new key. Without its limits, unless they are what is measured."""
    made = Tenant.objects.filter(name=name).first() or create_tenant(name)
    if not limits:
        changes = {"requests_per_minute": PLENTY, "max_pending": PLENTY, **changes}
    Tenant.objects.filter(pk=made.pk).update(**changes) if changes else None
    clear_profile_cache()
    key = create_key(made.tenant_id, list(ApiKey.Scope), name="benchmark")[1]
    return {"id": str(made.tenant_id), "key": key}


def submit_calls(
    tenant: str,
    url: str,
    count: int,
    due: float,
    over: float = 0.0,
    timeout: float = 30.0,
    tags: Sequence[Sequence[str]] = ((),),
    ahead: float | None = None,
) -> float:
    """`count` calls in batches, due at `due` (in seconds since 1970) or evenly within `over` seconds after it. Each
    has the next one of the sets of tags. How many seconds it took. `ahead`: as if each batch had been submitted so
    many seconds before it was due."""
    began = time.monotonic()
    commands = _commands(
        uuid.UUID(tenant), url, count, due, over, timeout, [frozenset(set_) for set_ in tags]
    )
    for first in range(0, count, BATCH):
        if ahead is None:
            submit(list(islice(commands, BATCH)))
            continue
        with pin_time(datetime.fromtimestamp(due + over * first / count - ahead, UTC)):
            submit(list(islice(commands, BATCH)))
    return time.monotonic() - began


def _commands(
    tenant: uuid.UUID,
    url: str,
    count: int,
    due: float,
    over: float,
    timeout: float,
    tags: Sequence[frozenset[str]],
) -> Iterator[SubmitServiceCall]:
    first, request = datetime.fromtimestamp(due, UTC), RequestSpec("POST", url, {}, BODY)
    for number in range(count):
        yield SubmitServiceCall(
            tenant,
            f"benchmark {number % 100}",
            request,
            due_at=first + timedelta(seconds=over * number / count),
            timeout_seconds=timeout,
            tags=tags[number % len(tags)],
        )


def progress(tenant: str, due: float) -> dict[str, Any]:
    """Of the calls that were due at this moment: how many stand how, and when the last of them ended."""
    calls = ServiceCall.objects.for_tenant(uuid.UUID(tenant)).filter(due_at=datetime.fromtimestamp(due, UTC))
    by_status = {row["status"]: row["n"] for row in calls.values("status").annotate(n=Count("*"))}
    last = calls.aggregate(last=Max("finished_at"))["last"]
    return {"by_status": by_status, "last": last and last.timestamp()}


def last_event() -> int:
    return OutboxEvent.across_tenants.aggregate(last=Max("id"))["last"] or 0


def unpublished() -> bool:
    return OutboxEvent.across_tenants.filter(published_at=None, parked_at=None).exists()


def events(after: int) -> dict[str, Any]:
    """Those since, and how long each waited to be published, in milliseconds."""
    rows = OutboxEvent.across_tenants.filter(id__gt=after).values_list("created_at", "published_at")
    lags = [(published - created).total_seconds() * 1000 for created, published in rows if published]
    return {"events": len(rows), "lag_ms": distribution(lags)}


def attempts(tenant: str) -> int:
    return HttpExecution.objects.for_tenant(uuid.UUID(tenant)).filter(finished_at__isnull=False).count()


def publish_all() -> int:
    """By hand, so that events of calls that were only made to be there do not keep the dispatcher for minutes."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE outbox SET published_at = created_at WHERE published_at IS NULL")
        return int(cursor.rowcount)


def end_past(tenant: str) -> dict[str, int]:
    """All calls that were due end. Written here by hand; only their statuses have to be plausible."""
    digits = uuid.UUID(tenant).hex
    names = {
        Status.SUCCEEDED: [f"benchmark {number}" for number in range(100) if number % 9],
        Status.FAILED: [f"benchmark {number}" for number in range(100) if not number % 9],
    }
    now = datetime.now(UTC)
    with transaction.atomic(), connection.cursor() as cursor:
        for status, theirs in names.items():
            marks = ", ".join(["%s"] * len(theirs))
            cursor.execute(
                "UPDATE service_calls SET status = %s, started_at = due_at, finished_at = due_at, attempt = 1"
                f" WHERE tenant_id = %s AND due_at < %s AND name IN ({marks})",
                [status.value, digits, now, *theirs],
            )
        cursor.execute(
            "UPDATE timer_schedules SET state = 'Reached', reached_at = due_at WHERE tenant_id = %s AND due_at < %s",
            [digits, now],
        )
    rows = ServiceCall.objects.for_tenant(uuid.UUID(tenant)).values("status").annotate(n=Count("*"))
    return {row["status"]: row["n"] for row in rows}


def count_for_charts() -> None:
    while not roll_up(10.0):
        pass


def checkpoint() -> None:
    """What was written in bulk goes to where it belongs, and the planner sees it."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        elif connection.vendor == "postgresql":
            cursor.execute("VACUUM ANALYZE")


def egress_rate(url: str, count: int) -> float:
    """POSTs of 200 bytes a second through the engine's egress alone: no database, no record."""
    policy = AddressPolicy(allow_private=False, allow=frozenset({url.split("/")[2]}))
    egress = Egress(policy, Limits())
    egress.start()
    try:
        began, ended, answered = time.monotonic(), 0, 0
        egress.send(Attempt(number, "POST", url, (), BODY.encode(), 60.0) for number in range(count))
        while ended < count and time.monotonic() - began < 60:
            outcomes = egress.collect(1.0)
            ended += len(outcomes)
            answered += sum(isinstance(outcome, Responded) and outcome.status == 200 for outcome in outcomes)
        return answered / (time.monotonic() - began)
    finally:
        egress.close()


OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation
    for operation in (
        facts, ready, pids, tenant, submit_calls, progress, last_event, unpublished, events, attempts,
        publish_all, end_past, count_for_charts, checkpoint, egress_rate,
    )
}  # fmt: skip


def main() -> None:
    print(json.dumps({"python": platform.python_version()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"done": OPERATIONS[asked["do"]](**asked["with"])}
        except Exception as error:  # noqa: BLE001 - whatever it was, who asked has to hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
