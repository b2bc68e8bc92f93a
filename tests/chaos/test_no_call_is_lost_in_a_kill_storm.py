"""P1 and P2. Engines and the dispatcher die at every fault point and at any other moment."""

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
from tests.process_harness import Sent, Stage, say, until, until_all_have_ended

TERMINAL_EVENTS = {"ServiceCallSucceeded", "ServiceCallFailed", "ServiceCallCanceled"}
WHOLE = pytest.param(10_000, 200, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize(("calls", "kills"), [pytest.param(300, 10, id="short"), WHOLE])
def test_every_accepted_call_is_sent_and_ends_once(
    calls: int, kills: int, stage: Stage, chance: random.Random
) -> None:
    tenants = [create_tenant(name).tenant_id for name in ("acme", "globex", "initech")]
    storm = Storm(stage, chance, tenants, calls, kills)

    storm.rage()
    engine, _ = storm.calm()
    until_all_have_ended()
    stage.stop(engine)
    until(lambda: not unpublished().exists(), "all events are published")

    sent = storm.witness.by_call()
    rows = {str(row.service_call_id): row for row in ServiceCall.across_tenants.all()}
    interruptions = Counter(interrupted_calls())
    say(
        f"kills: {dict(storm.killed)}; sends: {sum(map(len, sent.values()))}; interruptions: {interruptions.total()}"
    )
    if kills >= 100:
        assert storm.killed.keys() >= ENGINE_POINTS.keys() | DISPATCHER_POINTS.keys()
    assert rows.keys() == storm.accepted.keys()
    for call_id, command in storm.accepted.items():
        it_was_sent_as_promised(command, rows[call_id], sent[call_id], interruptions[call_id])
    assert sent.keys() <= storm.accepted.keys()
    each_call_tells_one_story()
    what_was_published_first_is_in_order(stage.folder, storm.accepted)


def it_was_sent_as_promised(
    command: SubmitServiceCall, row: ServiceCall, sent: list[Sent], interruptions: int
) -> None:
    attempts = [one.attempt for one in sent]
    assert attempts == sorted(set(attempts)), f"a repeat without a higher attempt: {sent}"
    assert {one.key for one in sent} <= {str(command.service_call_id)}
    wanted = FLAKY.max_attempts if command.retry_policy else 1
    assert len(sent) <= row.attempt <= wanted + interruptions
    if command.delivery == Delivery.AT_MOST_ONCE:
        assert len(sent) <= 1
        assert sent or '"Interrupted"' in json.dumps(row.outcome_meta)
    else:
        assert sent, f"never sent: {row.service_call_id}"
        given_up = interruptions > MAX_INTERRUPTIONS
        refused = command.request.url.endswith("/status/400")
        assert row.status == (Status.FAILED if refused or given_up else Status.SUCCEEDED)
        assert row.attempt == attempts[-1] or given_up, (
            "its outcome is of an attempt that the target has not seen"
        )


def interrupted_calls() -> list[str]:
    interrupted = HttpExecution.across_tenants.filter(error_kind="Interrupted")
    return [str(call) for call in interrupted.values_list("service_call_id", flat=True)]


def unpublished() -> Any:
    return OutboxEvent.across_tenants.filter(published_at=None)


def each_call_tells_one_story() -> None:
    stories: dict[UUID, list[tuple[int, str]]] = defaultdict(list)
    events = OutboxEvent.across_tenants.order_by("aggregate_seq")
    for aggregate, seq, kind in events.values_list("aggregate_id", "aggregate_seq", "event_type"):
        stories[aggregate].append((seq, kind))
    for aggregate, story in stories.items():
        assert [seq for seq, _ in story] == list(range(1, len(story) + 1)), aggregate
        ends = [seq for seq, kind in story if kind in TERMINAL_EVENTS]
        assert ends == [len(story)], f"{aggregate}: {story}"


def what_was_published_first_is_in_order(folder: Path, accepted: dict[str, Any]) -> None:
    """The dispatchers' own output: within a call, nothing is skipped; a repeat may only be a repeat."""
    seen: dict[str, int] = defaultdict(int)
    for log in sorted(folder.glob("dispatcher-*.log"), key=lambda path: int(path.stem.partition("-")[2])):
        for line in log.read_text().splitlines():
            if not line.startswith("{") or not line.endswith("}"):
                continue  # cut off by a kill
            event = json.loads(line)
            call_id, sequence = event["subject"], int(event["sequence"])
            assert sequence <= seen[call_id] + 1, f"{call_id} skipped to {sequence}"
            seen[call_id] = max(seen[call_id], sequence)
    assert seen.keys() == accepted.keys()
