from django.db import migrations, models

import eventservice.db.constraints


class Migration(migrations.Migration):
    dependencies = [
        ("orchestration", "0008_namespace_length"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="servicecall",
            index=eventservice.db.constraints.PollingIndex(
                condition=models.Q(("attempt__gte", 1), ("status", "Scheduled")),
                fields=["tenant_id", "status", "attempt", "submitted_at"],
                full=("tenant_id", "status", "attempt", "submitted_at"),
                name="idx_service_calls_retrying",
            ),
        ),
    ]
