"""The dispatcher's role: a pass that broke off is made again at once, whether or not anything is written meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import OperationalError

from eventservice.dispatching import DispatcherRole
from eventservice.kernel.ids import new_id
from eventservice.webhooks import WebhookSender
from execution.public import Egress
from outbox.models import OutboxEvent
from tests.outbox.support import append_run

pytestmark = pytest.mark.django_db(transaction=True)


def no_egress() -> Egress:
    raise AssertionError("nothing is to be sent")


@pytest.fixture
def role() -> Iterator[DispatcherRole]:
    role = DispatcherRole(WebhookSender(no_egress))
    yield role
    role.stop(0.0)


def until_it_breaks_off(role: DispatcherRole) -> None:
    while True:
        role.step(0.0)


def unpublished() -> int:
    return OutboxEvent.objects.across_tenants().filter(published_at=None).count()


def test_a_pass_that_broke_off_is_made_with_the_next_step(
    role: DispatcherRole, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[..., Future[Any]]
) -> None:
    while role.step(0.0) is None or not role._dispatcher.partitions:
        pass
    elsewhere(append_run, new_id(), 1).result()

    def locked() -> None:
        raise OperationalError("database is locked")

    with monkeypatch.context() as trouble:
        trouble.setattr(role._dispatcher, "dispatch_once", locked)
        with pytest.raises(OperationalError):
            until_it_breaks_off(role)
    done = role.step(0.0)
    assert done is not None
    assert done.published == 1
    assert unpublished() == 0
