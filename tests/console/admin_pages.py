"""The admin as its tests use it: addresses, actions, and what a page tells."""

from __future__ import annotations

import html
import re
from typing import Any

from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from eventservice.adminsite.composite_pk import format_key


def list_of(model: str, **query: Any) -> str:
    """`app_model`, as Django names its addresses."""
    return reverse(f"admin:{model}_changelist", query=query or None)


def page_of(model: str, row: Any, page: str = "change") -> str:
    return reverse(f"admin:{model}_{page}", args=[quote(format_key(row))])


def shown(response: Any) -> str:
    assert response.status_code == 200, response.headers
    text: str = response.content.decode()
    return html.unescape(text)


def rows_in(response: Any) -> list[str]:
    """The texts of the rows of a list."""
    body = re.search(r"<tbody>(.*)</tbody>", shown(response), re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL) if body else []
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]


def act_on(
    client: Client, model: str, action: str, rows: list[Any], *, confirmed: str = "page", **more: Any
) -> Any:
    """As the page posts it that asks, under its own key; without `confirmed`, as the list does."""
    data = {"action": action, "_selected_action": [format_key(row) for row in rows], **more}
    data |= {"confirmed": confirmed} if confirmed else {"index": "0"}
    return client.post(list_of(model), data, follow=True)


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]
