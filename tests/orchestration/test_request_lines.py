"""Method and URL of a call are read without its body, which may be too large for the process."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec
from orchestration.lifecycle.rows import MAX_REQUEST_LINE_LENGTH, lock_calls_without_bodies
from tests.orchestration.support import submit


@pytest.mark.parametrize(
    "body",
    [None, "x" * 2 * MAX_REQUEST_LINE_LENGTH, ["x"] * MAX_REQUEST_LINE_LENGTH],
    ids=["none", "text", "list"],
)
def test_a_request_line_is_read_without_the_body(body: Any, tenant: Tenant) -> None:
    request = RequestSpec("POST", 'https://example.test/?q="1"', {"X-Long": "y" * 1000}, body)
    call_id = submit(tenant, request=request)
    with transaction.atomic():
        ((locked, line),) = lock_calls_without_bodies([(tenant.pk, call_id)])
    assert locked.service_call_id == call_id
    assert line == {"method": "POST", "url": 'https://example.test/?q="1"'}
