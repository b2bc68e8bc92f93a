"""The timers of each shard are counted, a few shards at a time, so that operators notice one that grows too large."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.core.management import call_command

from eventservice.db.now import pin_time
from eventservice.kernel.findings import Severity
from eventservice.operators.health import check_shard_sizes
from eventservice.tenants.models import Tenant
from tests.factories import ServiceCallFactory, TimerFactory
from tests.orchestration.support import database_unavailable
from timers import shard_sizes
from timers.models import ShardSize, TimerShard, TimerState
from timers.shard_sizes import (
    MAX_ADVISED_TIMERS,
    MIN_INTERVAL,
    SHARDS_AT_ONCE,
    ShardSizes,
    get_shard_sizes,
    list_shard_sizes,
    measure_shard_sizes,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture
def create_timers(tenant: Tenant, at_noon: datetime) -> Callable[..., None]:
    def create(shard_id: int, count: int, state: str = TimerState.SCHEDULED) -> None:
        for _ in range(count):
            call = ServiceCallFactory(tenant_id=tenant.tenant_id)
            TimerFactory(
                tenant_id=call.tenant_id,
                service_call_id=call.service_call_id,
                shard_id=shard_id,
                due_at=at_noon,
                state=state,
                reached_at=None if state == TimerState.SCHEDULED else at_noon,
            )

    return create


def create_shards(count: int) -> None:
    TimerShard.objects.bulk_create([TimerShard(shard_id=shard) for shard in range(count)])


def test_scheduled_timers_are_counted_by_shard(create_timers: Callable[..., None]) -> None:
    create_shards(3)
    create_timers(0, 2)
    create_timers(1, 3)
    create_timers(1, 1, TimerState.REACHED)
    measure_shard_sizes(1.0)
    assert list_shard_sizes([0, 1, 2, 3]) == {0: 2, 1: 3, 2: 0}
    sizes = get_shard_sizes()
    assert (sizes.largest_shard, sizes.max_timers, sizes.above_advice) == (1, 3, 0)
    assert sizes.mean_timers == pytest.approx(5 / 3, rel=1e-4)  # MariaDB rounds


def test_nothing_is_known_before_the_first_count() -> None:
    create_shards(2)
    assert get_shard_sizes() == ShardSizes()
    assert check_shard_sizes(get_shard_sizes()).is_ok


def test_a_round_without_time_counts_some_and_the_next_one_others() -> None:
    create_shards(2 * SHARDS_AT_ONCE + 1)
    for counted in (SHARDS_AT_ONCE, 2 * SHARDS_AT_ONCE, 2 * SHARDS_AT_ONCE + 1):
        measure_shard_sizes(0.0)
        assert len(list_shard_sizes(range(100))) == counted


def test_a_shard_is_counted_again_after_a_while(
    create_timers: Callable[..., None], at_noon: datetime
) -> None:
    create_shards(1)
    measure_shard_sizes(1.0)
    create_timers(0, 1)
    with pin_time(at_noon + MIN_INTERVAL / 2):
        measure_shard_sizes(1.0)  # another cluster, in the same minute
    assert list_shard_sizes([0]) == {0: 0}
    with pin_time(at_noon + MIN_INTERVAL):
        measure_shard_sizes(1.0)
    assert list_shard_sizes([0]) == {0: 1}


def test_a_count_that_fails_ends_the_round_and_keeps_the_cluster_running() -> None:
    create_shards(1)
    with database_unavailable("SELECT shard_id, COUNT"):
        shard_sizes.measure_shard_sizes(1.0)


def test_the_roll_up_without_a_cluster_counts_them_too(create_timers: Callable[..., None]) -> None:
    create_shards(1)
    create_timers(0, 4)
    call_command("roll_up")
    assert list_shard_sizes([0]) == {0: 4}


def test_a_shard_above_the_advice_is_reported(at_noon: datetime) -> None:
    create_shards(2)
    for shard, scheduled in enumerate((MAX_ADVISED_TIMERS, MAX_ADVISED_TIMERS + 1)):
        ShardSize.objects.create(shard_id=shard, scheduled=scheduled, counted_at=at_noon)
    finding = check_shard_sizes(get_shard_sizes())
    assert finding.severity is Severity.WARNING
    assert finding.text == "1 shard has more than 25,000 scheduled timers: 25,001 in shard 1."


def test_a_shard_at_the_advice_is_not_reported(at_noon: datetime) -> None:
    ShardSize.objects.create(shard_id=0, scheduled=MAX_ADVISED_TIMERS, counted_at=at_noon - timedelta(1))
    assert check_shard_sizes(get_shard_sizes()).is_ok
