"""Columns and fields of the admin: times, JSON, bodies as text, links. Secrets are masked."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection
from datetime import UTC
from typing import Any, Protocol
from urllib.parse import urlencode

from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from eventservice.kernel.secrets import is_encrypted
from eventservice.operators.formatting import format_instant, format_milliseconds, format_size
from eventservice.tenants.models import Tenant
from execution.redaction import MASK

NOTHING = "–"
MAX_SHOWN = 20_000  # characters

Column = Callable[[Any], Any]  # of a row, which only the caller knows the model of, the value to show


class TenantRow(Protocol):
    """A row of a model with a tenant."""

    @property
    def tenant_id(self) -> uuid.UUID | None: ...


def column(label: str, show: Column, empty: str = NOTHING) -> Column:
    """Return a read-only column for `list_display` and `fields`."""

    def render(row: Model) -> object:
        return show(row)

    render.__name__ = label.replace(" ", "_")
    render.short_description = label  # type: ignore[attr-defined]
    render.empty_value_display = empty  # type: ignore[attr-defined]
    return render


def time_column(name: str) -> Column:
    return column(name.removesuffix("_at").replace("_", " "), lambda row: format_instant(getattr(row, name)))


def list_time_column(name: str) -> Column:
    """Return a narrow time column for lists: to the second, in UTC as its heading says."""

    def show(row: Model) -> SafeString | str:
        at = getattr(row, name)
        if at is None:
            return NOTHING
        return format_html(
            '<span title="{}">{}</span>', format_instant(at), f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
        )

    return column(f"{name.removesuffix('_at').replace('_', ' ')} (UTC)", show)


def latency_column(name: str) -> Column:
    return column(name.removesuffix("_ms"), lambda row: format_milliseconds(getattr(row, name)))


def short_id_column(name: str, label: str = "") -> Column:
    """Return a column with the end of an id, in which neighboring ids differ."""
    return column(label or name.replace("_", " "), lambda row: _short(getattr(row, name)))


def _short(value: object) -> SafeString | str:
    return NOTHING if value is None else format_html('<span title="{}">…{}</span>', value, str(value)[-8:])


def status_column(name: str) -> Column:
    def show(row: Model) -> SafeString:
        value = getattr(row, name)
        return format_html('<span class="pill {}">{}</span>', value.lower(), value)

    return column(name, show)


def text_column(label: str, show: Column) -> Column:
    """Return a column that shows JSON or a string as text, shortened if it is long."""
    return column(label, lambda row: _document(show(row)))


def json_column(name: str) -> Column:
    return text_column(name.replace("_", " "), lambda row: getattr(row, name))


def _document(value: object) -> SafeString | str:
    if value is None or value == "":
        return NOTHING
    text = value if isinstance(value, str) else json.dumps(mask_secrets(value), indent=2, ensure_ascii=False)
    if len(text) <= MAX_SHOWN:
        return format_html('<pre class="document">{}</pre>', text)
    note = f"The first {MAX_SHOWN:,} characters of {format_size(len(text.encode()))}."
    return format_html('<pre class="document">{}</pre><span class="help">{}</span>', text[:MAX_SHOWN], note)


def mask_secrets(value: object) -> object:
    """Return a JSON value with every encrypted string masked, at any depth."""
    match value:
        case {"encrypted": _}:
            return MASK
        case dict():
            return {name: mask_secrets(part) for name, part in value.items()}
        case list():
            return [mask_secrets(part) for part in value]
        case str() if is_encrypted(value):
            return MASK
    return value


def _tenant(row: TenantRow) -> str:
    name = getattr(row, "tenant_name", None)
    if name is None and row.tenant_id is not None:
        name = Tenant.objects.filter(pk=row.tenant_id).values_list("name", flat=True).first()
    return name or (NOTHING if row.tenant_id is None else str(row.tenant_id))


tenant_column = column("tenant", _tenant)


def link_column(label: str, url: Callable[[Any], str], text: Column) -> Column:
    return column(label, lambda row: format_html('<a href="{}">{}</a>', url(row), text(row)))


def build_list_url(model: str, **query: object) -> str:
    """Return the address of a change list; `model` is `app_model`, as in the names of Django's URLs."""
    return f"{reverse(f'admin:{model}_changelist')}?{urlencode(query)}"


def call_column(attribute: str = "service_call_id", *, short: bool = False) -> Column:
    """Return a column that links to the call in the admin."""

    def url(row: TenantRow) -> str:
        key = f"{row.tenant_id}~{getattr(row, attribute)}"
        return reverse("admin:orchestration_servicecall_change", args=[key])

    def text(row: Model) -> object:
        return _short(getattr(row, attribute)) if short else getattr(row, attribute)

    return link_column("call", url, text)


def links_column(label: str, targets: Callable[[Any], Collection[tuple[str, str]]]) -> Column:
    def show(row: Model) -> SafeString:
        return format_html_join(" · ", '<a href="{1}">{0}</a>', targets(row))

    return column(label, show)
