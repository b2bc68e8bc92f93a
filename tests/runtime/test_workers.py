"""A worker of the cluster holds the lease of a role for as long as it plays it."""

from __future__ import annotations

from typing import NoReturn

import pytest
from django.db import OperationalError

from eventservice.kernel.ids import new_id
from eventservice.runtime import worker as module
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import RoleLease, slot_name
from eventservice.runtime.worker import Worker

pytestmark = pytest.mark.django_db(transaction=True)


def fail_to_build() -> NoReturn:
    raise OperationalError("too many connections")


def test_a_role_that_cannot_be_built_is_left_to_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    Slot.objects.get_or_create(name=slot_name("engine"))
    monkeypatch.setattr(module, "ROLES", {"engine": fail_to_build})
    with pytest.raises(OperationalError, match="too many connections"):
        Worker()._acquire_role()
    assert RoleLease(owner_id=new_id()).acquire(slot_name("engine"))
