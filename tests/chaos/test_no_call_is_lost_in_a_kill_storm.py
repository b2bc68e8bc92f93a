"""P1 and P2: engines and the dispatcher are killed at every fault point and at random moments."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from eventservice.tenants.directory import create_tenant
from execution.models import HttpExecution
from orchestration.commands import SubmitServiceCall
from orchestration.lifecycle import MAX_INTERRUPTIONS
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from outbox.models import OutboxEvent
from tests.chaos.storm import DISPATCHER_POINTS, ENGINE_POINTS, FLAKY, Storm
from tests.process_harness import (
    ProcessHarness,
    ReceivedRequest,
    report,
    wait_until_all_ended,
    wait_until_none_left,
)

TERMINAL_EVENTS = {"ServiceCallSucceeded", "ServiceCallFailed", "ServiceCallCanceled"}
WHOLE = pytest.param(10_000, 200, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize(("calls", "kills"), [pytest.param(200, 6, id="short"), WHOLE])
def test_every_accepted_call_is_sent_and_ends_once(
    calls: int, kills: int, harness: ProcessHarness, rng: random.Random
) -> None:
    tenants = [create_tenant(name).tenant_id for name in ("acme", "globex", "initech")]
    storm = Storm(harness, rng, tenants, calls, kills)

    storm.rage(ENGINE_POINTS.keys() | DISPATCHER_POINTS.keys() if kills >= 100 else set())
    engine, _ = storm.calm()
    wait_until_all_ended()
    harness.stop(engine)
    wait_until_none_left(filter_unpublished().count, "unpublished events")

    sent = storm.target.group_by_call()
    rows = {str(row.service_call_id): row for row in ServiceCall.across_tenants.all()}
    interruptions = Counter(list_interrupted_calls())
    report(
        f"kills: {dict(storm.killed)}; sends: {sum(map(len, sent.values()))}; interruptions: {interruptions.total()}"
    )
    assert rows.keys() == storm.accepted.keys()
    for call_id, command in storm.accepted.items():
        assert_sent_as_promised(command, rows[call_id], sent[call_id], interruptions[call_id])
    assert sent.keys() <= storm.accepted.keys()
    assert_event_sequences_are_complete()
    assert_published_in_order(harness.folder, storm.accepted)


def assert_sent_as_promised(
    command: SubmitServiceCall, row: ServiceCall, sent: list[ReceivedRequest], interruptions: int
) -> None:
    attempts = [request.attempt for request in sent]
    assert attempts == sorted(set(attempts)), f"a repeat without a higher attempt: {sent}"
    assert {request.idempotency_key for request in sent} <= {str(command.service_call_id)}
    max_wanted = FLAKY.max_attempts if command.retry_policy else 1
    assert len(sent) <= row.attempt <= max_wanted + interruptions
    if command.delivery == Delivery.AT_MOST_ONCE:
        assert len(sent) <= 1
        assert sent or '"Interrupted"' in json.dumps(row.outcome_meta)
    else:
        assert sent, f"never sent: {row.service_call_id}"
        given_up = interruptions > MAX_INTERRUPTIONS
        refused = command.request.url.endswith("/status/400")
        assert row.status == (Status.FAILED if refused or given_up else Status.SUCCEEDED)
        assert row.attempt == attempts[-1] or given_up, (
            "its outcome is that of an attempt which the target has not received"
        )


def list_interrupted_calls() -> list[str]:
    interrupted = HttpExecution.across_tenants.filter(error_kind="Interrupted")
    return [str(call) for call in interrupted.values_list("service_call_id", flat=True)]


def filter_unpublished() -> Any:
    return OutboxEvent.across_tenants.filter(published_at=None)


def assert_event_sequences_are_complete() -> None:
    events_by_call: dict[UUID, list[tuple[int, str]]] = defaultdict(list)
    events = OutboxEvent.across_tenants.order_by("aggregate_seq")
    for aggregate, seq, kind in events.values_list("aggregate_id", "aggregate_seq", "event_type"):
        events_by_call[aggregate].append((seq, kind))
    for aggregate, sequence in events_by_call.items():
        assert [seq for seq, _ in sequence] == list(range(1, len(sequence) + 1)), aggregate
        ends = [seq for seq, kind in sequence if kind in TERMINAL_EVENTS]
        assert ends == [len(sequence)], f"{aggregate}: {sequence}"


def assert_published_in_order(folder: Path, accepted: dict[str, Any]) -> None:
    """Check the output of the dispatchers: within a call, no event is skipped, and only repeats go back."""
    seen: dict[str, int] = defaultdict(int)
    for log in sorted(folder.glob("dispatcher-*.log"), key=lambda path: int(path.stem.partition("-")[2])):
        for line in log.read_text().splitlines():
            if not line.startswith('{"specversion"') or not line.endswith("}"):
                continue  # cut off by a kill, or no event
            event = json.loads(line)
            call_id, sequence = event["subject"], int(event["sequence"])
            assert sequence <= seen[call_id] + 1, f"{call_id} skipped to {sequence}"
            seen[call_id] = max(seen[call_id], sequence)
    assert seen.keys() == accepted.keys()
