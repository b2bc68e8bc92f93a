"""What the process commands keep (eventservice.runtime.cluster), and what operators have done (eventservice.console)."""

from django.db import models

from eventservice.db.constraints import LongNamedIndex
from eventservice.kernel.tenancy import TenantManager


class Slot(models.Model):
    """One role to be filled by a worker, and one chain of slices that keeps a worker running.

    The ticket is good for one slice: taking it makes the next one, so a chain can neither fork nor be run twice.
    """

    name = models.CharField(primary_key=True, max_length=40)
    ticket = models.BigIntegerField(default=0)
    taken_at = models.DateTimeField(null=True)
    owner_id = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)

    class Meta:
        db_table = "cluster_slots"

    def __str__(self) -> str:
        return self.name


class OperatorAction(models.Model):
    """Who did what in the console, or to tenants and keys through the API. Rows are only ever added."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    # By name, or `key:` and its id: the log outlives the user.
    user = models.CharField(max_length=150)
    action = models.CharField(max_length=40)
    # Null: it was about no tenant's things alone.
    tenant_id = models.UUIDField(null=True)
    subject = models.CharField(max_length=255)
    detail = models.JSONField(default=dict)

    objects = TenantManager()

    class Meta:
        db_table = "operator_actions"
        indexes = [
            # What was done to one call, one key, one event.
            LongNamedIndex(name="idx_operator_actions_subject", fields=["subject", "id"]),
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.action} {self.subject}"
