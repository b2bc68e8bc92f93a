"""/metrics is valid for Prometheus and OpenMetrics, and counts requests of all web processes together."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
import urllib.request
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client, override_settings
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from eventservice.api.http_metrics import BUCKETS
from eventservice.db.now import DbNow, db_now
from eventservice.kernel.ids import new_id
from eventservice.kernel.processes import read_process
from eventservice.kernel.ttl_cache import clear_caches
from execution.outcome import Errored, ErrorKind, Outcome, Responded, Timings
from orchestration.engine.attempt_totals import AttemptTotals
from orchestration.models import TimerMark
from outbox.broker_queue import BrokerQueue
from outbox.publisher_spec import PublisherSpec
from outbox.store import read_heads
from outbox.writer import PARTITIONS
from tests.api.conftest import Api
from tests.contracts.timer_stores.memory_fleet import MemoryFleet
from tests.outbox.support import RecordingPublisher, build_dispatcher, drain, store_run
from tests.process_harness import ProcessHarness, harness, wait_until
from timers.models import Node

__all__ = ["harness"]

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def read_samples(text: str, parse: Any = parse_prometheus) -> dict[tuple[Any, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


@pytest.mark.django_db
def test_requests_are_counted_by_route_method_and_class_of_status(acme: Api, client: Client) -> None:
    def read() -> dict[tuple[Any, ...], float]:
        clear_caches()
        return read_samples(client.get("/metrics").content.decode())

    before = read()
    for path in ("/livez", "/livez", "/nothing", "/admin/nothing/"):
        client.get(path)
    acme.get("/service-calls")
    client.get("/livez", headers={"Host": "x y"})
    client.get("/api/v1/stats", headers={"Host": "10.1.1.1"})
    after = read()
    grown = {key: value - before.get(key, 0) for key, value in after.items() if "http" in key[0]}
    calls = "api/v1/tenants/<id:tenant_id>/service-calls"
    name = "eventservice_http_requests_total"
    assert grown[name, "GET", "livez", "2xx"] == 3
    assert grown[name, "GET", calls, "2xx"] == 1
    assert grown[name, "GET", "none", "4xx"] >= 2
    assert grown["eventservice_http_request_duration_seconds_count", "livez"] == 3
    assert grown["eventservice_http_request_duration_seconds_bucket", "+Inf", "livez"] == 3
    steps = [after["eventservice_http_request_duration_seconds_bucket", str(b), "livez"] for b in BUCKETS]
    assert steps == sorted(steps)


@pytest.mark.django_db
def test_the_text_is_valid_in_both_formats(client: Client) -> None:
    client.get("/livez")
    plain = client.get("/metrics")
    assert plain["Content-Type"].startswith("text/plain")
    open_metrics = client.get("/metrics", headers={"Accept": OPENMETRICS})
    assert open_metrics["Content-Type"].startswith("application/openmetrics-text")
    text = open_metrics.content.decode()
    assert text.endswith("# EOF\n")
    families = {family.name: family.type for family in parse_openmetrics(text)}
    assert families["eventservice_http_requests"] == "counter"
    assert families["eventservice_http_request_duration_seconds"] == "histogram"
    assert set(read_samples(text, parse_openmetrics)) >= set(read_samples(plain.content.decode()))


@pytest.mark.django_db
def test_every_metric_is_documented(client: Client) -> None:
    families = {family.name for family in parse_prometheus(client.get("/metrics").content.decode())}
    page = (settings.BASE_DIR / "docs/metrics.md").read_text()
    documented = set(re.findall(r"^\| `(eventservice_\w+?)(?:_total)?(?:\{|`)", page, re.MULTILINE))
    if connection.vendor != "sqlite":
        documented -= {"eventservice_database_disk_free_bytes"}
    assert {name.removesuffix("_total") for name in families} == documented


@pytest.mark.django_db
def test_the_queue_of_each_broker_is_measured(client: Client) -> None:
    store_run(new_id(), 2)
    BrokerQueue("gone").publish(list(read_heads(range(PARTITIONS), 2)[0]))
    with override_settings(
        PUBLISHERS=[PublisherSpec.parse("log"), PublisherSpec.parse("main=redis://b.test")]
    ):
        clear_caches()
        found = read_samples(client.get("/metrics").content.decode())
    events, lag = "eventservice_broker_queue_events", "eventservice_broker_queue_lag_seconds"
    assert {key: value for key, value in found.items() if key[0] == events} == {
        (events, "main"): 0,
        (events, "gone"): 2,
    }
    assert found[lag, "main"] == 0
    assert found[lag, "gone"] > 0


@pytest.mark.django_db
def test_the_marks_for_each_timer_store_are_counted(client: Client, fleet: MemoryFleet) -> None:
    now = db_now()
    for number, seconds in ((1, 60), (2, 30)):
        TimerMark.objects.create(
            tenant_id=new_id(), service_call_id=new_id(), take=number, store="fleet", namespace="alerts", timer_id="due",
            shard_id=0, execute_at=now, failures=0, interruptions=0, next_seq=1, marked_at=now - timedelta(seconds=seconds),
        )  # fmt: skip
    clear_caches()
    found = read_samples(client.get("/metrics").content.decode())
    marks, age = "eventservice_timer_store_marks", "eventservice_timer_store_mark_age_seconds"
    assert (found[marks, "fleet"], found[marks, "away"]) == (2, 0)
    assert found[age, "fleet"] >= 60
    assert found[age, "away"] == 0


@pytest.mark.django_db
def test_nodes_are_zero_without_a_live_process(client: Client) -> None:
    def create(role: str, lease: timedelta) -> None:
        Node.objects.create(
            owner_id=new_id(), role=role, hostname="h", process_id=1, started_at=DbNow(), lease_until=DbNow(lease)
        )  # fmt: skip

    create("engine", timedelta(seconds=-1))  # killed, and no other engine has removed it
    create("leaving", timedelta(seconds=8))
    clear_caches()
    found = read_samples(client.get("/metrics").content.decode())
    nodes = {key[1]: value for key, value in found.items() if key[0] == "eventservice_nodes"}
    assert nodes == {"engine": 0, "dispatcher": 0, "standby": 0, "leaving": 1}


def test_a_process_is_described() -> None:
    found = read_process(os.getpid())
    assert found is not None
    assert found.cpu_seconds > 0
    assert found.resident_bytes > 10_000_000
    assert found.open_files > 3
    assert 0 < time.time() - found.started_at < 7200
    assert read_process(2**22 + 1) is None


def test_all_web_processes_count_together(harness: ProcessHarness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = ["-c", "python:eventservice.runtime.gunicorn_config", "eventservice.wsgi", "--workers", "3"]
    harness.start("web", [sys.executable, "-m", "gunicorn", *command, "--bind", f"127.0.0.1:{port}"])

    def get(path: str) -> str:
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            return str(answer.read().decode())

    def is_serving() -> bool:
        try:
            return bool(get("/livez"))
        except OSError:
            return False

    wait_until(is_serving, "it serves")
    counted = ("eventservice_http_requests_total", "GET", "livez", "2xx")
    before = read_samples(get("/metrics"))[counted]
    for _ in range(60):
        get("/livez")
    time.sleep(2.5)  # longer than a scrape is kept
    samples: dict[tuple[Any, ...], float] = {}
    for _ in range(6):
        samples = read_samples(get("/metrics"))
        assert samples[counted] == before + 60
    assert {key[2] for key in samples if key[0] == "eventservice_process_open_fds"} == {"web"}


@pytest.mark.django_db
def test_calls_and_attempts_are_counted_and_the_counts_survive_restarts(client: Client) -> None:
    def outcome(kind: str, milliseconds: float) -> Outcome:
        timings = Timings(total_ms=milliseconds)
        if kind == "Timeout":
            return Errored(1, ErrorKind.TIMEOUT, "", {}, timings, True)
        return Responded(1, int(kind), (), b"", 0, timings)

    for _ in range(2):  # as two processes would
        totals = AttemptTotals()
        totals.count([outcome("200", 3), outcome("204", 70), outcome("Timeout", 30_000)])
        totals.flush()
        totals.flush()
        store_run(new_id(), 3)
        drain(build_dispatcher(RecordingPublisher()))
    clear_caches()
    found = read_samples(client.get("/metrics").content.decode())
    assert found["eventservice_calls_total", "submitted"] == 6
    name = "eventservice_attempt_duration_seconds"
    counts = [found[f"{name}_bucket", bound, "2xx"] for bound in ("0.005", "0.05", "0.1", "+Inf")]
    assert counts == [2, 2, 4, 4]
    assert found[f"{name}_sum", "2xx"] == pytest.approx(0.146)
    assert found[f"{name}_count", "Timeout"] == 2
