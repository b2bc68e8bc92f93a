from django.db import migrations, models


def complete(apps, schema_editor):
    """Give the leases of an older release the moment of their claim, which is the last that is known of them."""
    apps.get_model('timers', 'TimerShard').objects.update(updated_at=models.F('claimed_at'))


class Migration(migrations.Migration):

    dependencies = [
        ('timers', '0007_no_relation_from_calls'),
    ]

    operations = [
        migrations.AddField(
            model_name='timershard',
            name='updated_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.RunPython(complete, migrations.RunPython.noop),
        migrations.CreateModel(
            name='ShardSize',
            fields=[
                ('shard_id', models.PositiveIntegerField(primary_key=True, serialize=False)),
                ('scheduled', models.PositiveBigIntegerField(default=0)),
                ('counted_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'timer_shard_sizes',
            },
        ),
    ]
