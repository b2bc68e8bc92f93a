from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestration', '0007_row_states'),
    ]

    operations = [
        migrations.AlterField(
            model_name='servicecall',
            name='namespace',
            field=models.CharField(max_length=255),
        ),
    ]
