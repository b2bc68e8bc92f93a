"""Each query uses its index at 40,000 rows, and none scans a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from eventservice.console.calls.list_query import NO_TENANT
from eventservice.db.leases import Leases
from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from execution.attempt_log import list_last_attempts
from orchestration import lifecycle
from orchestration.lifecycle import reencryption
from orchestration.models import ServiceCall
from orchestration.queries import call_lists
from orchestration.queries import calls as call_queries
from orchestration.queries.call_lists import (
    MAX_SORTED_IDS,
    MAX_SORTED_OF_PREFIX,
    CallFilter,
    Order,
    list_calls,
)
from orchestration.queries.suggestions import list_suggestions
from orchestration.queries.tenants_with_calls import list_tenants_with_calls, list_tenants_with_id
from orchestration.queries.traces import get_trace_overview, read_trace_page
from orchestration.statistics.hosts_in_trouble import FailedCalls, list_retrying_hosts
from orchestration.statistics.live_counts import read_live_counts
from outbox import store
from outbox.models import OutboxEvent
from outbox.queries import EventFilter, StateFilter, list_events, list_last_events
from tests.explain import PARTITIONS, SHARDS, TENANTS, Call, Plan, delete_rows, list_plans, load_rows
from tests.factories import EARLIER
from timers.models import TimerShard
from timers.persistence import timer_persistence
from timers.poller import Poller
from timers.port import HeldBack, ShardFilter

# With pytest-xdist's --dist loadgroup, only one worker loads the rows.
pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("query plans")]

TENANT = TENANTS[1]
# Calls of this tenant, each with an event of its own; the first has an attempt, too.
CALLS = [Call(number, EARLIER).id for number in range(6, 256, 5)]
URGENT, DUE = frozenset({"urgent"}), frozenset({"Scheduled"})


@pytest.fixture(scope="module", autouse=True)
def rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        load_rows()
        TimerShard.objects.bulk_create([TimerShard(shard_id=n) for n in range(SHARDS)])
        yield
        TimerShard.objects.all().delete()
        delete_rows()


def select_calls(**conditions: Any) -> Any:
    return ServiceCall.objects.for_tenant(TENANT).filter(**conditions)


def read_page(**wanted: Any) -> Any:
    return list_calls([CallFilter(TENANT, **wanted)], Order(), 50)


def read_page_of_seldom_prefix() -> None:
    """Read the page as if the prefix had more calls than are read by their ids."""
    with mock.patch.object(call_lists, "MAX_SORTED_IDS", -1):
        read_page(host_prefix="seldom.")


def read_page_of_frequent_prefix() -> None:
    """Read the page as if the prefix had more calls than can be sorted in time."""
    with mock.patch.object(call_lists, "MAX_SORTED_OF_PREFIX", MAX_SORTED_IDS):
        read_page(name_prefix="cal")


def read_page_of_many_retrying() -> None:
    """Read the page as if more calls waited for another attempt than are read by their ids."""
    with mock.patch.object(call_lists, "MAX_SORTED_IDS", -1):
        read_page(retrying=True)


def read_page_far_back() -> None:
    """Read the page as if the prefix had more calls than can be sorted, and the search may look at 100 calls."""
    wanted = CallFilter(TENANT, name_prefix="cal")
    with (
        mock.patch.object(call_lists, "MAX_SORTED_IDS", -1),
        mock.patch.object(call_lists, "MAX_SORTED_OF_PREFIX", -1),
    ):
        list_calls([wanted], Order(), 50, max_walked=100)


def read_page_of_two_tags() -> None:
    """Read the page as if both tags were common, and the walk stopped in the middle of them."""
    wanted = CallFilter(TENANT, tags=frozenset({"team-1", "team-2"}))
    with mock.patch.object(call_lists, "MAX_SORTED_IDS", -1):
        list_calls([wanted], Order(), 50, max_walked=100)


def build_poller(*, crowded: bool = False) -> Poller:
    leases = Leases(TimerShard, new_id(), timedelta(minutes=1))
    leases.held = dict.fromkeys(range(SHARDS), 0)
    return Poller(leases, lambda: TENANTS, crowded)


HELD_BACK = HeldBack(
    [TENANT], ["example.test"], {TENANT: ["slow.test"]}, large=HeldBack([TENANT], [], {TENANT: ["slow.test"]})
)


def build_resting_poller() -> Poller:
    rested = build_poller()
    rested._rest_until, rested._since = math.inf, db_now() - timedelta(seconds=1)
    return rested


def get_admin_page(model: str, **query: Any) -> Any:
    viewer = Client()
    viewer.force_login(User.objects.get_or_create(username="vera", is_staff=True)[0])
    response = viewer.get(f"/admin/{model}/", {"tenant": TENANT, **query})
    assert response.status_code == 200
    return response


# query: (what makes it, a text that only its statement contains, the indexes it must use)
QUERIES: dict[str, tuple[Callable[[], Any], str, set[str]]] = {
    "what is due in the owned shards": (
        lambda: build_poller().claim_due(1000),
        "due_at <=",
        {"idx_timer_schedules_shard"},
    ),
    "what is due beside those who are held back": (
        lambda: build_poller().claim_due(1000, HELD_BACK),
        "due_at <=",
        {"idx_timer_schedules_shard"},
    ),
    "what has become due since then, beside those who are held back": (
        lambda: build_resting_poller().claim_due(1000, HeldBack([TENANT], ["slow.test"])),
        "due_at >",
        {"idx_timer_schedules_shard"},
    ),
    "what is due of a tenant, when tenants must share": (
        lambda: build_poller(crowded=True).claim_due(100),
        "due_at <=",
        {"idx_timer_schedules_due_at"},
    ),
    "which tenants have timers due": (
        lambda: timer_persistence.find_tenants_with_due(TENANTS, db_now()),
        "given.id",
        {"idx_timer_schedules_due_at"},
    ),
    "when the next timer is due": (
        lambda: build_poller().seconds_until_due(),
        "first_due",
        {"idx_timer_schedules_shard"},
    ),
    "what is due of a tenant (the spec's polling query)": (
        lambda: timer_persistence.find_due(TENANT, db_now(), 100),
        "due_at",
        {"idx_timer_schedules_due_at"},
    ),
    "a tenant's timers of a correlation id": (
        lambda: timer_persistence.find_by_correlation(TENANT, new_id(), 100),
        "correlation_id",
        {"idx_timer_schedules_correlation_id"},
    ),
    "how many calls a trace has": (
        lambda: get_trace_overview(TENANT, CALLS[0]),
        "COUNT",
        {"idx_service_calls_correlation"},
    ),
    "the calls of a trace": (
        lambda: read_trace_page(TENANT, CALLS[0], 50),
        "LIMIT 51",
        {"idx_service_calls_correlation"},
    ),
    "the timers of a trace": (
        lambda: read_trace_page(TENANT, CALLS[0], 50),
        "timer_schedules",
        {"idx_timer_schedules_correlation_id"},
    ),
    "the attempts of a trace": (
        lambda: read_trace_page(TENANT, CALLS[0], 50),
        "http_execution_log",
        set(),
    ),
    "the events of a trace": (
        lambda: read_trace_page(TENANT, CALLS[0], 50),
        "outbox",
        {"uq_outbox_aggregate_seq"},
    ),
    "the last attempts of many calls": (
        lambda: list_last_attempts(TENANT, dict.fromkeys(CALLS, 1) | {CALLS[0]: 99}, 20),
        "http_execution_log",
        set(),
    ),
    "the last events of many calls": (
        lambda: list_last_events(TENANT, dict.fromkeys(CALLS, 1) | {CALLS[0]: 99}, 60),
        "outbox",
        {"uq_outbox_aggregate_seq"},
    ),
    "the replays of many calls": (
        lambda: call_queries.list_replays_of(TENANT, CALLS, 200),
        "replay_of",
        {"idx_service_calls_replay"},
    ),
    "calls with a tag and a status (the spec's)": (
        lambda: list(select_calls(status="Scheduled", tags__tag="urgent")),
        "service_call_tags",
        {"idx_service_call_tags_tag"},
    ),
    "calls of a status, soonest first": (
        lambda: list(select_calls(status="Scheduled").order_by("due_at")[:50]),
        "service_calls",
        {"idx_service_calls_status"},
    ),
    "calls of a status, latest first": (
        lambda: list(select_calls(status="Succeeded").order_by("-due_at")[:50]),
        "service_calls",
        {"idx_service_calls_status"},
    ),
    "a page of all calls, the newest first": (
        lambda: read_page(),
        "ORDER BY",
        {"idx_service_calls_submitted"},
    ),
    "whether a host has few calls": (
        lambda: read_page(host="seldom.test"),
        f"LIMIT {MAX_SORTED_IDS + 1}",
        {"idx_service_calls_host"},
    ),
    "whether a name has few calls": (
        lambda: read_page(name="seldom"),
        f"LIMIT {MAX_SORTED_IDS + 1}",
        {"idx_service_calls_name"},
    ),
    "whether a prefix of names has few calls": (
        lambda: read_page(name_prefix="seldom"),
        f"LIMIT {MAX_SORTED_IDS + 1}",
        {"idx_service_calls_name"},
    ),
    "whether a prefix of hosts can be sorted": (
        read_page_of_seldom_prefix,
        f"LIMIT {MAX_SORTED_OF_PREFIX + 1}",
        {"idx_service_calls_host"},
    ),
    "a page of the calls of a prefix": (
        read_page_of_seldom_prefix,
        "DESC LIMIT",
        {"idx_service_calls_host"},
    ),
    "a page of the calls of a frequent prefix": (
        read_page_of_frequent_prefix,
        "DESC LIMIT",
        {"idx_service_calls_submitted"},
    ),
    "how far a search goes": (
        read_page_far_back,
        "LIMIT 1 OFFSET 99",
        {"idx_service_calls_submitted"},
    ),
    "a page of the calls that a search looks at": (
        read_page_far_back,
        "DESC LIMIT 51",
        {"idx_service_calls_submitted"},
    ),
    "whether few calls wait for another attempt": (
        lambda: read_page(retrying=True),
        f"LIMIT {MAX_SORTED_IDS + 1}",
        {"idx_service_calls_retrying"},
    ),
    "a page of calls that wait for another attempt": (
        read_page_of_many_retrying,
        "DESC LIMIT",
        {"idx_service_calls_retrying"},
    ),
    "which tenants have calls that wait for another attempt": (
        lambda: list_tenants_with_calls(CallFilter(NO_TENANT, retrying=True), 51),
        "service_calls",
        {"idx_service_calls_retrying", "idx_service_calls_submitted"},
    ),
    "how many calls wait for another attempt": (
        lambda: read_live_counts(TENANT, db_now()),
        "attempt",
        {"idx_service_calls_retrying"},
    ),
    "the hosts that let calls wait": (
        lambda: list_retrying_hosts(None, min_calls=3, limit=5),
        "attempt",
        {"idx_service_calls_retrying"},
    ),
    "the latest calls to a host that fails": (
        lambda: FailedCalls(TENANT, db_now()).list_ports("seldom.test", 3, 0),
        "DESC LIMIT 200",
        {"idx_service_calls_host"},
    ),
    "the latest calls that failed": (
        lambda: FailedCalls(TENANT, db_now() - timedelta(minutes=15)),
        "DESC LIMIT 1000",
        {"idx_service_calls_status"},
    ),
    "which tenants have calls of a prefix": (
        lambda: list_tenants_with_calls(CallFilter(NO_TENANT, host_prefix="seldom."), 51),
        "service_calls",
        {"idx_service_calls_host"},
    ),
    "names to suggest": (
        lambda: list_suggestions([TENANT], "name", "seldom", 10),
        "service_calls",
        set(),
    ),
    "a page of two common tags": (
        read_page_of_two_tags,
        "EXISTS",
        {"idx_service_call_tags_tag"},
    ),
    "tags to suggest": (
        lambda: list_suggestions([TENANT], "tag", "urg", 10),
        "service_call_tags",
        set(),
    ),
    "the calls of a correlation id": (
        lambda: read_page(correlation_id=new_id()),
        "ORDER BY",
        {"idx_service_calls_correlation"},
    ),
    "the replays of a call": (
        lambda: read_page(replay_of=new_id()),
        "ORDER BY",
        {"idx_service_calls_replay"},
    ),
    "the latest replays of a call, for its page": (
        lambda: call_queries.list_replays(TENANT, new_id(), 4),
        "replay_of",
        {"idx_service_calls_replay"},
    ),
    "which calls have been replayed": (
        lambda: call_queries.list_replayed([(TENANT, new_id()), (TENANT, new_id())]),
        "replay_of",
        {"idx_service_calls_replay"},
    ),
    "whether a tag has few calls": (
        lambda: read_page(tags=frozenset({"urgent"})),
        f"LIMIT {MAX_SORTED_IDS + 1}",
        {"idx_service_call_tags_tag"},
    ),
    "the headers of a tenant's calls, in the order of their ids": (
        lambda: reencryption._read_headers_after(new_id(), TENANT),
        "service_calls",
        set(),
    ),
    "attempts past their deadline": (
        lambda: lifecycle.list_overdue_attempts(100),
        "deadline_at",
        {"idx_service_calls_deadline"},
    ),
    "a call by its id alone, of any tenant": (
        lambda: list_tenants_with_id("service_call_id", new_id(), None, 20),
        "service_calls",
        set(),
    ),
    "whether a correlation id has any call, of any tenant": (
        lambda: list_tenants_with_id("correlation_id", new_id(), None, 1),
        "service_calls",
        {"idx_service_calls_correlation"},
    ),
    "which tenants have calls of a tag, and calls that are due": (
        lambda: list_tenants_with_calls(
            CallFilter(NO_TENANT, tags=URGENT, statuses=DUE, due_to=db_now()), 51
        ),
        "service_calls",
        {"idx_service_call_tags_tag", "idx_service_calls_status"},
    ),
    "the call of an idempotency key": (
        lambda: list(select_calls(idempotency_key__in=["key-66", "key-71"])),
        "idempotency_key",
        {"uq_service_calls_idempotency"},
    ),
    "the live call of a timer's id": (
        lambda: list(select_calls(namespace="default", live_external_id="order-66")),
        "live_external_id",
        {"uq_service_calls_live_timer"},
    ),
    "whether a prefix has few durable timers": (
        lambda: read_page(timers=True, namespace="default", timer_prefix="order-66"),
        f"LIMIT {MAX_SORTED_IDS + 1}",
        {"idx_service_calls_timer"},
    ),
    "the calls of a durable timer, the latest first": (
        lambda: call_queries.list_timer_calls(TENANT, "default", "order-66", 50),
        "DESC LIMIT 50",
        {"idx_service_calls_timer"},
    ),
    "what is to be published": (
        lambda: store.read_heads(range(PARTITIONS), 100),
        "ORDER BY e.id",
        {"idx_outbox_unpublished"},
    ),
    "what waits to be published, in the console": (
        lambda: list_events(EventFilter(StateFilter.WAITING, TENANT), None, 25),
        "LIMIT 625",
        {"idx_outbox_unpublished"},
    ),
    "how many timers are overdue": (
        # Far fewer than PostgreSQL expects to be overdue: it may sort what it expects to read whole anyway.
        lambda: timer_persistence.measure_backlog(db_now(), 100),
        "LIMIT 101",
        {"idx_timer_schedules_shard"},
    ),
    "how many timers wait in a shard": (
        lambda: timer_persistence.count_scheduled([1, 2]),
        "COUNT",
        {"idx_timer_schedules_shard"},
    ),
    "where timers are overdue": (
        lambda: timer_persistence.list_shard_states(ShardFilter.OVERDUE, db_now(), -1, 50),
        "timer_schedules",
        {"idx_timer_schedules_shard"},
    ),
    "a page of calls in the admin": (
        lambda: get_admin_page("orchestration/servicecall"),
        "DESC LIMIT 50",
        {"idx_service_calls_submitted"},
    ),
    "a page of calls of a status in the admin": (
        lambda: get_admin_page("orchestration/servicecall", status="Succeeded"),
        "DESC LIMIT 50",
        {"idx_service_calls_status"},
    ),
    "a page of timers in the admin": (
        lambda: get_admin_page("timers/timerschedule"),
        "ASC LIMIT 50",
        {"idx_timer_schedules_due_at"},
    ),
    "a page of a tenant's events in the admin": (
        lambda: get_admin_page("outbox/outboxevent"),
        "DESC LIMIT 50",
        {"uq_outbox_aggregate_seq"},
    ),
    "a page of tags in the admin": (
        lambda: get_admin_page("orchestration/servicecalltag"),
        "DESC LIMIT 50",
        set(),
    ),
    "the timeline of an aggregate": (
        lambda: list(
            OutboxEvent.objects.for_tenant(TENANTS[0])
            .filter(aggregate_id=TENANTS[0])
            .order_by("aggregate_seq")
        ),
        "aggregate_seq",
        {"uq_outbox_aggregate_seq"},
    ),
}
# Tables with a row for each shard or tenant, or of parameters: a scan is the best plan.
TINY = {"timer_shards", "s", "tenants", "given", "json_each"}


def is_skip_scan(indexes: set[str], plan: Plan) -> bool:
    """Return whether PostgreSQL 18 reads what is due by skipping over the few tenants of the tenants' index."""
    can_skip = connection.vendor == "postgresql" and getattr(connection, "pg_version", 0) >= 180000
    return can_skip and (indexes, plan.indexes) == (
        {"idx_timer_schedules_shard"},
        {"idx_timer_schedules_due_at"},
    )


@pytest.mark.parametrize(("run", "containing", "indexes"), QUERIES.values(), ids=QUERIES)
def test_each_query_uses_its_index(run: Callable[[], Any], containing: str, indexes: set[str]) -> None:
    plans = list_plans(run, containing)
    assert plans
    for plan in plans:
        assert indexes <= plan.indexes or is_skip_scan(indexes, plan), plan.text
        assert plan.scanned <= TINY, plan.text


# How a plan says that all rows are read and sorted, however few are wanted: SQLite, PostgreSQL, MariaDB, MySQL.
SORTS = ("TEMP B-TREE", '"Node Type": "Sort"', '"filesort"', '"using_filesort": true')


@pytest.mark.parametrize(
    "name",
    [
        "what is due in the owned shards",
        "when the next timer is due",
        "how many timers are overdue",
        "where timers are overdue",
    ],
)
def test_the_first_timers_are_found_without_sorting_the_others(name: str) -> None:
    run, containing, _ = QUERIES[name]
    for plan in list_plans(run, containing):
        assert not any(sign in plan.text for sign in SORTS), plan.text


def test_a_scan_would_be_noticed() -> None:
    everywhere = ServiceCall.across_tenants.filter(request_fingerprint="no index has it")
    (plan,) = list_plans(everywhere.count, "service_calls")
    assert plan.scanned == {"service_calls"}, plan.text
