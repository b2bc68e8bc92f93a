"""The architecture as rules that fail: who imports whom, who writes what, whose rows a query may see, whose clock counts.

An exception is named here, with its reason, or it does not exist.
"""

from __future__ import annotations

import ast

import pytest

from tests import source_rules as rules
from tests.source_rules import APPS, Source, is_within

SOURCES = rules.sources()
LEAVES = ("timers", "execution", "outbox")

# What everything stands on, and what it stands on itself: nothing else of ours.
FOUNDATION = ("eventservice.kernel", "eventservice.sqlite", "eventservice.mariadb")
# What an app may use of the project: who its tenants are.
FOR_APPS = (*FOUNDATION, "eventservice.tenants.public")
# An app's modules at its edge may use the common parts of the API and of the console too.
EDGES = {"admin", "api", "console"}
FOR_EDGES = ("eventservice.api", "eventservice.console", "eventservice.tenants")
# Everything else reaches into an app through its `public` only, but for:
REACHES_IN = {
    "eventservice.urls": ("orchestration.api",),
    # A wrong allow-list is told at boot, before the apps are loaded.
    "eventservice.settings": ("execution.addresses",),
}

CALLS = {"ServiceCall", "ServiceCallTag"}
CALL_TABLES = {"service_calls", "service_call_tags"}
THE_WRITER = "orchestration.lifecycle."  # all of the package

TENANT_MODELS = rules.tenant_models(SOURCES)
TENANT_TABLES = CALL_TABLES | {
    "timer_schedules", "http_execution_log", "outbox", "namespaces", "api_keys", "webhook_endpoints", "webhook_deliveries",
    "operator_actions", "call_rollups", "host_rollups", "rollup_marks",
}  # fmt: skip

# Where a query may see all tenants, because it is global by nature.
ACROSS_TENANTS = {
    "eventservice.console.admin.base:RoleAdmin.get_queryset",  # operators
    "eventservice.console.actions:actions_on",  # operators
    "eventservice.console.history:Actions.get",  # operators
    "eventservice.console.history:list_actions",
    "eventservice.management.commands.doctor:_stored_secrets",  # operators
    "eventservice.management.commands.tenant:_rows",  # operators
    "eventservice.tenants.directory:first_namespaces",  # operators
    "eventservice.tenants.keys:find_by_id",  # operators
    "eventservice.tenants.keys:find_key",  # who comes with a key is not known before it is found
    "eventservice.tenants.keys:key_of",  # also the operators' own, which have no tenant
    "eventservice.tenants.keys:keys_of",  # also the operators' own, which have no tenant
    "eventservice.tenants.keys:note_use",
    "eventservice.tenants.keys:revoke_key",  # operators
    "eventservice.tenants.keys:rotate_key",
    "eventservice.tenants.keys:usable_keys",  # operators
    "execution.log:orphaned_attempts",  # the watchdog
    "orchestration.admin:_by_ids",  # operators
    "orchestration.lifecycle.attempts:overdue_attempts",
    "orchestration.pulse:_calls",  # operators
    "orchestration.rollup:_marks",  # all tenants' turn
    "orchestration.rollup:_move_on",
    "orchestration.rollup:_prune",  # retention
    "orchestration.statistics:statistics",  # operators
    "orchestration.trends:_of",  # operators
    "outbox.admin:WebhookDeliveryAdmin.find",  # operators
    "outbox.browse:_few",  # operators
    "outbox.browse:_newest",
    "outbox.browse:_of_aggregate",
    "outbox.browse:_page",
    "outbox.browse:_waiting",
    "outbox.browse:event_of",
    "outbox.browse:newer_than",
    "outbox.browse:unpublished_of",
    "outbox.maintenance:_last",  # replay, by operators
    "outbox.maintenance:_prune_deliveries",  # retention
    "outbox.maintenance:_prune_events",
    "outbox.maintenance:_published_since",  # replay, by operators
    "outbox.maintenance:replayable",
    "outbox.parking:park",  # operators
    "outbox.parking:parked_events",
    "outbox.publishers.webhook:WebhookPublisher.publish",  # a batch of events of whichever tenants
    "outbox.status:_count_parked",  # operators
    "outbox.status:_flowing",
    "outbox.status:_pending_deliveries",
    "outbox.webhooks.delivery:due_endpoints",
    "outbox.webhooks.delivery:give_up_gone",  # the deliverer
    "outbox.webhooks.delivery:_queue_of_each",
    "outbox.webhooks.endpoints:find_endpoint",  # operators
    "outbox.webhooks.endpoints:reencrypt_endpoint_secrets",  # operators
    "outbox.webhooks.recovery:_exhausted",  # operators
    "outbox.webhooks.recovery:_since",
    "outbox.webhooks.recovery:endpoint_queues",
    "timers.admin:TimerScheduleAdmin.find",  # operators
    "timers.overview:_with_first_due",  # operators
    "timers.overview:backlog",
    "timers.schedule:by_correlation",  # tracing
}
# Where tenants' tables are named in SQL, which no manager scopes: engine, dispatcher, deliverer.
IN_SQL = {
    "eventservice.tenants.directory",  # how many shard rows there have to be
    "orchestration.lifecycle.retention", "timers.poller", "timers.schedule",
    "outbox.store", "outbox.maintenance", "outbox.webhooks.delivery", "outbox.status", "timers.overview",
}  # fmt: skip

# Where a clock other than the database's may be read.
OTHER_CLOCKS = {
    "eventservice.kernel.ids",  # an id carries its maker's time
    "eventservice.management.commands.doctor",  # compares the two
    "eventservice.mock_target",  # plays the world outside
    "eventservice.supervisor",
}


def may_import(importer: str, imported: str) -> bool:
    def within(*packages: str) -> bool:
        return any(is_within(imported, package) for package in packages)

    home = importer.split(".")[0]
    if any(is_within(importer, package) for package in FOUNDATION):
        return within(*FOUNDATION)
    if within(*REACHES_IN.get(importer, ())):
        return True
    if home in APPS:
        at_edge = importer.split(".")[1] in EDGES if "." in importer else False
        used = [f"{leaf}.public" for leaf in LEAVES] if home == "orchestration" else []
        return within(home, *FOR_APPS, *used, *(FOR_EDGES if at_edge else ()))
    return within("eventservice", *(f"{app}.public" for app in APPS))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_it_imports_only_what_it_may(source: Source) -> None:
    assert rules.forbidden_imports(source, may_import) == []


@pytest.mark.parametrize("app", APPS)
def test_what_an_app_shows_is_a_list(app: str) -> None:
    (public,) = (source for source in SOURCES if source.name == f"{app}.public")
    kinds = {type(statement) for statement in public.tree.body[1:]}
    assert kinds <= {ast.ImportFrom, ast.Assign}, "public.py re-exports, and does nothing else"
    shown = {
        alias.asname or alias.name
        for s in public.tree.body
        if isinstance(s, ast.ImportFrom)
        for alias in s.names
    }
    assert isinstance(public.tree.body[-1], ast.Assign)
    assert sorted(shown - {"annotations"}) == sorted(ast.literal_eval(public.tree.body[-1].value))


def test_only_the_lifecycle_writes_calls() -> None:
    found = [
        w
        for source in SOURCES
        if not source.name.startswith(THE_WRITER)
        for w in rules.writes(source, CALLS, CALL_TABLES)
    ]
    assert found == []


def test_the_lifecycle_does_write_calls() -> None:
    writers = [source for source in SOURCES if source.name.startswith(THE_WRITER)]
    assert any(rules.writes(writer, CALLS, CALL_TABLES) for writer in writers)


def test_every_read_of_a_tenants_table_begins_with_a_tenant_or_says_that_it_is_global() -> None:
    assert {"ServiceCall", "ServiceCallTag", "TimerSchedule", "HttpExecution", "OutboxEvent"} <= TENANT_MODELS
    assert [found for source in SOURCES for found in rules.unscoped(source, TENANT_MODELS)] == []


def test_only_named_places_see_all_tenants() -> None:
    places = set().union(*(rules.places_calling(source, "across_tenants") for source in SOURCES))
    assert places == ACROSS_TENANTS


def test_only_named_modules_reach_tenants_tables_in_sql() -> None:
    assert {source.name for source in SOURCES if rules.raw_sql(source, TENANT_TABLES)} == IN_SQL


def test_no_clock_counts_but_the_databases() -> None:
    found = [clock for source in SOURCES if source.name not in OTHER_CLOCKS for clock in rules.clocks(source)]
    assert found == []


def test_a_modules_name_says_what_it_does() -> None:
    nothing_said = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "base_utils"}
    assert [source.name for source in SOURCES if nothing_said & set(source.name.split("."))] == []
