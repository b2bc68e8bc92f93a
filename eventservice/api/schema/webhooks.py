"""Webhook endpoints: what may be set by the command, the console's form and the admin."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from eventservice.api.schema.base import RequestModel
from eventservice.api.schema.types import OneLine, check_url
from orchestration.events import EventType

EVENT_TYPES = [event_type.value for event_type in EventType]


class WebhookEndpointSchema(RequestModel):
    url: Annotated[OneLine, Field(max_length=2048), AfterValidator(check_url)]
    event_types: Annotated[
        list[Annotated[EventType, Field(strict=False)]], Field(max_length=len(EventType))
    ] = Field(default=[], description="By default all events.")

    @property
    def distinct_types(self) -> list[str]:
        return list(dict.fromkeys(event_type.value for event_type in self.event_types))
