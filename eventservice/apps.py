from django.apps import AppConfig
from django.contrib.admin import apps as admin


class EventServiceConfig(AppConfig):
    name = "eventservice"
    verbose_name = "Event Service"
    default = True

    def ready(self) -> None:
        from eventservice.db import checks as db_checks  # noqa: F401
        from eventservice.runtime import checks as runtime_checks  # noqa: F401


class ConsoleAdminConfig(admin.AdminConfig):
    """Django's admin app, with a site of our own."""

    default = False
    default_site = "eventservice.adminsite.site.ConsoleSite"
