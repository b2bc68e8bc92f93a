"""Nodes that run other code are named by doctor and the console: they were left over, or not restarted, after an upgrade."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from eventservice.db.now import DbNow, db_now
from eventservice.kernel.ids import new_id
from eventservice.kernel.version import get_version
from eventservice.operators.health import MAX_NAMED_NODES, check_cluster, read_cluster
from timers.membership import Membership
from timers.models import Node, NodeRole

pytestmark = pytest.mark.django_db


def create_node(role: NodeRole = NodeRole.ENGINE, lease_seconds: float = 5, **values: object) -> Node:
    found = {"hostname": "engine-1", "process_id": 4711, "started_at": DbNow(), **values}
    lease_until = DbNow(timedelta(seconds=lease_seconds))
    return Node.objects.create(owner_id=new_id(), role=role, lease_until=lease_until, **found)


def list_texts() -> list[str]:
    return [
        finding.text
        for finding in check_cluster(read_cluster(db_now(), []))
        if finding.code == "other_version"
    ]


def test_a_node_that_joins_has_the_version_of_its_process() -> None:
    Membership().join()
    assert Node.objects.get().version == get_version()
    assert list_texts() == []


def test_a_node_of_another_version_is_named() -> None:
    create_node(version="0123456789ab")
    (text,) = list_texts()
    assert "engine on engine-1 (process 4711) runs version 0123456789ab" in text
    assert get_version() in text


def test_a_node_of_a_release_without_versions_is_named() -> None:
    create_node(version="", role=NodeRole.DISPATCHER)
    assert "dispatcher on engine-1 (process 4711) runs version unknown" in list_texts()[0]


def test_a_dead_node_is_not_named_for_its_version() -> None:
    create_node(version="old", lease_seconds=-5)
    assert list_texts() == []


def test_many_nodes_are_counted() -> None:
    for _ in range(MAX_NAMED_NODES + 2):
        create_node(version="old")
    texts = list_texts()
    assert len(texts) == MAX_NAMED_NODES + 1
    assert "2 other nodes" in texts[-1]


def test_the_console_marks_it_in_its_list(client: Client) -> None:
    user = get_user_model().objects.create_user("ada", password="a long password", is_staff=True)
    client.force_login(user)
    create_node(version="0123456789ab")
    create_node(hostname="engine-2")
    page = client.get(reverse("console:cluster")).content.decode()
    assert page.count('<span class="pill warning">version') == 1
    assert "version 0123456789ab" in page


def test_the_console_says_that_the_other_version_is_that_of_a_web_process(client: Client) -> None:
    user = get_user_model().objects.create_user("ada", password="a long password", is_staff=True)
    client.force_login(user)
    create_node(version="0123456789ab")
    for address in (reverse("console:cluster"), reverse("console:dashboard")):
        assert f"this web process {get_version()}" in client.get(address).content.decode(), address
