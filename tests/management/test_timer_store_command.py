"""`manage.py timer_store` sets up a store and shows what is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from eventservice.management.commands.doctor import examine
from tests.contracts.timer_stores import STORES
from tests.contracts.timer_stores.base import ALERTS, StoreUnderTest, build_timer
from timers.stores.port import Member, round_up
from timers.stores.store_spec import StoreSpec

# Not within a transaction, in which the database's time stands still and is compared with the store's.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite_only]

UNREACHABLE = StoreSpec.parse("away=postgresql+psycopg://user:s3cret@127.0.0.1:1/db")


@pytest.fixture(scope="module")
def server() -> Iterator[StoreUnderTest]:
    server = STORES["postgres"]()
    yield server
    server.close()


@pytest.fixture
def stores(server: StoreUnderTest) -> Iterator[StoreUnderTest]:
    assert server.spec is not None
    with override_settings(TIMER_STORES=[replace(server.spec, name="main"), UNREACHABLE]):
        yield server
        server.close_built()


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("timer_store", *arguments, stdout=out)
    return out.getvalue()


def test_a_store_is_migrated_checked_and_shown(stores: StoreUnderTest) -> None:
    with pytest.raises(SystemExit) as raised:
        run("check", "main")
    assert raised.value.code == 1
    assert "The timer store main has its table" in run("migrate", "main")
    run("migrate", "main")
    findings = json.loads(run("check", "main", "--json"))
    assert {finding["severity"] for finding in findings} == {"ok"}
    assert {finding["code"] for finding in findings} == {
        "timer_store_server",
        "timer_store_table",
        "timer_store_clock",
    }
    assert "No shard has been claimed" in run("status", "main")

    store = stores.build()
    now = round_up(db_now())
    store.declare_namespace(ALERTS, 16, {})
    assert store.beat(Member(new_id(), 1, {}))
    timer = build_timer(execute_at=now - timedelta(hours=1))
    store.put(timer, None, now)
    assert store.claim(store.shards([timer.key.shard])[0], "engine-1", {})
    status = json.loads(run("status", "main", "--json"))
    assert status["namespaces"] == [{"namespace": str(ALERTS), "numShards": 16}]
    assert len(status["processes"]) == 1
    shard = status["shards"][timer.key.shard]
    assert (shard["owner"], shard["version"], shard["timers"], shard["overdue"]) == ("engine-1", 1, 1, 1)
    assert "engine-1" in run("status", "main")


def test_a_store_that_cannot_be_reached_is_named_and_its_password_is_not_shown(
    stores: StoreUnderTest,
) -> None:
    for action in ("migrate", "status"):
        with pytest.raises(CommandError, match=r"^away: ") as raised:
            run(action, "away")
        assert "s3cret" not in str(raised.value)
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("timer_store", "check", "away", stdout=out)
    assert "error" in out.getvalue()
    assert "s3cret" not in out.getvalue()


def test_a_name_that_is_not_configured_is_refused_with_those_that_are(stores: StoreUnderTest) -> None:
    with pytest.raises(CommandError, match=r"no store 'other'. It has: main, away"):
        run("status", "other")


def test_doctor_reports_every_store_by_name(stores: StoreUnderTest) -> None:
    found = [finding for finding in examine() if finding.code.startswith("timer_store")]
    assert any(finding.text.startswith("main: ") for finding in found)
    (away,) = [finding for finding in found if finding.text.startswith("away: ")]
    assert not away.is_ok
    assert "TIMER_STORES" in away.remedy
