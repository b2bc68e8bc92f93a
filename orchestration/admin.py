"""Calls, their tags and their statistics, read-only. Actions on calls run commands of orchestration.lifecycle."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse

from eventservice.adminsite.actions import RowAction
from eventservice.adminsite.change_lists import (
    MAX_LATEST_ROWS,
    DateHierarchy,
    RecentRowsFilter,
    TenantFilter,
    build_key_filter,
    choice_filter,
    get_selected_tenant,
    is_search,
)
from eventservice.adminsite.columns import (
    build_list_url,
    call_column,
    column,
    json_column,
    links_column,
    list_time_column,
    short_id_column,
    status_column,
    tenant_column,
    text_column,
    time_column,
)
from eventservice.adminsite.composite_pk import parse_uuid
from eventservice.adminsite.model_admin import LargeTableAdmin, ReadOnlyAdmin
from eventservice.kernel.errors import Conflict
from eventservice.tenants.directory import list_tenant_ids
from eventservice.tenants.models import Namespace
from execution.redaction import mask_query, mask_stored_headers
from orchestration.models import (
    CallRollup,
    HostRollup,
    Resolution,
    RollupMark,
    ServiceCall,
    ServiceCallTag,
)
from orchestration.queries.calls import list_tags
from orchestration.states import FAVORITE, Status

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

M = TypeVar("M", bound=Model)

# How many calls a search returns for each index it uses.
MAX_FOUND = 200
MAX_VALUES = 20

# --- actions -------------------------------------------------------------------------------
# They import the lifecycle when they run: Django imports this module at the start of every command.


def _cancel(request: HttpRequest, call: ServiceCall) -> str:
    from orchestration import call_changes

    status = call_changes.cancel(call.tenant_id, call.service_call_id)
    return "canceled" if status == Status.CANCELED else "will be canceled unless the running attempt succeeds"


def _run_now(request: HttpRequest, call: ServiceCall) -> str:
    from orchestration import call_changes

    call_changes.reschedule(call.tenant_id, call.service_call_id, None)
    return "due now"


def _replay(request: HttpRequest, call: ServiceCall) -> str:
    from eventservice.operators.replay import replay_once

    key = f"{request.POST.get('confirmed')}-{call.service_call_id}"
    replay_once(request, call.tenant_id, call.service_call_id, key)
    return "replayed as new calls"


def _add_favorite(request: HttpRequest, call: ServiceCall) -> str:
    from orchestration import lifecycle

    if not lifecycle.add_tag(call.tenant_id, call.service_call_id, FAVORITE):
        raise Conflict("favorite", "It is already a favorite.")
    return "added to favorites"


ACTIONS = [
    RowAction(
        "cancel",
        "Cancel",
        _cancel,
        question="Scheduled calls are canceled. A running attempt is allowed to finish. Calls that have ended are refused.",
    ),
    RowAction(
        "replay",
        "Replay (retry)",
        _replay,
        question="A copy of each ended call runs now, as a new call. Calls that have not ended are refused, and so are "
        "failed calls that have already been replayed.",
    ),
    RowAction(
        "run-now",
        "Run now",
        _run_now,
        question="Scheduled calls become due now. All others are refused.",
    ),
    RowAction("favorite", "Add to favorites", _add_favorite),
]

# --- calls ----------------------------------------------------------------------------------------------------


class NamespaceFilter(RecentRowsFilter):
    title = f"namespace (of the latest {MAX_LATEST_ROWS:,})"
    parameter_name = column = "namespace"
    names = ("namespace",)

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Model]) -> Sequence[tuple[str, str]]:
        names = Namespace.objects.for_tenant(get_selected_tenant(request)).order_by("name")
        return [(name, name) for name in names.values_list("name", flat=True)[:100]]


def format_tags(call: ServiceCall) -> str:
    tags = list_tags(call.tenant_id, [call.service_call_id]).get(call.service_call_id, [])
    return ", ".join(sorted(tags)) or "–"


def list_related_links(call: ServiceCall) -> list[tuple[str, str]]:
    wanted = {"tenant": call.tenant_id, "q": call.service_call_id}
    return [
        ("attempts", build_list_url("execution_httpexecution", **wanted)),
        ("timer", build_list_url("timers_timerschedule", **wanted)),
        ("events", build_list_url("outbox_outboxevent", **wanted)),
    ]


@admin.register(ServiceCall)
class ServiceCallAdmin(LargeTableAdmin[ServiceCall]):
    deferred_columns = ("request_spec", "outcome_meta", "retry_policy")
    list_display = (
        "name",
        short_id_column("service_call_id", "id"),
        tenant_column,
        status_column("status"),
        list_time_column("submitted_at"),
        list_time_column("due_at"),
        "host",
        "namespace",
        "external_id",
        "attempt",
    )
    list_filter = (
        TenantFilter,
        choice_filter("status", Status.choices),
        DateHierarchy,
        NamespaceFilter,
    )
    search_help_text = (
        "A call id or correlation id of any tenant. For the selected tenant also the beginning of a name or host, or a "
        "complete idempotency key or timer id."
    )
    filters_kept_in_search = ("status", "namespace")
    actions = ACTIONS
    fieldsets = (
        (None, {"fields": ("name", "service_call_id", tenant_column, status_column("status"), column("tags", format_tags), links_column("more", list_related_links))}),
        ("Times", {"fields": (time_column("submitted_at"), time_column("due_at"), time_column("started_at"), time_column("finished_at"), time_column("deadline_at"))}),
        (
            "Request",
            {
                "fields": (
                    column("method and URL", lambda c: f"{c.request_spec['method']} {mask_query(c.request_spec['url'])}"),
                    text_column("headers", lambda c: mask_stored_headers(c.request_spec.get("headers") or {})),
                    text_column("body", lambda c: c.request_spec.get("body")),
                    "timeout_seconds",
                    "response_contract",
                    "delivery",
                    json_column("retry_policy"),
                )
            },
        ),
        ("Outcome", {"fields": (text_column("outcome", lambda c: c.outcome_meta), "attempt", "interruptions", "cancel_requested", "execution_id")}),
        ("Names", {"fields": ("namespace", "external_id", "idempotency_key", "correlation_id", "replay_of", "next_seq")}),
    )  # fmt: skip

    def view_on_site(self, obj: ServiceCall) -> str:
        return reverse("console:call", args=[obj.tenant_id, obj.service_call_id])

    def get_ordering(self, request: HttpRequest) -> Sequence[str]:
        """Return the order of the index that the list uses."""
        if is_search(request):
            return ("-service_call_id",)
        return (f"-{self.get_date_column(request)}", "-service_call_id")

    def get_date_column(self, request: HttpRequest) -> str | None:
        if is_search(request):
            return None
        return "due_at" if request.GET.get("status") else "submitted_at"

    def build_search(self, request: HttpRequest, text: str) -> Q:
        wanted = parse_uuid(text)
        found = find_by_ids(wanted) if wanted else find_by_text(get_selected_tenant(request), text)
        return build_key_filter("service_call_id", found)


# --- search: one query per index, because planners cannot be trusted with an OR of them ---

Found = tuple[uuid.UUID, uuid.UUID]


def find_by_ids(wanted: uuid.UUID) -> Iterator[Found]:
    calls = ServiceCall.across_tenants.filter(tenant_id__in=list_tenant_ids())
    for asked in ({"service_call_id": wanted}, {"correlation_id": wanted}):
        yield from calls.filter(**asked).values_list("tenant_id", "service_call_id")[:MAX_FOUND]


def find_by_text(tenant_id: uuid.UUID, text: str) -> Iterator[Found]:
    calls = ServiceCall.objects.for_tenant(tenant_id)
    namespaces = list(Namespace.objects.for_tenant(tenant_id).values_list("name", flat=True)[:MAX_VALUES])
    walks = (
        calls.filter(idempotency_key=text),
        calls.filter(namespace__in=namespaces, external_id=text),
        *list_queries_by_prefix(calls, "name", text),
        *list_queries_by_prefix(calls, "host", text),
    )
    each = (walk.values_list("tenant_id", "service_call_id")[:MAX_FOUND] for walk in walks)
    return islice(chain.from_iterable(each), 2 * MAX_FOUND)


def list_queries_by_prefix(
    calls: QuerySet[ServiceCall], column: str, text: str
) -> Iterator[QuerySet[ServiceCall]]:
    """Yield a query for the latest calls of each value that begins with the text, found by skipping along the index."""
    values = calls.filter(**{f"{column}__gte": text}).order_by(column).values_list(column, flat=True)
    value = values[:1].first()
    for _ in range(MAX_VALUES):
        if value is None or not value.startswith(text):
            return
        yield calls.filter(**{column: value}).order_by("-submitted_at")
        value = values.filter(**{f"{column}__gt": value})[:1].first()


# --- tags and statistics ----------------------------------------------------------------------------------


@admin.register(ServiceCallTag)
class ServiceCallTagAdmin(LargeTableAdmin[ServiceCallTag]):
    list_display = ("tag", tenant_column, call_column(short=True))
    fields = ("tag", tenant_column, call_column())
    list_filter = (TenantFilter,)
    search_help_text = "A call id of any tenant, or a complete tag of the selected tenant."
    ordering = ("-service_call_id", "-tag")

    def get_audit_subject(self, row: ServiceCallTag) -> str:
        return str(row.service_call_id)

    def build_search(self, request: HttpRequest, text: str) -> Q:
        wanted = parse_uuid(text)
        if wanted:
            return Q(tenant_id__in=list_tenant_ids(), service_call_id=wanted)
        return Q(tenant_id=get_selected_tenant(request), tag=text)


class RollupAdmin(LargeTableAdmin[M]):
    list_filter = (
        TenantFilter,
        choice_filter("resolution", Resolution.choices, preset=Resolution.HOUR),
        DateHierarchy,
    )

    def get_ordering(self, request: HttpRequest) -> Sequence[str]:
        return ("-starts_at", *(["host"] if self.model is HostRollup else []))

    def get_date_column(self, request: HttpRequest) -> str:
        return "starts_at"


@admin.register(CallRollup)
class CallRollupAdmin(RollupAdmin[CallRollup]):
    list_display = (
        list_time_column("starts_at"),
        "resolution",
        tenant_column,
        "succeeded",
        "failed",
        "canceled",
        "is_open",
    )


@admin.register(HostRollup)
class HostRollupAdmin(RollupAdmin[HostRollup]):
    list_display = (
        list_time_column("starts_at"),
        "resolution",
        tenant_column,
        "host",
        "succeeded",
        "failed",
        "canceled",
    )


@admin.register(RollupMark)
class RollupMarkAdmin(ReadOnlyAdmin[RollupMark]):
    list_display = (
        "tenant_id",
        tenant_column,
        list_time_column("covered_until"),
        list_time_column("counted_until"),
        list_time_column("history_until"),
    )
    fields = (*list_display, "version")
    ordering = ("tenant_id",)
