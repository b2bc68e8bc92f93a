"""P1 and P2: engines and the dispatcher are killed at every fault point and at random moments."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from tests.chaos.promises import (
    assert_event_sequences_are_complete,
    assert_sent_as_promised,
    filter_unpublished,
    list_interrupted_calls,
)
from tests.chaos.storm import DISPATCHER_POINTS, ENGINE_POINTS, Storm
from tests.process_harness import (
    ProcessHarness,
    report,
    wait_until_all_ended,
    wait_until_none_left,
)

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
