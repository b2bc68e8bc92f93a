from django.apps import AppConfig


class EventServiceConfig(AppConfig):
    name = "eventservice"
    verbose_name = "Event Service"

    def ready(self) -> None:
        from eventservice.kernel import checks  # noqa: F401
