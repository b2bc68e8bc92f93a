"""Values that the form for a new call starts with: those of a copied call, a curl command, or a restored form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import QueryDict

from eventservice.api.formats import format_duration
from eventservice.api.parsers import parse_json
from eventservice.api.problems import Problem
from eventservice.api.schema.submissions import DEFAULT_TIMEOUT
from eventservice.console.calls.curl import CurlRequest, parse_curl
from eventservice.console.calls.local_time import split_instant
from eventservice.console.calls.presenters.http_exchange import format_json
from eventservice.console.calls.request_form import HeaderRow, read_header_rows
from eventservice.tenants.models import DEFAULT_NAMESPACE, Tenant
from execution.redaction import MASK, mask_query, mask_stored_headers
from orchestration.queries.calls import CallDetails
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, LIVE

# A line for each item, with its indentation, can make a body thirty times as long.
MAX_FORMATTED_LENGTH = 100_000


def find_only_tenant() -> str:
    """Return the id of the active tenant if there is only one."""
    active = list(Tenant.objects.filter(active=True).values_list("tenant_id", flat=True)[:2])
    return str(active[0]) if len(active) == 1 else ""


def build_initial_from_call(call: CallDetails, *, as_sent: bool = False) -> dict[str, Any]:
    """Return the values of a copy, without secrets. `as_sent` includes the favorite and the chosen time."""
    spec = call.request_spec
    body = spec.get("body")
    initial: dict[str, Any] = {
        "tenant": str(call.tenant_id),
        "name": call.name,
        "method": spec["method"],
        "url": mask_query(spec["url"]),
        "headers": _copy_header_rows(spec.get("headers") or {}),
        "body_kind": "text" if isinstance(body, str) else "json",
        "body": "" if body is None else body if isinstance(body, str) else format_json(body),
        "tags": ", ".join(sorted(set(call.tags) - {FAVORITE})),
        "timeout": "" if call.timeout_seconds == DEFAULT_TIMEOUT else f"{call.timeout_seconds:g}",
        "namespace": "" if call.namespace == DEFAULT_NAMESPACE else call.namespace,
        "delivery": call.delivery,
        **_format_retry_policy(call.retry_policy),
    }
    if as_sent:
        initial["favorite"] = FAVORITE in call.tags
        if call.status in LIVE and not call.attempt and call.due_at > call.submitted_at:
            initial |= {"when": "schedule", **split_instant(call.due_at)}
    return initial


def _copy_header_rows(headers: Mapping[str, Any]) -> list[HeaderRow]:
    hint = "Secrets are not copied. Enter this one again, or use Replay."
    return [
        HeaderRow(name, "", hint=hint) if value == MASK else HeaderRow(name, value)
        for name, value in mask_stored_headers(headers).items()
    ]


def _format_retry_policy(stored: Mapping[str, Any] | None) -> dict[str, str]:
    if stored is None:
        return {}
    policy = RetryPolicy.from_stored(stored)
    return {
        "max_attempts": str(policy.max_attempts),
        "max_attempts_duration": format_duration(policy.max_attempts_duration) or "",
        "initial_interval": format_duration(policy.initial_interval) or "",
        "backoff_multiplier": f"{policy.backoff_multiplier:g}",
        "max_interval": format_duration(policy.max_interval) or "",
    }


def import_curl(data: QueryDict) -> tuple[dict[str, Any], list[str]]:
    """Return the values that the typed curl command changes, and notes about it. Raise InvalidCurl."""
    request = parse_curl(data.get("curl", ""))
    host = request.url.split("://")[-1].split("/")[0].split("?")[0]
    body = _format_json_body(request)
    changes = {
        "name": data.get("name") or f"{request.method} {host}"[:200],
        "method": request.method,
        "url": request.url,
        "headers": [HeaderRow(name, value) for name, value in request.headers],
        "body_kind": "json" if request.body is None or body is not None else "text",
        "body": request.body or "" if body is None else body,
        "timeout": request.timeout_seconds or data.get("timeout", ""),
        "curl": "",
    }
    return changes, request.notes


def _format_json_body(request: CurlRequest) -> str | None:
    media_types = [value.lower() for name, value in request.headers if name.lower() == "content-type"]
    if request.body is None or not any("json" in media_type for media_type in media_types):
        return None
    try:
        body = parse_json(request.body)
    except Problem:
        return None
    if not isinstance(body, dict | list):
        return None
    return request.body if len(request.body) > MAX_FORMATTED_LENGTH else format_json(body)


def list_header_rows_without_values(data: QueryDict) -> list[HeaderRow]:
    """Return the rows of a form that the browser restored. It does not store the values of headers."""
    hint = "The value was not stored. Enter it again."
    return [HeaderRow(row.name, hint=hint) for row in read_header_rows(data) if row.name.strip()]
