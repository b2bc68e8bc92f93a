"""The admin's form of a tenant keeps the rules that the API has."""

from __future__ import annotations

import pytest

from eventservice.tenants.admin import TenantForm
from eventservice.tenants.models import Tenant

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", ["X-Pin:", "X Ssn", "X-*"])
def test_a_header_that_there_cannot_be_is_no_secret_one(tenant: Tenant, name: str) -> None:
    form = TenantForm({"secret_headers": f"X-Fine\n{name}"}, instance=tenant)
    assert "name of a header" in str(form.errors["secret_headers"])


def test_all_headers_may_be_secret(tenant: Tenant) -> None:
    form = TenantForm({"secret_headers": "*"}, instance=tenant)
    assert "secret_headers" not in form.errors


def test_valid_header_names_are_accepted(tenant: Tenant) -> None:
    form = TenantForm({"secret_headers": "X-Fine\nx_pin"}, instance=tenant)
    assert "secret_headers" not in form.errors
    assert form.cleaned_data["secret_headers"] == ["X-Fine", "x_pin"]
