"""Webhook endpoints: what may be set by the command, the console's form and the admin."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, Field

from eventservice.api.schema.base import RequestModel
from eventservice.api.schema.types import OneLine, check_url
from eventservice.tenants.directory import get_profile
from execution.attempt_builder import is_allowed_host
from execution.url_rules import parse_target
from orchestration.events import EventType

EVENT_TYPES = [event_type.value for event_type in EventType]
MAX_SHOWN_HOSTS = 10


class WebhookEndpointSchema(RequestModel):
    url: Annotated[OneLine, Field(max_length=2048), AfterValidator(check_url)]
    event_types: Annotated[
        list[Annotated[EventType, Field(strict=False)]], Field(max_length=len(EventType))
    ] = Field(default=[], description="By default all events.")

    @property
    def distinct_types(self) -> list[str]:
        return list(dict.fromkeys(event_type.value for event_type in self.event_types))


def find_host_error(tenant_id: UUID, url: str) -> str | None:
    """Return the rule that the URL of an endpoint breaks if the tenant is restricted to other hosts, or None."""
    allowed = get_profile(tenant_id).allowed_hosts
    if is_allowed_host(parse_target(url).host, allowed):
        return None
    return f"must be at one of the tenant's allowed hosts: {', '.join(sorted(allowed)[:MAX_SHOWN_HOSTS])}"
