"""Django's PostgreSQL backend, with its dialect."""

from django.db.backends.postgresql import base

from eventservice.db.dialects.postgresql.dialect import PostgreSQLDialect


class DatabaseWrapper(base.DatabaseWrapper):
    dialect = PostgreSQLDialect()
