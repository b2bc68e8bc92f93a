"""Totals that only grow, in the database: /metrics derives counters from them, which survive restarts."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import models, transaction
from django.db.models import F


class Total(models.Model):
    name = models.CharField(primary_key=True, max_length=100)
    value = models.FloatField(default=0.0)

    class Meta:
        app_label = "eventservice"
        db_table = "metric_totals"

    def __str__(self) -> str:
        return self.name


@transaction.atomic
def add_to_totals(amounts: Mapping[str, float]) -> None:
    """Add to totals, which begin at zero. All processes lock them in the order of their names."""
    for name in sorted(amounts):
        total = Total.objects.filter(pk=name)
        if not total.update(value=F("value") + amounts[name]):
            Total.objects.bulk_create([Total(name=name)], ignore_conflicts=True)
            total.update(value=F("value") + amounts[name])


def read_totals(prefix: str) -> dict[str, float]:
    """Return the totals whose names begin with the prefix, without it."""
    rows = Total.objects.values_list("name", "value")
    return {name.removeprefix(prefix): value for name, value in rows if name.startswith(prefix)}
