"""Secret header values are in no event and in no table in plain text; no event has a body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.models import Tenant
from execution.models import HttpExecution
from orchestration import lifecycle
from orchestration.commands import RequestSpec
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from outbox.models import OutboxEvent
from tests.orchestration.support import URL, ManualEngine, build_error, build_response, submit

pytestmark = pytest.mark.django_db

SECRET, CONTENT = "c4n4ry-s3cret", "c4n4ry-body"
REQUEST = RequestSpec(
    "POST",
    URL,
    {
        "Authorization": f"Bearer {SECRET}",
        "Cookie": SECRET,
        "X-Api-Key": SECRET,
        "X-Session": SECRET,
        "Accept": "a/b",
    },
    {"text": CONTENT},
)


def run_calls_to_every_end(manual_engine: ManualEngine, tenant: Any) -> None:
    """Let calls be retried, fail, succeed, be interrupted and canceled; the target sends secrets back."""
    Tenant.objects.filter(pk=tenant.pk).update(secret_headers=["X-SESSION"])
    clear_caches()
    policy = RetryPolicy(max_attempts=2, initial_interval=0)
    for _ in range(5):
        submit(tenant, request=REQUEST, retry_policy=policy)
    again, failed, succeeded, interrupted, canceled = manual_engine.start()
    lifecycle.cancel(tenant.tenant_id, canceled.key.service_call_id)
    shown = {"Set-Cookie": SECRET, "X-Auth-Token": SECRET}
    manual_engine.finish(
        (again, build_error()),
        (failed, build_response(status=400, body=CONTENT.encode(), headers=shown)),
        (succeeded, build_response(body=CONTENT.encode(), headers=shown)),
        (canceled, build_response(status=500, body=CONTENT.encode(), headers=shown)),
    )
    lifecycle.resolve_interrupted([interrupted.key])
    lifecycle.cancel(tenant.tenant_id, again.key.service_call_id)


def test_events_show_neither_secrets_nor_bodies(manual_engine: ManualEngine, tenant: Any) -> None:
    run_calls_to_every_end(manual_engine, tenant)
    events = OutboxEvent.objects.for_tenant(tenant.tenant_id)
    assert len(set(events.values_list("event_type", flat=True))) == 8
    told = json.dumps(list(events.values_list("event_payload", flat=True)), ensure_ascii=False)
    for word in (SECRET, CONTENT, "Bearer", "••••••"):
        assert word not in told


def test_no_table_holds_a_secret_in_plain_text(manual_engine: ManualEngine, tenant: Any) -> None:
    run_calls_to_every_end(manual_engine, tenant)
    with connection.cursor() as cursor:
        for model in (ServiceCall, HttpExecution, OutboxEvent):
            cursor.execute(f"SELECT * FROM {model._meta.db_table}")
            assert SECRET not in str(cursor.fetchall())


def test_the_stored_request_is_decrypted_only_to_be_sent(manual_engine: ManualEngine, tenant: Any) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(secret_headers=["x-session"])
    clear_caches()
    submit(tenant, request=REQUEST)
    shown = manual_engine.start_one().request.masked_headers
    assert shown == dict.fromkeys(["Authorization", "Cookie", "X-Api-Key", "X-Session"], "••••••") | {
        "Accept": "a/b"
    }
