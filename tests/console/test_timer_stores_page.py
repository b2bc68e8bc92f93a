"""The page of timer stores: namespaces, processes, and shards with their owners. Timers are counted on request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client, override_settings

from eventservice.kernel.ids import new_id
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.operators.formatting import format_duration
from eventservice.tenants.models import Tenant
from orchestration.feeder.namespaces import declare_namespace
from orchestration.models import TimerMark
from tests.console.test_timers_page import get_page as get_timers_page
from tests.contracts.timer_stores import STORES
from tests.contracts.timer_stores.memory_fleet import FLEET, UNREACHABLE, MemoryFleet
from tests.contracts.timer_stores.memory_store import MemoryTimerStore
from tests.factories import NOON
from timers.cell_stores import get_cell_store
from timers.stores.port import (
    Member,
    QualifiedNamespace,
    Revision,
    ShardBacklog,
    StoredTimer,
    TimerKey,
    TimerStore,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

NUM_SHARDS = 60
ENGINE = {"hostname": "engine-7", "processId": "4711"}


def get_page(client: Client, query: str = "", *, status: int = 200) -> str:
    response = client.get(f"/timers/stores/{query}", HTTP_ACCEPT="text/html")
    assert response.status_code == status, response.content.decode()[:3000]
    return response.content.decode()


def read_cells(page: str, label: str) -> list[str]:
    """Return the texts of a column, by its label on small screens."""
    cells = re.findall(rf'<td data-label="{label}"[^>]*>(.*?)</td>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in cells]


@pytest.fixture
def namespace(tenant: Tenant, fleet: MemoryFleet) -> QualifiedNamespace:
    declare_namespace(tenant.pk, "alerts", NUM_SHARDS, FLEET.name, record=lambda namespace: None)
    return QualifiedNamespace(tenant.pk, "alerts")


def put_timer(store: TimerStore, namespace: QualifiedNamespace, timer_id: str, minutes: float) -> int:
    """Store a timer that is due so many minutes after noon. Return its shard."""
    key = TimerKey.build(namespace, timer_id, NUM_SHARDS)
    due_at = NOON + timedelta(minutes=minutes)
    timer = StoredTimer(key, Revision(new_id()), due_at, due_at, NOON, "https://example.com/timers")
    store.put(timer, None, NOON)
    return key.shard


def test_without_stores_the_page_says_so(viewer: Client, tenant: Tenant) -> None:
    assert "No timer stores are configured" in get_page(viewer)
    assert "/timers/stores/" not in get_timers_page(viewer)


def test_namespaces_processes_and_owners_are_shown(
    viewer: Client, fleet: MemoryFleet, namespace: QualifiedNamespace
) -> None:
    assert 'href="/timers/stores/"' in get_timers_page(viewer)
    page = get_page(viewer)
    assert read_cells(page, "Namespace") == ["acme/alerts"]
    assert read_cells(page, "In this deployment") == ["as declared"]
    assert "No process takes timers from fleet" in page
    store, engine = fleet.build_store(FLEET, "cell"), new_id()
    store.beat(Member(engine, 1, ENGINE))
    for shard, owner in ((3, engine), (4, engine), (5, new_id())):
        store.claim(store.shards([shard])[0], str(owner), ENGINE)
    page = get_page(viewer)
    assert read_cells(page, "Host · process") == ["engine-7 · 4711"]
    assert "3–4" in page
    assert "0–2, 6–59" in page
    assert page.count(">gone<") == 1  # an owner that is no member any more
    assert read_cells(page, "Version")[:7] == ["0", "0", "0", "1", "1", "1", "0"]
    assert len(read_cells(page, "Shard")) == 50
    following = get_page(viewer, "?after=49")
    assert read_cells(following, "Shard") == [str(shard) for shard in range(50, 60)]


def test_a_namespace_whose_timers_are_not_sent_says_why(
    viewer: Client, namespace: QualifiedNamespace
) -> None:
    Tenant.objects.update(allowed_hosts=["example.com"])
    clear_caches()
    (found,) = read_cells(get_page(viewer), "In this deployment")
    assert found == "not sent other settings here than declared: allowed hosts"


def test_timers_are_counted_only_on_request(
    viewer: Client, namespace: QualifiedNamespace, fleet: MemoryFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fleet.build_store(FLEET, "cell")
    late, later = put_timer(store, namespace, "late", -3), put_timer(store, namespace, "later", 60)
    counted: list[Sequence[int]] = []
    count_timers = MemoryTimerStore.count_timers

    def count(self: MemoryTimerStore, shards: Sequence[int], now: Any) -> list[ShardBacklog]:
        counted.append(shards)
        return count_timers(self, shards, now)

    monkeypatch.setattr(MemoryTimerStore, "count_timers", count)
    assert read_cells(get_page(viewer), "Timers") == []
    assert counted == []
    for after in (-1, 49):
        page = get_page(viewer, "?timers=count" + (f"&after={after}" if after >= 0 else ""))
        shards = read_cells(page, "Shard")
        rows = list(
            zip(read_cells(page, "Timers"), read_cells(page, "Overdue"), read_cells(page, "Lag"), strict=True)
        )
        for shard, expected in ((late, ("1", "1", format_duration(180))), (later, ("1", "0", "–"))):
            if str(shard) in shards and late != later:
                assert rows[shards.index(str(shard))] == expected
    assert counted == [list(range(50)), list(range(50, 60))]


def test_what_waits_to_be_written_to_the_store_is_shown(viewer: Client, fleet: MemoryFleet) -> None:
    TimerMark.objects.create(
        tenant_id=new_id(), service_call_id=new_id(), take=1, store="fleet", namespace="alerts", timer_id="due", shard_id=0,
        execute_at=NOON, failures=0, interruptions=0, next_seq=1, marked_at=NOON - timedelta(minutes=5),
    )  # fmt: skip
    assert "has not been written to fleet" in get_page(viewer)
    assert "has not been written" not in get_page(viewer, "?store=away", status=503)


def test_a_store_that_cannot_be_used_is_named(
    viewer: Client, namespace: QualifiedNamespace, fleet: MemoryFleet
) -> None:
    page = get_page(viewer, "?store=away", status=503)
    assert "away is not available" in page
    assert "s3cret" not in page
    with override_settings(TIMER_STORES=[UNREACHABLE]):
        assert "fleet is not in TIMER_STORES" in get_page(viewer, "?store=fleet")
    get_page(viewer, "?store=other", status=400)
    get_page(viewer, "?after=x", status=400)


@pytest.mark.django_db(transaction=True)
@pytest.mark.sqlite_only
def test_a_store_on_a_server_is_shown(viewer: Client, tenant: Tenant) -> None:
    server = STORES["postgres"]()
    try:
        with override_settings(TIMER_STORES=[server.spec]):
            get_cell_store.cache_clear()
            store = server.build()
            store.migrate()
            declare_namespace(tenant.pk, "alerts", NUM_SHARDS, "postgres", record=lambda namespace: None)
            shard = put_timer(store, QualifiedNamespace(tenant.pk, "alerts"), "late", -3)
            store.claim(store.shards([shard])[0], str(new_id()), ENGINE)
            page = get_page(viewer, "?timers=count" + ("&after=49" if shard >= 50 else ""))
            assert "engine-7 · 4711" in page
            index = read_cells(page, "Shard").index(str(shard))
            assert read_cells(page, "Timers")[index] == "1"
            get_cell_store("postgres").close()
    finally:
        get_cell_store.cache_clear()
        server.close_built()
        server.close()
