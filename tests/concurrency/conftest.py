import pytest

from eventservice.tenants.directory import clear_profile_cache, create_tenant
from eventservice.tenants.models import Tenant


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    clear_profile_cache()
    return create_tenant("acme")
