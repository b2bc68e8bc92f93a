"""Replace the plain hashes of requests, which include their secrets, by keyed ones."""

from django.db import migrations, transaction

from orchestration.fingerprints import is_sealed, seal_fingerprint

BATCH = 1000


def seal_fingerprints(apps, schema_editor):
    """Rewrite the rows in batches, each in a transaction of its own. It can be interrupted and repeated."""
    alias = schema_editor.connection.alias
    calls = apps.get_model("orchestration", "ServiceCall")._base_manager.using(alias)
    tenants = apps.get_model("tenants", "Tenant")._base_manager.using(alias)
    for tenant_id in list(tenants.values_list("pk", flat=True)):
        # In the order of the unique index of idempotency keys.
        keyed = calls.filter(tenant_id=tenant_id, idempotency_key__isnull=False).order_by("idempotency_key")
        columns = keyed.values_list("idempotency_key", "request_fingerprint")
        batch = list(columns[:BATCH])
        while batch:
            with transaction.atomic(using=alias):
                for key, stored in batch:
                    if stored is not None and not is_sealed(stored):
                        row = calls.filter(tenant_id=tenant_id, idempotency_key=key)
                        row.update(request_fingerprint=seal_fingerprint(tenant_id, key, stored))
            batch = list(columns.filter(idempotency_key__gt=batch[-1][0])[:BATCH])


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('orchestration', '0005_name_prefixes'),
        ('tenants', '0001_initial'),
    ]

    operations = [migrations.RunPython(seal_fingerprints, migrations.RunPython.noop)]
