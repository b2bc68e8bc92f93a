"""Helpers for tests of the pages of calls: the form for a new call as a browser sends it, URLs, and page texts."""

from __future__ import annotations

import html
import re
import uuid
from typing import Any

from django.test import Client
from django.urls import reverse

from orchestration.models import ServiceCall

NEW = "/calls/new/"
# Without this header, errors are the API's problems instead of pages.
BROWSER = {"Accept": "text/html"}
CANARY = "c4n4ry-5ecret"


def empty_form(client: Client, address: str = NEW) -> dict[str, Any]:
    """Return the fields of the form at this URL with their initial values."""
    page = client.get(address).content.decode()
    key = re.search(r'name="key" value="([^"]+)"', page)
    tenant = re.search(r'<option value="([0-9a-f-]{36})"', page)
    assert key
    assert tenant
    return {"key": key[1], "tenant": tenant[1], "method": "POST", "when": "now", "body_kind": "json"}


def fill_form(client: Client, **fields: Any) -> dict[str, Any]:
    return {
        **empty_form(client),
        "do": "submit",
        "name": "greet",
        "url": "http://target.test/hook",
        **fields,
    }


def list_calls() -> list[ServiceCall]:
    return list(ServiceCall.across_tenants.order_by("submitted_at", "service_call_id"))


def build_call_url(tenant_id: uuid.UUID, service_call_id: uuid.UUID, name: str = "call") -> str:
    return reverse(f"console:{name}", args=[tenant_id, service_call_id])


def read_text(response: Any) -> str:
    """Return the text of a page without tags, with single spaces between words."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
