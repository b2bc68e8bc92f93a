"""Calls go from submission to outcome with the real egress, against a server in another process."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from eventservice.tenants.models import Tenant
from execution.addresses import AddressPolicy
from execution.egress import Egress
from orchestration.commands import RequestSpec
from orchestration.engine.engine import Engine
from orchestration.retries import RetryPolicy
from orchestration.states import ResponseContract
from tests.orchestration.support import get_call, get_status, list_attempts, list_event_types, submit

AT_ONCE = RetryPolicy(max_attempts=3, initial_interval=0)


@pytest.fixture
def target() -> Iterator[str]:
    command = [sys.executable, "-m", "eventservice.devtools.mock_target", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().removeprefix("listening on ").strip()
        process.kill()


@pytest.fixture
def engine(transactional_db: None) -> Iterator[Engine]:
    egress = Egress(AddressPolicy(allow=frozenset({"127.0.0.1:*"})))
    egress.start()
    engine = Engine(egress)
    yield engine
    engine.stop(grace_seconds=5)


def run_until_ended(engine: Engine, tenant: Tenant, *calls: uuid.UUID) -> list[str]:
    give_up = time.monotonic() + 30
    while any(get_status(tenant, call) in ("Scheduled", "Running") for call in calls):
        assert time.monotonic() < give_up
        engine.poll_once(0.05)
    return [get_status(tenant, call) for call in calls]


def test_calls_go_from_submission_to_outcome(engine: Engine, target: str, tenant: Tenant) -> None:
    def call(path: str, **terms: object) -> uuid.UUID:
        return submit(
            tenant, request=RequestSpec("POST", f"{target}{path}", {"X-Api-Key": "k"}, {"n": 1}), **terms
        )

    fine, missing, flaky = call("/ok"), call("/status/404"), call("/flaky/1", retry_policy=AT_ONCE)
    callback = call("/callback-retry", retry_policy=AT_ONCE, response_contract=ResponseContract.CALLBACK)
    echo = call("/echo")

    ends = run_until_ended(engine, tenant, fine, missing, flaky, callback, echo)

    assert ends == ["Succeeded", "Failed", "Succeeded", "Succeeded", "Succeeded"]
    assert [row.response_status for row in list_attempts(tenant, flaky)] == [503, 200]
    assert get_call(tenant, callback).attempt == 2
    assert list_event_types(tenant, fine) == [
        "ServiceCallSubmitted",
        "ServiceCallScheduled",
        "DueTimeReached",
        "ServiceCallRunning",
        "ServiceCallSucceeded",
    ]
    echoed = list_attempts(tenant, echo)[0]
    assert '"n\\":1' in echoed.response_body or '{\\"n\\":1}' in echoed.response_body
    assert str(echo) in echoed.response_body
    assert all(row.latency_ms > 0 and row.finished_at for row in list_attempts(tenant, flaky))
