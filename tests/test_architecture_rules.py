"""The architecture tests find what is wrong, and nothing else."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests import source_rules as rules
from tests.source_rules import Source
from tests.test_architecture import CALL_TABLES, CALLS, TENANT_TABLES, may_import


def build_source(text: str, name: str = "timers.made_up") -> Source:
    return Source(name, dedent(text))


@pytest.mark.parametrize(
    ("importer", "text"),
    [
        ("timers.x", "import orchestration.models"),
        ("timers.x", "from execution.egress import Egress"),
        ("outbox.x", "def f():\n    from timers import models"),
        ("execution.x", "from ..outbox import models"),
        ("execution.x", "from eventservice.runtime.worker import WorkerRole"),
        ("timers.x", "from eventservice.tenants.models import Tenant"),
        ("orchestration.x", "from eventservice.api import problems"),
        ("orchestration.x", "from timers.admin import NodeAdmin"),
        ("eventservice.console.x", "from orchestration.admin import ServiceCallAdmin"),
        ("eventservice.kernel.x", "import timers"),
        ("eventservice.kernel.x", "from eventservice.db.now import db_now"),
        ("eventservice.db.x", "from eventservice.tenants.models import Tenant"),
    ],
)
def test_finds_an_import_from_a_higher_layer(importer: str, text: str) -> None:
    assert rules.find_forbidden_imports(build_source(text, importer), may_import)


@pytest.mark.parametrize(
    ("importer", "text"),
    [
        ("timers.x", "from timers.models import TimerSchedule\nfrom eventservice.db.now import db_now"),
        ("timers.x", "from .models import TimerSchedule"),
        ("orchestration.x", "from timers.persistence import timer_persistence"),
        ("orchestration.admin", "from eventservice.adminsite import columns"),
        ("eventservice.api.x", "from orchestration.lifecycle import submit\nimport django, json"),
        ("eventservice.db.x", "from eventservice.kernel.errors import Invalid"),
        ("eventservice.urls", "from eventservice.api import urls"),
    ],
)
def test_accepts_an_import_from_a_lower_layer(importer: str, text: str) -> None:
    assert rules.find_forbidden_imports(build_source(text, importer), may_import) == []


def test_finds_a_cycle_of_units() -> None:
    api = build_source("from eventservice.console import views", "eventservice.api.x")
    console = build_source("from eventservice.operators import roles", "eventservice.console.x")
    operators = build_source("from eventservice.api import problems", "eventservice.operators.x")
    cycle = ["eventservice.api", "eventservice.console", "eventservice.operators"]
    assert rules.find_import_cycles([api, console, operators]) == [cycle]
    assert rules.find_import_cycles([api, console]) == []


def test_finds_a_private_name_of_another_package() -> None:
    text = "from timers.poller import _select"
    assert rules.find_foreign_private_imports(build_source(text, "outbox.store"))
    assert rules.find_foreign_private_imports(build_source(text, "timers.membership")) == []


@pytest.mark.parametrize(
    "text",
    [
        "ServiceCall.objects.create(name='x')",
        "ServiceCall.objects.for_tenant(t).filter(a=1).update(status='Failed')",
        "models.ServiceCallTag.objects.for_tenant(t).delete()",
        "ServiceCall(name='x').save()",
        "calls = ServiceCall.objects.for_tenant(t)\ncalls.filter(a=1).delete()",
        "for call in ServiceCall.objects.for_tenant(t):\n    call.save(update_fields=['name'])",
        "def f(call: ServiceCall) -> None:\n    call.delete()",
        "def f(calls: 'QuerySet[ServiceCall]') -> None: ...\ninsert_rows(ServiceCall, COLUMNS, rows)",
        "update_rows(ServiceCall, 'name = {name}', 'status = {status}', rows)",
        "execute_rows('UPDATE service_calls SET name = %s', rows)",
        'cursor.execute("""\n    delete   from "service_call_tags" where 1 = 1""")',
        "cursor.execute(f'INSERT INTO service_calls ({columns}) VALUES (1)')",
        "cursor.execute(f'UPDATE {ServiceCall._meta.db_table} SET name = 1')",
    ],
)
def test_finds_a_write_of_a_call(text: str) -> None:
    assert rules.find_writes(build_source(text), CALLS, CALL_TABLES)


@pytest.mark.parametrize(
    "text",
    [
        "TimerSchedule.objects.create(a=1)",
        "ServiceCall.objects.for_tenant(t).filter(a=1).first()",
        "seen: dict = {}\nseen.update(a=1)",
        "'SELECT * FROM service_calls FOR UPDATE'",
        "f'UPDATE {table} SET a = 1'",
    ],
)
def test_accepts_other_writes_and_reads(text: str) -> None:
    assert rules.find_writes(build_source(text), CALLS, CALL_TABLES) == []


@pytest.mark.parametrize(
    "text",
    [
        "ServiceCall.objects.filter(a=1)",
        "f(models.ServiceCall.objects)",
        "every = ServiceCall.objects\nevery.for_tenant(t)\nevery.all()",
        "ServiceCall._default_manager.all()",
        "get_object_or_404(ServiceCall, pk=1)",
        "shortcuts.get_list_or_404(ServiceCall)",
    ],
)
def test_finds_a_query_without_a_tenant(text: str) -> None:
    assert rules.find_unscoped_reads(build_source(text), CALLS)


@pytest.mark.parametrize(
    "text",
    [
        "ServiceCall.objects.for_tenant(t).get()",
        "ServiceCall.across_tenants.get()",
        "every = ServiceCall.objects\nevery.for_tenant(t)",
        "Tenant.objects.all()",
    ],
)
def test_accepts_a_query_with_a_tenant(text: str) -> None:
    assert rules.find_unscoped_reads(build_source(text), CALLS) == []


def test_finds_reads_across_tenants() -> None:
    assert rules.reads_across_tenants(
        build_source("class A:\n    def f(self):\n        return X.across_tenants.all()")
    )
    assert not rules.reads_across_tenants(build_source("X.objects.for_tenant(t)"))


def test_finds_the_models_of_tenants() -> None:
    text = "class A(TenantScopedModel):\n    pass\nclass B(models.Model):\n    objects = Manager()"
    assert rules.find_tenant_models([build_source(text)]) == {"A"}


@pytest.mark.parametrize(
    "text", ["'SELECT a FROM outbox'", "f'UPDATE outbox SET {x} = 1'", '"""SELECT 1\nFROM a JOIN outbox"""']
)
def test_finds_a_tenants_table_in_sql(text: str) -> None:
    assert rules.has_sql_on(build_source(text), TENANT_TABLES)
    assert not rules.has_sql_on(build_source("'the outbox is empty'\n'SELECT 1 FROM nodes'"), TENANT_TABLES)


@pytest.mark.parametrize(
    "text",
    [
        "from timers.models import TimerSchedule",
        "from timers.models import TimerSchedule as Row",
        "models.TimerSchedule.across_tenants.count()",
        "apps.get_model('timers', 'TimerSchedule')",
        "apps.get_model('timers.timerschedule')",
        "cursor.execute('DELETE FROM timer_schedules')",
        "cursor.execute(f'SELECT {x} FROM timer_schedules WHERE {y}')",
        "TABLE = 'timer_schedules'\ncursor.execute(f'SELECT 1 FROM {TABLE}')",
    ],
)
def test_finds_a_use_of_a_table(text: str) -> None:
    assert rules.find_table_uses(build_source(text), {"TimerSchedule"}, {"timer_schedules"})


@pytest.mark.parametrize(
    "text",
    [
        "from timers.models import TimerState",
        '"""Timers are in timer_schedules, of the model TimerSchedule."""',
        "def f():\n    'Read timer_schedules.'",
        "'the timer schedules'",
    ],
)
def test_accepts_what_uses_no_table(text: str) -> None:
    assert rules.find_table_uses(build_source(text), {"TimerSchedule"}, {"timer_schedules"}) == []


def test_finds_a_use_of_a_manager() -> None:
    assert rules.find_manager_uses(build_source("models.Node.objects.all()"), {"Node"})
    assert rules.find_manager_uses(build_source("Node._default_manager"), {"Node"})
    assert not rules.find_manager_uses(build_source("node: Node = nodes.objects[0]"), {"Node"})


@pytest.mark.parametrize(
    "text",
    [
        "f(service_call__status='x')",
        "values('service_call__name')",
        "order_by('-service_call__name')",
        "t.service_call.name",
    ],
)
def test_finds_a_join(text: str) -> None:
    assert rules.find_joins(build_source(text), "service_call")
    assert not rules.find_joins(build_source("f(service_call_id='service_call')"), "service_call")


@pytest.mark.parametrize(
    "text",
    [
        "if connection.vendor == 'sqlite':\n    pass",
        "f(schema_editor.connection.vendor)",
        "class A(Func):\n    def as_mysql(self, compiler, connection): ...",
    ],
)
def test_finds_a_branch_by_database(text: str) -> None:
    assert rules.find_vendor_branches(build_source(text))
    assert not rules.find_vendor_branches(
        build_source("get_dialect().locks.for_share\nclass A:\n    def as_sql(self): ...")
    )


@pytest.mark.parametrize(
    "text",
    [
        "timezone.now()",
        "django.utils.timezone.now()",
        "F(default=timezone.now)",
        "datetime.datetime.now(UTC)",
        "datetime.utcnow()",
        "time.time()",
        "from time import time",
        "from django.utils.timezone import now",
        "from django.db.models.functions import Now",
        "DateTimeField(auto_now_add=True)",
    ],
)
def test_finds_another_clock(text: str) -> None:
    assert rules.find_clocks(build_source(text))
    assert rules.find_clocks(build_source("time.monotonic()\ndb_now()\nfrom time import sleep")) == []
