"""`manage.py doctor` reports problems of this installation and how to solve them."""

from __future__ import annotations

import difflib
import filecmp
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from rich.table import Table
from rich.text import Text

from eventservice.db.configuration import describe_place
from eventservice.db.dialects import get_dialect
from eventservice.db.errors import explain_error, find_trouble
from eventservice.db.now import db_now, db_now_ms
from eventservice.kernel.env import get_env_path, parse_env_file
from eventservice.kernel.file_permissions import check_permissions
from eventservice.kernel.findings import Finding, Severity, check
from eventservice.kernel.secrets import Undecipherable, decrypt, encrypt
from eventservice.management.profile import KEY, TENANT, URL
from eventservice.management.terminal import Terminal
from eventservice.operators.formatting import format_count
from eventservice.operators.health import (
    CONSEQUENCES,
    check_retrying_calls,
    check_shard_sizes,
    check_starting,
    check_tenant_limits,
    check_webhook_endpoints,
    check_writing,
    describe_remedy,
    diagnose,
    read_cluster,
)
from eventservice.runtime.models import Slot
from eventservice.settings import env
from eventservice.tenants.directory import count_namespaces_by_store
from eventservice.tenants.models import Tenant
from orchestration.feeder.declarations import examine_cell_store
from orchestration.lifecycle.secrets import sample_scheduled_secrets
from orchestration.statistics.live_counts import read_live_counts
from outbox.status import get_status as get_outbox_status
from timers.shard_sizes import get_shard_sizes
from timers.stores.factory import build_store
from timers.stores.port import NO_CELL

MAX_CLOCK_SKEW = timedelta(seconds=1)
MAX_CALLS_OPENED = 5000
# Read by the libraries for TLS: which authorities they trust.
CERTIFICATE_VARIABLES = {
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",
}

STYLES = {
    Severity.OK: ("ok", "green"),
    Severity.WARNING: ("warning", "yellow"),
    Severity.ERROR: ("WRONG", "red"),
}


class Command(BaseCommand):
    help = (
        "Check settings, database, clock, keys, processes and waiting work, and the disk if the database is SQLite. The"
        " exit code is 1 if there is an error."
    )
    # It reports failed system checks itself, among the other findings.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")

    def handle(self, *args: object, as_json: bool, **options: object) -> None:
        findings = list(examine())
        terminal = Terminal(self, as_json=as_json)
        if as_json:
            terminal.json(_build_report(findings))
        else:
            terminal.draw(_build_table(findings))
        if any(finding.severity is Severity.ERROR for finding in findings):
            raise SystemExit(1)


def examine() -> Iterator[Finding]:
    reached = check_database()
    # Not in a transaction, which the check would find nothing wrong in, or which would keep SQLite's engine waiting.
    writing = check_writing() if reached.is_ok else None
    is_locked = writing is not None and writing.is_locked
    of_database = list(_examine_database(is_locked)) if reached.is_ok else []
    cannot_write = writing is not None and not writing.is_ok
    if writing and cannot_write:
        remedy = f"{writing.remedy} Then run this again: what cannot be checked meanwhile, or follows from it, is left out."
        yield replace(writing, code="database_lock" if is_locked else writing.code, remedy=remedy)
    yield check_environment()
    yield check_settings_file()
    yield check_certificate_files()
    yield check_permissions("settings_file_permissions", [get_env_path(settings.BASE_DIR)])
    yield from run_system_checks()
    yield check_encryption_keys()
    yield check_static_files()
    yield reached
    if cannot_write:
        # What follows from it would only distract from it.
        hidden = {*CONSEQUENCES, "database_lock"} if is_locked else CONSEQUENCES
        yield from (found for found in of_database if found.code not in hidden)
        return
    yield from of_database
    if writing:
        yield writing
        yield from _check_starting()
        yield from _check_timer_stores()


def _examine_database(is_locked: bool) -> Iterator[Finding]:
    try:
        has_tables = MigrationRecorder(connection).has_table()
    except DatabaseError:
        has_tables = False
    own, tables = get_dialect().health_checks, DATABASE_CHECKS if has_tables else EMPTY_DATABASE_CHECKS
    for look in (*own, *tables):
        yield from _run_beside_lock(look) if is_locked else _run(look)


def _run_beside_lock(look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run a check outside a transaction, which would wait for the lock, and leave it out if it needs the lock."""
    try:
        return list(look())
    except DatabaseError:
        return []


def _run(look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run a check of the database; one that fails is a finding, and the others still run."""
    try:
        with transaction.atomic():
            return list(look())
    except DatabaseError as error:
        trouble = find_trouble(error)
        text, remedy = (
            (trouble.text, describe_remedy(trouble))
            if trouble
            else (_join_lines(error), "Fix the other problems first.")
        )
        return [check(look.__name__.removeprefix("check_"), False, text, remedy)]


# --- settings -------------------------------------------------------------------------------------------------


def check_environment() -> Finding:
    note = (
        ""
        if settings.PRODUCTION
        else ": for a developer's machine only, because calls can reach its own servers"
    )
    return check("environment", True, f"{settings.ENVIRONMENT}{note}")


def check_certificate_files() -> Finding:
    """Report files of certificate authorities that cannot be read. The libraries ignore them, or fail at each connection."""
    names = sorted(CERTIFICATE_VARIABLES - {"SSL_CERT_DIR"})
    named = {name: path for name in names if (path := os.environ.get(name))}
    unreadable = [f"{name}={path}" for name, path in named.items() if not os.access(path, os.R_OK)]
    if not unreadable:
        used = ", ".join(f"{name}={path}" for name, path in named.items())
        return check("certificate_authorities", True, used or "the default ones")
    text = f"{', '.join(unreadable)}: there is no such file, or this user cannot read it"
    return Finding(
        "certificate_authorities",
        Severity.WARNING,
        text,
        "Correct the path: without the file, other authorities are trusted than you expect.",
    )


def check_settings_file() -> Finding:
    """Warn of names in the settings file that nothing reads. Wrong lines are no concern: no command starts with them."""
    code, path = "settings_file", get_env_path(settings.BASE_DIR)
    try:
        names = parse_env_file(path.read_text(encoding="utf-8-sig"), path)
    except FileNotFoundError:
        return check(code, True, f"there is none at {path}: the settings come from the environment")
    except (OSError, UnicodeDecodeError):
        return check(code, True, f"{path} cannot be read: the settings come from the environment")
    known = {*env.names, URL, TENANT, KEY, *CERTIFICATE_VARIABLES}
    unknown = [name for name in names if name not in known and not name.startswith("DJANGO_SUPERUSER_")]
    if not unknown:
        return check(code, True, f"{path}: {format_count(len(names), 'setting')}")
    return Finding(
        code,
        Severity.WARNING,
        f"{path} has names that are no settings: {', '.join(_suggest(name, known) for name in unknown)}.",
        "Correct or remove them: they have no effect.",
    )


def _suggest(name: str, known: Iterable[str]) -> str:
    similar = difflib.get_close_matches(name, sorted(known), 1)
    return f"{name} (did you mean {similar[0]}?)" if similar else name


def run_system_checks() -> Iterator[Finding]:
    messages = [m for m in checks.run_checks() if m.level >= checks.WARNING and not m.is_silenced()]
    for message in messages:
        severity = Severity.ERROR if message.is_serious() else Severity.WARNING
        yield Finding(f"check_{message.id}", severity, message.msg, message.hint or "")
    if not messages:
        yield check("system_checks", True, "no problems")


def check_encryption_keys() -> Finding:
    code = "encryption_keys"
    if not settings.ENCRYPTION_KEYS:
        return check(code, True, "none: derived from SECRET_KEY, for development only")
    works = decrypt(encrypt("works")) == "works"
    count = len(settings.ENCRYPTION_KEYS)
    text = f"{count} configured; the first encrypts" if works else f"{count} configured, and encryption fails"
    remedy = "Set ENCRYPTION_KEYS to the output of `manage.py newkey`, followed by older keys, separated by commas."
    return check(code, works, text, remedy)


def check_static_files() -> Finding:
    code = "static_files"
    if settings.WHITENOISE_USE_FINDERS:
        return check(code, True, "served from the source tree, for development only")
    outdated = list(_list_outdated_files())
    text = f"{len(outdated)} missing or outdated in {settings.STATIC_ROOT}: {', '.join(outdated[:3])}"
    remedy = "Run `manage.py collectstatic --noinput`, then restart the web processes."
    return check(code, not outdated, text if outdated else f"all in {settings.STATIC_ROOT}", remedy)


def _list_outdated_files() -> Iterator[str]:
    config: Any = apps.get_app_config("staticfiles")
    seen = set()
    for finder in get_finders():
        for path, storage in finder.list(config.ignore_patterns):
            collected = Path(settings.STATIC_ROOT) / path
            # If two have the same name, the first is served.
            if path not in seen and not (collected.is_file() and filecmp.cmp(storage.path(path), collected)):
                yield path
            seen.add(path)


# --- the database ---------------------------------------------------------------------------------------------


def check_database() -> Finding:
    where = describe_place(connection)
    try:
        connection.ensure_connection()
        version = ".".join(map(str, connection.get_database_version()))
        return check("database", True, f"{connection.display_name} {version}, {where}")
    except ImproperlyConfigured as error:
        return check("database", False, f"{where}: {_join_lines(error)}", "Correct DATABASE_URL.")
    except (DatabaseError, OSError) as error:
        trouble = explain_error(error)
        return check("database", False, f"{trouble.text} ({where}: {_join_lines(error)})", trouble.remedy)


def _check_starting() -> list[Finding]:
    try:
        return [check_starting(db_now())]
    except DatabaseError:
        return []  # the other checks say why


def _check_timer_stores() -> Iterator[Finding]:
    """Check the stores that can be built. The system checks report the others."""
    for spec in settings.TIMER_STORES:
        with suppress(ValueError), closing(build_store(spec, NO_CELL)) as store:
            yield from examine_cell_store(spec.name, store)


def check_migrations() -> Iterator[Finding]:
    executor = MigrationExecutor(connection)
    missing = [
        f"{m.app_label}.{m.name}" for m, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())
    ]
    text = f"{len(missing)} not applied: {', '.join(missing[:3])}…" if missing else "all applied"
    yield check("migrations", not missing, text, "Run `manage.py migrate`.")


def check_clock() -> Iterator[Finding]:
    """Compare the database's milliseconds with this host's halfway through the query, which may take long."""
    asked_at = time.time()
    database_ms = db_now_ms()
    host_ms = 1000 * (asked_at + time.time()) / 2
    skew = timedelta(milliseconds=database_ms - host_ms)
    text = f"the database's clock differs by {skew.total_seconds():+.3f} s from this host's"
    remedy = "Run chrony or another NTP client on both: logs and certificates depend on this host's clock."
    yield check("clock", abs(skew) <= MAX_CLOCK_SKEW, text, remedy)


def check_stored_secrets() -> Iterator[Finding]:
    total, unreadable = 0, []
    for owner, secret in _list_stored_secrets():
        total += 1
        try:
            decrypt(secret)
        except Undecipherable:
            unreadable.append(owner)
    text = f"{total} can be decrypted"
    if unreadable:
        text = f"{len(unreadable)} of {total} cannot be decrypted: {', '.join(unreadable[:3])}"
    remedy = "Add the key that encrypted them to ENCRYPTION_KEYS, or set these secrets again."
    yield check("stored_secrets", not unreadable, text, remedy)


def _list_stored_secrets() -> Iterator[tuple[str, str]]:
    for name, secret in Tenant.objects.exclude(signing_secret="").values_list("name", "signing_secret"):
        yield f"signing secret of tenant {name}", secret
    endpoints = apps.get_model("outbox", "WebhookEndpoint").across_tenants.all()
    for endpoint_id, secret in endpoints.values_list("endpoint_id", "secret"):
        yield f"secret of webhook endpoint {endpoint_id}", secret
    yield from sample_scheduled_secrets(MAX_CALLS_OPENED)


# --- the running system ---------------------------------------------------------------------------------------


def check_timer_store_names() -> Iterator[Finding]:
    """Check that every timer store in which this database has namespaces is configured."""
    configured = {spec.name for spec in settings.TIMER_STORES}
    for name, count in count_namespaces_by_store().items():
        is_known = name in configured
        lack = "" if is_known else ", which is not in TIMER_STORES"
        text = f"{format_count(count, 'namespace')} in the timer store {name}{lack}"
        remedy = (
            f"Add {name} to TIMER_STORES again, and restart all processes. Until then, this cell sends none of these timers,"
            " and they cannot be set or changed here."
        )
        yield check("timer_store_names", is_known, text, remedy)


def check_running_system() -> list[Finding]:
    now = db_now()
    cluster = read_cluster(now, Slot.objects.order_by("name"))
    return [
        *diagnose(cluster, read_live_counts(None, now), get_outbox_status()),
        check_shard_sizes(get_shard_sizes()),
        *check_retrying_calls(None, now),
        *check_webhook_endpoints(None, now),
        *check_tenant_limits(None, now),
    ]


EMPTY_DATABASE_CHECKS = (check_migrations, check_clock)
DATABASE_CHECKS = (
    *EMPTY_DATABASE_CHECKS,
    check_stored_secrets,
    check_timer_store_names,
    check_running_system,
)


def _join_lines(error: Exception) -> str:
    return " ".join(str(error).split())


# --- output ---------------------------------------------------------------------------------------------------


def _build_report(findings: list[Finding]) -> dict[str, object]:
    return {
        "ok": all(finding.severity is not Severity.ERROR for finding in findings),
        "findings": [
            {
                "name": _format_name(finding),
                "ok": finding.severity is not Severity.ERROR,
                "severity": finding.severity,
                "detail": finding.text,
                "advice": finding.remedy,
            }
            for finding in findings
        ],
    }


def _build_table(findings: list[Finding]) -> Table:
    table = Table(show_edge=False)
    for heading in ("", "check", "result", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        texts = (_format_name(finding), finding.text, finding.remedy)
        table.add_row(Text(*STYLES[finding.severity]), *map(Text, texts))
    return table


def _format_name(finding: Finding) -> str:
    return finding.code.replace("_", " ")
