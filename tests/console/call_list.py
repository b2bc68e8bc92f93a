"""Helpers for tests of the list of calls: calls to list, and readers of what a page shows."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from html import unescape
from typing import Any

from django.test import Client

from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.lifecycle import submit
from tests.factories import NOON, ServiceCallFactory, ServiceCallTagFactory

ENDED = {"Succeeded", "Failed", "Canceled"}


def make_call(
    tenant: Tenant,
    minutes: float = 0,
    *,
    status: str = "Scheduled",
    tags: tuple[str, ...] = (),
    **columns: Any,
) -> Any:
    """Create a call that is submitted this many minutes after noon and due an hour later."""
    at = NOON + timedelta(minutes=minutes)
    due = at + timedelta(hours=1)
    given = {"submitted_at": at, "due_at": due, "finished_at": due if status in ENDED else None}
    call = ServiceCallFactory(tenant_id=tenant.tenant_id, status=status, **{**given, **columns})
    for tag in tags:
        ServiceCallTagFactory(tenant_id=tenant.tenant_id, service_call_id=call.service_call_id, tag=tag)
    return call


def submit_calls(tenant: Tenant, count: int, **changes: Any) -> list[uuid.UUID]:
    """Submit calls through the lifecycle, with timers and events. They are due in an hour."""
    given: dict[str, Any] = {"delay": timedelta(hours=1), **changes}
    commands = [
        SubmitServiceCall(tenant.tenant_id, f"job {n}", RequestSpec("POST", "http://target.test/"), **given)
        for n in range(count)
    ]
    return [one.service_call_id for one in submit(commands)]


def get_list_page(client: Client, query: str = "", status: int = 200) -> str:
    response = client.get(f"/calls/?{query}", HTTP_ACCEPT="text/html")
    assert response.status_code == status, response.content.decode()[:2000]
    return squeeze(response.content.decode())


def squeeze(text: str) -> str:
    """Return the text with single spaces, however its template is wrapped."""
    return " ".join(text.split())


def read_names(page: str) -> list[str]:
    """Return the names of the calls on a page, in order."""
    return [unescape(name) for name in re.findall(r'<a class="name clip"[^>]*>([^<]*)</a>', page)]


def read_chips(page: str) -> dict[str, str]:
    found = re.findall(r'id="chip-(\w+)"[^>]*> \w+ <span class="count">([^<]*)</span>', page)
    return dict(found)


def read_pager(page: str) -> str:
    (text,) = re.findall(r'<nav class="pager".*?<span class="number">([^<]*)</span>', page, re.DOTALL)
    return str(text)


def find_link(page: str, rel: str) -> str | None:
    found = re.search(rf'rel="{rel}" href="([^"]*)"', page)
    return unescape(found[1]) if found else None


def read_hidden_field(page: str, name: str) -> str:
    (value,) = re.findall(rf'<input type="hidden" name="{name}" value="([^"]*)"', page)
    return unescape(value)
