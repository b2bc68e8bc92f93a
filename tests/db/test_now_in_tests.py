"""Tests can pin the database's time: statements and Python see the pinned instant."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from eventservice.db.now import DbNow, db_now, pin_time
from eventservice.tenants.models import Tenant
from tests.factories import TenantFactory

pytestmark = pytest.mark.django_db


def test_statements_and_python_see_the_pinned_instant(at_noon: datetime) -> None:
    TenantFactory(name="noon", created_at=DbNow())
    TenantFactory(name="later", created_at=DbNow(timedelta(microseconds=1)))
    assert db_now() == at_noon
    assert Tenant.objects.get(created_at=DbNow()).name == "noon"
    assert Tenant.objects.get(created_at__gt=DbNow()).created_at == at_noon + timedelta(microseconds=1)


def test_an_inner_instant_hides_the_outer_one_while_it_lasts(at_noon: datetime) -> None:
    with pin_time(at_noon + timedelta(hours=1)):
        assert db_now() == at_noon + timedelta(hours=1)
    assert db_now() == at_noon


def test_the_clock_runs_again_afterwards(at_noon: datetime) -> None:
    with pytest.raises(RuntimeError, match="on purpose"), pin_time(at_noon + timedelta(hours=1)):
        raise RuntimeError("on purpose")
    assert db_now() == at_noon
