"""Tenants with their default namespace."""

from __future__ import annotations

import pytest

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant


@pytest.fixture
def tenant(db: None) -> Tenant:
    return create_tenant("acme")


@pytest.fixture
def intruder(db: None) -> Tenant:
    return create_tenant("intruder")
