from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.api.fields import Fields
from eventservice.api.problems import FieldError
from eventservice.api.webhook_rules import EVENT_TYPES, read_endpoint
from eventservice.console.webhooks import mask_url
from eventservice.kernel.errors import DomainError
from eventservice.management.commands.tenant import tenant_of
from eventservice.management.terminal import Terminal, refuse_wrong
from eventservice.tenants.directory import find_tenant_names
from outbox.publishers.webhook.endpoints import (
    create_endpoint,
    delete_endpoint,
    get_endpoint,
    set_endpoint_active,
)
from outbox.publishers.webhook.recovery import EndpointQueue, list_endpoint_queues

LISTED = 10_000
MOST_COUNTED = 1000


class Command(BaseCommand):
    help = "Webhook endpoints, on the database itself: where a tenant's events are sent (docs/webhooks.md)."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        add = actions.add_parser(
            "add", help="a new endpoint; the secret of its signatures is shown this once"
        )
        add.add_argument("--tenant", required=True, help="its name or id")
        add.add_argument(
            "--type", action="append", default=[], choices=EVENT_TYPES, help="only events of this type"
        )
        add.add_argument("url")
        listing = actions.add_parser("list", help="what they are, and what waits for them")
        listing.add_argument("--tenant", help="its name or id; without it, all tenants' endpoints")
        for name, what in (
            ("enable", "send to it again"),
            ("disable", "send nothing more to it; what is under way to it waits"),
            ("remove", "one to which nothing was ever to be delivered"),
        ):
            actions.add_parser(name, help=what).add_argument("id", type=_endpoint_id)
        for parser_of_action in (add, listing):
            parser_of_action.add_argument("--json", action="store_true")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        self.terminal = Terminal(self, as_json=bool(options.get("json")))
        try:
            getattr(self, f"_{action}")(options)
        except DomainError as refused:
            raise CommandError(refused.message) from None

    def _add(self, options: dict[str, Any]) -> None:
        tenant = tenant_of(options["tenant"])
        faults: list[FieldError] = []
        url, types = read_endpoint(Fields({"url": options["url"], "eventTypes": options["type"]}, faults))
        refuse_wrong(faults)
        endpoint, secret = create_endpoint(tenant.tenant_id, url, types)
        if self.terminal.as_json:
            self.terminal.json({"endpointId": str(endpoint.endpoint_id), "url": url, "secret": secret})
        else:
            self.terminal.line("endpoint", endpoint.endpoint_id)
            self.terminal.line("secret  ", secret)

    def _list(self, options: dict[str, Any]) -> None:
        tenant_id = None if options["tenant"] is None else tenant_of(options["tenant"]).tenant_id
        queues = list_endpoint_queues(tenant_id, LISTED, MOST_COUNTED)
        names = find_tenant_names([queue.endpoint.tenant_id for queue in queues])
        rows = [_row(queue, names.get(queue.endpoint.tenant_id, "")) for queue in queues]
        if self.terminal.as_json:
            self.terminal.json(rows)
        else:
            columns = ("id", "tenant", "url", "events", "active", "why not", "pending", "given up")
            self.terminal.table(
                columns,
                [[*row.values()] for row in rows],
                empty="No webhook endpoint yet: `manage.py webhook add --tenant NAME URL` makes one.",
                may_be_cut=("url", "events", "why not"),
            )

    def _enable(self, options: dict[str, Any]) -> None:
        set_endpoint_active(*get_endpoint(options["id"]).pk, active=True)
        self.stdout.write("Enabled.")

    def _disable(self, options: dict[str, Any]) -> None:
        set_endpoint_active(*get_endpoint(options["id"]).pk, active=False)
        self.stdout.write("Disabled.")

    def _remove(self, options: dict[str, Any]) -> None:
        delete_endpoint(*get_endpoint(options["id"]).pk)
        self.stdout.write("Removed.")


def _endpoint_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not an endpoint's id, such as `list` shows") from None


def _row(queue: EndpointQueue, tenant: str) -> dict[str, Any]:
    endpoint = queue.endpoint
    return {
        "endpointId": str(endpoint.endpoint_id),
        "tenant": tenant,
        "url": mask_url(endpoint.url),
        "eventTypes": endpoint.event_types,
        "active": endpoint.active,
        "disabledReason": endpoint.disabled_reason,
        # One more than is counted stands for more.
        "pending": queue.pending,
        "exhausted": queue.exhausted,
    }
