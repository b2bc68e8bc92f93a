"""A call that has ended can be replayed, retried and deleted; old ones are pruned in small batches."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.kernel.ids import new_id
from orchestration import lifecycle
from orchestration.commands import RequestSpec
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from tests.orchestration.support import (
    URL,
    ManualEngine,
    add_to_noon,
    build_response,
    find_timer,
    get_call,
    list_attempts,
    read_all_rows,
    submit,
)

pytestmark = pytest.mark.django_db


def create_ended_call(manual_engine: ManualEngine, tenant: Any, **terms: Any) -> Any:
    service_call_id = submit(tenant, **terms)
    manual_engine.finish((manual_engine.start_one(), build_response()))
    return service_call_id


def test_a_replay_has_the_same_request_is_due_now_and_names_its_origin(
    manual_engine: ManualEngine, tenant: Any, at_noon: datetime
) -> None:
    request = RequestSpec("PUT", URL, {"Authorization": "s3cret", "A": "b"}, {"n": 1})
    policy = RetryPolicy(max_attempts=3)
    origin = create_ended_call(
        manual_engine, tenant, request=request, retry_policy=policy, timeout_seconds=7.0, tags=frozenset("ab")
    )
    first = get_call(tenant, origin)

    replayed = lifecycle.replay(tenant.tenant_id, origin, new_id())

    call = get_call(tenant, replayed.service_call_id)
    assert (call.status, call.due_at, call.replay_of) == ("Scheduled", at_noon, origin)
    assert (call.name, call.retry_policy, call.timeout_seconds) == (first.name, policy.to_stored(), 7.0)
    assert {tag.tag for tag in call.tags.all()} == {"a", "b"}
    sent = manual_engine.start_one().request
    assert sent.masked_headers == {"Authorization": "••••••", "A": "b"}
    assert (sent.method, sent.body) == ("PUT", {"n": 1})


def test_a_key_stands_for_the_replay_of_one_call(manual_engine: ManualEngine, tenant: Any) -> None:
    origin, other = (
        create_ended_call(manual_engine, tenant, tags=frozenset("a")),
        create_ended_call(manual_engine, tenant),
    )
    made = lifecycle.replay(tenant.tenant_id, origin, new_id(), "k")
    lifecycle.add_tag(tenant.tenant_id, origin, "later")
    again = lifecycle.replay(tenant.tenant_id, origin, new_id(), "k")
    assert (again.service_call_id, again.is_repeat) == (made.service_call_id, True)

    with pytest.raises(Conflict, match="was used for another request"):
        lifecycle.replay(tenant.tenant_id, other, new_id(), "k")
    lifecycle.delete(tenant.tenant_id, origin)
    assert lifecycle.replay(tenant.tenant_id, origin, new_id(), "k").service_call_id == made.service_call_id


def test_the_key_of_a_submission_cannot_be_used_to_replay_it(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    origin = create_ended_call(manual_engine, tenant, idempotency_key="k")
    with pytest.raises(Conflict, match="was used for another request"):
        lifecycle.replay(tenant.tenant_id, origin, new_id(), "k")


def test_a_replay_does_not_change_its_origin(manual_engine: ManualEngine, tenant: Any) -> None:
    origin = create_ended_call(manual_engine, tenant)
    before = vars(get_call(tenant, origin)) | {"_state": None}
    lifecycle.replay(tenant.tenant_id, origin, new_id())
    assert vars(get_call(tenant, origin)) | {"_state": None} == before


def test_a_call_is_retried_once(manual_engine: ManualEngine, tenant: Any) -> None:
    origin = create_ended_call(manual_engine, tenant)
    first = lifecycle.retry(tenant.tenant_id, origin, new_id()).service_call_id
    with pytest.raises(Conflict, match="replayed before"):
        lifecycle.retry(tenant.tenant_id, origin, new_id())
    assert ServiceCall.objects.for_tenant(tenant.tenant_id).get(replay_of=origin).service_call_id == first
    lifecycle.cancel(tenant.tenant_id, first)
    assert lifecycle.retry(tenant.tenant_id, origin, new_id()).service_call_id != first


def test_a_replay_under_a_key_is_made_once(manual_engine: ManualEngine, tenant: Any) -> None:
    origin = create_ended_call(manual_engine, tenant)
    first, second = (lifecycle.replay(tenant.tenant_id, origin, new_id(), "again") for _ in range(2))
    assert (first.service_call_id, second.is_repeat) == (second.service_call_id, True)


def test_a_deleted_call_takes_its_timer_tags_and_log_with_it(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    gone, stays = (
        create_ended_call(manual_engine, tenant, tags=frozenset("a")),
        create_ended_call(manual_engine, tenant),
    )
    lifecycle.delete(tenant.tenant_id, gone)
    assert [call.service_call_id for call in ServiceCall.objects.for_tenant(tenant.tenant_id)] == [stays]
    assert (find_timer(tenant, gone), list_attempts(tenant, gone)) == (None, [])


@pytest.mark.parametrize("what", ["replay", "delete"])
def test_another_tenants_call_and_a_running_one_cannot_be_deleted(
    what: str, manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    def ask(whose: Any) -> None:
        if what == "replay":
            lifecycle.replay(whose.tenant_id, running, new_id())
        else:
            lifecycle.delete(whose.tenant_id, running)

    running = submit(tenant)
    manual_engine.start()
    before = read_all_rows()
    with pytest.raises(NotFound):
        ask(intruder)
    with pytest.raises(Conflict):
        ask(tenant)
    assert read_all_rows() == before


def test_pruning_deletes_only_calls_that_ended_long_ago(
    manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    old = [create_ended_call(manual_engine, whose) for whose in (tenant, tenant, intruder)]
    with pin_time(add_to_noon(3000)):
        recent = create_ended_call(manual_engine, tenant)
        waiting = submit(tenant, due_at=add_to_noon(1))
    with pin_time(add_to_noon(3601)):
        assert lifecycle.prune_calls(timedelta(hours=1), limit=100) == len(old)
        assert lifecycle.prune_calls(timedelta(hours=1), limit=100) == 0
    left = ServiceCall.across_tenants.values_list("service_call_id", flat=True)
    assert set(left) == {recent, waiting}


def test_pruning_stops_at_its_limit(manual_engine: ManualEngine, tenant: Any) -> None:
    for _ in range(5):
        create_ended_call(manual_engine, tenant)
    with pin_time(add_to_noon(7200)):
        assert [lifecycle.prune_calls(timedelta(hours=1), limit=2) for _ in range(4)] == [2, 2, 1, 0]
