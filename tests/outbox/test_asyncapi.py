"""docs/asyncapi.json describes the events as they are published."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from eventservice.tenants.models import Tenant
from orchestration.events import EventType
from outbox import publisher_spec
from outbox.publishers.log.publisher import LogPublisher
from tests.outbox.support import build_dispatcher, drain

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = json.loads((DOCS / "asyncapi.json").read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]


@pytest.fixture
def events(finished_calls: Tenant) -> list[dict[str, Any]]:
    stream = io.StringIO()
    drain(build_dispatcher(LogPublisher(stream=stream)))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def resolve(reference: str) -> Any:
    found: Any = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def list_references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for member in value.values():
            yield from list_references(member)
    elif isinstance(value, list):
        for item in value:
            yield from list_references(item)


def get_data_schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMAS[kind]["allOf"][1]["properties"]["data"]
    return found


def test_its_references_lead_somewhere() -> None:
    for reference in list_references(DOCUMENT):
        assert resolve(reference)


def test_it_has_the_version_of_the_api() -> None:
    api = json.loads((DOCS / "openapi.json").read_text())
    assert DOCUMENT["info"]["version"] == api["info"]["version"]


def test_every_type_is_a_message_of_every_channel() -> None:
    assert set(DOCUMENT["components"]["messages"]) == {str(kind) for kind in EventType}
    for channel in DOCUMENT["channels"].values():
        assert set(channel["messages"]) == {str(kind) for kind in EventType}


def test_every_broker_is_a_channel_with_its_address() -> None:
    assert set(DOCUMENT["channels"]) == set(publisher_spec.BROKERS.values())
    page = (DOCS / "brokers.md").read_text()
    for channel in DOCUMENT["channels"].values():
        assert f"`{channel['address'].replace('{', '<').replace('}', '>')}`" in page


@pytest.mark.django_db
def test_the_events_of_calls_that_end_in_every_way_are_valid(events: list[dict[str, Any]]) -> None:
    assert {event["type"] for event in events} == {str(kind) for kind in EventType}
    for event in events:
        schema = {**SCHEMAS[event["type"]], "components": DOCUMENT["components"]}
        jsonschema_rs.validator_for(schema, validate_formats=True).validate(event)


@pytest.mark.django_db
def test_it_has_the_attributes_and_data_of_the_events_and_no_others(events: list[dict[str, Any]]) -> None:
    members = defaultdict(list)
    for event in events:
        assert set(event) <= set(SCHEMAS["CloudEvent"]["properties"])
        assert set(event) >= set(SCHEMAS["CloudEvent"]["required"])
        members[event["type"]].append(set(event["data"]))
    for kind, found in members.items():
        schema = get_data_schema(kind)
        assert set(schema["properties"]) == set.union(*found), kind
        assert set(schema["required"]) == set.intersection(*found), kind


def test_an_event_with_wrong_data_is_invalid() -> None:
    schema = {**get_data_schema("ServiceCallRunning")}
    assert not jsonschema_rs.validator_for(schema).is_valid({"attempt": 0, "executionId": "x", "node": "y"})
