"""Webhook endpoints: where tenants receive their events, and what waits to be delivered."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import parse_uuid
from eventservice.api.problems import FieldError
from eventservice.api.schema.types import Id
from eventservice.api.schema.webhooks import EVENT_TYPES, WebhookEndpointSchema
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.forms import Checkboxes, PlainText, SchemaForm
from eventservice.console.base.query import Query, drop_empty_params
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.base.views import ConsoleView
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.kernel.ids import new_id
from eventservice.operators.roles import Role
from eventservice.tenants.directory import find_tenant_names, get_tenant
from execution.redaction import mask_url
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.endpoints import (
    check_endpoint_unused,
    create_endpoint,
    delete_endpoint,
    find_endpoint,
    set_endpoint_active,
)
from outbox.publishers.webhook.recovery import list_endpoint_queues, retry_exhausted_deliveries

R = TypeVar("R")

PAGE_SIZE = 50
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
        return self.redirect_back(reverse("console:webhooks"))


class DisableEndpoint(ConfirmView):
    nav = "webhooks"
    read_role = write_role = Role.ADMIN

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        return self.render_confirmation(
            "Disable this endpoint?",
            "Disable",
            back_to=reverse("console:webhooks"),
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
        return self.redirect_back(reverse("console:webhooks"))


class DeleteEndpoint(ConfirmView):
    nav = "webhooks"
    read_role = write_role = Role.ADMIN

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        check_endpoint_unused(tenant_id, endpoint_id)
        return self.render_confirmation(
            "Delete this endpoint?",
            "Delete",
            back_to=reverse("console:webhooks"),
            text=f"{mask_url(endpoint.url)} and its secret are deleted. No deliveries were ever made to it.",
            danger=True,
        )

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        _act(self, "endpoint-delete", endpoint, lambda: delete_endpoint(tenant_id, endpoint_id))
        self.report_success("Endpoint deleted.")
        return self.redirect_back(reverse("console:webhooks"))


class ResendDeliveries(ConfirmView):
    nav = "webhooks"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        return self.render_confirmation(
            "Resend failed deliveries?",
            "Resend",
            back_to=reverse("console:webhooks"),
            text=f"Up to {MAX_RESENT:,} deliveries to {mask_url(endpoint.url)} that failed recently "
            "are sent again. The receiver may get them after later events of the same call.",
        )

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
        endpoint = _get_endpoint(tenant_id, endpoint_id)
        count = _act(self, "endpoint-resend", endpoint, lambda: _send_again(endpoint))
        self.report_success(f"{count:,} deliveries will be sent again.")
        return self.redirect_back(reverse("console:webhooks"))


def _act(page: ConsoleView, action: str, endpoint: WebhookEndpoint, command: Callable[[], R]) -> R:
    subject, url = endpoint.endpoint_id, mask_url(endpoint.url)
    return page.run_audited(action, command, tenant_id=endpoint.tenant_id, subject=subject, url=url)


def _get_endpoint(tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> WebhookEndpoint:
    endpoint = find_endpoint(tenant_id, endpoint_id)
    if endpoint is None:
        raise NotFound("webhook endpoint")
    return endpoint


def _send_again(endpoint: WebhookEndpoint) -> int:
    if not endpoint.active:
        raise Conflict("wrong_state", "This endpoint is disabled. Enable it first.")
    return retry_exhausted_deliveries(endpoint.tenant_id, endpoint.endpoint_id, MAX_RESENT)
