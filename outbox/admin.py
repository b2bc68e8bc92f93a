"""Events and webhook deliveries, read-only apart from actions, and webhook endpoints, which can be edited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import F, Model, OrderBy, Q, QuerySet, lookups
from django.http import HttpRequest

from eventservice.adminsite.actions import RowAction
from eventservice.adminsite.change_lists import (
    AnyTenantFilter,
    ChoiceFilter,
    RecentRowsFilter,
    TenantFilter,
    choice_filter,
    is_search,
    parse_tenant_id,
)
from eventservice.adminsite.columns import (
    call_column,
    column,
    json_column,
    list_time_column,
    short_id_column,
    status_column,
    tenant_column,
    text_column,
    time_column,
)
from eventservice.adminsite.composite_pk import parse_uuid
from eventservice.adminsite.forms import SchemaModelForm
from eventservice.adminsite.model_admin import LargeTableAdmin, ReadOnlyAdmin, RoleAdmin
from eventservice.console.base.forms import Lines
from eventservice.db.sql import Unindexed
from eventservice.kernel.errors import Conflict
from eventservice.operators.roles import Role
from eventservice.tenants.directory import list_tenant_ids
from execution.redaction import mask_url
from outbox.models import DeliveryState, OutboxEvent, OutboxPartition, WebhookDelivery, WebhookEndpoint
from outbox.parking import skip, unpark
from outbox.publishers.webhook.endpoints import delete_endpoint, update_endpoint

# --- events -----------------------------------------------------------------------------------------------------


class PublishedFilter(ChoiceFilter):
    """A filter by the two indexes on unpublished events."""

    title = "published"
    parameter_name = "published"
    names = ("published",)
    values = (("waiting", "Waiting"), ("parked", "Parked or held"))

    def apply(self, queryset: QuerySet[Model], chosen: str) -> QuerySet[Model]:
        return queryset.filter(published_at__isnull=True, parked_at__isnull=chosen == "waiting")


class EventTenantFilter(AnyTenantFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        if request.GET.get("published") == "waiting" and self.value():
            # The backlog is smaller than all events of the tenant.
            return queryset.filter(lookups.Exact(Unindexed(F("tenant_id")), parse_tenant_id(self.value())))
        return super().queryset(request, queryset)


def _resolve(command: Callable[[int], bool], done: str) -> Callable[[HttpRequest, OutboxEvent], str]:
    def run(request: HttpRequest, event: OutboxEvent) -> str:
        if not command(event.pk):
            raise Conflict("not_parked", "It is not parked.")
        return done

    return run


@admin.register(OutboxEvent)
class OutboxEventAdmin(LargeTableAdmin[OutboxEvent]):
    deferred_columns = ("event_payload", "last_error")
    list_display = (
        "id", "event_type", tenant_column, "aggregate_type", call_column("aggregate_id", short=True), "aggregate_seq", list_time_column("created_at"),
        list_time_column("published_at"), list_time_column("parked_at"), "attempts", "partition",
    )  # fmt: skip
    fields = (
        "id", "event_type", tenant_column, "aggregate_type", call_column("aggregate_id"), "aggregate_seq", time_column("created_at"),
        time_column("published_at"), time_column("parked_at"), "attempts", text_column("last error", lambda row: row.last_error),
        "event_id", "correlation_id", "causation_id", "partition", json_column("event_payload"),
    )  # fmt: skip
    list_filter = (EventTenantFilter, PublishedFilter)
    search_help_text = "An event number, or the call id of any tenant."
    actions = [
        RowAction(
            "event-retry",
            "Retry (unpark)",
            _resolve(unpark, "to be retried"),
            question="Parked events are published again, followed by the events held behind them.",
        ),
        RowAction(
            "event-skip",
            "Skip",
            _resolve(skip, "skipped"),
            question="Parked events are never published. Publishing continues with the events held behind them.",
        ),
    ]

    def get_ordering(self, request: HttpRequest) -> Sequence[str | OrderBy]:
        """Return the order of the index that the list uses."""
        match request.GET.get("published"), request.GET.get("tenant") or None:
            case _ if is_search(request):
                return ("aggregate_id", "aggregate_seq")
            case "waiting", _:
                return ("partition", "id")
            case "parked", _:
                # Unindexed: the index of all events has this order to its end, the index of what is parked does not.
                return ("tenant_id", "aggregate_id", OrderBy(Unindexed(F("aggregate_seq"))))
            case _, str():
                return ("-aggregate_id", "-aggregate_seq")
        return ("-id",)

    def build_search(self, request: HttpRequest, text: str) -> Q:
        wanted = parse_uuid(text)
        if wanted:
            return Q(tenant_id__in=list_tenant_ids(), aggregate_id=wanted)
        return Q(pk=int(text)) if text.isascii() and text.isdecimal() and len(text) < 19 else Q(pk__in=[])


@admin.register(OutboxPartition)
class OutboxPartitionAdmin(ReadOnlyAdmin[OutboxPartition]):
    list_display = ("partition", "owner_id", time_column("claimed_at"), time_column("lease_until"), "version")
    fields = (*list_display, time_column("updated_at"), "metadata")
    ordering = ("partition",)


# --- webhooks -----------------------------------------------------------------------------------------------------


class EndpointForm(SchemaModelForm):
    schema = "eventservice.api.schema.webhooks.WebhookEndpointSchema"
    url = forms.CharField(label="URL", widget=forms.TextInput(attrs={"size": 80}))
    event_types = Lines(required=False, help_text="One per line. Leave empty to receive all events.")

    class Meta:
        model = WebhookEndpoint
        fields = ("url", "event_types", "active")

    def clean(self) -> dict[str, Any]:
        """Refuse a host to which the tenant's requests may not be sent."""
        # Imported here, because the admin is loaded before the API's schema can be.
        from eventservice.api.schema.webhooks import find_host_error

        values = super().clean()
        if "url" in self.changed_data and not self.errors:
            error = find_host_error(self.instance.tenant_id, values["url"])
            if error:
                self.add_error("url", self.describe_rule(error))
        return values


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(RoleAdmin[WebhookEndpoint]):
    """Webhook endpoints. Only the console creates them, since it shows their secrets once."""

    edit_role = Role.ADMIN
    form = EndpointForm
    audit_noun = "endpoint"
    audited_fields = ("event_types", "active")
    list_display = (
        column("URL", lambda row: mask_url(row.url)), tenant_column, "active", "disabled_reason", column("events", lambda row: ", ".join(row.event_types) or "all"),
        time_column("created_at"),
    )  # fmt: skip
    fields = (
        "url",
        "event_types",
        "active",
        "disabled_reason",
        tenant_column,
        "endpoint_id",
        time_column("created_at"),
        time_column("last_failed_at"),
    )
    readonly_fields = ("disabled_reason", tenant_column, "endpoint_id", *fields[-2:])
    list_filter = (AnyTenantFilter, "active")
    search_fields = ("url",)
    ordering = ("tenant_id", "endpoint_id")

    def get_search_fields(self, request: HttpRequest) -> Sequence[str]:
        """Allow search only to admins: it compares the whole URL, including parts that others do not see."""
        return self.search_fields if self.has_change_permission(request) else ()

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> WebhookEndpoint | None:
        """Mask the URL for users who may not change it."""
        found = super().get_object(request, object_id, from_field)
        if found is not None and not self.has_change_permission(request, found):
            found.url = mask_url(found.url)
        return found

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def save_model(
        self, request: HttpRequest, obj: WebhookEndpoint, form: EndpointForm, change: bool
    ) -> None:
        changes = {name: form.cleaned_data[name] for name in form.changed_data}
        update_endpoint(obj.tenant_id, obj.endpoint_id, **changes)

    def delete_model(self, request: HttpRequest, obj: WebhookEndpoint) -> None:
        """Delete an endpoint with its deliveries."""
        self.record(request, "delete", obj, url=mask_url(obj.url))
        delete_endpoint(obj.tenant_id, obj.endpoint_id)


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(LargeTableAdmin[WebhookDelivery]):
    deferred_columns = ("body", "last_error")
    list_display = (
        short_id_column("delivery_id", "id"), tenant_column, status_column("state"), "attempts", short_id_column("event_id", "event"),
        call_column("aggregate_id", short=True), short_id_column("endpoint_id", "endpoint"), list_time_column("created_at"),
        list_time_column("next_attempt_at"), list_time_column("finished_at"),
    )  # fmt: skip
    fields = (
        "delivery_id", tenant_column, status_column("state"), "attempts", text_column("last error", lambda row: row.last_error), "event_id",
        call_column("aggregate_id"), "aggregate_seq", "endpoint_id", time_column("created_at"), time_column("next_attempt_at"),
        time_column("finished_at"), text_column("body", lambda row: row.body),
    )  # fmt: skip
    list_filter = (TenantFilter, choice_filter("state", DeliveryState.choices, kind=RecentRowsFilter))
    search_help_text = "A delivery id or event id of any tenant."
    ordering = ("-delivery_id",)

    def build_search(self, request: HttpRequest, text: str) -> Q:
        wanted = parse_uuid(text)
        if wanted is None:
            return Q(pk__in=[])
        one = Q(tenant_id__in=list_tenant_ids(), delivery_id=wanted)
        known = WebhookDelivery.across_tenants.filter(one).exists()
        return one if known else Q(tenant_id__in=list_tenant_ids(), event_id=wanted)
