from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "eventservice.tenants"
    verbose_name = "Tenants"
