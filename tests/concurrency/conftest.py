import pytest

from eventservice.tenants.directory import create_tenant, forget_profiles
from eventservice.tenants.models import Tenant


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    forget_profiles()
    return create_tenant("acme")
