from django.apps import AppConfig
from django.core.checks import register


class OutboxConfig(AppConfig):
    name = "outbox"

    def ready(self) -> None:
        from outbox.checks import check_publishers  # models are loaded only now

        register(check_publishers)
