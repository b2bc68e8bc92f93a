"""What django-q is to do each minute stands in its table once, however many clusters start at the same moment."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django_q.models import Schedule

from eventservice.db.now import DbNow
from eventservice.runtime.cluster import EACH_MINUTE, mend_chains, schedule_each_minute, start_chains
from eventservice.runtime.models import Slot
from tests.concurrency.races import ROUNDS, race

pytestmark = pytest.mark.django_db(transaction=True)


def scheduled() -> list[tuple[str, str]]:
    return sorted(Schedule.objects.values_list("name", "func"))


def boot() -> None:
    start_chains()
    schedule_each_minute()


def test_each_is_scheduled_once_however_many_boot_at_once() -> None:
    for _ in range(ROUNDS):
        Schedule.objects.all().delete()
        assert race(*[boot] * 4) == [None] * 4
        assert scheduled() == sorted(EACH_MINUTE.items())


def test_a_cluster_of_another_name_has_its_own(settings: Any) -> None:
    """django-q would run one that names no cluster in the clusters of one name only."""
    boot()
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, "cluster_name": "blue"}
    boot()
    assert sorted(Schedule.objects.values_list("cluster", "name")) == sorted(
        (cluster, name) for cluster in ("blue", "eventservice") for name in EACH_MINUTE
    )


def test_a_chain_of_another_cluster_is_left_to_it(settings: Any) -> None:
    """It would be begun anew in the wrong queue."""
    boot()
    Slot.objects.update(taken_at=DbNow(-timedelta(hours=1)))
    tickets = dict(Slot.objects.values_list("name", "ticket"))
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, "cluster_name": "blue"}
    mend_chains()
    assert dict(Slot.objects.values_list("name", "ticket")) == tickets


def test_what_an_older_release_left_several_times_is_one_after_the_next_boot() -> None:
    for _ in range(3):
        Schedule.objects.create(name="mend chains", func="somewhere.else", schedule_type=Schedule.MINUTES)
    first = Schedule.objects.order_by("id").values_list("id", flat=True)[0]
    boot()
    assert scheduled() == sorted(EACH_MINUTE.items())
    assert Schedule.objects.get(name="mend chains").id == first


def test_schedules_of_others_are_left_alone() -> None:
    for _ in range(2):
        Schedule.objects.create(name="a report", func="theirs", schedule_type=Schedule.DAILY)
    boot()
    assert Schedule.objects.filter(name="a report").count() == 2


def test_booting_again_puts_off_nothing() -> None:
    boot()
    before = list(Schedule.objects.order_by("id").values_list("id", "next_run"))
    boot()
    assert list(Schedule.objects.order_by("id").values_list("id", "next_run")) == before
