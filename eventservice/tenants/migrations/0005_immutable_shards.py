import eventservice.db.constraints
from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0004_byte_limits'),
    ]

    operations = [
        migrations.AddConstraint(
            model_name='namespace',
            constraint=eventservice.db.constraints.ImmutableField(field='num_shards', name='tr_namespaces_num_shards'),
        ),
    ]
