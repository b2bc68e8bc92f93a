import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Change the state only: a call has no relation back to its timer."""

    dependencies = [("timers", "0006_node_version")]

    operations = [
        migrations.AlterField(
            model_name="timerschedule",
            name="service_call",
            field=models.ForeignObject(
                from_fields=("tenant_id", "service_call_id"),
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="+",
                to="orchestration.servicecall",
                to_fields=("tenant_id", "service_call_id"),
            ),
        ),
    ]
