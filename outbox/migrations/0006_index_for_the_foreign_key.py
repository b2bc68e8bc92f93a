from django.db import migrations, models

import eventservice.db.constraints


class Migration(migrations.Migration):
    """Creates an index again, so that it follows idx_webhook_deliveries_queue.

    MySQL 9.7 checks a foreign key by the first index that begins with its columns, and skips the check if any column of that index
    is null. `next_attempt_at` can be.
    """

    dependencies = [
        ('outbox', '0005_aggregate_type'),
    ]

    operations = [
        migrations.RemoveIndex(model_name='webhookdelivery', name='idx_webhook_deliveries_due'),
        migrations.AddIndex(
            model_name='webhookdelivery',
            index=eventservice.db.constraints.PollingIndex(
                condition=models.Q(('state', 'Pending')),
                fields=['tenant_id', 'endpoint_id', 'next_attempt_at'],
                full=('tenant_id', 'endpoint_id', 'state', 'next_attempt_at'),
                name='idx_webhook_deliveries_due',
            ),
        ),
    ]
