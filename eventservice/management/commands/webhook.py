from __future__ import annotations

from argparse import ArgumentTypeError
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.kernel.errors import DomainError
from eventservice.management.commands.tenant import get_tenant_argument
from eventservice.management.terminal import Terminal, ignore_case, parse_document
from eventservice.tenants.directory import find_tenant_names
from execution.redaction import mask_url
from orchestration.events import EventType
from outbox.publishers.webhook.endpoints import (
    create_endpoint,
    delete_endpoint,
    get_endpoint,
    set_endpoint_active,
)
from outbox.publishers.webhook.recovery import EndpointQueue, list_endpoint_queues

MAX_ENDPOINTS = 10_000
MAX_COUNT = 1000


class Command(BaseCommand):
    help = "Manage webhook endpoints, which receive the events of a tenant (docs/webhooks.md)."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        add = actions.add_parser("add", help="create an endpoint and print its signing secret once")
        add.add_argument("--tenant", required=True, help="tenant name or id")
        event_types = [event_type.value for event_type in EventType]
        add.add_argument(
            "--type",
            action="append",
            default=[],
            type=ignore_case(event_types),
            choices=event_types,
            help="only events of this type (repeatable)",
        )
        add.add_argument("url")
        listing = actions.add_parser("list", help="list endpoints with their pending deliveries")
        listing.add_argument("--tenant", help="tenant name or id (default: all tenants)")
        for name, help_text in (
            ("enable", "enable an endpoint"),
            ("disable", "disable an endpoint; its pending deliveries wait"),
            ("remove", "delete an endpoint with its deliveries"),
        ):
            actions.add_parser(name, help=help_text).add_argument("id", type=_parse_endpoint_id)
        for parser_of_action in (add, listing):
            parser_of_action.add_argument("--json", action="store_true")

    def handle(self, *args: object, action: str, **options: object) -> None:
        self.terminal = Terminal(self, as_json=bool(options.get("json")))
        try:
            getattr(self, f"_{action}")(**options)
        except DomainError as error:
            raise CommandError(error.message) from None

    def _add(self, *, tenant: str, url: str, type: list[str], **options: object) -> None:
        from eventservice.api.schema.webhooks import WebhookEndpointSchema, find_host_error

        tenant_id = get_tenant_argument(tenant).tenant_id
        asked = parse_document(
            WebhookEndpointSchema, {"url": url, "eventTypes": type}, {"/eventTypes": "--type"}
        )
        if error := find_host_error(tenant_id, asked.url):
            raise CommandError(f"The URL {error}.")
        endpoint, secret = create_endpoint(tenant_id, asked.url, asked.distinct_types)
        if self.terminal.as_json:
            self.terminal.json({"endpointId": str(endpoint.endpoint_id), "url": asked.url, "secret": secret})
        else:
            self.terminal.line("endpoint", endpoint.endpoint_id)
            self.terminal.line("secret  ", secret)

    def _list(self, *, tenant: str | None, **options: object) -> None:
        tenant_id = None if tenant is None else get_tenant_argument(tenant).tenant_id
        queues = list_endpoint_queues(tenant_id, MAX_ENDPOINTS, MAX_COUNT)
        names = find_tenant_names([queue.endpoint.tenant_id for queue in queues])
        rows = [_to_row(queue, names.get(queue.endpoint.tenant_id, "")) for queue in queues]
        if self.terminal.as_json:
            self.terminal.json(rows)
        else:
            columns = ("id", "tenant", "url", "events", "active", "disabled reason", "pending", "given up")
            self.terminal.table(
                columns,
                [[*row.values()] for row in rows],
                empty="No webhook endpoints. Create one with `manage.py webhook add --tenant NAME URL`.",
                cut=("url", "events", "disabled reason"),
            )

    def _enable(self, *, id: UUID, **options: object) -> None:
        set_endpoint_active(*get_endpoint(id).pk, active=True)
        self.stdout.write("Endpoint enabled.")

    def _disable(self, *, id: UUID, **options: object) -> None:
        set_endpoint_active(*get_endpoint(id).pk, active=False)
        self.stdout.write("Endpoint disabled.")

    def _remove(self, *, id: UUID, **options: object) -> None:
        delete_endpoint(*get_endpoint(id).pk)
        self.stdout.write("Endpoint removed.")


def _parse_endpoint_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not an endpoint id. `list` shows them") from None


def _to_row(queue: EndpointQueue, tenant: str) -> dict[str, object]:
    endpoint = queue.endpoint
    return {
        "endpointId": str(endpoint.endpoint_id),
        "tenant": tenant,
        "url": mask_url(endpoint.url),
        "eventTypes": endpoint.event_types,
        "active": endpoint.active,
        "disabledReason": endpoint.disabled_reason,
        # One more than MAX_COUNT stands for any larger number.
        "pending": queue.pending,
        "exhausted": queue.exhausted,
    }
