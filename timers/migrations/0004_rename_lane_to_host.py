from django.db import migrations, models

from eventservice.db.constraints import PollingIndex


class Migration(migrations.Migration):
    dependencies = [("timers", "0003_held_back_in_the_index")]

    operations = [
        migrations.SeparateDatabaseAndState(
            # Every database renames the column inside its indexes too. Building the index again would lock or read
            # the whole table for nothing.
            database_operations=[
                migrations.RenameField(model_name="timerschedule", old_name="lane", new_name="host")
            ],
            # RenameField leaves the fields of an index as they are, so the model's state is told what became of it.
            state_operations=[
                migrations.RemoveIndex(model_name="timerschedule", name="idx_timer_schedules_shard"),
                migrations.RenameField(model_name="timerschedule", old_name="lane", new_name="host"),
                migrations.AddIndex(
                    model_name="timerschedule",
                    index=PollingIndex(
                        name="idx_timer_schedules_shard",
                        fields=["shard_id", "due_at", "host", "tenant_id"],
                        condition=models.Q(state="Scheduled"),
                        full=("shard_id", "state", "due_at", "host", "tenant_id"),
                    ),
                ),
            ],
        )
    ]
