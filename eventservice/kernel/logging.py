"""Structured logs: one JSON object or one line of text per event. A line about a tenant carries `tenant_id`; a line about a
request or an event also carries `correlation_id`.

structlog is imported when the first line is logged. The import takes a third as long as starting Django with all apps,
and most commands log nothing.
"""

from __future__ import annotations

import logging
from functools import cache, cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from django.utils.functional import SimpleLazyObject

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


def get_logger(name: str) -> BoundLogger:
    """Return a structlog logger of this name, which is created when it is first used."""
    return cast("BoundLogger", SimpleLazyObject(lambda: load_structlog().get_logger(name)))


def build_logging_config(level: str, log_format: str) -> dict[str, Any]:
    """Return the value of the setting LOGGING. The format is `json` or `console`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"structured": {"()": StructuredFormatter, "log_format": log_format}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # django-q logs every slice that it runs, which is of interest only at the level DEBUG.
            "django-q": {"level": "DEBUG" if level == "DEBUG" else "WARNING"},
            "django.server": {"level": "WARNING"},
            # At the level DEBUG, it logs what it sends, with the payloads of timers.
            "botocore": {"level": "WARNING"},
            # It logs every connection, and with its traceback every error that it also raises.
            "cassandra": {"level": "CRITICAL"},
        },
    }


class StructuredFormatter(logging.Formatter):
    """A formatter for the records of structlog and of the standard library alike."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._log_format = log_format

    def format(self, record: logging.LogRecord) -> str:
        return self._formatter.format(record)

    @cached_property
    def _formatter(self) -> logging.Formatter:
        structlog = load_structlog()
        processors = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
        if self._log_format == "json":
            processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        else:
            # structlog's own traceback shows the values of variables, and some of them are secret.
            plain = structlog.dev.plain_traceback
            processors.append(structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain))
        formatter: logging.Formatter = structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_build_shared_processors(structlog), processors=processors
        )
        return formatter


@cache
def load_structlog() -> ModuleType:
    """Import and configure structlog."""
    import structlog

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_build_shared_processors(structlog),
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return structlog


def _build_shared_processors(structlog: ModuleType) -> list[Any]:
    """Return the processors for records of structlog and of the standard library."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
