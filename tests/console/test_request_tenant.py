"""The form for a new call never submits the call of one tenant as that of another."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from eventservice.console.base import tenant_select
from eventservice.tenants.directory import create_tenant, update_tenant
from eventservice.tenants.models import Tenant
from tests.console.call_list import submit_calls
from tests.console.call_pages import BROWSER, NEW, fill_form, list_calls, read_text

pytestmark = pytest.mark.django_db

NOT_ACTIVE = "The tenant of the original call is not active"


@pytest.fixture
def active() -> Tenant:
    return create_tenant("active")


@pytest.fixture
def copy_of_inactive(active: Tenant) -> str:
    inactive = create_tenant("inactive")
    (call,) = submit_calls(inactive, 1)
    update_tenant(inactive.tenant_id, active=False)
    return f"{NEW}?copy={inactive.tenant_id}/{call}"


def read_options(page: str) -> list[tuple[str, bool]]:
    """Return the names of the tenants, and whether each is selected."""
    (select,) = re.findall(r'<select id="tenant".*?</select>', page, re.DOTALL)
    return [
        (name, bool(selected)) for selected, name in re.findall(r"<option[^>]*?( selected)?>(.*?)<", select)
    ]


def test_the_only_tenant_is_selected(operator: Client, active: Tenant) -> None:
    assert read_options(operator.get(NEW).content.decode()) == [("active", True)]
    create_tenant("another")
    assert read_options(operator.get(NEW).content.decode()) == [
        ("Choose…", False), ("active", False), ("another", False),
    ]  # fmt: skip


def test_a_copy_of_an_inactive_tenants_call_is_not_submitted_for_another(
    operator: Client, copy_of_inactive: str
) -> None:
    page = operator.get(copy_of_inactive)
    assert read_options(page.content.decode()) == [("Choose…", False), ("active", False)]
    assert NOT_ACTIVE in read_text(page)


@pytest.mark.parametrize("button", ["add-row", "format", "submit"])
def test_no_tenant_is_selected_until_one_is_chosen(operator: Client, active: Tenant, button: str) -> None:
    page = operator.post(NEW, fill_form(operator, tenant="", do=button), headers=BROWSER)
    assert read_options(page.content.decode()) == [("Choose…", False), ("active", False)]
    assert list_calls() == []


def test_the_chosen_one_of_many_tenants_is_selected(
    operator: Client, active: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_select, "MAX_OPTIONS", 1)
    last = create_tenant("last")
    create_tenant("never")
    page = operator.get(f"{NEW}?tenant={last.tenant_id}")
    assert read_options(page.content.decode()) == [("Choose…", False), ("active", False), ("last", True)]
    assert NOT_ACTIVE not in read_text(page)
