"""What may be said of a webhook endpoint: the same for the command, the console's form and the admin."""

from __future__ import annotations

from eventservice.api.fields import Fields
from execution.addresses import AddressPolicy
from execution.url_rules import BadUrl, parse_target
from orchestration.events import EventType

EVENT_TYPES = [event_type.value for event_type in EventType]


def read_endpoint(fields: Fields) -> tuple[str, list[str]]:
    """Its URL, and the types of the events that it gets; none: all."""
    url = fields.text("url", "", most=2048)
    if not url:
        fields.fault("url", "is required")
    elif rule := refused_url(url):
        fields.fault("url", f"is refused: {rule}")
    types = fields.texts("eventTypes", most=len(EVENT_TYPES), longest=64)
    if not set(map(str, types)) <= set(EVENT_TYPES):
        fields.fault("eventTypes", "must be of " + ", ".join(EVENT_TYPES))
    return url, list(dict.fromkeys(types))


def refused_url(url: str) -> str | None:
    """The rule by which nothing would ever be sent there. What a name leads to is known only when it is dialled."""
    try:
        origin = parse_target(url).origin
    except BadUrl as wrong:
        return str(wrong)
    address = "127.0.0.1" if origin.host == "localhost" else origin.host if origin.is_literal else None
    rule = address and AddressPolicy.from_settings().find_refusing_rule(address, origin.port)
    return f"{origin.authority} is an address that may not be called: {rule}" if rule else None
