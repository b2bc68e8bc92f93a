from django.db import migrations, models


def complete(apps, schema_editor):
    """Give the leases of an older release the moment of their claim, which is the last that is known of them."""
    apps.get_model('outbox', 'OutboxPartition').objects.update(updated_at=models.F('claimed_at'))


class Migration(migrations.Migration):

    dependencies = [
        ('outbox', '0003_responses'),
    ]

    operations = [
        migrations.AddField(
            model_name='outboxpartition',
            name='updated_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.RunPython(complete, migrations.RunPython.noop),
    ]
