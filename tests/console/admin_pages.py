"""Helpers for tests of the admin: URLs, actions, and readers of pages."""

from __future__ import annotations

import html
import re
from typing import Any

from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from eventservice.adminsite.composite_pk import format_key


def build_list_url(model: str, **query: Any) -> str:
    """Return the URL of a list. `model` is `app_model`, as in the names of Django's URLs."""
    return reverse(f"admin:{model}_changelist", query=query or None)


def build_page_url(model: str, row: Any, page: str = "change") -> str:
    return reverse(f"admin:{model}_{page}", args=[quote(format_key(row))])


def read_page(response: Any) -> str:
    assert response.status_code == 200, response.headers
    text: str = response.content.decode()
    return html.unescape(text)


def read_rows(response: Any) -> list[str]:
    """Return the texts of the rows of a list."""
    body = re.search(r"<tbody>(.*)</tbody>", read_page(response), re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL) if body else []
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]


def run_action(
    client: Client, model: str, action: str, rows: list[Any], *, confirmed: str = "page", **more: Any
) -> Any:
    """Run an action as its confirmation page does, whose key is `confirmed`. Without it, run it as the list does."""
    data = {"action": action, "_selected_action": [format_key(row) for row in rows], **more}
    data |= {"confirmed": confirmed} if confirmed else {"index": "0"}
    return client.post(build_list_url(model), data, follow=True)


def read_messages(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]
