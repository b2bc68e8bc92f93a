"""What the tests of the Request and the Details page share: the form as a browser would send it, and where calls are."""

from __future__ import annotations

import html
import re
import uuid
from typing import Any

from django.test import Client
from django.urls import reverse

from orchestration.models import ServiceCall

NEW = "/calls/new/"
# Who does not ask for pages is given the API's problems.
BROWSER = {"Accept": "text/html"}
CANARY = "c4n4ry-5ecret"


def empty_form(client: Client, address: str = NEW) -> dict[str, Any]:
    """The fields of the form that the page shows, as they are filled."""
    page = client.get(address).content.decode()
    key = re.search(r'name="key" value="([^"]+)"', page)
    tenant = re.search(r'<option value="([0-9a-f-]{36})"', page)
    assert key
    assert tenant
    return {"key": key[1], "tenant": tenant[1], "method": "POST", "when": "now", "body_kind": "json"}


def filled(client: Client, **fields: Any) -> dict[str, Any]:
    return {
        **empty_form(client),
        "do": "submit",
        "name": "greet",
        "url": "http://target.test/hook",
        **fields,
    }


def calls() -> list[ServiceCall]:
    return list(ServiceCall.across_tenants.order_by("submitted_at", "service_call_id"))


def address_of(tenant_id: uuid.UUID, service_call_id: uuid.UUID, name: str = "call") -> str:
    return reverse(f"console:{name}", args=[tenant_id, service_call_id])


def text_of(response: Any) -> str:
    """What a reader sees of a page: without tags, with one space between words."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
