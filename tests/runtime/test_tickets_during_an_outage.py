"""A slice that cannot consume its ticket logs one line for a known outage, and a traceback for anything else."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from eventservice.db.errors import Trouble
from eventservice.runtime import cluster

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("trouble", [Trouble("The disk is full.", "Free space."), None])
def test_only_an_unknown_error_has_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: Trouble | None
) -> None:
    answers = iter([OperationalError("no\n"), None])

    def consume(*_: object) -> bool:
        if error := next(answers):
            raise error
        return True

    class Worker:
        def run_for(self, seconds: float) -> None:
            pass

    monkeypatch.setattr(cluster, "consume_ticket", consume)
    monkeypatch.setattr(cluster, "find_trouble", lambda error: trouble)
    monkeypatch.setattr(cluster, "current_worker", Worker)
    assert cluster._consume_ticket("blue/engine", 7)
    (line,) = [record.msg for record in caplog.records if "ticket_not_consumed" in record.getMessage()]
    assert isinstance(line, dict)
    assert (line.get("trouble") == "The disk is full.") == (trouble is not None)
    assert bool(line.get("exc_info")) == (trouble is None)
