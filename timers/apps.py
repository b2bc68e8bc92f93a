from django.apps import AppConfig
from django.core.checks import register


class TimersConfig(AppConfig):
    name = "timers"

    def ready(self) -> None:
        from timers.checks import check_timer_stores  # models are loaded only now

        register(check_timer_stores)
