"""The supported databases, a package each. Code outside never asks which one it runs on.

A package is a Django database backend (`base.py`) that carries its dialect, and says how DATABASE_URL names it
(`configuration.py`). To add a database: write its package, and add it to `eventservice.db.configuration.DATABASES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from eventservice.db.dialects.base import Dialect


def get_dialect(connection: BaseDatabaseWrapper | None = None) -> Dialect:
    """Return the dialect of this connection's database, or of the default one's.

    Raise ImproperlyConfigured for a backend that has none.
    """
    on: Any = connection
    if on is None:
        # Settings import this package, and must not import what needs settings.
        from django.db import connection as on
    try:
        dialect: Dialect = on.dialect
    except AttributeError:
        raise _unsupported(str(on.settings_dict["ENGINE"])) from None
    return dialect


def _unsupported(engine: str) -> ImproperlyConfigured:
    from eventservice.db.configuration import DATABASES

    supported = ", ".join(database.engine for database in DATABASES)
    return ImproperlyConfigured(
        f"The database backend {engine!r} is not supported: expected one of {supported}."
    )
