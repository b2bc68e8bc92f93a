"""Tenants with their default namespace, and an engine to be driven by hand."""

from __future__ import annotations

from datetime import datetime

import pytest

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from tests.orchestration.support import ManualEngine


@pytest.fixture
def tenant(db: None) -> Tenant:
    return create_tenant("acme")


@pytest.fixture
def intruder(db: None) -> Tenant:
    return create_tenant("intruder")


@pytest.fixture
def manual_engine(db: None, at_noon: datetime) -> ManualEngine:
    """An engine at a time that stands still at noon."""
    return ManualEngine()
