"""The name of the database that the tests run on. Only tests ask; the product's differences are in `eventservice.db.dialects`."""

from __future__ import annotations

from django.db import connection


def get_database_name() -> str:
    """Return `sqlite`, `postgresql`, `mariadb` or `mysql`: the package of its dialect."""
    return str(connection.settings_dict["ENGINE"]).rpartition(".")[2]
