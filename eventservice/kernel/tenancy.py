"""The base class of every table that belongs to tenants, and the two managers through which its rows are read."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from django.db import models

Row = TypeVar("Row", bound=models.Model, covariant=True)


class UnscopedReadError(RuntimeError):
    """Raised when a query on `Model.objects` does not begin with `for_tenant`. It is a programming error."""


class TenantManager(models.Manager[Row]):
    """The manager `objects` of a tenant's table: it reads one tenant's rows, and only those.

    Every read begins with `Model.objects.for_tenant(tenant_id)`; all others raise UnscopedReadError. New rows carry
    their tenant, so `create` and `bulk_create` work as usual. Reads that are global by nature (operators' pages, the
    dispatcher, retention) use `Model.across_tenants`; tests/test_architecture.py lists the modules that may.
    """

    def for_tenant(self, tenant_id: uuid.UUID) -> models.QuerySet[Row]:
        if tenant_id is None:
            self._refuse()
        return super().get_queryset().filter(tenant_id=tenant_id)

    def create(self, **values: Any) -> Row:
        return super().get_queryset().create(**values)

    def bulk_create(self, objs: Iterable[Row], *args: Any, **options: Any) -> list[Row]:
        return super().get_queryset().bulk_create(objs, *args, **options)

    def get_queryset(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        name = self.model.__name__
        raise UnscopedReadError(
            f"{name}.objects reads the rows of one tenant: begin with {name}.objects.for_tenant(tenant_id), "
            f"or read across tenants with {name}.across_tenants."
        )


class TenantScopedModel(models.Model):
    """A row that belongs to a tenant; the subclass has the column `tenant_id`."""

    # The first manager is Django's default one: forms, the admin, dumpdata and related lookups read through it.
    across_tenants = models.Manager()
    objects = TenantManager()

    class Meta:
        abstract = True
