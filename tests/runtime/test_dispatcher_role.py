"""The dispatcher's role: a pass that broke off is made again at once, whether or not anything is written meanwhile;
and a role that is over leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import OperationalError

from eventservice.db import errors
from eventservice.kernel.ids import new_id
from eventservice.runtime.dispatcher import DispatcherRole
from eventservice.runtime.webhook_sender import WebhookSender
from execution.egress import Egress
from outbox.models import OutboxEvent
from outbox.publishers.webhook.endpoints import create_endpoint
from tests.outbox.conftest import start_egress
from tests.outbox.receiver import receiving
from tests.outbox.support import TENANT, store_run

pytestmark = pytest.mark.django_db(transaction=True)


def no_egress() -> Egress:
    raise AssertionError("nothing is to be sent")


@pytest.fixture
def role() -> Iterator[DispatcherRole]:
    role = DispatcherRole(WebhookSender(no_egress), places=8)
    yield role
    role.stop(0.0)


def until_it_breaks_off(role: DispatcherRole) -> None:
    while True:
        role.step(0.0)


def locked() -> None:
    raise OperationalError("database is locked")


def unpublished() -> int:
    return OutboxEvent.across_tenants.filter(published_at=None).count()


def test_a_pass_that_broke_off_is_made_with_the_next_step(
    role: DispatcherRole, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[..., Future[Any]]
) -> None:
    while role.step(0.0) is None or not role._dispatcher.partitions:
        pass
    elsewhere(store_run, new_id(), 1).result()

    with monkeypatch.context() as trouble:
        trouble.setattr(role._dispatcher, "dispatch_once", locked)
        with pytest.raises(OperationalError):
            until_it_breaks_off(role)
    done = role.step(0.0)
    assert done is not None
    assert done.published == 1
    assert unpublished() == 0


@pytest.mark.parametrize("database_is_away", [False, True])
def test_no_thread_of_the_egress_outlives_the_role(
    database_is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = DispatcherRole(WebhookSender(start_egress), places=8)
    with receiving() as receiver:
        create_endpoint(TENANT, receiver.at("/hook"))
        store_run(new_id(), 2)
        while receiver.sequences("/hook") != [1, 2]:
            role.step(0.0)
    assert "egress" in threads()
    if database_is_away:
        monkeypatch.setattr(errors, "PAUSE_SECONDS", 0.0)
        monkeypatch.setattr(role._dispatcher, "release", locked)
        monkeypatch.setattr(role._node, "leave", locked)
    role.stop(0.0)
    assert not {"egress", "webhooks"} & threads()


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
