"""deploy/prometheus and deploy/grafana: alerts and queries use metrics that /metrics exports, with labels that they have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.test import Client, override_settings
from prometheus_client.parser import text_string_to_metric_families

from eventservice.kernel.ttl_cache import clear_caches
from execution.outcome import Responded, Timings
from orchestration.engine.attempt_totals import AttemptTotals
from outbox.publisher_spec import PublisherSpec
from tests.deploy.manifests import DEPLOY, Document, read_documents

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
TESTS = Path(__file__).with_name("alerts_test.yaml")
# Labels that Prometheus adds, and those of buckets of histograms.
OTHER_LABELS = {"instance", "job", "le"}

pytestmark = pytest.mark.sqlite_only

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def read_rules() -> list[Document]:
    ((group,),) = [document["groups"] for document in read_documents(ALERTS)]
    rules: list[Document] = group["rules"]
    return rules


def list_panels() -> list[Document]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def list_queries() -> Iterator[tuple[str, str]]:
    """Yield every query of the rules and of the dashboard, with the name of its place."""
    for rule in read_rules():
        yield rule["alert"], rule["expr"]
    for panel in list_panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


QUERIES = dict(list_queries())


@pytest.fixture
def labels(client: Client, db: None) -> dict[str, set[str]]:
    """Return the labels of each sample of /metrics, by its name, on a system that has made calls."""
    totals = AttemptTotals()
    totals.count([Responded(1, 200, (), b"", 0, Timings(total_ms=1.0))])
    totals.flush()
    client.get("/livez")
    client.get("/api/v1/nothing")
    with override_settings(PUBLISHERS=[PublisherSpec.parse("main=redis://b.test")]):
        clear_caches()
        text = client.get("/metrics").content.decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        found.setdefault(family.name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


# Families that have a sample only while something has happened, or with a setting that most systems do not have.
LABELS_WITHOUT_SAMPLES = {
    "eventservice_calls_failed_by_kind_5m": {"kind"},
    "eventservice_lateness_seconds_5m": {"quantile"},
    "eventservice_http_refusals_total": {"code"},
    "eventservice_timer_store_mark_age_seconds": {"store"},
}


@pytest.mark.parametrize("place", QUERIES)
def test_a_query_uses_metrics_that_are_exported_with_labels_that_they_have(
    place: str, labels: dict[str, set[str]]
) -> None:
    known = {**LABELS_WITHOUT_SAMPLES, **{name: found for name, found in labels.items() if found}}
    query = QUERIES[place]
    names = set(re.findall(r"\beventservice_\w+", query))
    assert names or place == "NoAnswer"
    assert names - labels.keys() == set()
    used = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', query))
    for group in re.findall(r"\bby \(([^)]*)\)", query):
        used |= {name.strip() for name in group.split(",")}
    having = {label for name in names for label in known.get(name, labels[name])}
    assert used - having - OTHER_LABELS == set()


def test_every_alert_has_a_severity_and_says_what_is_wrong() -> None:
    for rule in read_rules():
        assert rule["labels"] == {"severity": rule["labels"]["severity"]}
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"].endswith(".")


def test_every_alert_is_explained_in_the_documentation() -> None:
    page = (settings.BASE_DIR / "docs/metrics.md").read_text().partition("## Alerts")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert [name for name, _, _ in rows] == [rule["alert"] for rule in read_rules()]
    used = set(re.findall(r"eventservice_\w+", page))
    assert used <= {
        *re.findall(r"eventservice_\w+", "".join(QUERIES.values())),
        "eventservice_tenant_refusals",
    }


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    run_promtool("check", "rules", str(ALERTS))


@needs_promtool
def test_the_alerts_fire_when_they_should_and_not_otherwise() -> None:
    run_promtool("test", "rules", str(TESTS))


@needs_promtool
def test_prometheus_understands_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "5m", "$instance": ".*"}
    pattern = re.compile("|".join(map(re.escape, variables)))
    rules = [
        {"record": "query", "expr": pattern.sub(lambda found: variables[found[0]], target["expr"])}
        for panel in list_panels()
        for target in panel["targets"]
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run_promtool("check", "rules", "--lint=none", str(path))


def run_promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dashboard_asks_the_data_source_and_the_machines_that_are_chosen() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource", "instance"}
    for panel in list_panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}


def test_panels_do_not_overlap() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
