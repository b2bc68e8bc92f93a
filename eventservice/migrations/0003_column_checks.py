from django.db import migrations

from eventservice.db.dialects import get_dialect


def update_column_checks(apps, schema_editor):
    models = [model for model in apps.get_models() if model._meta.managed and not model._meta.proxy]
    get_dialect(schema_editor.connection).update_column_checks(schema_editor, models)


class Migration(migrations.Migration):

    dependencies = [
        ('admin', '0003_logentry_add_action_flag_choices'),
        ('auth', '0012_alter_user_first_name_max_length'),
        ('django_q', '0018_task_success_index'),
        ('eventservice', '0002_console'),
        ('execution', '0004_row_states'),
        ('orchestration', '0007_row_states'),
        ('outbox', '0003_responses'),
        ('sessions', '0001_initial'),
        ('tenants', '0004_byte_limits'),
        ('timers', '0005_row_states'),
    ]

    operations = [
        # MariaDB and MySQL cannot change tables within a transaction.
        migrations.RunPython(update_column_checks, migrations.RunPython.noop, atomic=False, elidable=True),
    ]
