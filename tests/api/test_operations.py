"""Operations: health, metrics, statistics, shards, nodes, and the OpenAPI document."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from eventservice.db.leases import Leases
from eventservice.db.now import DbNow, db_now, pin_time
from eventservice.kernel.ids import new_id
from eventservice.kernel.machine_slots import reserve_slot
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.kernel.version import get_version
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from orchestration.statistics import recent_sample
from tests.api.conftest import Api, create_api, get_errors
from tests.factories import ServiceCallFactory
from timers.models import Node, ShardSize, TimerShard

pytestmark = pytest.mark.django_db


def join(role: str = "engine") -> Node:
    return Node.objects.create(
        owner_id=new_id(), role=role, hostname="h", process_id=1, started_at=DbNow(),
        lease_until=DbNow(timedelta(seconds=8)), in_flight=3,
    )  # fmt: skip


def test_livez_answers(acme: Api) -> None:
    assert acme.get("/livez", headers={"Authorization": ""}).json() == {"status": "ok"}


def test_it_is_ready_while_an_engine_is_alive(acme: Api) -> None:
    answer = acme.get("/readyz")
    assert (answer.status_code, answer["Content-Type"]) == (503, "application/problem+json")
    assert [fault["pointer"] for fault in answer.json()["errors"]] == ["/checks/engine"]
    join()
    checks = ("database", "migrations", "engine", "starting")
    assert acme.get("/readyz").json() == {"status": "ok", "checks": dict.fromkeys(checks, "ok")}


def test_a_refusal_is_logged_once_with_the_checks_that_failed(
    acme: Api, caplog: pytest.LogCaptureFixture
) -> None:
    acme.get("/readyz")
    (record,) = caplog.records
    message: Any = record.msg
    assert message["event"] == "not_ready"
    assert message["checks"]["engine"].startswith("No engine is running")


def test_it_is_not_ready_while_due_calls_are_not_started(acme: Api) -> None:
    join()
    due = {"tenant_id": acme.tenant.tenant_id, "status": "Scheduled"}
    ServiceCallFactory(due_at=db_now() - timedelta(seconds=15), **due)
    assert acme.get("/readyz").status_code == 200
    ServiceCallFactory(due_at=db_now() - timedelta(seconds=30), **due)
    answer = acme.get("/readyz")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (503, "/checks/starting")
    assert "nothing starts them" in answer.json()["errors"][0]["detail"]
    # While a call runs, the others may wait for a limit.
    ServiceCallFactory(
        tenant_id=acme.tenant.tenant_id, status="Running", deadline_at=db_now() + timedelta(minutes=1)
    )
    assert acme.get("/readyz").status_code == 200


def test_a_tenant_whose_secret_cannot_be_read_leaves_the_others_ready(acme: Api) -> None:
    join()
    Tenant.objects.filter(pk=acme.tenant.pk).update(signing_secret="not encrypted")
    overdue = db_now() - timedelta(seconds=30)
    ServiceCallFactory(tenant_id=acme.tenant.tenant_id, status="Scheduled", due_at=overdue)
    assert acme.get("/readyz").status_code == 200


def create_ended_call(
    api: Api, status: str, late_ms: float, outcome: dict[str, Any], minutes: int = 1
) -> None:
    due = db_now() - timedelta(minutes=minutes)
    ServiceCallFactory(
        tenant_id=api.tenant.tenant_id, status=status, due_at=due, started_at=due + timedelta(milliseconds=late_ms),
        finished_at=due, attempt=1, outcome_meta=outcome,
    )  # fmt: skip


@pytest.fixture
def history(acme: Api) -> None:
    for late in (2, 4, 6, 400):
        create_ended_call(acme, "Succeeded", late, {"responseMeta": {"status": 200}})
    create_ended_call(acme, "Failed", 8, {"errorMeta": {"kind": "Timeout"}})
    for delay in ("0s", "30s", "2m", "30m", "5h", "2d"):
        acme.submit(delay=delay)


def test_statistics_cover_the_window(acme: Api, history: None) -> None:
    found = acme.get("/api/v1/stats?window=5m").json()
    assert found["outcomes"] == {"byStatus": {"Succeeded": 4, "Failed": 1}, "byErrorKind": {"Timeout": 1}}
    assert found["throughput"] == {"perSecond": round(5 / 300, 3), "ended": 5}
    assert (found["latenessMs"]["p50"], found["latenessMs"]["p99"]) == (6.0, 400.0)
    assert found["backlog"] == {
        "overdue": 1, "within1m": 1, "within5m": 1, "within1h": 1, "within24h": 1, "later": 1,
    }  # fmt: skip
    assert acme.get("/api/v1/stats?window=10s").json()["throughput"]["ended"] == 0


@pytest.mark.parametrize("window", ["0s", "PT0S"])
def test_an_empty_window_is_refused(acme: Api, window: str) -> None:
    assert get_errors(acme.get(f"/api/v1/stats?window={window}")) == {
        "/query/window": "must be longer than 0s"
    }


def test_an_operator_sees_all_tenants_or_one(operator: Api, intruder: Api, history: None) -> None:
    intruder.submit(delay="30s")
    assert operator.get("/api/v1/stats").json()["backlog"]["within1m"] == 2
    one = f"/api/v1/stats?tenantId={intruder.tenant.tenant_id}"
    assert operator.get(one).json()["backlog"]["within1m"] == 1
    assert intruder.get("/api/v1/stats").json()["backlog"]["within1m"] == 1


def read_metrics(api: Api) -> dict[tuple[str, ...], float]:
    text = api.get("/metrics").content.decode()
    return {
        (sample.name.removeprefix("eventservice_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_statistics_are_computed_one_at_a_time(acme: Api) -> None:
    with reserve_slot("reading", 1):
        refused = acme.get("/api/v1/stats")
        assert (refused.status_code, refused.json()["code"], refused["Retry-After"]) == (429, "busy", "1")
    assert acme.get("/api/v1/stats").status_code == 200


def test_metrics_have_the_figures_of_the_system(acme: Api, history: None) -> None:
    node = join()
    TimerShard.objects.create(shard_id=1, owner_id=node.owner_id)
    TimerShard.objects.create(shard_id=2)
    found = read_metrics(acme)
    assert found["due_backlog",] == 1
    assert found["calls_scheduled", "later"] == 1
    assert found["calls_ended_5m", "Succeeded"] == 4
    assert found["calls_failed_by_kind_5m", "Timeout"] == 1
    assert (found["lateness_seconds_5m", "0.5"], found["lateness_seconds_5m", "0.99"]) == (0.006, 0.4)
    assert found["in_flight", str(node.owner_id)] == 3
    assert (found["shards_owned", str(node.owner_id)], found["shards_owned", "none"]) == (1, 1)
    assert (found["shard_timers_max",], found["shard_timers_mean",]) == (0, 0)
    assert found["outbox_unpublished",] == 12
    assert found["outbox_lag_seconds",] >= 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_metrics(acme: Api, history: None) -> None:
    text = acme.get("/metrics").content
    assert b"eventservice_lateness_seconds_5m{" in text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_metrics_can_require_an_operators_key(acme: Api, operator: Api, settings: Any) -> None:
    settings.METRICS_OPEN = False
    for key, status in ((operator, 200), (acme, 401)):
        assert key.get("/metrics").status_code == status
    assert acme.get("/metrics", headers={"Authorization": ""}).status_code == 401
    writer = Api(acme.tenant, create_key(None, ["write", "admin"])[1]).get("/metrics")
    assert (writer.status_code, writer.json()["code"]) == (403, "scope_missing")


def test_operators_can_list_shards_and_nodes(operator: Api) -> None:
    node = join()
    TimerShard.objects.create(shard_id=0, owner_id=node.owner_id, lease_until=DbNow(timedelta(minutes=1)))
    TimerShard.objects.create(shard_id=1)
    shards = operator.get("/api/v1/shards?limit=1").json()
    assert (shards["items"][0]["ownerId"], shards["items"][0]["owned"]) == (str(node.owner_id), True)
    rest = operator.get(f"/api/v1/shards?limit=1&cursor={shards['nextCursor']}").json()
    assert (rest["items"][0]["owned"], rest["nextCursor"]) == (False, None)
    (shown,) = operator.get("/api/v1/nodes").json()["items"]
    assert (shown["nodeId"], shown["live"], shown["inFlight"]) == (str(node.owner_id), True, 3)
    assert shown["serviceVersion"] == node.version


def test_operators_see_who_owns_a_shard_and_how_many_timers_wait_in_it(operator: Api) -> None:
    TimerShard.objects.bulk_create([TimerShard(shard_id=0), TimerShard(shard_id=1)])
    leases = Leases(TimerShard, new_id(), timedelta(minutes=1))
    leases.claim(0)
    ShardSize.objects.create(shard_id=0, scheduled=7, counted_at=DbNow())
    owned, free = operator.get("/api/v1/shards").json()["items"]
    assert owned["metadata"]["nodeId"] == str(leases.owner_id)
    assert owned["metadata"]["serviceVersion"] == get_version()
    assert owned["updatedAt"] == owned["claimedAt"]
    assert owned["updatedAt"]
    assert (owned["scheduledTimers"], free["scheduledTimers"], free["updatedAt"]) == (7, None, None)


# --- the description ------------------------------------------------------------------------------------------


def test_the_committed_document_is_what_the_code_says(tmp_path: Path) -> None:
    made = tmp_path / "openapi.json"
    call_command("spectacular", validate=True, fail_on_warn=True, format="openapi-json", file=str(made))
    assert (django_settings.BASE_DIR / "docs/openapi.json").read_text() == made.read_text()


def test_the_document_has_the_limits_that_are_set(tmp_path: Path) -> None:
    made = tmp_path / "openapi.json"
    command = [sys.executable, "manage.py", "spectacular", "--format", "openapi-json", "--file", str(made)]
    limits = {"API_MAX_BATCH": "5000", "API_MAX_TIMEOUT_SECONDS": "7200"}
    subprocess.run(
        command, env={**os.environ, **limits}, cwd=django_settings.BASE_DIR, check=True, timeout=60
    )
    shapes = json.loads(made.read_text())["components"]["schemas"]
    assert shapes["BatchInput"]["properties"]["items"]["maxItems"] == 5000
    for shape, member in (
        ("Submission", "timeoutSeconds"),
        ("TimerInput", "callbackTimeoutSeconds"),
        ("TimerChanges", "callbackTimeoutSeconds"),
    ):
        assert shapes[shape]["properties"][member]["anyOf"][0]["maximum"] == 7200


def test_the_document_is_served_to_everybody(acme: Api) -> None:
    answer = acme.get("/api/v1/openapi.json", headers={"Authorization": ""})
    document = json.loads(answer.content)
    assert document["openapi"] == "3.1.0"
    assert "/api/v1/tenants/{tenantId}/service-calls" in document["paths"]


def test_the_interactive_pages_need_nothing_from_elsewhere(acme: Api) -> None:
    page = acme.get("/api/v1/docs", headers={"Authorization": "", "Accept": "text/html"}).content.decode()
    assert "swagger-ui" in page
    assert "//cdn" not in page
    assert 'src="http' not in page


def test_every_operation_is_described(acme: Api) -> None:
    from tests.api.endpoints import list_endpoints

    document = json.loads(acme.get("/api/v1/openapi.json").content)
    described = sum(
        method in ("get", "post", "put", "patch", "delete")
        for path in document["paths"].values()
        for method in path
    )
    served = [one for one in list_endpoints() if not one.route.startswith("api/v1/docs")]
    assert described == len(served)


INPUTS = {
    "Submission": ("POST", "/service-calls"),
    "BatchInput": ("POST", "/service-calls/batch"),
    "TimerInput": ("POST", "/timers/create"),
    "TimerKey": ("POST", "/timers/get"),
    "TimerChanges": ("POST", "/timers/update"),
    "TenantInput": ("POST", "/api/v1/tenants"),
    "NamespaceInput": ("POST", "/namespaces"),
    "ApiKeyInput": ("POST", "/api-keys"),
}


@pytest.mark.parametrize("shape", INPUTS)
def test_the_described_members_are_those_that_are_accepted(operator: Api, shape: str) -> None:
    document = json.loads(operator.get("/api/v1/openapi.json").content)
    schema = document["components"]["schemas"][shape]
    nonsense = object.__name__
    answer = operator(*INPUTS[shape], {name: {nonsense: 1} for name in [*schema["properties"], nonsense]})
    unknown = {
        f["pointer"]
        for f in answer.json()["errors"]
        if f["detail"] == "is not a known field" and f["pointer"].count("/") == 1
    }
    assert unknown == {f"/{nonsense}"}
    required = {f["pointer"][1:] for f in operator(*INPUTS[shape], {}).json()["errors"]}
    assert required == set(schema.get("required", []))


@pytest.mark.parametrize("shape", INPUTS)
def test_the_examples_of_the_document_are_valid(operator: Api, shape: str) -> None:
    document = json.loads(operator.get("/api/v1/openapi.json").content)
    examples = document["components"]["schemas"][shape]["examples"]
    assert examples
    for example in examples:
        answer = operator(*INPUTS[shape], example)
        refused = "" if answer.status_code < 300 else answer.json()["code"]
        # The namespace of one example may have been declared by another, with other shards.
        assert refused in ("", "not_found", "already_exists", "immutable"), answer.content


def test_calls_of_the_past_do_not_make_statistics_slow(acme: Api, django_assert_max_num_queries: Any) -> None:
    assert ServiceCall.objects.for_tenant(acme.tenant.tenant_id).count() == 0
    acme.get("/api/v1/stats")  # by which the use of the key is noted
    with django_assert_max_num_queries(20):
        acme.get("/api/v1/stats")


def test_more_tenants_need_no_more_queries(operator: Api, settings: Any) -> None:
    def count_queries() -> list[int]:
        operator.get("/service-calls")
        clear_caches()
        counts = []
        for path in ("/metrics", "/api/v1/stats"):
            with CaptureQueriesContext(connection) as queries:
                assert operator.get(path).status_code == 200
            counts.append(len(queries))
        return counts

    def create_calls(api: Api) -> None:
        create_ended_call(api, "Succeeded", 5, {})
        create_ended_call(api, "Failed", 5, {"errorMeta": {"kind": "Timeout"}})

    create_calls(operator)
    count = count_queries()
    for number in range(10):
        create_calls(create_api(create_tenant(f"t{number}")))
    assert count_queries() == count
    assert operator.get("/api/v1/stats").json()["outcomes"]["byErrorKind"] == {"Timeout": 11}


def test_a_sample_is_of_the_latest_calls(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_sample, "MIN_SAMPLE", 2)
    monkeypatch.setattr(recent_sample, "MAX_SAMPLE", 4)
    for minutes, late in [(1, 7)] * 3 + [(14, 900)] * 20:
        create_ended_call(acme, "Succeeded", late, {}, minutes)
    found = acme.get("/api/v1/stats?window=15m").json()
    assert (found["throughput"]["ended"], found["latenessMs"]["p99"]) == (23, 7.0)


def test_statistics_name_the_oldest_overdue_call_of_all_tenants(
    operator: Api, intruder: Api, acme: Api
) -> None:
    now = db_now()
    for api, minutes in ((intruder, 3), (acme, 2)):
        due = now - timedelta(minutes=minutes)
        ServiceCallFactory(tenant_id=api.tenant.tenant_id, status="Scheduled", due_at=due)
    with pin_time(now):
        assert operator.get("/api/v1/stats").json()["backlog"]["overdue"] == 2
        assert operator.get("/api/v1/stats").json()["oldestOverdueSeconds"] == 180
        assert acme.get("/api/v1/stats").json()["oldestOverdueSeconds"] == 120
