"""Webhooks: the endpoints that receive tenants' events, the page of each with its deliveries, and that of a delivery."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import parse_uuid
from eventservice.api.problems import FieldError, raise_for_errors
from eventservice.api.schema.types import Id
from eventservice.api.schema.webhooks import EVENT_TYPES, WebhookEndpointSchema, find_host_error
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.forms import Checkboxes, PlainText, SchemaForm
from eventservice.console.base.query import Query, drop_empty_params
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.base.views import ConsoleView
from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import db_now
from eventservice.kernel.errors import NotFound
from eventservice.kernel.ids import new_id
from eventservice.operators.formatting import format_retried_deliveries
from eventservice.operators.roles import Role
from eventservice.tenants.directory import find_tenant_names, get_tenant
from execution.redaction import mask_url
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import GONE_REASON, MAX_ATTEMPTS
from outbox.publishers.webhook.endpoints import (
    create_endpoint,
    delete_endpoint,
    find_endpoint,
    send_test_event,
    set_endpoint_active,
    update_endpoint,
)
from outbox.publishers.webhook.recovery import (
    MAX_RETRIED,
    MAX_SCANNED,
    count_pending,
    find_delivery,
    get_endpoint_queue,
    is_waiting,
    list_endpoint_deliveries,
    list_endpoint_queues,
    retry_delivery,
    retry_exhausted_deliveries,
    retry_pending_deliveries,
    summarize_retry,
)
from outbox.queries import find_event_keys

R = TypeVar("R")

PAGE_SIZE = 50
DELIVERIES_PER_PAGE = 25
DELIVERY_FILTERS = {
    "all": None,
    "pending": DeliveryState.PENDING.value,
    "delivered": DeliveryState.DELIVERED.value,
    "failed": DeliveryState.EXHAUSTED.value,
}
DELIVERY_STATES = {
    DeliveryState.PENDING.value: ("info", "pending"),
    DeliveryState.DELIVERED.value: ("ok", "delivered"),
    DeliveryState.EXHAUSTED.value: ("error", "failed"),
}
MAX_PENDING_COUNTED = 1000
MAX_RESENT = 1000


class WebhooksPage(ConsoleView):
    nav = "webhooks"
    template = "console/webhooks/webhooks.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        errors: list[FieldError] = []
        tenant_id = Query(drop_empty_params(request.GET), errors).identifier("tenant")
        found = [] if errors else list_endpoint_queues(tenant_id, PAGE_SIZE + 1, MAX_PENDING_COUNTED)
        names = find_tenant_names([queue.endpoint.tenant_id for queue in found])
        context = {
            "now": db_now(),
            "errors": errors,
            "rows": [
                (queue, names.get(queue.endpoint.tenant_id, ""), mask_url(queue.endpoint.url))
                for queue in found[:PAGE_SIZE]
            ],
            "more": len(found) > PAGE_SIZE,
            "tenant_id": tenant_id,
            "tenants": list_tenant_options(tenant_id),
            "back": "?" + urlencode({"next": request.get_full_path()}),
        }
        return self.render(context, status=400 if errors else 200)


class EndpointDetailsPage(ConsoleView):
    nav = "webhooks"
    template = "console/webhooks/endpoint.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        errors: list[FieldError] = []
        query = Query(drop_empty_params(request.GET), errors)
        shown = query.choice("show", list(DELIVERY_FILTERS), "all")
        cursor = query.identifier("cursor")
        raise_for_errors(errors)
        page = list_endpoint_deliveries(endpoint, DELIVERY_FILTERS[shown], cursor, DELIVERIES_PER_PAGE)
        queue = get_endpoint_queue(endpoint, MAX_PENDING_COUNTED)
        context = {
            "now": db_now(),
            "endpoint": endpoint,
            "url": mask_url(endpoint.url),
            "tenant": get_tenant(tenant_id),
            "queue": queue,
            "failure": queue.failure,
            "is_gone": endpoint.disabled_reason == GONE_REASON,
            "filters": list(DELIVERY_FILTERS),
            "shown": shown,
            "cursor": cursor,
            "page": page,
            "rows": [_build_delivery_row(delivery) for delivery in page.deliveries],
            "max_scanned": MAX_SCANNED,
            "back": "?" + urlencode({"next": _link_to_endpoint(endpoint)}),
        }
        return self.render(context)


class DeliveryDetailsPage(ConsoleView):
    nav = "webhooks"
    template = "console/webhooks/delivery.html"

    def get(
        self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID, delivery_id: uuid.UUID
    ) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        delivery = find_delivery(endpoint, delivery_id)
        if delivery is None:
            raise NotFound("webhook delivery")
        keys = find_event_keys(tenant_id, delivery.aggregate_id, [delivery.event_id])
        now = db_now()
        context = {
            "now": now,
            "endpoint": endpoint,
            "may_retry": is_waiting(delivery, now),
            "may_resend": delivery.state == DeliveryState.EXHAUSTED,
            "url": mask_url(endpoint.url),
            "row": _build_delivery_row(delivery),
            "event_key": keys.get(delivery.event_id),
            "max_attempts": MAX_ATTEMPTS,
        }
        return self.render(context)


def _build_delivery_row(delivery: WebhookDelivery) -> dict[str, Any]:
    """Return a delivery with the type of its event and its state as a word and a severity."""
    severity, word = DELIVERY_STATES[delivery.state]
    if delivery.state == DeliveryState.PENDING and delivery.attempts:
        severity, word = "warning", "retrying"
    event = json.loads(delivery.body)
    kind = event.get("type", "")
    # A test event is about no call.
    correlation_id = parse_uuid(event.get("correlationid", "")) if kind in EVENT_TYPES else None
    return {
        "delivery": delivery, "type": kind, "severity": severity, "word": word, "correlation_id": correlation_id,
    }  # fmt: skip


class NewEndpoint(WebhookEndpointSchema):
    """An endpoint, and the tenant that it is for."""

    tenant: Id


class EndpointCreationForm(SchemaForm[NewEndpoint]):
    schema = NewEndpoint
    tenant = PlainText(empty_value=None)
    url = PlainText()
    event_types = Checkboxes()


class CreateEndpoint(ConsoleView):
    nav = "webhooks"
    read_role = write_role = Role.ADMIN
    template = "console/webhooks/new_endpoint.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._show_form(EndpointCreationForm(initial=request.GET.dict()))

    def _show_form(self, form: EndpointCreationForm, status: int = 200) -> HttpResponse:
        context = {
            "form": form,
            "tenants": list_tenant_options(parse_uuid(form["tenant"].value() or "")),
            "event_types": EVENT_TYPES,
        }
        return self.render(context, status=status)

    def post(self, request: HttpRequest) -> HttpResponse:
        form = EndpointCreationForm(request.POST)
        if not form.is_valid():
            return self._show_form(form, 400)
        tenant_id, url, types = form.document.tenant, form.document.url, form.document.distinct_types
        if error := find_host_error(tenant_id, url):
            form.add_error("url", error)
            return self._show_form(form, 400)
        tenant, endpoint_id = get_tenant(tenant_id), new_id()
        endpoint, secret = self.run_audited(
            "endpoint-create",
            lambda: create_endpoint(tenant_id, url, types, endpoint_id=endpoint_id),
            tenant_id=tenant_id,
            subject=endpoint_id,
            url=mask_url(url),
            events=types,
        )
        # The secret is shown in the response to the form and nowhere else, like a new key.
        context = {"tenant": tenant, "endpoint": endpoint, "url": mask_url(url), "secret": secret}
        return self.render(context, "console/webhooks/endpoint_created.html", status=201)


class EnableEndpoint(ConsoleView):
    nav = "webhooks"
    write_role = Role.ADMIN

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        _act(
            self,
            "endpoint-enable",
            endpoint,
            lambda: set_endpoint_active(tenant_id, endpoint_id, active=True),
        )
        self.report_success("Endpoint enabled. Pending deliveries and new events are sent to it.")
        return self.redirect_back(_link_to_endpoint(endpoint))


class DisableEndpoint(ConfirmView):
    nav = "webhooks"
    read_role = write_role = Role.ADMIN

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        return self.render_confirmation(
            "Disable this endpoint?",
            "Disable endpoint",
            back_to=_link_to_endpoint(endpoint),
            text=f"Nothing more is sent to {mask_url(endpoint.url)}. Pending deliveries wait until it is enabled again; "
            "events that are published in the meantime are not kept for it.",
            danger=True,
        )

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        _act(
            self,
            "endpoint-disable",
            endpoint,
            lambda: set_endpoint_active(tenant_id, endpoint_id, active=False),
        )
        self.report_success("Endpoint disabled. Nothing more is sent to it.")
        return self.redirect_back(_link_to_endpoint(endpoint))


class DeleteEndpoint(ConfirmView):
    nav = "webhooks"
    read_role = write_role = Role.ADMIN
    WORD = "delete"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        pending = count_pending(endpoint, MAX_PENDING_COUNTED)
        waiting = f" {_format_pending(pending)} will never be sent." if pending else ""
        return self.render_confirmation(
            "Delete this endpoint?",
            "Delete endpoint",
            back_to=_link_to_endpoint(endpoint),
            text=f"{mask_url(endpoint.url)}, its secret and the record of its deliveries are deleted.{waiting} "
            "To keep the record, disable the endpoint instead.",
            word=self.WORD if _has_deliveries(endpoint) else "",
            danger=True,
        )

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        if _has_deliveries(endpoint):
            self.require_typed_word(self.WORD)
        # Recorded first, in a short transaction: there may be many deliveries to delete.
        _act(self, "endpoint-delete", endpoint, lambda: _begin_to_delete(endpoint))
        delete_endpoint(tenant_id, endpoint_id)
        self.report_success(f"Endpoint {mask_url(endpoint.url)} deleted.")
        return self.redirect_to("console:webhooks")


class SendTestEvent(ConsoleView):
    nav = "webhooks"

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        delivery_id = _act(self, "endpoint-test", endpoint, lambda: send_test_event(tenant_id, endpoint_id))
        self.report_success("Test event queued. Its delivery and the response appear below.")
        return self.redirect_to("console:delivery", tenant_id, endpoint_id, delivery_id)


class RetryDeliveries(ConsoleView):
    """Makes the deliveries due that wait for another attempt: the receiver works again."""

    nav = "webhooks"

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        count = self.run_audited(
            "endpoint-retry",
            lambda: retry_pending_deliveries(tenant_id, endpoint_id, MAX_RETRIED),
            changed=bool,
            tenant_id=tenant_id,
            subject=endpoint_id,
            url=mask_url(endpoint.url),
        )
        retried = summarize_retry(tenant_id, endpoint_id, count, MAX_COUNTED)
        self.report_success(format_retried_deliveries(retried))
        return self.redirect_back(_link_to_endpoint(endpoint))


class RetryDelivery(ConsoleView):
    nav = "webhooks"

    def post(
        self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID, delivery_id: uuid.UUID
    ) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        self.run_audited(
            "endpoint-retry",
            lambda: retry_delivery(tenant_id, endpoint_id, delivery_id),
            tenant_id=tenant_id,
            subject=endpoint_id,
            url=mask_url(endpoint.url),
            delivery=str(delivery_id),
        )
        self.report_success("The delivery is due now. Its response appears below.")
        return self.redirect_to("console:delivery", tenant_id, endpoint_id, delivery_id)


class ResendDeliveries(ConfirmView):
    nav = "webhooks"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        return self.render_confirmation(
            "Resend failed deliveries?",
            "Resend deliveries",
            back_to=_link_to_endpoint(endpoint),
            text=f"Up to {MAX_RESENT:,} deliveries to {mask_url(endpoint.url)} that failed recently "
            "are sent again. The receiver may get them after later events of the same call.",
        )

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        count = _act(
            self,
            "endpoint-resend",
            endpoint,
            lambda: retry_exhausted_deliveries(tenant_id, endpoint_id, MAX_RESENT),
        )
        self.report_success(f"{count:,} deliveries will be sent again.")
        return self.redirect_back(_link_to_endpoint(endpoint))


def _act(page: ConsoleView, action: str, endpoint: WebhookEndpoint, command: Callable[[], R]) -> R:
    subject, url = endpoint.endpoint_id, mask_url(endpoint.url)
    return page.run_audited(action, command, tenant_id=endpoint.tenant_id, subject=subject, url=url)


def _has_deliveries(endpoint: WebhookEndpoint) -> bool:
    return bool(list_endpoint_deliveries(endpoint, None, None, 1).deliveries)


def _begin_to_delete(endpoint: WebhookEndpoint) -> None:
    update_endpoint(endpoint.tenant_id, endpoint.endpoint_id, active=False)


def _link_to_endpoint(endpoint: WebhookEndpoint) -> str:
    return reverse("console:endpoint", args=[endpoint.tenant_id, endpoint.endpoint_id])


def _format_pending(count: int) -> str:
    if count > MAX_PENDING_COUNTED:
        return f"More than {MAX_PENDING_COUNTED:,} pending deliveries"
    return "1 pending delivery" if count == 1 else f"{count:,} pending deliveries"


def _get_endpoint(tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> WebhookEndpoint:
    endpoint = find_endpoint(tenant_id, endpoint_id)
    if endpoint is None:
        raise NotFound("webhook endpoint")
    return endpoint
