"""Load 40,000 calls with their timers, tags, attempts and events, and read each database's query plans."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.core.management.color import no_style
from django.db import connection, models, transaction

from eventservice.db.bulk import insert_rows
from eventservice.db.constraints import PollingIndex
from eventservice.db.dialects.sqlite.dialect import NOW_TABLE
from eventservice.db.now import db_now
from execution.models import HttpExecution
from orchestration.models import ServiceCall, ServiceCallTag
from outbox.models import OutboxEvent
from tests.databases import get_database_name
from tests.factories import build_state_columns
from timers.models import TimerSchedule

ROWS = 40_000
BATCH_SIZE = 10_000
SHARDS = PARTITIONS = 16
# Of twenty calls: most have ended, and few are due or running.
STATUSES = ["Succeeded"] * 11 + ["Failed", "Canceled"] + ["Scheduled"] * 6 + ["Running"]
TENANTS = [uuid.UUID(int=(0x0190_0000_0000_7000_8000 << 48) + n) for n in range(5)]
MODELS: tuple[type[models.Model], ...] = (
    ServiceCall,
    ServiceCallTag,
    TimerSchedule,
    OutboxEvent,
    HttpExecution,
)
POLLING_INDEXES = {
    index.name for model in MODELS for index in model._meta.indexes if isinstance(index, PollingIndex)
}


class Call:
    def __init__(self, number: int, now: datetime) -> None:
        self.number = number
        self.now = now
        self.id = uuid.UUID(int=(0x0190_0001_0000_7000_8000 << 48) + number)
        self.tenant = TENANTS[number % len(TENANTS)]
        self.status = STATUSES[number // len(TENANTS) % len(STATUSES)]
        # One in a hundred scheduled calls is due; no others become due while the tests run.
        moment = timedelta(seconds=number % 1801)
        late = self.status != "Scheduled" or number % 101 == 0
        self.is_retrying = self.status == "Scheduled" and number % 89 == 0
        self.due_at = now - moment if late else now + timedelta(hours=1) + moment


def build_call_row(call: Call) -> dict[str, Any]:
    # Some of the scheduled calls wait for another attempt.
    attempt = 1 if call.is_retrying else None
    return build_state_columns(call.status, call.due_at, attempt) | {
        "tenant_id": call.tenant, "service_call_id": call.id, "name": "call", "status": call.status,
        "submitted_at": call.due_at, "due_at": call.due_at, "request_spec": {}, "namespace": "default",
        "host": "example.test", "correlation_id": call.id, "timeout_seconds": 30.0, "response_contract": "status",
        "delivery": "at_least_once", "interruptions": 0, "cancel_requested": False, "next_seq": 1,
        "external_id": f"order-{call.number}", "idempotency_key": f"key-{call.number}",
        "deadline_at": call.now + timedelta(seconds=call.number % 600 - 6) if call.status == "Running" else None,
    }  # fmt: skip


def build_tag_row(call: Call) -> dict[str, Any]:
    tag = "urgent" if call.number % 1000 < 5 else f"team-{call.number % 97}"
    return {"tenant_id": call.tenant, "service_call_id": call.id, "tag": tag}


def build_timer_row(call: Call) -> dict[str, Any]:
    pending = call.status == "Scheduled"
    return {
        "tenant_id": call.tenant, "service_call_id": call.id, "correlation_id": call.id, "due_at": call.due_at,
        "registered_at": call.due_at, "reached_at": None if pending else call.due_at, "host": "example.test",
        "state": "Scheduled" if pending else "Reached", "shard_id": call.number % SHARDS,
    }  # fmt: skip


def build_event_row(call: Call) -> dict[str, Any]:
    parked = call.number % 1000 == 13
    return {
        "tenant_id": call.tenant, "aggregate_id": TENANTS[0] if call.number % 1000 == 0 else call.id,
        "aggregate_seq": call.number + 1, "event_type": "ServiceCallSubmitted", "event_payload": {},
        "created_at": call.now, "published_at": None if parked or call.number % 100 == 7 else call.now, "event_id": call.id,
        "correlation_id": call.id, "partition": call.number % PARTITIONS, "attempts": 0, "parked_at": call.now if parked else None,
    }  # fmt: skip


def build_attempt_row(call: Call) -> dict[str, Any] | None:
    """Return the attempt of some of the calls: those of a few are enough for the planner."""
    is_running = call.status == "Running"
    if call.status in ("Scheduled", "Canceled") or call.number // len(TENANTS) % 3 == 0:
        return None
    return {
        "tenant_id": call.tenant, "service_call_id": call.id, "execution_id": call.id, "attempt": 1,
        "node": TENANTS[0], "started_at": call.due_at, "request_url": "http://example.test/",
        "request_method": "POST", "request_headers": {}, "finished_at": None if is_running else call.due_at,
        "response_status": None if is_running else 200,
    }  # fmt: skip


BUILDERS = (build_call_row, build_tag_row, build_timer_row, build_event_row, build_attempt_row)


def load_rows() -> None:
    now = db_now()
    # All referenced rows exist, and checking each takes as long as writing it.
    with connection.constraint_checks_disabled(), transaction.atomic():
        for start in range(0, ROWS, BATCH_SIZE):
            calls = [Call(number, now) for number in range(start, start + BATCH_SIZE)]
            for model, make in zip(MODELS, BUILDERS, strict=True):
                rows = [row for call in calls if (row := make(call)) is not None]
                _insert(model, list(rows[0]), [list(row.values()) for row in rows])
                if start == 0 and connection.vendor == "postgresql":
                    # Without statistics, each foreign key is searched among all rows of the tenant.
                    _run(f"ANALYZE {model._meta.db_table}")
    tables = ", ".join(model._meta.db_table for model in MODELS)
    analyze = {"sqlite": "ANALYZE", "postgresql": f"ANALYZE {tables}", "mysql": f"ANALYZE TABLE {tables}"}
    _run(analyze[connection.vendor])


def _run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _insert(model: type[models.Model], columns: list[str], rows: list[list[Any]]) -> None:
    if connection.vendor != "postgresql":
        insert_rows(model, columns, rows)
        return
    names = ", ".join(connection.ops.quote_name(column) for column in columns)
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {model._meta.db_table} ({names}) FROM STDIN") as copy,
    ):
        for row in rows:
            copy.write_row(["{}" if value == {} else value for value in row])


def delete_rows() -> None:
    tables = [model._meta.db_table for model in MODELS]
    with connection.constraint_checks_disabled():
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), tables, allow_cascade=True))


@dataclass
class Plan:
    """The indexes that a query uses, and the tables that it scans."""

    text: str
    indexes: set[str] = field(default_factory=set)
    scanned: set[str] = field(default_factory=set)


def list_plans(run: Callable[[], Any], containing: str) -> list[Plan]:
    """Run `run`, roll it back, and return the plans of its statements that contain `containing`."""
    statements: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if containing in sql and not many:
            statements.append((sql, params))
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(note):
            run()
        transaction.set_rollback(True)
    return [read_plan(sql, params) for sql, params in statements]


def read_plan(sql: str, params: Any) -> Plan:
    prefix = {
        "sqlite": "EXPLAIN QUERY PLAN",
        "postgresql": "EXPLAIN (FORMAT JSON)",
        "mysql": "EXPLAIN FORMAT=JSON",
    }
    with connection.cursor() as cursor:
        prepare_explain(cursor)
        cursor.execute(f"{prefix[connection.vendor]} {sql}", params)
        rows = cursor.fetchall()
    match connection.vendor:
        case "sqlite":
            return _parse_sqlite_plan([row[-1] for row in rows])
        case "postgresql":
            document = rows[0][0] if isinstance(rows[0][0], list) else json.loads(rows[0][0])
            return _parse_postgresql_plan(document)
        case _:
            return _parse_mariadb_plan(json.loads(rows[0][0]))


def prepare_explain(cursor: Any) -> None:
    """Have MySQL explain in the format that MariaDB's resembles."""
    if get_database_name() == "mysql":
        cursor.execute("SET explain_json_format_version = 1")


def _parse_sqlite_plan(lines: list[str]) -> Plan:
    plan = Plan("\n".join(lines))
    made = {match[1] for line in lines if (match := re.match(r"(?:CO-ROUTINE|MATERIALIZE) (\S+)", line))}
    for line in lines:
        if match := re.match(r"SCAN (\S+)", line):
            plan.scanned |= {match[1]} - made - {NOW_TABLE}
        elif match := re.search(r"USING (?:COVERING )?INDEX (\S+)", line):
            plan.indexes.add(_find_unique_constraint(match[1]) or match[1])
    return plan


def _find_unique_constraint(index: str) -> str | None:
    """Return the UNIQUE constraint with the index's columns: SQLite does not keep its name."""
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA index_info({index})")
        columns = [name for _, _, name in cursor.fetchall()]
    for constraint in (constraint for model in MODELS for constraint in model._meta.constraints):
        if isinstance(constraint, models.UniqueConstraint) and list(constraint.fields) == columns:
            return constraint.name
    return None


def _parse_postgresql_plan(document: Any) -> Plan:
    plan = Plan(json.dumps(document, indent=1))
    for node in _iter_dicts(document):
        index = node.get("Index Name")
        # Reading a whole index counts as a scan, except for a polling index, which contains only the backlog.
        if node.get("Node Type") == "Seq Scan" or (
            index and "Index Cond" not in node and index not in POLLING_INDEXES
        ):
            plan.scanned.add(node["Alias"])
        elif index:
            plan.indexes.add(index)
    return plan


def _parse_mariadb_plan(document: Any) -> Plan:
    plan = Plan(json.dumps(document, indent=1))
    for table in _iter_dicts(document):
        # MariaDB names a derived table <derived2>, MySQL has its plan in a member.
        is_derived = "materialized_from_subquery" in table or table.get("table_name", "").startswith("<")
        if "access_type" not in table or is_derived:
            continue
        if table["access_type"] in ("ALL", "index"):
            plan.scanned.add(table["table_name"])
        elif "key" in table:
            plan.indexes.add(table["key"])
    return plan


def _iter_dicts(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        yield document
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from _iter_dicts(part)
