"""Checks of P1 and P2 that several tests share: the record of the target against the database."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any
from uuid import UUID

from execution.models import HttpExecution
from orchestration.commands import SubmitServiceCall
from orchestration.lifecycle import MAX_INTERRUPTIONS
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from outbox.models import OutboxEvent
from tests.chaos.storm import FLAKY
from tests.process_harness import ReceivedRequest

TERMINAL_EVENTS = {"ServiceCallSucceeded", "ServiceCallFailed", "ServiceCallCanceled"}


def assert_sent_as_promised(
    command: SubmitServiceCall, row: ServiceCall, sent: list[ReceivedRequest], interruptions: int
) -> None:
    attempts = [request.attempt for request in sent]
    assert attempts == sorted(set(attempts)), f"a repeat without a higher attempt: {sent}"
    assert {request.idempotency_key for request in sent} <= {str(row.service_call_id)}
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
