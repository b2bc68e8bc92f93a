"""Every management command that changes something writes to the audit log, with the user of the operating system."""

from __future__ import annotations

import getpass
from io import StringIO

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command, get_commands

from eventservice.kernel.ids import new_id
from eventservice.management.commands import demo, seed_demo
from eventservice.management.commands.up import DEMO
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import Tenant
from outbox.broker_queue import BrokerQueue
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events, park
from outbox.store import read_heads
from outbox.writer import PARTITIONS
from tests.outbox.support import store_run

pytestmark = pytest.mark.django_db

# What each audited command records when it is run as below.
AUDITED = {
    "apikey": ["key-create", "key-rotate", "key-revoke"],
    # tests/management/test_backup.py runs these two.
    "backup": ["backup"],
    "restore": ["restore"],
    "changepassword": ["user-password"],
    "createsuperuser": ["user-create"],
    "demo": ["submit"],
    # tests/management/test_move_database.py runs it.
    "move_database": ["move-database"],
    # tests/management/test_dispatch_command.py runs it.
    "dispatch": ["dispatch-pause", "dispatch-resume"],
    "outbox": ["event-retry", "event-skip", "events-replay", "queue-discard", "outbox-prune"],
    "prune": ["prune"],
    "reencrypt": ["reencrypt"],
    "requeue_stuck": ["requeue-stuck"],
    "seed_demo": ["seed-demo"],
    "tenant": ["tenant-create", "namespace-create", "tenant-change"],
    # tests/management/test_timer_store_command.py runs it. What it does to a store's table is for the store's own records.
    "timer_store": ["timer-store-declare", "cell-renew"],
    "webhook": [
        "endpoint-create",
        "endpoint-disable",
        "endpoint-enable",
        "endpoint-retry",
        "endpoint-catch-up",
        "endpoint-delete",
    ],
    # tests/management/test_up_prints_an_introduction.py runs it.
    "up": [],
}
# These use the REST API, with a key. What they change is the key's doing.
CLIENTS = {"call", "calls", "cancel", "replay", "submit", "trace"}
# These are processes of the system or do its periodic work. They decide nothing.
SYSTEM = {"cluster", "qcluster", "poll_timers", "dispatch_outbox", "roll_up", "clearsessions"}
READING = {"doctor", "newkey", "qinfo", "qmemory", "qmonitor", "test"}
# They change the schema, and the audit log with it, or lie outside the service. The host's own records name who ran them.
SCHEMA_AND_DEVELOPMENT = {
    "migrate", "check", "collectstatic", "compilemessages", "createcachetable", "dbshell", "diffsettings", "dumpdata",
    "findstatic", "flush", "generateschema", "inspectdb", "loaddata", "makemessages", "makemigrations",
    "optimizemigration", "remove_stale_contenttypes", "runserver", "sendtestemail", "shell", "showmigrations", "spectacular",
    "sqlflush", "sqlmigrate", "sqlsequencereset", "squashmigrations", "startapp", "startproject", "testserver",
}  # fmt: skip


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def list_actions() -> list[str]:
    """Return the actions in the audit log, all of which must have the user of the operating system."""
    entries = OperatorAction.across_tenants.order_by("id")
    assert {entry.user for entry in entries} <= {f"manage.py ({getpass.getuser()})"}
    return [entry.action for entry in entries]


def test_each_command_is_audited_or_has_a_reason_not_to_be() -> None:
    groups = [AUDITED.keys(), CLIENTS, SYSTEM, READING, SCHEMA_AND_DEVELOPMENT]
    assert set().union(*groups) == set(get_commands())
    assert sum(len(group) for group in groups) == len(get_commands())


def test_tenant(tenant: Tenant) -> None:
    run("tenant", "create", "initech")
    run("tenant", "namespace", "initech", "orders", "--size", "medium")
    run("tenant", "namespace", "initech", "orders", "--size", "medium")
    run("tenant", "limits", "initech", "--max-pending", "7")
    run("tenant", "limits", "initech", "--max-pending", "7")
    run("tenant", "limits", "initech")
    run("tenant", "list")
    assert list_actions() == AUDITED["tenant"]
    created, _, changed = OperatorAction.across_tenants.order_by("id")
    assert created.tenant_id == Tenant.objects.get(name="initech").pk
    assert (created.subject, changed.detail) == (
        str(created.tenant_id),
        {"max_pending": "1000000 → 7"},
    )


def test_a_refused_command_records_nothing(tenant: Tenant) -> None:
    with pytest.raises(CommandError, match="exists"):
        run("tenant", "create", tenant.name)
    with pytest.raises(CommandError, match="no active key"):
        run("apikey", "revoke", "nonsense")
    assert list_actions() == []


def test_apikey(tenant: Tenant) -> None:
    text = run("apikey", "create", "--tenant", tenant.name, "--name", "shop").strip()
    key_id = OperatorAction.across_tenants.get().subject
    run("apikey", "rotate", key_id)
    run("apikey", "revoke", key_id)
    run("apikey", "list", "--tenant", tenant.name)
    assert list_actions() == AUDITED["apikey"]
    secret = text.rpartition("_")[2]
    assert secret not in str(list(OperatorAction.across_tenants.values()))


def test_apikey_of_an_operator() -> None:
    key, _ = create_key(None, ["read"])
    run("apikey", "revoke", key.key_id)
    (entry,) = OperatorAction.across_tenants.all()
    assert (entry.action, entry.subject, entry.tenant_id) == ("key-revoke", key.key_id, None)


def test_webhook(tenant: Tenant) -> None:
    run("webhook", "add", "--tenant", tenant.name, "https://hooks.example/in")
    endpoint = OperatorAction.across_tenants.get().subject
    for action in ("disable", "enable", "retry"):
        run("webhook", action, endpoint)
    run("webhook", "catch-up", endpoint, "--since", "1h")
    run("webhook", "remove", endpoint)
    run("webhook", "list")
    assert list_actions() == AUDITED["webhook"]


def test_outbox(tenant: Tenant) -> None:
    for _ in range(2):
        store_run(new_id(), 1, tenant_id=tenant.pk)
    first, second = OutboxEvent.across_tenants.order_by("id")
    for event in (first, second):
        assert park(event.id, "for a reason")
    assert list_parked_events().count() == 2
    run("outbox", "retry", str(first.event_id))
    run("outbox", "skip", str(second.id))
    run("outbox", "replay", "--since", "2h", "--tenant", tenant.name)
    BrokerQueue("former").publish(read_heads(range(PARTITIONS), 1)[0])
    run("outbox", "discard", "former")
    run("outbox", "prune", "--older-than", "30d")
    run("outbox", "status")
    run("outbox", "parked")
    assert list_actions() == AUDITED["outbox"]
    entries = list(OperatorAction.across_tenants.order_by("id"))
    assert [(entry.subject, entry.tenant_id) for entry in entries[:3]] == [
        (str(first.id), tenant.pk),
        (str(second.id), tenant.pk),
        ("outbox", tenant.pk),
    ]
    assert [entry.detail for entry in entries[3:]] == [
        {"publisher": "former"},
        {"olderThan": "30d", "limit": 100_000},
    ]


@pytest.mark.parametrize("name", ["prune", "reencrypt", "requeue_stuck"])
def test_work_in_many_transactions(name: str) -> None:
    run(name, *(["--older-than", "30d"] if name == "prune" else []))
    assert list_actions() == AUDITED[name]


def test_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "correct horse battery")
    run("createsuperuser", "--username", "root", "--email", "", "--no-input")
    monkeypatch.setattr("getpass.getpass", lambda prompt="": "staple horse battery")
    run("changepassword", "root")
    assert get_user_model().objects.get(username="root").check_password("staple horse battery")
    assert list_actions() == [*AUDITED["createsuperuser"], *AUDITED["changepassword"]]
    assert {entry.subject for entry in OperatorAction.across_tenants.all()} == {"user root"}
    get_user_model().objects.create_user("by hand")
    assert len(list_actions()) == 2


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    create_tenant(DEMO)
    monkeypatch.setattr(demo, "list_live_node_ids", lambda role: [new_id()])
    run("demo", "--each", "1", "--for", "0s")
    assert list_actions() == AUDITED["demo"]


def test_seed_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_demo, "PAUSE_SECONDS", 0)
    run("seed_demo", "--calls", "20", "--yes")
    entries = OperatorAction.across_tenants.filter(user=f"manage.py ({getpass.getuser()})")
    assert [entry.action for entry in entries] == AUDITED["seed_demo"]


def test_the_reason_of_each_group_is_documented() -> None:
    page = (settings.BASE_DIR / "docs" / "operations.md").read_text()
    assert "Management commands that change something write to the audit log" in page
