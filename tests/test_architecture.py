"""The architecture as rules that fail: who imports whom, who writes what, whose rows a query may see, whose clock counts.

An exception is named here, with its reason, or it does not exist.
"""

from __future__ import annotations

import pytest

from tests import source_rules as rules
from tests.source_rules import Source

SOURCES = rules.sources()

# Layers, from the base upwards. A unit imports only units of lower layers; on the outside also other units of the
# outside, as long as no cycle forms. Every unit that is not named here (the packages and top modules of eventservice
# that face the outside, and each app's admin) belongs to the outside.
BASE = {"eventservice.kernel", "eventservice.db"}
LEAVES = {"timers", "execution", "outbox", "eventservice.tenants"}
CONDUCTOR = {"orchestration"}

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
    "eventservice.adminsite.model_admin:RoleAdmin.get_queryset",  # operators
    "eventservice.operators.audit_log:list_actions_on",  # operators
    "eventservice.console.audit_log:AuditLogPage.get",  # operators
    "eventservice.console.audit_log:list_actions",
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
    "orchestration.statistics.live:_calls",  # operators
    "orchestration.statistics.rollup:_marks",  # all tenants' turn
    "orchestration.statistics.rollup:_move_on",
    "orchestration.statistics.rollup:_prune",  # retention
    "orchestration.statistics.recent:statistics",  # operators
    "orchestration.statistics.charts:_of",  # operators
    "outbox.admin:WebhookDeliveryAdmin.find",  # operators
    "outbox.queries:_few",  # operators
    "outbox.queries:_newest",
    "outbox.queries:_page",
    "outbox.queries:_waiting",
    "outbox.queries:event_of",
    "outbox.queries:newer_than",
    "outbox.queries:unpublished_of",
    "outbox.maintenance:_last",  # replay, by operators
    "outbox.maintenance:_prune_deliveries",  # retention
    "outbox.maintenance:_prune_events",
    "outbox.maintenance:_published_since",  # replay, by operators
    "outbox.maintenance:replayable",
    "outbox.parking:park",  # operators
    "outbox.parking:parked_events",
    "outbox.publishers.webhook.publisher:WebhookPublisher.publish",  # a batch of events of whichever tenants
    "outbox.status:_count_parked",  # operators
    "outbox.status:_flowing",
    "outbox.status:_pending_deliveries",
    "outbox.publishers.webhook.delivery:due_endpoints",
    "outbox.publishers.webhook.delivery:give_up_gone",  # the deliverer
    "outbox.publishers.webhook.delivery:_queue_of_each",
    "outbox.publishers.webhook.endpoints:find_endpoint",  # operators
    "outbox.publishers.webhook.endpoints:reencrypt_endpoint_secrets",  # operators
    "outbox.publishers.webhook.recovery:_exhausted",  # operators
    "outbox.publishers.webhook.recovery:_since",
    "outbox.publishers.webhook.recovery:endpoint_queues",
    "timers.admin:TimerScheduleAdmin.find",  # operators
    "timers.operator_views:_with_first_due",  # operators
    "timers.operator_views:backlog",
    "timers.schedule:by_correlation",  # tracing
}
# Where tenants' tables are named in SQL, which no manager scopes: engine, dispatcher, deliverer.
IN_SQL = {
    "eventservice.tenants.directory",  # how many shard rows there have to be
    "orchestration.lifecycle.retention", "timers.poller", "timers.schedule",
    "outbox.store", "outbox.maintenance", "outbox.publishers.webhook.delivery", "outbox.status", "timers.operator_views",
}  # fmt: skip

# Where a clock other than the database's may be read.
OTHER_CLOCKS = {
    "eventservice.kernel.ids",  # an id carries its maker's time
    "eventservice.management.commands.doctor",  # compares the two
    "eventservice.devtools.mock_target",  # plays the world outside
    "eventservice.devtools.supervisor",
}


def layer_of(unit: str) -> int:
    for number, units in enumerate((BASE, LEAVES, CONDUCTOR)):
        if unit in units:
            return number
    return 3


def may_import(importer: str, imported: str) -> bool:
    source, target = rules.unit_of(importer), rules.unit_of(imported)
    if source == target:
        return True
    if rules.is_admin(target):
        return False  # Django finds an app's admin by itself
    if source == "eventservice.db" and target == "eventservice.kernel":
        return True
    if layer_of(source) == 3:
        return True  # among themselves: see test_no_units_import_each_other_in_a_cycle
    return layer_of(target) < layer_of(source)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_it_imports_only_what_it_may(source: Source) -> None:
    assert rules.forbidden_imports(source, may_import) == []


def test_no_units_import_each_other_in_a_cycle() -> None:
    assert rules.import_cycles(SOURCES) == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_name_with_an_underscore_stays_in_its_package(source: Source) -> None:
    assert rules.foreign_private_imports(source) == []


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
