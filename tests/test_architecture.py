"""The rules of the architecture: imports, writes, reads across tenants, databases and clocks.

An exception is named here, with its reason, or it does not exist.
"""

from __future__ import annotations

import ast

from django.apps import apps as django_apps

from orchestration.models import ServiceCall
from tests import source_rules as rules
from timers.models import TimerSchedule

SOURCES = rules.list_sources()

# Layers, from the base upwards. A unit imports only units of lower layers; on the outside also other units of the
# outside, as long as no cycle forms. Every unit that is not named here (the packages and top modules of eventservice
# that face the outside, and each app's admin) belongs to the outside.
BASE = {"eventservice.kernel", "eventservice.db"}
LEAVES = {"timers", "execution", "outbox", "eventservice.tenants"}
CONDUCTOR = {"orchestration"}

CALLS = {"ServiceCall", "ServiceCallTag"}
CALL_TABLES = {"service_calls", "service_call_tags"}
THE_WRITER = "orchestration.lifecycle."  # all of the package

TENANT_MODELS = rules.find_tenant_models(SOURCES)
TENANT_TABLES = CALL_TABLES | {
    "timer_schedules", "http_execution_log", "outbox", "namespaces", "api_keys", "limit_refusals", "webhook_endpoints", "webhook_deliveries",
    "operator_actions", "call_rollups", "host_rollups", "rollup_marks", "timer_marks",
}  # fmt: skip

# Modules and packages that may read across tenants, and why. All others begin with a tenant.
ACROSS_TENANTS = {
    # Operators see all tenants.
    "eventservice.operators",
    "eventservice.console.audit_log",
    "eventservice.management.commands",
    "orchestration.admin",
    "outbox.admin",
    "timers.admin",
    "orchestration.statistics",
    "outbox.parking",
    "outbox.queries",
    "outbox.status",
    "timers.backlog",
    # A key is looked up before its tenant is known, and operators' keys have none.
    "eventservice.tenants",
    # The watchdog takes the overdue attempts of all tenants.
    "execution.attempt_log",
    "orchestration.lifecycle.attempts",
    # A restored database abandons the takes of all tenants.
    "orchestration.lifecycle.feeding",
    # A timer store is shared by tenants, and so are the marks for it.
    "orchestration.lifecycle.timer_marks",
    # The dispatcher, the deliverer and retention work on one queue of all tenants.
    "outbox.replay",
    "outbox.retention",
    "outbox.publishers",
}
# Where tenants' tables are named in SQL, which no manager scopes: engine, dispatcher, deliverer.
IN_SQL = {
    "eventservice.tenants.directory",  # how many shard rows there have to be
    "orchestration.lifecycle.retention", "orchestration.lifecycle.rows", "orchestration.lifecycle.timer_marks", "timers.backlog", "timers.persistence",
    "outbox.store", "outbox.replay", "outbox.retention", "outbox.publishers.webhook.delivery_queue", "outbox.status",
}  # fmt: skip

# The timers' rows are read and written through the port only (timers.port). The admin lists the table, as Django does it.
TIMER_MODELS, TIMER_TABLES = {"TimerSchedule"}, {"timer_schedules"}
INSIDE_THE_PORT = {"timers.models", "timers.persistence", "timers.backlog", "timers.admin"}
NAMES_THE_TIMERS = {"orchestration.engine.engine"}  # its statistics are gathered with those of other tables
OWNERSHIP_MODELS, OWNERSHIP_TABLES = {"TimerShard", "Node"}, {"timer_shards", "nodes"}

# All differences between databases, a package each.
DIALECTS = "eventservice.db.dialects"
DATABASES = {
    path.name for path in rules.ROOT.joinpath(*DIALECTS.split(".")).iterdir() if (path / "base.py").is_file()
}

# Where a clock other than the database's may be read.
OTHER_CLOCKS = {
    "eventservice.kernel.ids",  # an id carries its maker's time
    "eventservice.management.commands.doctor",  # compares the two
    "eventservice.devtools.mock_target",  # plays the world outside
    "eventservice.devtools.supervisor",
}

# Other modules get their logger from `eventservice.kernel.logging.get_logger`, which configures structlog on first use.
STRUCTLOG_IMPORTERS = {"eventservice.kernel.logging", "eventservice.api.correlation"}


def get_layer(unit: str) -> int:
    for number, units in enumerate((BASE, LEAVES, CONDUCTOR)):
        if unit in units:
            return number
    return 3


def may_import(importer: str, imported: str) -> bool:
    source, target = rules.get_unit(importer), rules.get_unit(imported)
    if source == target:
        return True
    if rules.is_admin(target):
        return False  # Django finds an app's admin by itself
    if source == "eventservice.db" and target == "eventservice.kernel":
        return True
    if get_layer(source) == 3:
        return True  # among themselves: see test_no_units_import_each_other_in_a_cycle
    return get_layer(target) < get_layer(source)


def test_a_module_imports_only_from_lower_layers() -> None:
    found = {source.name: rules.find_forbidden_imports(source, may_import) for source in SOURCES}
    assert {module: imports for module, imports in found.items() if imports} == {}


def test_no_units_import_each_other_in_a_cycle() -> None:
    assert rules.find_import_cycles(SOURCES) == []


def test_private_names_stay_in_their_package() -> None:
    found = {source.name: rules.find_foreign_private_imports(source) for source in SOURCES}
    assert {module: imports for module, imports in found.items() if imports} == {}


def test_only_the_lifecycle_writes_calls() -> None:
    found = [
        w
        for source in SOURCES
        if not source.name.startswith(THE_WRITER)
        for w in rules.find_writes(source, CALLS, CALL_TABLES)
    ]
    assert found == []


def test_the_lifecycle_writes_calls() -> None:
    writers = [source for source in SOURCES if source.name.startswith(THE_WRITER)]
    assert any(rules.find_writes(writer, CALLS, CALL_TABLES) for writer in writers)


def test_only_the_port_reads_and_writes_timers() -> None:
    users = {
        source.name: found
        for source in SOURCES
        if (found := rules.find_table_uses(source, TIMER_MODELS, TIMER_TABLES))
    }
    assert {
        name: found for name, found in users.items() if name not in INSIDE_THE_PORT | NAMES_THE_TIMERS
    } == {}
    assert users.keys() == INSIDE_THE_PORT | NAMES_THE_TIMERS  # an entry that nothing needs goes
    assert all(not rules.has_sql_on(s, TIMER_TABLES) for s in SOURCES if s.name in NAMES_THE_TIMERS)
    # Calls have no relation to their timers, by which these could be read.
    assert TimerSchedule not in {field.related_model for field in ServiceCall._meta.get_fields()}


def test_only_timers_reads_and_writes_nodes_and_shards() -> None:
    others = [source for source in SOURCES if rules.get_unit(source.name) not in {"timers", "timers.admin"}]
    assert [found for source in others for found in rules.find_manager_uses(source, OWNERSHIP_MODELS)] == []
    assert [source.name for source in others if rules.has_sql_on(source, OWNERSHIP_TABLES)] == []


def test_a_leaf_reads_and_writes_its_own_tables_only() -> None:
    for leaf in LEAVES:
        models = [m for m in django_apps.get_models() if rules.is_within(m.__module__, leaf)]
        own = {model._meta.db_table for model in models}
        other_tables = {model._meta.db_table for model in django_apps.get_models()} - own
        sources = [source for source in SOURCES if rules.get_unit(source.name) == leaf]
        assert own
        assert sources
        assert [source.name for source in sources if rules.has_sql_on(source, other_tables)] == []
        assert [found for source in sources for found in rules.find_joins(source, "service_call")] == []


def test_every_read_of_a_tenants_table_begins_with_a_tenant_or_names_across_tenants() -> None:
    assert {"ServiceCall", "ServiceCallTag", "TimerSchedule", "HttpExecution", "OutboxEvent"} <= TENANT_MODELS
    assert [found for source in SOURCES for found in rules.find_unscoped_reads(source, TENANT_MODELS)] == []


def test_only_listed_modules_read_across_tenants() -> None:
    readers = {source.name for source in SOURCES if rules.reads_across_tenants(source)}
    allowed = {place: {name for name in readers if rules.is_within(name, place)} for place in ACROSS_TENANTS}
    assert readers - set().union(*allowed.values()) == set()
    assert [place for place, found in allowed.items() if not found] == []  # an entry that nothing needs goes


def test_every_table_with_a_tenant_has_scoped_managers() -> None:
    with_tenant = {
        model.__name__
        for model in django_apps.get_models()
        if any(field.column == "tenant_id" for field in model._meta.local_concrete_fields)
    }
    assert with_tenant - {"Tenant"} == TENANT_MODELS


def test_only_listed_modules_read_tenants_tables_in_sql() -> None:
    assert {source.name for source in SOURCES if rules.has_sql_on(source, TENANT_TABLES)} == IN_SQL


def test_only_the_dialects_branch_by_database() -> None:
    outside = [source for source in SOURCES if not rules.is_within(source.name, DIALECTS)]
    assert [found for source in outside for found in rules.find_vendor_branches(source)] == []


def test_no_other_package_imports_the_dialect_of_a_database() -> None:
    def allowed(importer: str, imported: str) -> bool:
        inside = importer in {"eventservice.db.configuration"} or rules.is_within(importer, DIALECTS)
        return inside or not any(rules.is_within(imported, f"{DIALECTS}.{name}") for name in DATABASES)

    assert [found for source in SOURCES for found in rules.find_forbidden_imports(source, allowed)] == []


def test_the_dialects_of_two_databases_do_not_import_each_other() -> None:
    def allowed(importer: str, imported: str) -> bool:
        homes = {name for name in DATABASES if rules.is_within(importer, f"{DIALECTS}.{name}")}
        return not homes or not any(
            rules.is_within(imported, f"{DIALECTS}.{name}") for name in DATABASES - homes
        )

    assert [found for source in SOURCES for found in rules.find_forbidden_imports(source, allowed)] == []


def test_only_the_databases_clock_is_read() -> None:
    found = [
        clock for source in SOURCES if source.name not in OTHER_CLOCKS for clock in rules.find_clocks(source)
    ]
    assert found == []


def test_loggers_come_from_the_module_that_configures_structlog() -> None:
    assert {source.name for source in SOURCES if "import structlog" in source.text} == STRUCTLOG_IMPORTERS


def test_a_modules_name_says_what_it_does() -> None:
    nothing_said = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "base_utils"}
    assert [source.name for source in SOURCES if nothing_said & set(source.name.split("."))] == []


def test_calls_and_timers_are_changed_wherever_their_timers_are() -> None:
    """Only orchestration.call_changes and durable_timers know whether a timer is in a store."""
    deciding = {"orchestration.call_changes", "orchestration.durable_timers"}
    commands = {"cancel", "reschedule", "edit", "delete", "set_timer", "change_timer", "delete_timer"}
    found = {
        source.name: sorted(
            {
                node.attr
                for node in ast.walk(source.tree)
                if isinstance(node, ast.Attribute)
                and ast.unparse(node.value) == "lifecycle"
                and node.attr in commands
            }
        )
        for source in SOURCES
    }
    assert {name for name, used in found.items() if used} == deciding
    assert {command for used in found.values() for command in used} == commands
