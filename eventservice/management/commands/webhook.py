from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.api.formats import format_instant
from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError
from eventservice.kernel.ids import new_id
from eventservice.kernel.text import end_sentence
from eventservice.management.commands.tenant import get_tenant_argument
from eventservice.management.database import name_database
from eventservice.management.terminal import Terminal, ignore_case, parse_document, parse_time_argument
from eventservice.operators.audit_log import CommandLine, run_audited
from eventservice.operators.formatting import format_count, format_retried_deliveries
from eventservice.tenants.directory import find_tenant_names
from execution.redaction import mask_url
from orchestration.events import EventType
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.endpoints import (
    create_endpoint,
    delete_endpoint,
    get_active_endpoint,
    get_endpoint,
    set_endpoint_active,
    update_endpoint,
)
from outbox.publishers.webhook.recovery import (
    MAX_RETRIED,
    EndpointQueue,
    list_endpoint_queues,
    retry_exhausted_deliveries,
    retry_pending_deliveries,
    summarize_retry,
)
from outbox.replay import deliver_missing

R = TypeVar("R")

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
            ("retry", "send now what waits for another attempt, because the receiver works again"),
            ("remove", "delete an endpoint with its deliveries"),
        ):
            parser_of_id = actions.add_parser(name, help=help_text)
            parser_of_id.add_argument("id", type=_parse_endpoint_id)
            if name == "retry":
                parser_of_id.add_argument(
                    "--failed", action="store_true", help="send again what was given up, instead"
                )
        catching_up = actions.add_parser(
            "catch-up", help="send an endpoint the events that were published while it was disabled"
        )
        catching_up.add_argument("id", type=_parse_endpoint_id)
        catching_up.add_argument(
            "--since",
            type=parse_time_argument,
            required=True,
            help="ISO 8601 timestamp, or duration such as 2h",
        )
        for parser_of_action in (add, listing):
            parser_of_action.add_argument("--json", action="store_true")

    def handle(self, *args: object, action: str, **options: object) -> None:
        self.terminal = Terminal(self, as_json=bool(options.get("json")))
        try:
            getattr(self, f"_{action.replace('-', '_')}")(**options)
        except DomainError as error:
            raise CommandError(error.message) from None

    def _add(self, *, tenant: str, url: str, type: list[str], **options: object) -> None:
        from eventservice.api.schema.webhooks import WebhookEndpointSchema, find_host_error

        tenant_id = get_tenant_argument(tenant).tenant_id
        asked = parse_document(
            WebhookEndpointSchema, {"url": url, "eventTypes": type}, {"/eventTypes": "--type"}
        )
        if error := find_host_error(tenant_id, asked.url):
            raise CommandError(end_sentence(f"The URL {error}"))
        endpoint_id = new_id()
        endpoint, secret = run_audited(
            CommandLine(),
            "endpoint-create",
            lambda: create_endpoint(tenant_id, asked.url, asked.distinct_types, endpoint_id=endpoint_id),
            tenant_id=tenant_id,
            subject=endpoint_id,
            url=mask_url(asked.url),
            events=asked.distinct_types,
        )
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
            self.terminal.table(
                ("id", "state", "pending", "given up", "url", "tenant", "events", "reason"),
                [_to_cells(row) for row in rows],
                empty=f"No webhook endpoints in {name_database()}. Create one with `manage.py webhook add --tenant NAME URL`.",
                cut=("url", "events", "reason"),
            )

    def _enable(self, *, id: UUID, **options: object) -> None:
        endpoint = get_endpoint(id)
        _act("endpoint-enable", endpoint, lambda: set_endpoint_active(*endpoint.pk, active=True))
        self.stdout.write("Endpoint enabled.")

    def _disable(self, *, id: UUID, **options: object) -> None:
        endpoint = get_endpoint(id)
        _act("endpoint-disable", endpoint, lambda: set_endpoint_active(*endpoint.pk, active=False))
        self.stdout.write("Endpoint disabled.")

    def _retry(self, *, id: UUID, failed: bool, **options: object) -> None:
        endpoint = get_endpoint(id)
        tenant_id = endpoint.tenant_id
        if failed:
            resent = _act(
                "endpoint-resend", endpoint, lambda: retry_exhausted_deliveries(tenant_id, id, MAX_RETRIED)
            )
            self.stdout.write(f"{resent:,} {'delivery' if resent == 1 else 'deliveries'} will be sent again.")
            return
        count = _act("endpoint-retry", endpoint, lambda: retry_pending_deliveries(tenant_id, id, MAX_RETRIED))
        self.stdout.write(format_retried_deliveries(summarize_retry(tenant_id, id, count, MAX_COUNTED)))

    def _catch_up(self, *, id: UUID, since: datetime | timedelta, **options: object) -> None:
        endpoint = get_active_endpoint(*get_endpoint(id).pk)
        start = db_now() - since if isinstance(since, timedelta) else since
        count = _act("endpoint-catch-up", endpoint, lambda: deliver_missing(endpoint, start))
        self.stdout.write(
            f"{format_count(count, 'event')} will be sent that the endpoint has not been sent before."
        )

    def _remove(self, *, id: UUID, **options: object) -> None:
        endpoint = get_endpoint(id)
        # Recorded first, in a short transaction: there may be many deliveries to delete.
        _act("endpoint-delete", endpoint, lambda: update_endpoint(*endpoint.pk, active=False))
        delete_endpoint(*endpoint.pk)
        self.stdout.write("Endpoint removed.")


def _act(action: str, endpoint: WebhookEndpoint, command: Callable[[], R]) -> R:
    tenant_id, endpoint_id = endpoint.pk
    return run_audited(
        CommandLine(), action, command, tenant_id=tenant_id, subject=endpoint_id, url=mask_url(endpoint.url)
    )


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
        "state": queue.state,
        "failingSince": format_instant(queue.failure.since) if queue.failure else None,
        "lastError": queue.failure.reason if queue.failure else None,
        "acceptedAt": format_instant(queue.failure.accepted_at)
        if queue.failure and queue.failure.accepted_at
        else None,
        "lastFailedAt": format_instant(endpoint.last_failed_at) if endpoint.last_failed_at else None,
    }


def _to_cells(row: Mapping[str, Any]) -> list[object]:
    state = row["state"]
    pending = f"{MAX_COUNT}+" if row["pending"] > MAX_COUNT else row["pending"]
    reason = row["disabledReason"]
    last_failure = f", last failure at {row['lastFailedAt']}" if row["lastFailedAt"] else ""
    if state == "failing":
        reason = f"since {row['failingSince']}{last_failure}: {row['lastError']}"
    elif state == "recovering":
        reason = f"accepted a delivery at {row['acceptedAt']}{last_failure}; {pending} still wait"
    return [
        row["endpointId"], state, pending, row["exhausted"], row["url"], row["tenant"], row["eventTypes"] or "all", reason,
    ]  # fmt: skip
