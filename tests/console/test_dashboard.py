"""The dashboard: the present state and recent outcomes of all tenants or one, problems, and links to their calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from eventservice.db.now import pin_time
from eventservice.kernel.findings import Severity
from eventservice.kernel.ids import new_id
from eventservice.operators.health import WritingFinding, diagnosis
from eventservice.tenants.models import Tenant
from orchestration.statistics.rollup import roll_up
from tests.factories import (
    NOON,
    OutboxEventFactory,
    ServiceCallFactory,
    TenantFactory,
    TimerFactory,
)
from timers.models import Node, TimerShard

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def pinned_time() -> Iterator[None]:
    with pin_time(NOON):
        yield


def create_ended_call(
    tenant: Tenant, status: str = "Succeeded", before: timedelta = 5 * MINUTE, **fields: Any
) -> Any:
    due_at = NOON - before
    times = {"due_at": due_at, "started_at": due_at + timedelta(milliseconds=8), "attempt": 1}
    return ServiceCallFactory(**{"tenant_id": tenant.pk, "status": status, **times, **fields})


def create_nodes(*roles: str) -> None:
    for role in roles:
        Node.objects.create(
            owner_id=new_id(), role=role, hostname="here", process_id=1, started_at=NOON,
            lease_until=NOON + timedelta(seconds=8),
        )  # fmt: skip


def get_page(client: Client, address: str = "/", **headers: str) -> str:
    response = client.get(address, headers=headers)
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.parametrize(
    ("is_locked", "note"), [(True, "the database is locked"), (False, "the database cannot be written to")]
)
def test_while_the_database_cannot_be_written_to_nobody_knows_how_many_nodes_are_alive(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, is_locked: bool, note: str
) -> None:
    trouble = WritingFinding("writing", Severity.ERROR, "It is so.", "Do this.", is_locked=is_locked)
    monkeypatch.setattr(diagnosis, "check_writing", lambda: trouble)
    page = get_page(viewer)
    assert read_tile(page, "Live nodes") == "unknown"
    assert note in page
    assert "none is running" not in page


def read_tile(page: str, name: str) -> str:
    found = re.search(rf'<div class="name">{re.escape(name)}</div>\s*<div class="value">([^<]*)</div>', page)
    assert found, name
    return unescape(found[1])


def list_links(page: str) -> list[str]:
    return [unescape(address) for address in re.findall(r'href="(/calls/\?[^"]*)"', page)]


# --- who, and what is asked ---------------------------------------------------------------------------------------


def test_an_outsider_is_sent_to_the_login(outsider: Client) -> None:
    assert outsider.get("/").status_code == 302


def test_an_unknown_range_is_refused_with_the_valid_ones(viewer: Client) -> None:
    response = viewer.get("/?range=2h", headers={"Accept": "text/html"})
    assert response.status_code == 400
    assert "15m, 1h, 6h, 24h, 7d, 30d" in response.content.decode()


@pytest.mark.parametrize("tenant", ["0190d5e5-0000-7000-8000-000000000000", "x"])
def test_an_unknown_tenant_is_not_found(viewer: Client, tenant: str) -> None:
    assert viewer.get(f"/?tenant={tenant}").status_code == 404


def test_one_range_decides_about_tiles_and_charts(viewer: Client, tenant: Tenant) -> None:
    create_ended_call(tenant)
    create_ended_call(tenant, "Failed", before=timedelta(hours=3))
    roll_up(60)
    assert read_tile(get_page(viewer), "Success (1h)") == "100 %"
    page = get_page(viewer, "/?range=6h")
    assert read_tile(page, "Success (6h)") == "50 %"
    assert "1 succeeded, 1 failed in the last 6 hours" in page
    (link,) = [link for link in list_links(page) if "status=Failed&from=" in link and "to=" not in link]
    assert "from=2026-03-01T06%3A" in link


def test_the_live_part_refreshes_with_the_same_parameters(viewer: Client, tenant: Tenant) -> None:
    page = get_page(viewer, f"/?range=6h&tenant={tenant.pk}")
    assert f'hx-get="/?range=6h&amp;tenant={tenant.pk}"' in page
    assert f'href="?range=24h&amp;tenant={tenant.pk}"' in page
    assert "data-pause" in page


def test_htmx_gets_the_figures_without_the_page_around_them(viewer: Client) -> None:
    page = get_page(viewer, "/", **{"HX-Request": "true"})
    assert 'id="figures"' in page
    assert "<html" not in page


def test_the_page_complies_with_the_content_security_policy(viewer: Client, tenant: Tenant) -> None:
    create_ended_call(tenant, "Failed")
    roll_up(60)
    page = get_page(viewer)
    assert not re.search(r"<[^>]+\s(style|on\w+|hx-on[^=]*)=", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)


# --- a fresh system -----------------------------------------------------------------------------------------------


def test_a_new_system_shows_how_to_submit_the_first_call(operator: Client, tenant: Tenant) -> None:
    page = get_page(operator)
    assert "No calls yet" in page
    assert 'href="/calls/new/"' in page
    assert f"/api/v1/tenants/{tenant.pk}/service-calls" in page
    assert "make demo" in page


def test_a_viewer_is_offered_only_permitted_actions(viewer: Client, tenant: Tenant) -> None:
    assert 'href="/calls/new/"' not in get_page(viewer)


def test_a_range_without_ended_calls_offers_a_longer_one(viewer: Client, tenant: Tenant) -> None:
    create_ended_call(tenant, before=timedelta(hours=3))
    roll_up(60)
    page = get_page(viewer)
    assert "No call ended in the last hour" in page
    assert "range=6h" in page
    assert "No call ended" not in get_page(viewer, "/?range=6h")


# --- figures ------------------------------------------------------------------------------------------------------


def test_tiles_show_the_present_state(viewer: Client, tenant: Tenant) -> None:
    create_nodes("engine", "dispatcher")
    ServiceCallFactory(tenant_id=tenant.pk, due_at=NOON - 3 * MINUTE)
    ServiceCallFactory(tenant_id=tenant.pk, due_at=NOON + MINUTE)
    ServiceCallFactory(tenant_id=tenant.pk, status="Running", due_at=NOON, deadline_at=NOON + MINUTE)
    OutboxEventFactory(created_at=NOON - 2 * MINUTE)
    for status in ("Succeeded", "Succeeded", "Succeeded", "Failed"):
        create_ended_call(tenant, status)
    roll_up(60)
    page = get_page(viewer)
    assert read_tile(page, "Due now") == "1"
    assert read_tile(page, "Running") == "1"
    assert read_tile(page, "Oldest overdue") == "3 m"
    assert read_tile(page, "Success (1h)") == "75 %"
    assert read_tile(page, "p95 lateness (1h)") == "9.8 ms"
    assert read_tile(page, "Event lag") == "2 m"
    assert read_tile(page, "Live nodes") == "2"


def test_calls_that_have_just_ended_are_shown_before_statistics_count_them(
    viewer: Client, tenant: Tenant
) -> None:
    create_ended_call(tenant, "Failed", before=MINUTE / 2)
    assert read_tile(get_page(viewer), "Success (1h)") == "0 %"
    roll_up(60)
    assert ": 1 failed</title>" in get_page(viewer)
    with pin_time(NOON + MINUTE / 2):
        create_ended_call(tenant, before=-MINUTE / 4)
        assert read_tile(get_page(viewer), "Success (1h)") == "50 %"


@pytest.mark.parametrize("span", ["15m", "1h", "6h", "24h", "7d", "30d"])
def test_every_range_shows_the_calls_that_ended_in_it(viewer: Client, tenant: Tenant, span: str) -> None:
    create_ended_call(tenant, "Failed", host="broken.test")
    roll_up(60)
    page = get_page(viewer, f"/?range={span}")
    assert "0 succeeded, 1 failed" in page
    assert "broken.test" in page


def test_a_bar_links_to_its_calls(viewer: Client, tenant: Tenant) -> None:
    create_ended_call(tenant, "Failed", host="broken.test")
    roll_up(60)
    found = list_links(get_page(viewer, f"/?range=1h&tenant={tenant.pk}"))
    minute = "from=2026-03-01T11%3A55%3A00.000Z&to=2026-03-01T11%3A56%3A00.000Z"
    assert f"/calls/?{minute}&tenant={tenant.pk}&status=Succeeded&status=Failed&status=Canceled" in found
    assert f"/calls/?status=Failed&{minute}&tenant={tenant.pk}" in found
    assert any("host=%22broken.test%22" in address for address in found)
    for address in dict.fromkeys(found):
        assert viewer.get(address).status_code == 200, address


def test_each_bar_is_one_tab_stop(viewer: Client, tenant: Tenant) -> None:
    for status in ("Succeeded", "Failed", "Canceled"):
        create_ended_call(tenant, status)
    roll_up(60)
    chart = get_page(viewer).split('id="throughput"')[1].split("</svg>")[0]
    anchors = re.findall(r"<a [^>]*>", chart)
    assert len([anchor for anchor in anchors if 'tabindex="-1"' not in anchor]) == 1
    assert len(anchors) == 4


def test_the_page_of_one_tenant_shows_nothing_of_another(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    create_nodes("engine", "dispatcher")
    create_ended_call(intruder, "Failed", host="secret.test")
    create_ended_call(intruder, "Failed", host="secret.test")
    create_ended_call(intruder, "Failed", host="secret.test")
    ServiceCallFactory(tenant_id=intruder.pk, due_at=NOON - MINUTE)
    create_ended_call(tenant)
    roll_up(60)
    page = get_page(viewer, f"/?tenant={tenant.pk}")
    assert read_tile(page, "Due now") == "0"
    assert read_tile(page, "Success (1h)") == "100 %"
    assert "secret.test" not in page
    assert "secret.test" in get_page(viewer)


def test_the_backlog_is_grouped_by_due_time(viewer: Client, tenant: Tenant) -> None:
    for minutes in (-1, 0.5, 3, 30, 600, 10_000):
        ServiceCallFactory(tenant_id=tenant.pk, due_at=NOON + minutes * MINUTE)
    page = get_page(viewer)
    for name in ("Overdue", "&lt; 1 m", "&lt; 5 m", "&lt; 1 h", "&lt; 24 h", "Later"):
        assert f"<title>{name}: 1</title>" in page


def test_outdated_figures_are_marked(viewer: Client, tenant: Tenant) -> None:
    create_ended_call(tenant)
    roll_up(60)
    assert "The charts were last updated" not in get_page(viewer)
    with pin_time(NOON + 10 * MINUTE):
        assert "The charts were last updated" in get_page(viewer)


def test_the_number_of_queries_does_not_grow_with_the_data(viewer: Client, tenant: Tenant) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as found:
            get_page(viewer, "/?range=24h")
        return len(found)

    create_ended_call(tenant)
    roll_up(60)
    few = queries()
    for number in range(20):
        create_ended_call(tenant, "Failed", before=number * MINUTE, host=f"host-{number}")
        ServiceCallFactory(tenant_id=tenant.pk, due_at=NOON - number * MINUTE)
    roll_up(60)
    assert queries() <= few + 1


# --- needs attention ----------------------------------------------------------------------------------------------


def test_what_fails_completely_comes_before_what_fails_often(viewer: Client, tenant: Tenant) -> None:
    for n in range(6):
        for status in ["Failed"] * 5 + ["Succeeded"] * 10:
            create_ended_call(tenant, status, host=f"often-{n}.test")
    for _ in range(3):
        create_ended_call(tenant, "Failed", host="dead.test")
    roll_up(60)
    names = re.findall(r"([\w.-]+\.test) is failing", get_page(viewer))
    assert names[0] == "dead.test"
    assert len(names) == 5


def test_a_failing_host_is_named_and_links_to_its_failed_calls(viewer: Client, tenant: Tenant) -> None:
    for _ in range(4):
        create_ended_call(tenant, "Failed", host="broken.test")
    for _ in range(20):
        create_ended_call(tenant, host="fine.test")
    create_ended_call(tenant, "Failed", host="fine.test")
    roll_up(60)
    page = get_page(viewer)
    assert "broken.test is failing for acme." in page
    assert "fine.test is failing" not in page
    (address,) = [
        one
        for one in list_links(page)
        if "host=%22broken.test%22" in one and "status=Failed" in one and "status=Succeeded" not in one
    ]
    assert f"tenant={tenant.pk}" in address


def test_a_role_without_a_node_is_a_problem(viewer: Client) -> None:
    create_nodes("engine")
    Node.objects.create(
        owner_id=new_id(), role="dispatcher", hostname="gone", process_id=1, started_at=NOON,
        lease_until=NOON - MINUTE,
    )  # fmt: skip
    page = get_page(viewer)
    assert "No dispatcher is running" in page
    assert "No engine is running" not in page


@pytest.mark.parametrize(
    ("lease", "owned", "stuck"),
    [(None, False, True), (-MINUTE, True, True), (MINUTE, True, False)],
    ids=["nobody's", "its lease has ended", "owned"],
)
def test_a_shard_is_stuck_if_nobody_owns_it_and_its_timers_are_overdue(
    viewer: Client, tenant: Tenant, lease: timedelta | None, owned: bool, stuck: bool
) -> None:
    create_nodes("engine")
    TimerShard.objects.create(
        shard_id=7,
        owner_id=new_id() if owned else None,
        lease_until=NOON + lease if lease is not None else None,
    )
    TimerShard.objects.create(shard_id=8)
    call = ServiceCallFactory(tenant_id=tenant.pk, due_at=NOON - MINUTE)
    TimerFactory(tenant_id=tenant.pk, service_call_id=call.service_call_id, shard_id=7, due_at=call.due_at)
    assert ("1 shard is stuck" in get_page(viewer)) is stuck


def test_no_shard_is_called_stuck_if_no_engine_is_running(viewer: Client, tenant: Tenant) -> None:
    TimerShard.objects.create(shard_id=7)
    call = ServiceCallFactory(tenant_id=tenant.pk, due_at=NOON - MINUTE)
    TimerFactory(tenant_id=tenant.pk, service_call_id=call.service_call_id, shard_id=7, due_at=call.due_at)
    page = get_page(viewer)
    assert "No engine is running" in page
    assert "stuck" not in page
    assert "engines can reach the database" not in page


def test_the_tile_of_events_counts_those_that_are_parked_and_held(viewer: Client, tenant: Tenant) -> None:
    assert "all published" in get_page(viewer)
    OutboxEventFactory(tenant_id=tenant.pk, parked_at=NOON, attempts=3)
    OutboxEventFactory(tenant_id=tenant.pk, parked_at=NOON, attempts=0)
    page = get_page(viewer)
    assert "no others wait; 2 parked or held" in page
    assert "all published" not in page


def test_parked_events_and_calls_past_their_deadline_are_problems(viewer: Client, tenant: Tenant) -> None:
    OutboxEventFactory(tenant_id=tenant.pk, parked_at=NOON, attempts=3)
    lost = ServiceCallFactory(
        tenant_id=tenant.pk, status="Running", due_at=NOON - MINUTE, deadline_at=NOON - MINUTE / 2
    )
    page = get_page(viewer)
    assert "1 event is parked" in page
    assert "1 running call is past the deadline" in page
    assert f'href="/calls/{tenant.pk}/{lost.service_call_id}/"' in page


def test_without_problems_it_says_so(viewer: Client, tenant: Tenant) -> None:
    create_nodes("engine", "dispatcher")
    create_ended_call(tenant)
    assert "Nothing at the moment" in get_page(viewer)


def test_many_tenants_can_be_chosen(viewer: Client) -> None:
    tenants = TenantFactory.create_batch(3)
    page = get_page(viewer)
    for tenant in tenants:
        assert f'<option value="{tenant.pk}">{tenant.name}</option>' in page
