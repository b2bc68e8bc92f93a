"""Webhook endpoints: what may be set by the command, the console's form and the admin."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from eventservice.api.schema.base import RequestModel, rule_error
from eventservice.api.schema.types import OneLine
from execution.addresses import AddressPolicy
from execution.url_rules import BadUrl, parse_target
from orchestration.events import EventType

EVENT_TYPES = [event_type.value for event_type in EventType]


def find_url_rule(url: str) -> str | None:
    """Return the rule by which nothing would ever be sent to this URL, or None.

    What address a name resolves to is known only when it is dialed.
    """
    try:
        origin = parse_target(url).origin
    except BadUrl as wrong:
        return str(wrong)
    address = "127.0.0.1" if origin.host == "localhost" else origin.host if origin.is_literal else None
    rule = address and AddressPolicy.from_settings().find_refusing_rule(address, origin.port)
    return f"{origin.authority} is an address that may not be called: {rule}" if rule else None


def _check_url(url: str) -> str:
    if rule := find_url_rule(url):
        raise rule_error(f"is refused: {rule}")
    return url


class WebhookEndpointSchema(RequestModel):
    url: Annotated[OneLine, Field(max_length=2048), AfterValidator(_check_url)]
    event_types: Annotated[
        list[Annotated[EventType, Field(strict=False)]], Field(max_length=len(EventType))
    ] = Field(default=[], description="By default all events.")

    @property
    def distinct_types(self) -> list[str]:
        return list(dict.fromkeys(event_type.value for event_type in self.event_types))
