"""Whoever asks why a tenant is refused finds it in the log, in /metrics, in the API, in doctor and in the console."""

from __future__ import annotations

from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from eventservice.api import throttling
from eventservice.db.now import db_now, pin_time
from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.management.commands.doctor import check_running_system
from eventservice.operators.health import check_tenant_limits
from eventservice.operators.health.limits import STORAGE_MEASURED_AFTER
from eventservice.tenants import refusals
from eventservice.tenants.directory import create_tenant, update_tenant
from eventservice.tenants.models import LimitCode, Tenant
from eventservice.tenants.refusals import EPISODE_GAP, list_refusals, note_refusal, record_refusals
from orchestration.admission import forget_allowances
from tests.api.conftest import Api, build_submission
from tests.api.test_errors_are_logged_once import Lines, lines
from tests.console.conftest import viewer

__all__ = ["lines", "viewer"]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def record_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "RECORD_SECONDS", 0.0)


def exceed_rate(api: Api, count: int = 1) -> Any:
    update_tenant(api.tenant.tenant_id, requests_per_minute=1)
    throttling.clear_buckets()
    api.get("/service-calls")
    return [api.post("/service-calls", build_submission()) for _ in range(count)][-1]


def exceed_bytes(api: Api) -> Any:
    update_tenant(api.tenant.tenant_id, bytes_per_minute=10)
    return api.post("/service-calls", build_submission())


def exceed_pending(api: Api) -> Any:
    update_tenant(api.tenant.tenant_id, max_pending=0)
    forget_allowances()
    return api.post("/service-calls", build_submission())


def exceed_storage(api: Api) -> Any:
    update_tenant(api.tenant.tenant_id, max_stored_bytes=1)
    api.post("/service-calls", build_submission())
    return api.post("/service-calls", build_submission())


EXCEEDED = {
    LimitCode.REQUESTS: exceed_rate,
    LimitCode.BYTES: exceed_bytes,
    LimitCode.PENDING: exceed_pending,
    LimitCode.STORAGE: exceed_storage,
}


def read_metrics(client: Client) -> dict[tuple[str, ...], float]:
    clear_caches()
    text = client.get("/metrics").content.decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def list_problems() -> list[Finding]:
    return [finding for finding in check_tenant_limits(None, db_now()) if not finding.is_ok]


@pytest.mark.parametrize("code", EXCEEDED)
def test_each_limit_is_reported(acme: Api, intruder: Api, client: Client, code: LimitCode) -> None:
    response = EXCEEDED[code](acme)
    assert response.status_code in (413, 429)

    (refusal,) = list_refusals(acme.tenant.tenant_id)
    assert (refusal.code, refusal.count) == (code, 1)
    assert list_refusals(intruder.tenant.tenant_id) == []

    (problem,) = list_problems()
    assert problem.severity is Severity.WARNING
    assert problem.text.startswith(f"acme was refused once for its {code.label}, last at ")
    assert check_tenant_limits(intruder.tenant.tenant_id, db_now())[0].is_ok

    found = read_metrics(client)
    assert found["eventservice_refusals_total", code.value] == 1
    assert found["eventservice_tenants_at_limit", code.value] == 1
    assert found["eventservice_tenant_refusals", code.value, "acme"] == 1
    assert sum(found["eventservice_tenants_at_limit", other.value] for other in LimitCode) == 1


@pytest.mark.parametrize("code", EXCEEDED)
def test_the_log_names_the_code_and_the_tenant(acme: Api, lines: Lines, code: LimitCode) -> None:
    response = EXCEEDED[code](acme)
    *_, refused = [line for line in lines() if line["event"].endswith("/service-calls")]
    assert refused["status"] == response.status_code
    assert refused["code"] == response.json()["code"]
    assert refused["tenant_id"] == str(acme.tenant.tenant_id)
    assert refused["correlation_id"] == response["X-Correlation-Id"]
    (found,) = [line for line in lines() if line["event"] == "tenant_at_limit"]
    assert (found["tenant"], found["code"], found["refused"]) == ("acme", code.value, 1)
    assert found["tenant_id"] == str(acme.tenant.tenant_id)


def test_every_refusal_is_logged_with_its_code(acme: Api, lines: Lines) -> None:
    responses = [
        acme.get("/service-calls?limit=x"), acme.get("/nothing"), acme("DELETE", "/service-calls"),
        acme.client.get("/metrics?"), Api(acme.tenant, "es_wrong").get("/service-calls"),
    ]  # fmt: skip
    wanted = [(r.status_code, r.json()["code"]) for r in responses if r.status_code >= 400]
    assert [(line["status"], line["code"]) for line in lines()] == wanted
    assert len(wanted) == 4


def test_a_refused_key_is_logged_by_its_id_with_the_address_of_the_client(acme: Api, lines: Lines) -> None:
    before = read_metrics(acme.client)["eventservice_http_refusals_total", "not_authenticated"]
    for text in ("es_live_abcdefghijkm_" + "s" * 40, "es_live_" + "s" * 40 + "_abcdefghijkm", "hush"):
        acme.client.get(
            "/api/v1/tenants",
            headers={"Authorization": f"Bearer {text}", "X-Forwarded-For": "203.0.113.9"},
        )
    known, swapped, other = lines()
    assert (known["code"], known["client"], known["key_id"]) == (
        "not_authenticated", "203.0.113.9", "abcdefghijkm",
    )  # fmt: skip
    assert "key_id" not in swapped
    assert "key_id" not in other
    assert "sss" not in str([known, swapped, other])
    assert "hush" not in str([known, swapped, other])
    after = read_metrics(acme.client)["eventservice_http_refusals_total", "not_authenticated"]
    assert after == before + 3


def test_a_refused_batch_is_one_refusal(acme: Api) -> None:
    update_tenant(acme.tenant.tenant_id, max_pending=1)
    forget_allowances()
    batch = acme.post("/service-calls/batch", {"items": [build_submission(), build_submission()]})
    assert (batch.status_code, batch.json()["code"]) == (429, "pending_ceiling")
    (refusal,) = list_refusals(acme.tenant.tenant_id)
    assert (refusal.code, refusal.count) == (LimitCode.PENDING, 1)


def test_the_tenant_sees_its_own_refusals(acme: Api, intruder: Api, operator: Api) -> None:
    exceed_pending(acme)
    (shown,) = acme.get("/usage").json()["refusals"]
    assert (shown["code"], shown["count"]) == ("pending_ceiling", 1)
    assert shown["since"] == shown["lastAt"]
    assert operator.get("/usage").json()["refusals"] == [shown]
    assert intruder.get("/usage").json()["refusals"] == []


def test_the_console_shows_it_on_the_dashboard_and_on_the_tenants_page(acme: Api, viewer: Client) -> None:
    exceed_rate(acme, 3)
    page = unescape(viewer.get("/").content.decode())
    assert "acme was refused 3 times for its rate limit, last at " in page
    assert "The limit is 1." in page
    address = f"/tenants/{acme.tenant.tenant_id}/"
    assert f'href="{address}"' in page
    assert "3 × <code>too_many_requests</code>" in viewer.get(address).content.decode()


def test_doctor_and_the_command_show_it(acme: Api, capsys: pytest.CaptureFixture[str]) -> None:
    (fine,) = [finding for finding in check_running_system() if finding.code == "tenant_limits"]
    assert fine.is_ok
    exceed_pending(acme)
    (wrong,) = [finding for finding in check_running_system() if finding.code == "tenant_limits"]
    assert not wrong.is_ok
    call_command("tenant", "limits", "acme")
    printed = capsys.readouterr().out
    assert "last refusals" in printed
    assert "1, last " in printed


# --- episodes ---------------------------------------------------------------------------------------------------


def refuse(tenant: Tenant, code: LimitCode, count: int = 1) -> None:
    for _ in range(count):
        note_refusal(tenant.tenant_id, code)
    record_refusals()


def test_it_says_since_when(tenant: Tenant) -> None:
    begin = db_now()
    for minute in (0, 4, 8):
        with pin_time(begin + timedelta(minutes=minute)):
            refuse(tenant, LimitCode.REQUESTS, 2)
    (refusal,) = list_refusals(tenant.tenant_id)
    assert (refusal.count, refusal.since, refusal.last_at) == (6, begin, begin + timedelta(minutes=8))


def test_a_refusal_for_the_pending_limit_is_over_when_a_raised_limit_leaves_room(
    acme: Api, viewer: Client
) -> None:
    update_tenant(acme.tenant.tenant_id, max_pending=4)
    forget_allowances()
    assert [acme.post("/service-calls", build_submission()).status_code for _ in range(6)][-2:] == [429, 429]
    (problem,) = list_problems()
    assert problem.text.startswith("acme was refused 2 times for its pending limit, last at ")
    assert problem.text.endswith(" UTC. Now: 4 of 4.")
    update_tenant(acme.tenant.tenant_id, max_pending=5)
    assert list_problems()[0].text.endswith(
        " Now: 4 of 5. A batch for which this leaves too little room is refused as a whole."
    )
    update_tenant(acme.tenant.tenant_id, max_pending=1_000_000)
    assert list_problems() == []


def test_a_refusal_for_storage_is_over_when_a_raised_limit_leaves_room(tenant: Tenant) -> None:
    begin = db_now()
    with pin_time(begin):
        refuse(tenant, LimitCode.STORAGE)
        assert [problem.code for problem in list_problems()] == ["tenant_limits"]
    # It has been measured by then.
    with pin_time(begin + STORAGE_MEASURED_AFTER + timedelta(seconds=1)):
        assert list_problems() == []
        Tenant.objects.update(stored_bytes=100, max_stored_bytes=100)
        assert "was refused once for its storage limit" in list_problems()[0].text


def test_after_a_pause_it_begins_again(tenant: Tenant, client: Client) -> None:
    begin = db_now()
    with pin_time(begin):
        refuse(tenant, LimitCode.REQUESTS, 2)
    with pin_time(begin + EPISODE_GAP + timedelta(seconds=1)):
        assert list_problems() == []
        assert read_metrics(client)["eventservice_tenants_at_limit", "too_many_requests"] == 0
        refuse(tenant, LimitCode.REQUESTS)
        (refusal,) = list_refusals(tenant.tenant_id)
        assert (refusal.count, refusal.since) == (1, db_now())
        # A counter never falls.
        assert read_metrics(client)["eventservice_refusals_total", "too_many_requests"] == 3


def test_a_tenant_that_is_refused_often_costs_few_writes(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    monkeypatch.setattr(refusals, "RECORD_SECONDS", 60.0)
    refuse(tenant, LimitCode.REQUESTS)
    with django_assert_num_queries(0):
        refuse(tenant, LimitCode.REQUESTS, 100)
    monkeypatch.setattr(refusals, "RECORD_SECONDS", 0.0)
    record_refusals()
    assert list_refusals(tenant.tenant_id)[0].count == 101


@pytest.mark.parametrize("error", [DatabaseError, InterfaceError])
@pytest.mark.parametrize("failing", ["add_to_totals", "get_profile"])
def test_what_the_database_does_not_take_is_recorded_later(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, error: type[Exception], failing: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as trouble:
        trouble.setattr(refusals, failing, fail)
        refuse(tenant, LimitCode.BYTES, 3)
    assert list_refusals(tenant.tenant_id) == []
    record_refusals()
    assert list_refusals(tenant.tenant_id)[0].count == 3


def test_many_tenants_at_a_limit_make_few_metrics(client: Client) -> None:
    for number in range(25):
        refuse(create_tenant(f"tenant-{number}"), LimitCode.REQUESTS, 1 + number)
    found = read_metrics(client)
    named = {key[2]: value for key, value in found.items() if key[0] == "eventservice_tenant_refusals"}
    assert set(named) == {f"tenant-{number}" for number in range(5, 25)}
    assert named["tenant-24"] == 25
    assert found["eventservice_tenants_at_limit", "too_many_requests"] == 25
    assert len(list_problems()) == 10


def test_a_tenant_whose_storage_is_nearly_full_is_reported_before_it_is_refused(tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(max_stored_bytes=1000, stored_bytes=899)
    assert list_problems() == []
    Tenant.objects.filter(pk=tenant.pk).update(stored_bytes=950)
    (problem,) = list_problems()
    assert problem.text == f"{tenant.name} stores 95 % of the 1,000 bytes that it may."
    refuse(tenant, LimitCode.STORAGE)
    (problem,) = list_problems()
    assert problem.text.endswith("Now: 950 B of 1000 B, as last measured.")
