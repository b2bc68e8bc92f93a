"""The examples in examples/consumers process each event once and in order, although some arrive twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.brokers import BROKERS, Broker
from tests.outbox.support import build_envelopes

# They use no database.
pytestmark = pytest.mark.sqlite_only

EXAMPLES = Path(__file__).parents[2] / "examples" / "consumers"
# Kafka looks up the position of a new member of a group before it sends the first event.
IDLE_SECONDS = {"kafka": 3}


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    broker = BROKERS[request.param]()
    yield broker
    broker.close()


def list_arguments(broker: Broker) -> list[str]:
    if broker.service == "kafka":
        url = broker.url
        return [f"{url.hostname}:{url.port}", broker.name, url.username or "", url.password or ""]
    return [broker.url.geturl(), broker.name]


def consume(broker: Broker, folder: Path) -> list[str]:
    """Run the example until nothing comes, and return the ids of the events that it has processed."""
    idle = str(IDLE_SECONDS.get(broker.service, 1))
    program = EXAMPLES / f"{broker.service}_consumer.py"
    command = [sys.executable, str(program), *list_arguments(broker)]
    command += ["--seen", str(folder / "seen"), "--idle", idle]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return [json.loads(line)["id"] for line in result.stdout.splitlines()]


def test_an_example_processes_each_event_once(broker: Broker, tmp_path: Path) -> None:
    events = build_envelopes("aabab")
    ids = [str(event.event_id) for event in events]
    publisher = broker.build()
    for event in events[:3]:
        publisher.publish([event])
    publisher.publish(events[1:2])
    assert consume(broker, tmp_path) == ids[:3]
    for event in events:
        publisher.publish([event])
    assert consume(broker, tmp_path) == ids[3:]


def test_every_broker_has_an_example() -> None:
    assert {path.name for path in EXAMPLES.glob("*_consumer.py")} == {
        f"{name}_consumer.py" for name in BROKERS
    }
