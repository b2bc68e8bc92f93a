"""What the process commands keep: the slots of the django-q2 cluster (eventservice.cluster)."""

from django.db import models


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
