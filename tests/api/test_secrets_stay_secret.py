"""No secret is in responses, events, logs or a dump of the database (property P12)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction

from eventservice.kernel.ids import new_id
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.models import Tenant
from execution.models import HttpExecution
from execution.redaction import MASK
from orchestration import lifecycle
from orchestration.lifecycle.attempts import StartedCall
from orchestration.models import ServiceCall
from tests.api.conftest import SPEC, Api, build_submission, get_errors
from timers.port import Timer

pytestmark = pytest.mark.django_db

CANARY = "c4n4ry-5ecret"
SIGNING = "whsec_" + "C4n4ry" * 6
SECRET_HEADERS = {
    "Authorization": f"Bearer {CANARY}",
    "Cookie": f"session={CANARY}",
    "X-Api-Key": CANARY,
    "X-Auth-Token": CANARY,
    "X-Named-By-Tenant": CANARY,
}


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: Any) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG):
        yield


def dump_database() -> str:
    """Return every value of every table."""
    texts = []
    with connection.cursor() as cursor:
        for model in apps.get_models():
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(model._meta.db_table)}")
            texts += [str(value) for row in cursor.fetchall() for value in row]
    return "\n".join(texts)


def start_attempt(service_call_id: str) -> list[StartedCall]:
    """Start an attempt as the engine does, which logs it before it is sent."""
    call = ServiceCall.across_tenants.get(service_call_id=service_call_id)
    with transaction.atomic():
        timer = Timer(call.tenant_id, call.service_call_id, call.correlation_id, call.due_at, 0, call.host)
        return lifecycle.start([timer], new_id())


def run(service_call_id: str) -> None:
    (started,) = start_attempt(service_call_id)
    assert CANARY not in str(started.request)


def collect_responses(acme: Api, operator: Api) -> Iterator[bytes]:
    operator("PATCH", "", {"secretHeaders": ["x-named-by-tenant"], "signingSecret": SIGNING})
    clear_caches()
    spec = {**SPEC, "headers": SECRET_HEADERS}
    made = acme.post("/service-calls", build_submission(requestSpec=spec, idempotencyKey="k"))
    yield made.content
    path = f"/service-calls/{made.json()['serviceCallId']}"
    run(made.json()["serviceCallId"])
    yield acme.post("/service-calls", build_submission(requestSpec=spec, idempotencyKey="k")).content
    yield acme.post(
        "/service-calls", build_submission(requestSpec=spec, idempotencyKey="k", name="other")
    ).content
    yield acme.post("/service-calls", build_submission(requestSpec={**spec, "url": "x"}, color=1)).content
    bad = {**SECRET_HEADERS, "X-Secret-Key": f"{CANARY}\n", "Host": CANARY}
    yield acme.post("/service-calls", build_submission(requestSpec={**spec, "headers": bad})).content
    yield acme.post(
        "/service-calls/batch", {"items": [build_submission(requestSpec=spec), {"requestSpec": spec}]}
    ).content
    for part in ("", "/events", "/executions"):
        yield acme.get(path + part).content
    other = acme.submit(requestSpec=spec)
    acme.post(f"/service-calls/{other['serviceCallId']}/cancel")
    yield acme.post(f"/service-calls/{other['serviceCallId']}/replay").content
    for listing in ("/service-calls", "", "/api-keys", "/api/v1/stats", "/metrics"):
        yield acme.get(listing).content
    yield operator.get("/api/v1/tenants").content


def test_no_secret_is_shown_anywhere(acme: Api, operator: Api, caplog: Any) -> None:
    said = b"\n".join(collect_responses(acme, operator)).decode()
    assert "••••••" in said
    written = dump_database()
    for secret in (CANARY, SIGNING, acme.key.rsplit("_", 1)[1], operator.key.rsplit("_", 1)[1]):
        for where, text in (("API", said), ("database", written), ("logs", caplog.text)):
            assert secret not in text, where


def test_secrets_in_the_query_of_a_url_are_masked_wherever_it_is_shown(acme: Api, operator: Api) -> None:
    url = f"{SPEC['url']}?page=7&access_token={CANARY}&X-Amz-Signature={CANARY}"
    spec = {**SPEC, "url": url}
    made = acme.post("/service-calls", build_submission(requestSpec=spec))
    path = f"/service-calls/{made.json()['serviceCallId']}"
    start_attempt(made.json()["serviceCallId"])
    timer = {"id": "one", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": url}
    responses = [
        made, acme.get(path), acme.get("/service-calls"), acme.get(f"{path}/executions"), acme.get(f"{path}/events"),
        acme.post("/timers/create", timer), acme.post("/timers/get", {"timerId": "one", "namespace": "default"}), acme.get("/timers"),
    ]  # fmt: skip
    for response in responses:
        assert response.status_code < 300, response.content
        assert CANARY not in response.content.decode()
    shown = f"{SPEC['url']}?page=7&access_token={MASK}&X-Amz-Signature={MASK}"
    assert acme.get(path).json()["requestSpec"]["url"] == shown
    assert acme.get(f"{path}/executions").json()["items"][0]["request"]["url"] == shown
    assert CANARY not in str(HttpExecution.across_tenants.values_list("request_url", flat=True))
    stored = ServiceCall.across_tenants.get(service_call_id=made.json()["serviceCallId"])
    assert stored.request_spec["url"] == url, "it is needed to send the request"


def test_a_masked_request_that_is_submitted_again_is_refused(acme: Api) -> None:
    spec = {**SPEC, "url": f"{SPEC['url']}?token={CANARY}", "headers": {"Authorization": CANARY}}
    shown = acme.submit(requestSpec=spec)["requestSpec"]
    refused = acme.post("/service-calls", build_submission(requestSpec=shown))
    rule = f"contains a masked secret ({MASK}): enter its value again"
    assert get_errors(refused) == {"/requestSpec/url": rule, "/requestSpec/headers/Authorization": rule}


def test_a_secret_would_be_noticed(acme: Api) -> None:
    acme.submit(name=CANARY)
    assert CANARY in dump_database()
    assert Tenant.objects.count() == 1
