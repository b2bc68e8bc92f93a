import pytest

from eventservice.tenants.models import Tenant
from eventservice.tenants.public import create_tenant, forget_profiles


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    forget_profiles()
    return create_tenant("acme")
