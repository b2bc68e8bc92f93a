"""The state that the clusters of one database share."""

from django.db import models


class Slot(models.Model):
    """One chain of slices, which keeps a worker running, and the lease of one role that a worker plays.

    A ticket permits one slice. Taking it issues the next one, so a chain can neither fork nor be run twice.
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
