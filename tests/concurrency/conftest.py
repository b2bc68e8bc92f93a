import pytest

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    return create_tenant("acme")
