"""`manage.py requeue_stuck` says what it did and what is still to do. tests/chaos runs it after a kill."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from timers.membership import Membership

pytestmark = pytest.mark.django_db


def run() -> list[str]:
    out = StringIO()
    call_command("requeue_stuck", stdout=out)
    return out.getvalue().splitlines()


def test_nothing_to_do_beside_a_live_engine() -> None:
    Membership().join()
    assert run() == ["Resolved 0 calls."]


def test_without_an_engine_it_says_that_no_call_is_sent() -> None:
    assert run() == [
        "Resolved 0 calls.",
        "No engine is running, so no call is sent. Start one with `manage.py cluster`.",
    ]
