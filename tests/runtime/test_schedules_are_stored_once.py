"""Each minute's tasks are stored once in django-q2's table, however many clusters start at the same moment."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django_q.models import Schedule

from eventservice.db.now import DbNow
from eventservice.runtime.cluster import (
    SCHEDULED_EACH_MINUTE,
    restart_stalled_chains,
    schedule_each_minute,
    start_chains,
)
from eventservice.runtime.models import Slot
from tests.concurrency.races import ROUNDS, race

pytestmark = pytest.mark.django_db(transaction=True)


def list_schedules() -> list[tuple[str, str]]:
    return sorted(Schedule.objects.values_list("name", "func"))


def boot() -> None:
    start_chains()
    schedule_each_minute()


def test_each_task_is_scheduled_once_however_many_clusters_boot_at_once() -> None:
    for _ in range(ROUNDS):
        Schedule.objects.all().delete()
        assert race(*[boot] * 4) == [None] * 4
        assert list_schedules() == sorted(SCHEDULED_EACH_MINUTE.items())


def test_a_cluster_of_another_name_has_its_own_schedules(settings: Any) -> None:
    """django-q2 runs a schedule that names no cluster in the clusters of one name only."""
    boot()
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, "cluster_name": "blue"}
    boot()
    assert sorted(Schedule.objects.values_list("cluster", "name")) == sorted(
        (cluster, name) for cluster in ("blue", "eventservice") for name in SCHEDULED_EACH_MINUTE
    )


def test_a_chain_of_another_cluster_is_not_restarted(settings: Any) -> None:
    """It would be restarted in the wrong queue."""
    boot()
    Slot.objects.update(taken_at=DbNow(-timedelta(hours=1)))
    tickets = dict(Slot.objects.values_list("name", "ticket"))
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, "cluster_name": "blue"}
    restart_stalled_chains()
    assert dict(Slot.objects.values_list("name", "ticket")) == tickets


def test_repeated_schedules_of_an_older_release_become_one_at_the_next_boot() -> None:
    for _ in range(3):
        Schedule.objects.create(name="roll up", func="somewhere.else", schedule_type=Schedule.MINUTES)
    first = Schedule.objects.order_by("id").values_list("id", flat=True)[0]
    boot()
    assert list_schedules() == sorted(SCHEDULED_EACH_MINUTE.items())
    assert Schedule.objects.get(name="roll up").id == first


@pytest.mark.parametrize("cluster", [None, "eventservice"])
def test_a_schedule_that_was_renamed_is_deleted_under_its_old_name(cluster: str | None) -> None:
    Schedule.objects.create(
        name="mend chains", cluster=cluster, func="eventservice.gone", schedule_type=Schedule.MINUTES
    )
    boot()
    assert list_schedules() == sorted(SCHEDULED_EACH_MINUTE.items())


def test_schedules_of_others_are_left_alone() -> None:
    for _ in range(2):
        Schedule.objects.create(name="a report", func="theirs", schedule_type=Schedule.DAILY)
    boot()
    assert Schedule.objects.filter(name="a report").count() == 2


def test_booting_again_does_not_delay_the_next_run() -> None:
    boot()
    before = list(Schedule.objects.order_by("id").values_list("id", "next_run"))
    boot()
    assert list(Schedule.objects.order_by("id").values_list("id", "next_run")) == before
