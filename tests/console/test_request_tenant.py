"""Whose call the Request page makes: what is somebody's is never sent as somebody else's."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from eventservice.console.base import tenant_select
from eventservice.tenants.directory import create_tenant, update_tenant
from eventservice.tenants.models import Tenant
from tests.console.call_pages import BROWSER, NEW, calls, filled, text_of
from tests.console.status_rows import submit_calls

pytestmark = pytest.mark.django_db

NOT_ACTIVE = "The tenant of this request is not active"


@pytest.fixture
def active() -> Tenant:
    return create_tenant("active")


@pytest.fixture
def copy_of_inactive(active: Tenant) -> str:
    inactive = create_tenant("inactive")
    (call,) = submit_calls(inactive, 1)
    update_tenant(inactive.tenant_id, active=False)
    return f"{NEW}?copy={inactive.tenant_id}/{call}"


def choice(page: str) -> list[tuple[str, bool]]:
    """The names to choose from, and whether each is selected."""
    (select,) = re.findall(r'<select id="tenant".*?</select>', page, re.DOTALL)
    return [
        (name, bool(selected)) for selected, name in re.findall(r"<option[^>]*?( selected)?>(.*?)<", select)
    ]


def test_the_only_tenant_needs_no_choosing(operator: Client, active: Tenant) -> None:
    assert choice(operator.get(NEW).content.decode()) == [("active", True)]
    create_tenant("another")
    assert choice(operator.get(NEW).content.decode()) == [
        ("Choose…", False), ("active", False), ("another", False),
    ]  # fmt: skip


def test_a_copy_of_an_inactive_tenants_call_is_not_made_the_only_others(
    operator: Client, copy_of_inactive: str
) -> None:
    page = operator.get(copy_of_inactive)
    assert choice(page.content.decode()) == [("Choose…", False), ("active", False)]
    assert NOT_ACTIVE in text_of(page)


@pytest.mark.parametrize("button", ["add-row", "format", "submit"])
def test_the_choice_stays_open_until_it_is_made(operator: Client, active: Tenant, button: str) -> None:
    page = operator.post(NEW, filled(operator, tenant="", do=button), headers=BROWSER)
    assert choice(page.content.decode()) == [("Choose…", False), ("active", False)]
    assert calls() == []


def test_of_many_tenants_the_chosen_one_can_be_chosen(
    operator: Client, active: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_select, "MAX_OPTIONS", 1)
    last = create_tenant("last")
    create_tenant("never")
    page = operator.get(f"{NEW}?tenant={last.tenant_id}")
    assert choice(page.content.decode()) == [("Choose…", False), ("active", False), ("last", True)]
    assert NOT_ACTIVE not in text_of(page)
