"""Events and deliveries, read-only but for what the outbox lets operators do; webhook endpoints, which are configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import F, OrderBy, Q, lookups
from django.http import HttpRequest

from eventservice.adminsite.actions import RowAction
from eventservice.adminsite.change_lists import (
    AnyTenantFilter,
    Choice,
    Recent,
    TenantFilter,
    choice,
    is_searching,
    tenant_in,
)
from eventservice.adminsite.columns import (
    call_link,
    column,
    document,
    identifier,
    json_column,
    moment,
    pill,
    tenant,
    when,
)
from eventservice.adminsite.composite_pk import uuid_of
from eventservice.adminsite.form_fields import Lines, Url
from eventservice.adminsite.model_admin import Domain, ReadOnly, RoleAdmin
from eventservice.db.sql import Unindexed
from eventservice.kernel.errors import Conflict
from eventservice.operators.roles import Role
from eventservice.tenants.directory import list_tenant_ids
from execution.redaction import mask_url
from outbox.models import DeliveryState, OutboxEvent, OutboxPartition, WebhookDelivery, WebhookEndpoint
from outbox.parking import skip, unpark
from outbox.publishers.webhook.endpoints import delete_endpoint, update_endpoint

# --- events -----------------------------------------------------------------------------------------------------


class PublishedFilter(Choice):
    """By the two indexes of what is not published."""

    title = "published"
    parameter_name = "published"
    names = ("published",)
    values = (("waiting", "Waiting"), ("parked", "Parked, or behind a parked one"))

    def narrow(self, queryset: Any, chosen: str) -> Any:
        return queryset.filter(published_at__isnull=True, parked_at__isnull=chosen == "waiting")


class EventTenantFilter(AnyTenantFilter):
    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if request.GET.get("published") == "waiting" and self.value():
            # The backlog is smaller than what the tenant has in all.
            return queryset.filter(lookups.Exact(Unindexed(F("tenant_id")), tenant_in(self.value())))
        return super().queryset(request, queryset)


def _resolve(command: Callable[[int], bool], done: str) -> Callable[[HttpRequest, OutboxEvent], str]:
    def run(request: HttpRequest, event: OutboxEvent) -> str:
        if not command(event.pk):
            raise Conflict(
                "not_parked", "It is not parked: it waits, or waits behind another, or is published."
            )
        return done

    return run


@admin.register(OutboxEvent)
class OutboxEventAdmin(Domain):
    heavy = ("event_payload", "last_error")
    list_display = (
        "id", "event_type", tenant, call_link("aggregate_id", short=True), "aggregate_seq", when("created_at"),
        when("published_at"), when("parked_at"), "attempts", "partition",
    )  # fmt: skip
    fields = (
        "id", "event_type", tenant, call_link("aggregate_id"), "aggregate_seq", moment("created_at"),
        moment("published_at"), moment("parked_at"), "attempts", document("last error", lambda row: row.last_error),
        "event_id", "correlation_id", "causation_id", "partition", json_column("event_payload"),
    )  # fmt: skip
    list_filter = (EventTenantFilter, PublishedFilter)
    search_help_text = "An event's number, or the id of its call, of any tenant."
    actions = [
        RowAction(
            "event-retry",
            "Retry (unpark)",
            _resolve(unpark, "to be tried again"),
            question="Each parked event is tried again, and after it those that wait behind it.",
        ),
        RowAction(
            "event-skip",
            "Skip",
            _resolve(skip, "skipped"),
            question="Each parked event is never sent: subscribers miss it. Those that wait behind it go on.",
        ),
    ]

    def get_ordering(self, request: HttpRequest) -> Sequence[Any]:
        """That of the index that the list goes through."""
        match request.GET.get("published"), request.GET.get("tenant") or None:
            case _ if is_searching(request):
                return ("aggregate_id", "aggregate_seq")
            case "waiting", _:
                return ("partition", "id")
            case "parked", _:
                # Unindexed: the index of all events has this order to its end, the index of what is parked does not.
                return ("tenant_id", "aggregate_id", OrderBy(Unindexed(F("aggregate_seq"))))
            case _, str():
                return ("-aggregate_id", "-aggregate_seq")
        return ("-id",)

    def find(self, request: HttpRequest, text: str) -> Q:
        wanted = uuid_of(text)
        if wanted:
            return Q(tenant_id__in=list_tenant_ids(), aggregate_id=wanted)
        return Q(pk=int(text)) if text.isascii() and text.isdecimal() and len(text) < 19 else Q(pk__in=[])


@admin.register(OutboxPartition)
class OutboxPartitionAdmin(ReadOnly):
    list_display = ("partition", "owner_id", moment("claimed_at"), moment("lease_until"), "version")
    fields = (*list_display, "metadata")
    ordering = ("partition",)


# --- webhooks -----------------------------------------------------------------------------------------------------


class EndpointForm(forms.ModelForm):  # type: ignore[type-arg]
    url = Url(label="URL")
    event_types = Lines(most=100, longest=64, help_text="One on each line. None: all events.")

    class Meta:
        model = WebhookEndpoint
        fields = ("url", "event_types", "active")

    def clean_url(self) -> str:
        url: str = self.cleaned_data["url"]
        # Imported here because every command loads the admin, and few need a schema.
        from eventservice.api.schema.webhooks import find_url_rule

        if rule := find_url_rule(url):
            raise forms.ValidationError(f"This is no address to send to: {rule}.")
        return url


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(RoleAdmin):
    """A new one's secret is shown once, by the page of the console that makes it: none is made here."""

    edits = Role.ADMIN
    form = EndpointForm
    noun = "endpoint"
    logged = ("event_types", "active")
    list_display = (
        column("URL", lambda row: mask_url(row.url)), tenant, "active", "disabled_reason", column("events", lambda row: ", ".join(row.event_types) or "all"),
        moment("created_at"),
    )  # fmt: skip
    fields = ("url", "event_types", "active", "disabled_reason", tenant, "endpoint_id", moment("created_at"))
    readonly_fields = ("disabled_reason", tenant, "endpoint_id", fields[-1])
    list_filter = (AnyTenantFilter, "active")
    search_fields = ("url",)
    ordering = ("tenant_id", "endpoint_id")

    def get_search_fields(self, request: HttpRequest) -> Sequence[str]:
        """A search compares the whole URL, also what is not shown to who may not change it."""
        return self.search_fields if self.has_change_permission(request) else ()

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Who may not change its URL sees it without what may be a secret."""
        found = super().get_object(request, object_id, from_field)
        if found is not None and not self.has_change_permission(request, found):
            found.url = mask_url(found.url)
        return found

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: WebhookEndpoint, form: Any, change: bool) -> None:
        changes = {name: form.cleaned_data[name] for name in form.changed_data}
        update_endpoint(obj.tenant_id, obj.endpoint_id, **changes)

    def delete_model(self, request: HttpRequest, obj: WebhookEndpoint) -> None:
        """One that was used is refused: with it the database would delete all that was ever delivered to it."""
        self.note(request, "delete", obj, url=mask_url(obj.url))
        delete_endpoint(obj.tenant_id, obj.endpoint_id)


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(Domain):
    heavy = ("body", "last_error")
    list_display = (
        identifier("delivery_id", "id"), tenant, pill("state"), "attempts", identifier("event_id", "event"),
        call_link("aggregate_id", short=True), identifier("endpoint_id", "endpoint"), when("created_at"),
        when("next_attempt_at"), when("finished_at"),
    )  # fmt: skip
    fields = (
        "delivery_id", tenant, pill("state"), "attempts", document("last error", lambda row: row.last_error), "event_id",
        call_link("aggregate_id"), "aggregate_seq", "endpoint_id", moment("created_at"), moment("next_attempt_at"),
        moment("finished_at"), document("body", lambda row: row.body),
    )  # fmt: skip
    list_filter = (TenantFilter, choice("state", DeliveryState.choices, kind=Recent))
    search_help_text = "A delivery's id or an event's, of any tenant."
    ordering = ("-delivery_id",)

    def find(self, request: HttpRequest, text: str) -> Q:
        wanted = uuid_of(text)
        if wanted is None:
            return Q(pk__in=[])
        one = Q(tenant_id__in=list_tenant_ids(), delivery_id=wanted)
        known = WebhookDelivery.across_tenants.filter(one).exists()
        return one if known else Q(tenant_id__in=list_tenant_ids(), event_id=wanted)
