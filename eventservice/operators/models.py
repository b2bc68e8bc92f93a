"""The audit log: what operators have done."""

from django.db import models

from eventservice.db.constraints import LongNamedIndex
from eventservice.kernel.tenancy import TenantScopedModel


class OperatorAction(TenantScopedModel):
    """One action of an operator, in the console, through the API or by a command. Rows are only ever added."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    # A user name, `key:` and a key's id, or `manage.py` and an account of the system: the log outlives the user.
    user = models.CharField(max_length=150)
    action = models.CharField(max_length=40)
    # Null when the action does not concern a single tenant.
    tenant_id = models.UUIDField(null=True)
    subject = models.CharField(max_length=255)
    detail = models.JSONField(default=dict)

    class Meta:
        db_table = "operator_actions"
        indexes = [
            # What was done to one call, one key, one event.
            LongNamedIndex(name="idx_operator_actions_subject", fields=["subject", "id"]),
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.action} {self.subject}"
