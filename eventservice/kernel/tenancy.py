"""Tenant-scoped managers: every read of a tenant's table begins with `for_tenant`.

`across_tenants` is for the few reads that are global by nature (shard polling, outbox dispatch, operators'
pages, retention). A test lists them: a new one has to be argued there.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db import models


class TenantManager(models.Manager[Any]):
    def for_tenant(self, tenant_id: uuid.UUID) -> models.QuerySet[Any]:
        return self.get_queryset().filter(tenant_id=tenant_id)

    def across_tenants(self) -> models.QuerySet[Any]:
        return self.get_queryset()
