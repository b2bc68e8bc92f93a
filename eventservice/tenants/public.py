"""What other modules may use of tenants."""

from eventservice.tenants.directory import (
    Profile,
    create_tenant,
    declare_namespace,
    forget_profiles,
    most_shards,
    profile,
    tenant_ids,
)
from eventservice.tenants.models import DEFAULT_NAMESPACE

__all__ = [
    "DEFAULT_NAMESPACE",
    "Profile",
    "create_tenant",
    "declare_namespace",
    "forget_profiles",
    "most_shards",
    "profile",
    "tenant_ids",
]
