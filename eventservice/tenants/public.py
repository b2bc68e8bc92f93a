"""What other modules may use of tenants."""

from eventservice.tenants.directory import (
    Profile,
    create_tenant,
    declare_namespace,
    forget_profiles,
    most_shards,
    profile,
    tenant_ids,
    tenant_names,
)
from eventservice.tenants.models import DEFAULT_NAMESPACE, Tenant

__all__ = [
    "DEFAULT_NAMESPACE",
    "Profile",
    "Tenant",
    "create_tenant",
    "declare_namespace",
    "forget_profiles",
    "most_shards",
    "profile",
    "tenant_ids",
    "tenant_names",
]
