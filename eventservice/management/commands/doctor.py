"""`manage.py doctor`: is all in order here, and if not, what is to be done?"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core import checks
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from rich.table import Table
from rich.text import Text

from eventservice.console.alerts import WITHOUT
from eventservice.db.dialects.sqlite.library import FIXED
from eventservice.db.now import db_now
from eventservice.db.planner_statistics import tables_without_statistics
from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import Undecipherable, decrypt, encrypt
from eventservice.management.terminal import Terminal
from eventservice.runtime.models import Slot
from eventservice.templatetags.console import capped, duration
from eventservice.tenants.models import Tenant
from orchestration.lifecycle.secrets import scheduled_secrets
from orchestration.statistics.live import pulse
from outbox.status import get_status
from timers.operator_views import list_nodes

MOST_SKEW = timedelta(seconds=1)
LEAST_FREE_BYTES = 1 << 30
PRAGMAS = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 5000}
TIMEOUTS = {
    "postgresql": ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout"),
    "mysql": ("idle_transaction_timeout", "innodb_lock_wait_timeout", "max_statement_time"),
}
MANY_ROWS = 5000
MOST_CALLS_OPENED = 5000
TOLERABLE_LAG = timedelta(minutes=1)
HELD_BACK = (
    "With an engine alive: a tenant's or a host's limit may hold them back. The console's dashboard lists them under "
    "“Due now”, each with its tenant and its host."
)
ON_CONNECTING = "Restart the process: they are set when it connects. A pooler in between must not reset them."


@dataclass(frozen=True)
class Finding:
    name: str
    ok: bool
    detail: str
    advice: str = ""


class Command(BaseCommand):
    help = "Check this installation: database, clock, disk, keys, processes, work. Exit code 1 when something is wrong."
    # It tells of failed checks itself, among the rest.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="for programs")

    def handle(self, *args: Any, as_json: bool, **options: Any) -> None:
        findings = list(examine())
        terminal = Terminal(self, as_json=as_json)
        if as_json:
            terminal.json(_as_report(findings))
        else:
            terminal.draw(_as_table(findings))
        if not all(finding.ok for finding in findings):
            raise SystemExit(1)


def examine() -> Iterator[Finding]:
    yield environment()
    yield from system_checks()
    yield encryption_keys()
    yield static_files()
    reached = database()
    yield reached
    if reached.ok:
        for look in (*OF_DATABASE.get(connection.vendor, ()), *OF_EVERY_DATABASE):
            yield from _asked(look)


def _asked(look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        with transaction.atomic():
            return list(look())
    except DatabaseError as error:
        name = look.__name__.replace("_", " ")
        return [Finding(name, False, _line(error), "Mend what the other findings say first; then ask again.")]


# --- settings -------------------------------------------------------------------------------------------------


def environment() -> Finding:
    return Finding("environment", True, settings.ENVIRONMENT)


def system_checks() -> Iterator[Finding]:
    serious = [m for m in checks.run_checks() if m.level >= checks.WARNING and not m.is_silenced()]
    for message in serious:
        yield Finding(f"check {message.id}", not message.is_serious(), message.msg, message.hint or "")
    if not serious:
        yield Finding("system checks", True, "no complaints")


def encryption_keys() -> Finding:
    name = "encryption keys"
    if not settings.ENCRYPTION_KEYS:
        return Finding(name, True, "none: derived from SECRET_KEY, for development")
    works = decrypt(encrypt("works")) == "works"
    advice = "Set it to the output of `manage.py newkey`, older keys behind it, comma separated."
    return Finding(name, works, f"{len(settings.ENCRYPTION_KEYS)}, the first of which encrypts", advice)


def static_files() -> Finding:
    name = "static files"
    if settings.WHITENOISE_USE_FINDERS:
        return Finding(name, True, "served from where they are written, for development")
    lacking = list(_not_collected())
    detail = f"{len(lacking)} missing or old in {settings.STATIC_ROOT}: {', '.join(lacking[:3])}"
    advice = (
        "Run `manage.py collectstatic --noinput`, then restart the web processes: the console has no styles."
    )
    return Finding(name, not lacking, detail if lacking else f"all in {settings.STATIC_ROOT}", advice)


def _not_collected() -> Iterator[str]:
    config: Any = apps.get_app_config("staticfiles")
    seen = set()
    for finder in get_finders():
        for path, storage in finder.list(config.ignore_patterns):
            collected = Path(settings.STATIC_ROOT) / path
            # Of two of one name the first is served.
            if path not in seen and not (collected.is_file() and filecmp.cmp(storage.path(path), collected)):
                yield path
            seen.add(path)


# --- the database ---------------------------------------------------------------------------------------------


def database() -> Finding:
    place = connection.settings_dict
    where = str(place["NAME"]) if not place["HOST"] else f"{place['NAME']} at {place['HOST']}:{place['PORT']}"
    try:
        connection.ensure_connection()
        version = ".".join(map(str, connection.get_database_version()))
        return Finding("database", True, f"{connection.display_name} {version}, {where}")
    except (DatabaseError, OSError) as error:
        advice = "Is the server running, and may this host and user connect? See DATABASE_URL or DB_PATH."
        return Finding("database", False, f"{where}: {_line(error)}", advice)


def sqlite_library() -> Iterator[Finding]:
    library: Any = connection.Database  # type: ignore[attr-defined]
    advice = "Install pysqlite3 (requirements.lock): this SQLite may lose pages when the WAL is reset."
    yield Finding("sqlite library", library.sqlite_version_info >= FIXED, library.sqlite_version, advice)


def sqlite_pragmas() -> Iterator[Finding]:
    found = {name: _one(f"PRAGMA {name}") for name in PRAGMAS}
    detail = ", ".join(f"{name}={value}" for name, value in found.items())
    advice = "Is the file on a network share? WAL needs a local disk."
    yield Finding("sqlite pragmas", found == PRAGMAS, detail, advice)


def disk_space() -> Iterator[Finding]:
    folder = Path(connection.settings_dict["NAME"]).absolute().parent
    free = shutil.disk_usage(folder).free
    advice = f"Make room, or move DB_PATH: below {LEAST_FREE_BYTES >> 30} GiB the WAL may not find any."
    yield Finding(
        "disk space", free >= LEAST_FREE_BYTES, f"{free / (1 << 30):.1f} GiB free at {folder}", advice
    )


def collation() -> Iterator[Finding]:
    wrong = _one(
        "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_collation NOT LIKE 'utf8mb4%%bin'"
    )
    advice = "Create the database with CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin: ids and tags are compared by bytes."
    yield Finding(
        "collation",
        not wrong,
        f"not binary: {wrong}" if wrong else _one("SELECT @@collation_database"),
        advice,
    )


def session_timeouts() -> Iterator[Finding]:
    ask = "SHOW {}" if connection.vendor == "postgresql" else "SELECT @@{}"
    found = {name: str(_one(ask.format(name))) for name in TIMEOUTS[connection.vendor]}
    unlimited = [name for name, value in found.items() if value.rstrip("0.") == ""]
    detail = ", ".join(f"{name}={value}" for name, value in found.items())
    yield Finding("session timeouts", not unlimited, detail, ON_CONNECTING)


def migrations() -> Iterator[Finding]:
    executor = MigrationExecutor(connection)
    missing = [
        f"{m.app_label}.{m.name}" for m, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())
    ]
    detail = f"{len(missing)} not applied: {', '.join(missing[:3])}…" if missing else "all applied"
    yield Finding("migrations", not missing, detail, "Run `manage.py migrate`.")


def writing() -> Iterator[Finding]:
    with transaction.atomic():
        Slot.objects.create(name=f"doctor {new_id().hex[:8]}")
        transaction.set_rollback(True)
    yield Finding("writing", True, "a row was written, and rolled back")


def clock() -> Iterator[Finding]:
    skew = db_now() - datetime.now(UTC)
    advice = "Run chrony or another NTP client on both: logs and certificates go by this host's clock."
    yield Finding(
        "clock",
        abs(skew) <= MOST_SKEW,
        f"the database's is {skew.total_seconds():+.3f} s off this host's",
        advice,
    )


def stored_secrets() -> Iterator[Finding]:
    total, closed = 0, []
    for owner, secret in _stored_secrets():
        total += 1
        try:
            decrypt(secret)
        except Undecipherable:
            closed.append(owner)
    detail = (
        f"{len(closed)} of {total} cannot be opened: {', '.join(closed[:3])}"
        if closed
        else f"{total}, all open"
    )
    advice = "Put the key that they were encrypted with back into ENCRYPTION_KEYS, or set them anew."
    yield Finding("stored secrets", not closed, detail, advice)


def _stored_secrets() -> Iterator[tuple[str, str]]:
    for name, secret in Tenant.objects.exclude(signing_secret="").values_list("name", "signing_secret"):
        yield f"signing secret of tenant {name}", secret
    endpoints = apps.get_model("outbox", "WebhookEndpoint").across_tenants.all()
    for endpoint_id, secret in endpoints.values_list("endpoint_id", "secret"):
        yield f"secret of webhook endpoint {endpoint_id}", secret
    yield from scheduled_secrets(MOST_CALLS_OPENED)


def unanalyzed_tables() -> Iterator[Finding]:
    names = [name for name in tables_without_statistics() if _has_many_rows(name)]
    detail = f"rows but none yet for {', '.join(names)}" if names else "of every table with rows"
    advice = "Run ANALYZE in the database: without them it guesses, and lists take seconds."
    yield Finding("planner statistics", not names, detail, advice)


def _has_many_rows(table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1 OFFSET %s", [MANY_ROWS])
        return cursor.fetchone() is not None


# --- the work -------------------------------------------------------------------------------------------------


def roles() -> Iterator[Finding]:
    now = db_now()
    for role, consequence in WITHOUT.items():
        of_role = [node for node in list_nodes() if node.role == role]
        live = sum(node.is_alive(now) for node in of_role)
        advice = f"{consequence} Start `manage.py cluster`. A silent one is taken over by the others."
        yield Finding(role.value, live > 0, f"{live} alive, {len(of_role) - live} silent", advice)


def calls() -> Iterator[Finding]:
    found = pulse(None, db_now())
    oldest = f", the oldest for {duration(found.oldest_overdue)}" if found.overdue else ""
    yield Finding(
        "overdue calls", found.oldest_overdue <= TOLERABLE_LAG, f"{capped(found.overdue)}{oldest}", HELD_BACK
    )
    detail = f"{capped(found.lost_count)} running past the deadline"
    advice = "An engine takes them up again by itself. Without one: `manage.py requeue_stuck`."
    yield Finding("lost calls", not found.lost_count, detail, advice)


def events() -> Iterator[Finding]:
    found = get_status()
    oldest = f", the oldest for {duration(found.lag)}" if found.unpublished else ""
    advice = (
        "With a dispatcher alive: its log says what keeps it. `manage.py outbox status` shows who is at work."
    )
    yield Finding("waiting events", found.lag <= TOLERABLE_LAG, f"{found.unpublished:,}{oldest}", advice)
    behind = f", and {found.waiting_behind_parked:,} wait behind them" if found.parked else ""
    advice = "`manage.py outbox parked` shows them and why; `outbox retry` and `outbox skip` decide."
    yield Finding("parked events", not found.parked, f"{found.parked:,}{behind}", advice)


OF_DATABASE: dict[str, tuple[Callable[[], Iterable[Finding]], ...]] = {
    "sqlite": (sqlite_library, sqlite_pragmas, disk_space),
    "postgresql": (session_timeouts, unanalyzed_tables),
    "mysql": (collation, session_timeouts),
}
OF_EVERY_DATABASE = (migrations, writing, clock, stored_secrets, roles, calls, events)


def _one(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, [] if "%%" in sql else None)
        return cursor.fetchone()[0]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


# --- what is shown --------------------------------------------------------------------------------------------


def _as_report(findings: list[Finding]) -> dict[str, Any]:
    return {"ok": all(f.ok for f in findings), "findings": [asdict(f) for f in findings]}


def _as_table(findings: list[Finding]) -> Table:
    table = Table(show_edge=False)
    for heading in ("", "what", "how it is", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        sign = Text("ok", "green") if finding.ok else Text("WRONG", "red")
        advice = "" if finding.ok else finding.advice
        table.add_row(sign, *(Text(text) for text in (finding.name, finding.detail, advice)))
    return table
