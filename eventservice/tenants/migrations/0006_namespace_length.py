import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0005_immutable_shards'),
    ]

    operations = [
        migrations.AlterField(
            model_name='namespace',
            name='name',
            field=models.CharField(max_length=255, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9._-]{0,253}[a-z0-9])?\\Z', "1-255 lower-case letters, digits, '.', '_' or '-', beginning and ending with a letter or digit")]),
        ),
    ]
