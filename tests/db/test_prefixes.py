"""Strings are found by their beginning, exactly as written, in every database."""

from __future__ import annotations

import pytest
from django.db.models import F

from eventservice.db.sql import _find_end_of_prefix, match_prefix
from eventservice.tenants.models import Tenant
from tests.factories import TenantFactory

pytestmark = pytest.mark.django_db

NAMES = [
    "order",
    "order-1",
    "order-10",
    "order-2",
    "Order-1",
    "orde",
    "ordes",
    "order%",
    "order_1",
    "ordér",
    "\U0010ffffz",
]


@pytest.mark.parametrize(
    "prefix", ["order", "order-1", "Order", "order%", "order_", "ord", "x", "é", "\U0010ffff", "\ud7ff"]
)
def test_a_prefix_matches_what_begins_with_it_and_nothing_else(prefix: str) -> None:
    for name in NAMES:
        TenantFactory(name=name)
    found = Tenant.objects.filter(match_prefix(F("name"), prefix)).values_list("name", flat=True)
    assert sorted(found) == sorted(name for name in NAMES if name.startswith(prefix))


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("a", "b"),
        ("ab", "ac"),
        ("a\U0010ffff", "b"),
        ("\U0010ffff", None),
        ("\ud7ff", "\ue000"),
        ("\ufffd", "\ufffe"),
    ],
)
def test_the_end_of_a_prefix_is_the_next_string_that_databases_can_store(
    prefix: str, end: str | None
) -> None:
    assert _find_end_of_prefix(prefix) == end
