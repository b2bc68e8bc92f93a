"""Structured logs: one event a line. What is about one tenant carries `tenant_id`; about one request or one event,
`correlation_id` too."""

from typing import Any

import structlog

SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def build_logging_config(level: str, form: str) -> dict[str, Any]:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=False,
            # The other one shows the values of variables, and some are secret.
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    finish = [structlog.processors.format_exc_info] if form == "json" else []
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": SHARED,
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish, renderer],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # django-q tells of each slice that it runs; that is worth a line only to who asks for DEBUG.
            "django-q": {"level": "DEBUG" if level == "DEBUG" else "WARNING"},
            "django.server": {"level": "WARNING"},
        },
    }
