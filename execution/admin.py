"""The attempt log, read-only."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest

from eventservice.adminsite.change_lists import (
    MAX_LATEST_ROWS,
    RecentRowsFilter,
    TenantFilter,
    limit_to_latest,
)
from eventservice.adminsite.columns import (
    call_column,
    column,
    latency_column,
    list_time_column,
    short_id_column,
    tenant_column,
    text_column,
    time_column,
)
from eventservice.adminsite.composite_pk import parse_uuid
from eventservice.adminsite.model_admin import LargeTableAdmin
from eventservice.tenants.directory import list_tenant_ids
from execution.models import HttpExecution
from execution.redaction import mask_query, mask_stored_headers


class EndedFilter(RecentRowsFilter):
    title = f"end (of the latest {MAX_LATEST_ROWS:,})"
    parameter_name = "end"
    names = ("end",)
    values = (("open", "In progress"), ("answered", "Responded"), ("failed", "Failed"))

    def apply(self, queryset: QuerySet[Model], chosen: str) -> QuerySet[Model]:
        conditions = {
            "open": Q(finished_at__isnull=True),
            "answered": Q(finished_at__isnull=False, error_kind__isnull=True),
            "failed": Q(error_kind__isnull=False),
        }
        return limit_to_latest(queryset).filter(conditions[chosen])


@admin.register(HttpExecution)
class HttpExecutionAdmin(LargeTableAdmin[HttpExecution]):
    deferred_columns = (
        "request_headers",
        "request_body",
        "response_headers",
        "response_body",
        "error_message",
    )
    list_display = (
        short_id_column("execution_id", "id"),
        tenant_column,
        call_column(short=True),
        "attempt",
        column("request", lambda row: f"{row.request_method} {_cut(mask_query(row.request_url))}"),
        "response_status",
        "error_kind",
        latency_column("latency_ms"),
        list_time_column("started_at"),
    )
    fieldsets = (
        (None, {"fields": ("execution_id", tenant_column, call_column(), "attempt", "node", time_column("started_at"), time_column("finished_at"))}),
        (
            "Request",
            {
                "fields": (
                    "request_method",
                    column("URL", lambda row: mask_query(row.request_url)),
                    text_column("headers", lambda row: mask_stored_headers(row.request_headers or {})),
                    text_column("body", lambda row: row.request_body),
                )
            },
        ),
        (
            "Response",
            {
                "fields": (
                    "response_status",
                    latency_column("latency_ms"),
                    "phases",
                    text_column("headers", lambda row: mask_stored_headers(row.response_headers or {})),
                    text_column("body", lambda row: row.response_body),
                    "response_size",
                    "error_kind",
                    "error_message",
                )
            },
        ),
    )  # fmt: skip
    list_filter = (TenantFilter, EndedFilter)
    search_help_text = "A call id of any tenant."
    ordering = ("-service_call_id", "-execution_id")

    def build_search(self, request: HttpRequest, text: str) -> Q:
        wanted = parse_uuid(text)
        return Q(tenant_id__in=list_tenant_ids(), service_call_id=wanted) if wanted else Q(pk__in=[])


def _cut(url: str, most: int = 60) -> str:
    return url if len(url) <= most else f"{url[:most]}…"
