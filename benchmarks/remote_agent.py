"""Operations of a benchmark that run inside the system, in a separate process: bulk submissions and reads of the records.

The process reads one JSON document per line, `{"operation": "submit_calls", "arguments": {…}}`, and prints one per answer,
`{"result": …}` or `{"error": "…"}`. It sleeps between operations. `AgentClient` is its client.
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

from django.core.management import call_command  # noqa: E402
from django.db import connection, connections, transaction  # noqa: E402
from django.db.models import Count, Max  # noqa: E402

from benchmarks.report import summarize_distribution  # noqa: E402
from eventservice.db.now import db_now, pin_time  # noqa: E402
from eventservice.kernel.ttl_cache import clear_caches  # noqa: E402
from eventservice.tenants.directory import create_tenant  # noqa: E402
from eventservice.tenants.keys import create_key  # noqa: E402
from eventservice.tenants.models import ApiKey, Namespace, Tenant  # noqa: E402
from execution.addresses import AddressPolicy  # noqa: E402
from execution.egress import Egress, Limits  # noqa: E402
from execution.models import HttpExecution  # noqa: E402
from execution.outcome import Attempt, Responded  # noqa: E402
from orchestration.commands import RequestSpec, SubmitServiceCall  # noqa: E402
from orchestration.events import EventType  # noqa: E402
from orchestration.feeder.database_calls import DatabaseCalls  # noqa: E402
from orchestration.lifecycle import submit  # noqa: E402
from orchestration.models import ServiceCall, TimerMark  # noqa: E402
from orchestration.states import Status  # noqa: E402
from orchestration.statistics.rollup import roll_up  # noqa: E402
from outbox.models import OutboxEvent  # noqa: E402
from timers.cell_stores import get_cell_store  # noqa: E402
from timers.models import Node, TimerSchedule, TimerShard  # noqa: E402
from timers.stores.port import QualifiedNamespace  # noqa: E402

BATCH_SIZE = 1000
BODY = "y" * 200
UNLIMITED = 2_000_000_000
EGRESS_SECONDS = 60


def describe_database() -> dict[str, Any]:
    if connection.vendor == "sqlite":
        library = connections["default"].Database  # type: ignore[attr-defined]
        version = f"{library.sqlite_version} ({library.__name__})"
        return {"database": "sqlite", "version": version}
    with connection.cursor() as cursor:
        cursor.execute("SELECT version()")
        return {"database": connection.vendor, "version": str(cursor.fetchone()[0]).split(" on ")[0]}


def migrate() -> None:
    """Create the tables of a system that is not started."""
    call_command("migrate", verbosity=0)


def is_ready() -> bool:
    """Return whether there is one dispatcher, and one engine that owns all shards."""
    nodes = dict(Node.objects.values_list("role", "owner_id"))
    return (
        Node.objects.count() == 2
        and set(nodes) == {"engine", "dispatcher"}
        and TimerShard.objects.exists()
        and not TimerShard.objects.exclude(owner_id=nodes["engine"]).exists()
    )


def list_role_pids() -> dict[str, int]:
    return dict(Node.objects.values_list("role", "process_id"))


def ensure_tenant(name: str, limits: bool = True, **changes: Any) -> dict[str, str]:
    """Return the id of the tenant with this name and a new API key. Create the tenant unless it exists.

    `limits=False` lifts its limits, for benchmarks that do not measure them.
    """
    tenant = Tenant.objects.filter(name=name).first() or create_tenant(name)
    if not limits:
        unlimited = dict.fromkeys(("requests_per_minute", "max_pending", "bytes_per_minute"), UNLIMITED)
        changes = {**unlimited, "max_stored_bytes": UNLIMITED * 1000, **changes}
    if changes:
        Tenant.objects.filter(pk=tenant.pk).update(**changes)
    clear_caches()
    key = create_key(tenant.tenant_id, list(ApiKey.Scope), name="benchmark")[1]
    return {"id": str(tenant.tenant_id), "key": key}


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
    """Submit `count` calls in batches and return the seconds that it took.

    They are due at `due`, in seconds since 1970, or evenly within `over` seconds after it. The calls take the sets in `tags`
    in turn. With `ahead`, each batch is submitted as if so many seconds before it is due.
    """
    started = time.monotonic()
    tag_sets = [frozenset(tag_set) for tag_set in tags]
    commands = _build_commands(uuid.UUID(tenant), url, count, due, over, timeout, tag_sets)
    for first in range(0, count, BATCH_SIZE):
        batch = list(islice(commands, BATCH_SIZE))
        if ahead is None:
            submit(batch)
            continue
        with pin_time(datetime.fromtimestamp(due + over * first / count - ahead, UTC)):
            submit(batch)
    return time.monotonic() - started


def _build_commands(
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


def summarize_progress(tenant: str, due: float) -> dict[str, Any]:
    """Return how many of the calls that were due at this moment have which status, and when the last one ended."""
    calls = ServiceCall.objects.for_tenant(uuid.UUID(tenant)).filter(due_at=datetime.fromtimestamp(due, UTC))
    by_status = {row["status"]: row["n"] for row in calls.values("status").annotate(n=Count("*"))}
    last = calls.aggregate(last=Max("finished_at"))["last"]
    return {"by_status": by_status, "last": last and last.timestamp()}


def find_last_event_id() -> int:
    return OutboxEvent.across_tenants.aggregate(last=Max("id"))["last"] or 0


def has_unpublished() -> bool:
    """Return whether events wait to be published."""
    return OutboxEvent.across_tenants.filter(published_at=None, parked_at=None).exists()


def summarize_events(after: int) -> dict[str, Any]:
    """Return the number of events after this id, and how long they waited to be published."""
    rows = OutboxEvent.across_tenants.filter(id__gt=after).values_list("created_at", "published_at")
    lags = [(published - created).total_seconds() * 1000 for created, published in rows if published]
    return {"events": len(rows), "lag_ms": summarize_distribution(lags)}


def count_attempts(tenant: str) -> int:
    return HttpExecution.objects.for_tenant(uuid.UUID(tenant)).filter(finished_at__isnull=False).count()


def mark_all_published() -> int:
    """Mark all events as published, so that those of prepared calls do not occupy the dispatcher for minutes."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE outbox SET published_at = created_at WHERE published_at IS NULL")
        return int(cursor.rowcount)


def finish_past_calls(tenant: str) -> dict[str, int]:
    """Finish all calls whose due time has passed, and return how many calls have which status.

    The rows are updated directly: only what their statuses demand matters to the benchmark.
    """
    digits = uuid.UUID(tenant).hex
    names = {
        Status.SUCCEEDED: [f"benchmark {number}" for number in range(100) if number % 9],
        Status.FAILED: [f"benchmark {number}" for number in range(100) if not number % 9],
    }
    now = datetime.now(UTC)
    with transaction.atomic(), connection.cursor() as cursor:
        for status, names_of_status in names.items():
            placeholders = ", ".join(["%s"] * len(names_of_status))
            cursor.execute(
                "UPDATE service_calls SET status = %s, started_at = due_at, finished_at = due_at, attempt = 1,"
                " execution_id = service_call_id, outcome_meta = '{}'"
                f" WHERE tenant_id = %s AND due_at < %s AND name IN ({placeholders})",
                [status.value, digits, now, *names_of_status],
            )
        cursor.execute(
            "UPDATE timer_schedules SET state = 'Reached', reached_at = due_at WHERE tenant_id = %s AND due_at < %s",
            [digits, now],
        )
    rows = ServiceCall.objects.for_tenant(uuid.UUID(tenant)).values("status").annotate(n=Count("*"))
    return {row["status"]: row["n"] for row in rows}


def run_rollup() -> None:
    """Count everything that the console's charts show."""
    while not roll_up(10.0):
        pass


def checkpoint() -> None:
    """Move bulk writes out of the write-ahead log and update the planner's statistics."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        elif connection.vendor == "postgresql":
            cursor.execute("VACUUM ANALYZE")


def read_sizes() -> dict[str, dict[str, int]]:
    """Return the bytes of each table of a database server, and of its indexes.

    On PostgreSQL the primary key is one of the indexes; on MariaDB and MySQL it is the table.
    """
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class"
                " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
            )
        else:
            for model in (ServiceCall, TimerSchedule, OutboxEvent):
                cursor.execute(f"ANALYZE TABLE {model._meta.db_table}")
                cursor.fetchall()
            cursor.execute(
                "SELECT table_name, data_length, index_length FROM information_schema.tables"
                " WHERE table_schema = DATABASE()"
            )
        return {
            name: {"data": data or 0, "indexes": indexes or 0} for name, data, indexes in cursor.fetchall()
        }


def measure_egress(url: str, count: int) -> float:
    """Return POSTs of 200 bytes per second through the engine's egress alone, without a database."""
    policy = AddressPolicy(allow_private=False, allow=frozenset({url.split("/")[2]}))
    egress = Egress(policy, Limits())
    egress.start()
    try:
        started, ended, succeeded = time.monotonic(), 0, 0
        egress.send(Attempt(number, "POST", url, (), BODY.encode(), 60.0) for number in range(count))
        while ended < count and time.monotonic() - started < EGRESS_SECONDS:
            outcomes = egress.collect(1.0)
            ended += len(outcomes)
            succeeded += sum(isinstance(outcome, Responded) and outcome.status == 200 for outcome in outcomes)
        return succeeded / (time.monotonic() - started)
    finally:
        egress.close()


# --- timer stores ---------------------------------------------------------------------------------------------


def ensure_namespace(tenant: str, name: str, num_shards: int, store: str = "") -> None:
    """Create a namespace, whose timers may be in a timer store, unless it exists."""
    namespace = QualifiedNamespace(uuid.UUID(tenant), name)
    if not Namespace.objects.for_tenant(namespace.tenant_id).filter(name=name).exists():
        created = Namespace(
            tenant_id=namespace.tenant_id, name=name, num_shards=num_shards, store=store, created_at=db_now()
        )
        created.save(force_insert=True)
        clear_caches()
    if store:
        fingerprint = DatabaseCalls(store).get_fingerprint(namespace)
        get_cell_store(store).declare_namespace(namespace, num_shards, fingerprint)


def migrate_store(store: str) -> None:
    get_cell_store(store).migrate()


def is_feeding(store: str, num_shards: int) -> bool:
    """Return whether each shard of a timer store belongs to a living member."""
    members = {str(member.id) for member in get_cell_store(store).members()}
    return all(shard.owner in members for shard in get_cell_store(store).shards(range(num_shards)))


def measure_database_bytes() -> int:
    """Return the size of the relational database."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        elif connection.vendor == "postgresql":
            cursor.execute("SELECT pg_database_size(current_database())")
        else:
            return sum(size["data"] + size["indexes"] for size in read_sizes().values())
        return int(cursor.fetchone()[0])


def count_marks() -> int:
    """Return the number of ended attempts whose timers are still in the timer store."""
    return TimerMark.across_tenants.count()


def measure_feeding(after: int) -> float | None:
    """Return how many timers per second became calls, of those with events after this id.

    A batch counts from its beginning, so the last one is left out. Return None if there was only one.
    """
    events = OutboxEvent.across_tenants.filter(id__gt=after, event_type=EventType.SUBMITTED.value)
    batches = sorted(
        events.order_by().values_list("created_at").annotate(n=Count("*")).values_list("created_at", "n")
    )
    if len(batches) < 2:
        return None
    seconds = (batches[-1][0] - batches[0][0]).total_seconds()
    return float(sum(n for _, n in batches[:-1]) / seconds)


def list_due_times(tenant: str, namespace: str, prefix: str) -> dict[str, float]:
    """Return the due time of each call by its id, of the timers whose ids begin with the prefix."""
    calls = ServiceCall.objects.for_tenant(uuid.UUID(tenant)).filter(namespace=namespace)
    rows = calls.filter(external_id__startswith=prefix).values_list("service_call_id", "due_at")
    return {str(call): due.timestamp() for call, due in rows}


OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation
    for operation in (
        describe_database, migrate, is_ready, list_role_pids, ensure_tenant, submit_calls, summarize_progress,
        find_last_event_id, has_unpublished, summarize_events, count_attempts, mark_all_published,
        finish_past_calls, run_rollup, checkpoint, read_sizes, measure_egress,
        ensure_namespace, migrate_store, is_feeding, measure_database_bytes, count_marks, measure_feeding, list_due_times,
    )
}  # fmt: skip


def main() -> None:
    print(json.dumps({"python": platform.python_version()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": OPERATIONS[request["operation"]](**request["arguments"])}
        except Exception as error:  # noqa: BLE001 - the client reports whatever went wrong
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
