"""The attempt log, read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from eventservice.adminsite.change_lists import LATEST, Recent, TenantFilter, among_latest
from eventservice.adminsite.columns import call_link, column, document, identifier, moment, tenant, took, when
from eventservice.adminsite.composite_pk import uuid_of
from eventservice.adminsite.model_admin import Domain
from eventservice.tenants.directory import list_tenant_ids
from execution.models import HttpExecution
from execution.redaction import mask_stored_headers


class EndedFilter(Recent):
    title = f"end (of the latest {LATEST:,})"
    parameter_name = "end"
    names = ("end",)
    values = (("open", "Under way"), ("answered", "Answered"), ("failed", "Failed"))

    def narrow(self, queryset: QuerySet[Any], chosen: str) -> QuerySet[Any]:
        conditions = {
            "open": Q(finished_at__isnull=True),
            "answered": Q(finished_at__isnull=False, error_kind__isnull=True),
            "failed": Q(error_kind__isnull=False),
        }
        return among_latest(queryset).filter(conditions[chosen])


@admin.register(HttpExecution)
class HttpExecutionAdmin(Domain):
    heavy = ("request_headers", "request_body", "response_headers", "response_body", "error_message")
    list_display = (
        identifier("execution_id", "id"),
        tenant,
        call_link(short=True),
        "attempt",
        column("request", lambda row: f"{row.request_method} {_cut(row.request_url)}"),
        "response_status",
        "error_kind",
        took("latency_ms"),
        when("started_at"),
    )
    fieldsets = (
        (None, {"fields": ("execution_id", tenant, call_link(), "attempt", "node", moment("started_at"), moment("finished_at"))}),
        (
            "Request",
            {
                "fields": (
                    "request_method",
                    "request_url",
                    document("headers", lambda row: mask_stored_headers(row.request_headers or {})),
                    document("body", lambda row: row.request_body),
                )
            },
        ),
        (
            "Response",
            {
                "fields": (
                    "response_status",
                    took("latency_ms"),
                    "phases",
                    document("headers", lambda row: mask_stored_headers(row.response_headers or {})),
                    document("body", lambda row: row.response_body),
                    "response_size",
                    "error_kind",
                    "error_message",
                )
            },
        ),
    )  # fmt: skip
    list_filter = (TenantFilter, EndedFilter)
    search_help_text = "A call's id, of any tenant."
    ordering = ("-service_call_id", "-execution_id")

    def find(self, request: HttpRequest, text: str) -> Q:
        wanted = uuid_of(text)
        return Q(tenant_id__in=list_tenant_ids(), service_call_id=wanted) if wanted else Q(pk__in=[])


def _cut(url: str, most: int = 60) -> str:
    return url if len(url) <= most else f"{url[:most]}…"
